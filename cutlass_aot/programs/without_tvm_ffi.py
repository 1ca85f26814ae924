"""Programs that compile without TVM-FFI: their kernels are kept with it, and called as if without.

Only the DSL can load functions that were compiled without TVM-FFI. The option decides how arguments get from
Python to the kernel's launch, and changes no GPU code. So such a request is compiled with TVM-FFI, and its
function is wrapped to take the DSL's tensors, as without.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
import sys
import threading
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.values.description import Passed
from cutlass_aot.programs.describe.values.dsl import adapters_of
from cutlass_aot.programs.describe.values.objects import is_adapted, passed_field
from cutlass_aot.programs.start.export import NotExported
from cutlass_aot.runtime.launching.dlpack import ManagedTensor, capsule_of, tensor_in
from cutlass_aot.schema.requests.request import Request

OPTION = "enable-tvm-ffi"
"""The DSL's option; a request has it only if it is off."""
_CPU = 1
"""``kDLCPU`` of DLPack's header."""
_NUMBERS = (bool, int, float, type(None))
_AS_THEY_ARE = frozenset({*_NUMBERS, str})
_COMPILED_IN = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
"""Of a dataclass's fields, or for an argument that is a class: TVM-FFI is passed None instead."""


def is_without(request: Request) -> bool:
    """Whether a request asks for a function without TVM-FFI."""
    return request.options.get(OPTION) is False


@contextmanager
def compiling_with(request: Request, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Iterator[None]:
    """Within the block: this thread compiles with TVM-FFI even if the request is without.

    ``arguments`` and ``keywords`` are those of the call that made the request.
    """
    if not is_without(request):
        yield
        return
    options = sys.modules["cutlass.base_dsl.compiler"].CompileOptions
    converter: Any = importlib.import_module("cutlass.cute._tvm_ffi_args_spec_converter")
    original, thread = options.enable_tvm_ffi, threading.get_ident()
    convert = converter._convert_single_arg

    def converted(argument: Any, name: str, annotation: Any, *others: Any, **named: Any) -> Any:
        if named.get("is_constexpr") and not isinstance(argument, _NUMBERS):
            return convert(None, name, annotation, *others)  # It is compiled in.
        kind = type(argument)
        if _fields(argument) is not None:
            # By its own class: the annotation may be a base class, and have fewer fields.
            fields = [
                converted(
                    getattr(argument, field.name),
                    f"{name}.{field.name}",
                    field.type,
                    *others,
                    is_constexpr=passed_field(kind, field) is Passed.CONSTANT,
                )
                for field in dataclasses.fields(argument)
            ]
            return converter.spec.TupleParam(name, fields)
        # With TVM-FFI, a bare typing.Tuple is read as a tuple of no elements; without, it is not read.
        bare = annotation is typing.Tuple  # noqa: UP006
        return convert(_as_passed(argument), name, tuple if bare else annotation, *others, **named)

    given = filter(_is_tensor, _leaves([*arguments, *keywords.values()]))
    # Once each: a program may pass one tensor for several arguments.
    tensors = {id(item): item for item in given if not _is_known_to_tvm_ffi(item)}
    for tensor in tensors.values():
        # It decides how a passed tensor is checked, such as a recast one by its own dtype.
        tensor._tvm_ffi_tensor = _tvm_ffi_tensor(tensor)
    options.enable_tvm_ffi = property(lambda own: threading.get_ident() == thread or original.fget(own))
    converter._convert_single_arg = converted
    try:
        yield
    finally:
        options.enable_tvm_ffi = original
        converter._convert_single_arg = convert
        for tensor in tensors.values():
            del tensor._tvm_ffi_tensor


def as_requested(request: Request, function: Callable[..., Any]) -> Callable[..., Any]:
    """A prebuilt function, wrapped if the request is without TVM-FFI."""
    return WithoutTvmFfi(function) if is_without(request) else function


class WithoutTvmFfi(NotExported):
    """A function with TVM-FFI that takes the arguments of one without, such as the DSL's tensors."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Launch the kernel."""
        return self._function(
            *map(_passed, arguments), **{name: _passed(value) for name, value in keywords.items()}
        )

    def __repr__(self) -> str:
        return f"<{self._function!r}, called without TVM-FFI>"


def are_on_the_cpu(arguments: Iterable[Any]) -> bool:
    """Whether there are tensors among arguments, all on the CPU, and only numbers, text and classes beside.

    Anything else, such as a pointer or a stream, may belong to a GPU.
    """
    number = sys.modules["cutlass.base_dsl.typing"].Numeric
    devices = set()
    for value in _leaves(arguments):
        if _is_tensor(value):
            devices.add(tensor_in(value._dlpack_data).device_type)
        elif hasattr(type(value), "__dlpack_device__"):
            devices.add(value.__dlpack_device__()[0])
        elif not isinstance(value, (int, float, str, type(None), type, number)):
            return False
    return devices == {_CPU}


def _passed(value: Any) -> Any:
    """An argument as TVM-FFI takes it."""
    if type(value) in _AS_THEY_ARE:
        return value
    if _is_tensor(value):
        return value if _is_known_to_tvm_ffi(value) else _tvm_ffi_tensor(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(_passed, value))
    if isinstance(value, sys.modules["cutlass.base_dsl.typing"].Numeric):
        return value.value
    if isinstance(value, _COMPILED_IN):
        return None
    if isinstance(value, sys.modules["cutlass.cute.typing"].Pointer) and not hasattr(
        value, "__tvm_ffi_opaque_ptr__"
    ):
        # A program's own class of pointers, which gives the DSL the place where the address is stored.
        return ctypes.c_void_p.from_address(value.__c_pointers__()[0])
    fields = _fields(value)
    # A text in a dataclass is compiled in.
    return value if fields is None else tuple(None if type(x) is str else _passed(x) for x in fields)


def check_passed(values: Iterable[Any]) -> None:
    """Refuse arguments that the DSL does not pass as they are, or field by field.

    What takes itself apart (the DSL's protocol ``JitArgument``), or is made something else by an adapter that
    a program registered, may pass any values in any order, which only the DSL can ask for at a call.

    Raises:
        RequestError: if there is one among ``values``, which are passed at each call.
    """
    pointer = sys.modules["cutlass.cute.typing"].Pointer
    for value in _leaves(values):
        kind = type(value)
        if kind.__module__.partition(".")[0] == "cutlass" or isinstance(value, (type, pointer)):
            continue
        does_itself = hasattr(kind, "__new_from_mlir_values__")
        if does_itself or (dataclasses.is_dataclass(kind) and any(adapters_of(kind))):
            how = "implements the DSL's JitArgument" if does_itself else "has an argument adapter"
            raise RequestError(
                f"{kind.__qualname__} {how}, so that only the DSL knows what is passed of it: "
                "compile with TVM-FFI (--enable-tvm-ffi)"
            )


def _fields(value: Any) -> list[Any] | None:
    """The fields of a dataclass that the DSL takes apart; None for other values."""
    if isinstance(value, type) or not is_adapted(value, Passed.DYNAMIC) or any(adapters_of(type(value))):
        return None
    return [getattr(value, field.name) for field in dataclasses.fields(value)]


def _as_passed(value: Any) -> Any:
    """An argument as TVM-FFI knows it.

    A framework's own tensor is the DSL's, as the DSL makes it without TVM-FFI. A class, compiled in, is None.
    """
    if isinstance(value, type):
        return None
    adapter = sys.modules["cutlass.cute"].runtime.TensorAdapter
    registry = sys.modules["cutlass.base_dsl.runtime.jit_arg_adapters"].JitArgAdapterRegistry
    if registry.get_registered_adapter(value) is not adapter:
        return value
    tensor = adapter(value)._arg
    tensor._tvm_ffi_tensor = _tvm_ffi_tensor(tensor)
    return tensor


def _is_tensor(value: Any) -> bool:
    # Not isinstance: its __class__ is another class.
    return type(value) is sys.modules["cutlass.cute.runtime"]._Tensor


def _is_known_to_tvm_ffi(tensor: Any) -> bool:
    return "_tvm_ffi_tensor" in vars(tensor)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """Values, those of nested tuples, lists and dataclasses in their places."""
    for value in values:
        items = value if isinstance(value, (tuple, list)) else _fields(value)
        if items is None:
            yield value
        else:
            yield from _leaves(items)


class _View:
    """Gives a DLPack capsule of a tensor's memory."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor
        self._managed = ManagedTensor.from_buffer_copy(tensor_in(tensor._dlpack_data))
        self._managed.manager_ctx = self._managed.deleter = None

    def __dlpack__(self, **options: Any) -> Any:
        return capsule_of(self._managed)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self._managed.device_type, self._managed.device_id)


def _tvm_ffi_tensor(tensor: Any) -> Any:
    kept = vars(tensor).get("_cutlass_aot_tvm_ffi")
    if kept is None:
        import tvm_ffi

        # TVM-FFI reads the view's description in place, even while its tensor is deallocated. So the view
        # must live longer: it is the first of the tuple, whose items are released from the last.
        view = _View(tensor)
        kept = tensor._cutlass_aot_tvm_ffi = view, tvm_ffi.from_dlpack(view)
    return kept[1]

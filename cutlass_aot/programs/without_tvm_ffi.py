"""Programs that compile without TVM-FFI: their kernels are kept with it, and called as if without.

Only the DSL can load functions that were compiled without TVM-FFI. The option decides how arguments get from
Python to the kernel's launch, and changes no GPU code. So such a request is compiled with TVM-FFI, and its
function is wrapped to take the DSL's tensors, as without.
"""

from __future__ import annotations

import ctypes
import dataclasses
import importlib
import sys
import threading
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.values.objects import own_fields
from cutlass_aot.runtime.launching.dlpack import ManagedTensor, capsule_of, tensor_in
from cutlass_aot.schema.requests.request import Request

OPTION = "enable-tvm-ffi"
"""The DSL's option; a request has it only if it is off."""
_CPU = 1
"""``kDLCPU`` of DLPack's header."""


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
        parts = parts_of(argument)
        if parts is not None:
            _check_parts(name, argument, parts)
            # By the fields' annotations, and not by the parameter's, which may be a base class.
            annotation = types.GenericAlias(tuple, tuple(part.annotation for part in parts))
            return convert(tuple(part.value for part in parts), name, annotation, *others)
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


class WithoutTvmFfi:
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
    """Whether arguments are tensors on the CPU and numbers, and there is a tensor among them.

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
    if _is_tensor(value):
        return value if _is_known_to_tvm_ffi(value) else _tvm_ffi_tensor(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(_passed, value))
    if isinstance(value, type):
        return None  # It is compiled in.
    parts = parts_of(value)
    if parts is not None:
        return tuple(_passed(part.value) for part in parts)
    if isinstance(value, sys.modules["cutlass.base_dsl.typing"].Numeric):
        return value.value
    if isinstance(value, sys.modules["cutlass.cute.typing"].Pointer) and not hasattr(
        value, "__tvm_ffi_opaque_ptr__"
    ):
        # A program's own class of pointers, which gives the DSL the place where the address is stored.
        return ctypes.c_void_p.from_address(value.__c_pointers__()[0])
    return value


class Part(NamedTuple):
    """A field of an object, which is passed at each call."""

    annotation: Any
    value: Any


def parts_of(value: Any) -> list[Part] | None:
    """The fields of an object that are passed, in their order, if the DSL takes it apart; else None.

    The DSL takes dataclasses apart, and objects that do so themselves (its protocol ``JitArgument``), of
    which Python's own numbers are compiled in.
    """
    kind = type(value)
    does_itself = all(hasattr(kind, name) for name in ("__c_pointers__", "__new_from_mlir_values__"))
    if isinstance(value, type) or kind.__module__.partition(".")[0] == "cutlass" or _is_tensor(value):
        return None
    if dataclasses.is_dataclass(value):
        annotations = {field.name: field.type for field in dataclasses.fields(value)}
        fields = {name: getattr(value, name) for name in annotations}
    elif does_itself and not isinstance(value, sys.modules["cutlass.cute.typing"].Pointer):
        fields, annotations = own_fields(value), {}
    else:
        return None
    constexpr = sys.modules["cutlass"].Constexpr
    return [
        Part(None if does_itself or isinstance(annotation, str) else annotation, item)
        for name, item in fields.items()
        for annotation in [annotations.get(name)]
        if typing.get_origin(annotation) is not constexpr and annotation is not constexpr
        if _is_passed(item, numbers=not does_itself)
    ]


def _is_passed(value: Any, *, numbers: bool) -> bool:
    if isinstance(value, (tuple, list)):
        return any(_is_passed(item, numbers=numbers) for item in value)
    known = (sys.modules["cutlass.base_dsl.typing"].Numeric, sys.modules["cutlass.cute.typing"].Pointer)
    return (
        (numbers and isinstance(value, (int, float)))
        or _is_tensor(value)
        or isinstance(value, known)
        or type(value).__name__ == "CUstream"
        or hasattr(type(value), "__dlpack__")
        or parts_of(value) is not None
    )


def _check_parts(name: str, value: Any, parts: Sequence[Part]) -> None:
    """Check that the DSL passes an object's fields, in their order, and not what an adapter makes of it."""
    registry = sys.modules["cutlass.base_dsl.runtime.jit_arg_adapters"].JitArgAdapterRegistry
    adapter = registry.get_registered_adapter(value)
    if adapter is not None and adapter.__module__.partition(".")[0] != "cutlass":
        raise RequestError(
            f"argument {name!r}: a {type(value).__qualname__} is passed as the program's adapter makes it, "
            "which a bundle does not know: compile with TVM-FFI (--enable-tvm-ffi)"
        )
    get_types = sys.modules["cutlass.base_dsl.typing"].get_mlir_types
    if hasattr(value, "__get_mlir_types__") and (
        [str(kind) for kind in get_types(value)]
        != [str(kind) for part in parts for kind in get_types(_as_passed(part.value))]
    ):
        raise RequestError(
            f"argument {name!r}: a {type(value).__qualname__} passes other values than its fields in order"
        )


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
    """Values, those of nested tuples, lists and objects that are taken apart in their places."""
    for value in values:
        parts = parts_of(value)
        if parts is not None:
            yield from _leaves(part.value for part in parts)
        elif isinstance(value, (tuple, list)):
            yield from _leaves(value)
        else:
            yield value


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

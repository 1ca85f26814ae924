"""Programs that compile without TVM-FFI: their kernels are kept with it, and called as if they were not.

What is compiled without TVM-FFI can be loaded by the DSL alone. The option decides how arguments get from
Python to the kernel's launch, and nothing of the GPU's code. So a request that asks for none is compiled
with it, and what is answered takes the DSL's tensors as the function does that the DSL would have compiled.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from cutlass_aot.runtime.launching.dlpack import ManagedTensor, capsule_of, tensor_in
from cutlass_aot.schema.requests.request import Request

OPTION = "enable-tvm-ffi"
"""The option of the DSL; a request has it where it is off."""


def is_without(request: Request) -> bool:
    """Whether a request asks for a function without TVM-FFI."""
    return request.options.get(OPTION) is False


@contextmanager
def compiling_with(request: Request, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Iterator[None]:
    """Within the block: have this thread compile with TVM-FFI what a request asks for without.

    Args:
        request: what is compiled. One that asks for TVM-FFI itself is left alone.
        arguments: of the call that made it.
        keywords: likewise.
    """
    if not is_without(request):
        yield
        return
    options = sys.modules["cutlass.base_dsl.compiler"].CompileOptions
    converter: Any = importlib.import_module("cutlass.cute._tvm_ffi_args_spec_converter")
    original, thread = options.enable_tvm_ffi, threading.get_ident()
    convert = converter._convert_single_arg

    def converted(argument: Any, name: str, annotation: Any, *others: Any, **named: Any) -> Any:
        # Without TVM-FFI nobody looks at it. With it, typing.Tuple alone is taken for a tuple of no elements.
        bare = annotation is typing.Tuple  # noqa: UP006
        return convert(argument, name, tuple if bare else annotation, *others, **named)

    tensors = [item for item in _tensors([*arguments, *keywords.values()]) if not _is_known_to_tvm_ffi(item)]
    for tensor in tensors:
        # It decides how a tensor is checked when it is passed, such as a recast one by its own dtype.
        tensor._tvm_ffi_tensor = _tvm_ffi_tensor(tensor)
    options.enable_tvm_ffi = property(lambda own: threading.get_ident() == thread or original.fget(own))
    converter._convert_single_arg = converted
    try:
        yield
    finally:
        options.enable_tvm_ffi = original
        converter._convert_single_arg = convert
        for tensor in tensors:
            del tensor._tvm_ffi_tensor


def as_requested(request: Request, function: Callable[..., Any]) -> Callable[..., Any]:
    """A prebuilt function as the request's program calls it."""
    return WithoutTvmFfi(function) if is_without(request) else function


class WithoutTvmFfi:
    """A function with TVM-FFI, called with what one takes that the DSL compiles without: its own tensors."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Launch it."""
        return self._function(
            *map(_passed, arguments), **{name: _passed(value) for name, value in keywords.items()}
        )

    def __repr__(self) -> str:
        return f"<{self._function!r}, called without TVM-FFI>"


def _passed(value: Any) -> Any:
    """An argument as TVM-FFI takes it."""
    if _is_tensor(value):
        return value if _is_known_to_tvm_ffi(value) else _tvm_ffi_tensor(value)
    if isinstance(value, (tuple, list)):
        return tuple(map(_passed, value))
    if isinstance(value, sys.modules["cutlass.base_dsl.typing"].Numeric):
        return value.value
    if isinstance(value, sys.modules["cutlass.cute.typing"].Pointer) and not hasattr(
        value, "__tvm_ffi_opaque_ptr__"
    ):
        # A program's own class of pointers. What the DSL would be given is where the address stands.
        return ctypes.c_void_p.from_address(value.__c_pointers__()[0])
    return value


def _is_tensor(value: Any) -> bool:
    # Not isinstance: it pretends to be of another class.
    return type(value) is sys.modules["cutlass.cute.runtime"]._Tensor


def _is_known_to_tvm_ffi(tensor: Any) -> bool:
    return "_tvm_ffi_tensor" in vars(tensor)


def _tensors(values: Iterable[Any]) -> Iterator[Any]:
    """Tensors of a framework among values, and in their tuples and lists."""
    for value in values:
        if _is_tensor(value):
            yield value
        elif type(value) in (tuple, list):
            yield from _tensors(value)


class _View:
    """What gives a capsule of a tensor's own memory."""

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

        # TVM-FFI reads the view's description where it is, also as its own tensor ends: which is the last of
        # the tuple, and so ends first.
        view = _View(tensor)
        kept = tensor._cutlass_aot_tvm_ffi = view, tvm_ffi.from_dlpack(view)
    return kept[1]

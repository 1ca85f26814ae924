"""Native functions of a bundle's launcher as Python objects (``builder/native/python.c``).

They are called without a frame of Python, and without tvm_ffi's Python package, between the caller and native
code. A Python that they do not support gets functions of that package.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, Generic, TypeVar, overload

from cutlass_aot.runtime.launching.library import Library
from cutlass_aot.runtime.launching.tensors import tensor_class, to_ffi

_T = TypeVar("_T")
_FUNCTION = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, *(ctypes.py_object,) * 3)
_ASSIGN = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.py_object)


def function(launcher: Library, symbol: str) -> Any:
    """A function that the launcher exports. It takes tensors, numbers, None, bytes and functions.

    Of tensors it takes torch's and ``tvm_ffi.Tensor``, and runs on torch's current stream if there is one of
    torch's.
    """
    if not _supported():
        return launcher.function(symbol)
    return _make(launcher, launcher.address(symbol), None, None)


def with_fallback(
    launcher: Library,
    fallback: Callable[..., None],
    failed: Callable[[BaseException, tuple[Any, ...]], None],
) -> Any:
    """An object that is called like ``fallback``; see :func:`assign`.

    ``failed`` is called with an error of native code and the arguments, and raises what the caller is to see.
    If native code does not support this Python, ``fallback`` itself is returned.
    """
    return _make(launcher, None, fallback, failed) if _supported() else fallback


def assign(launcher: Library, made: Any, function: Any) -> None:
    """Have a result of :func:`with_fallback` call a native function wherever that can take the arguments.

    It can where all are torch tensors, floats or None, no argument is given by name, and autograd need not
    follow any. Where the function returns False, the fallback is called.
    """
    if _supported():
        _ASSIGN(launcher.raw_address("cutlass_aot_python_assign"))(made, function)


def call_on(function: Any, tensors: Sequence[Any], device: int, stream: int | None) -> Any:
    """Call a native function on a stream of a CUDA device; for None, on the one in tvm_ffi's environment.

    Args:
        function: one of :func:`function`'s results, or a ``tvm_ffi.Function``.
        tensors: torch's or tvm_ffi's.
        device: the CUDA ordinal.
        stream: a ``cudaStream_t`` as a number.
    """
    if stream is None:
        return function(*tensors)
    # By its name: each launcher has a class of its own.
    if type(function).__name__ == "NativeFunction":
        return function(*tensors, stream=stream)
    import tvm_ffi

    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", device), stream):
        # Torch's too: passed directly, they would set torch's current stream instead.
        return function(*map(to_ffi, tensors))


class DispatchCache:
    """Launches kernels for operands like some seen before (``builder/native/dispatch_cache.c``).

    Attributes:
        launch: the native function. It launches what is remembered for operands like these, or else what a
            selection launches; it returns None, or False if nothing was launched. By other arguments it does
            what the methods say.
    """

    __slots__ = ("launch",)

    def __init__(self, launcher: Library, alignment: int) -> None:
        """Addresses are alike if they are equal modulo ``alignment`` bytes."""
        self.launch = function(launcher, "cutlass_aot_dispatch_cache")(alignment)

    def remember(self, operands: Iterable[Any], launch: Any) -> int:
        """Have operands like these launched by a native function; returns how many are remembered."""
        count: int = self.launch(*operands, launch)
        return count

    def add_selection(self, select: Any) -> None:
        """Have other operands launched by what a native function chooses."""
        self.launch(select)


class NativeAttribute(Generic[_T]):
    """Makes a native function at the first use of an attribute, and replaces itself by it on the instance.

    This is ``functools.cached_property`` without the lock which that holds before Python 3.12, one for all
    instances: a child forked while it is held would wait for it for ever.
    """

    def __init__(self, make: Callable[[Any], _T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> NativeAttribute[_T]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> _T: ...

    def __get__(self, instance: Any, owner: type) -> NativeAttribute[_T] | _T:
        if instance is None:
            return self
        made: _T = instance.__dict__.setdefault(self._make.__name__, self._make(instance))
        return made


def _supported() -> bool:
    """Whether native code knows this Python's objects, and finds its functions.

    It knows those of CPython with its global lock. It does not find the functions where a program loaded
    Python for itself alone.
    """
    return sys.implementation.name == "cpython" and "t" not in sys.abiflags and _is_found()


@cache
def _is_found() -> bool:
    return hasattr(ctypes.CDLL(None), "PyObject_Call")


def _make(launcher: Library, address: int | None, fallback: Any, failed: Any) -> Any:
    make = _FUNCTION(launcher.raw_address("cutlass_aot_python_function"))
    return make(address, tensor_class, fallback, failed)

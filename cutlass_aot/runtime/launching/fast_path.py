"""The fast path of a launch: a callable object implemented in native code, without a Python frame.

A call through a Python method costs a tenth of a launch; through this object, which the bundle's launcher
implements (``builder/native/fast_path.c``), next to nothing.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from cutlass_aot.runtime.launching.library import Library


def make(
    launcher: Library,
    slow_path: Callable[..., None],
    failed: Callable[[BaseException, tuple[Any, ...]], None],
) -> Any:
    """Make an object that is called like ``slow_path``, and calls it until :func:`open_way`.

    ``failed`` is called with an error of native code and the arguments, and raises what the caller is to see.
    If native code does not support this Python, ``slow_path`` itself is returned.
    """
    if not _supported():
        return slow_path
    made = _function(launcher, "cutlass_aot_fast_path", ctypes.py_object, 2)
    return made(slow_path, failed)


def open_way(launcher: Library, way: Any, function: Any, tensor: type, recording: Callable[[], bool]) -> None:
    """Let further calls on nothing but tensors of exactly this class go to ``function``; once only.

    Args:
        launcher: the bundle's.
        way: result of :func:`make`.
        function: a ``tvm_ffi.Function``.
        tensor: class whose instances native code takes with their framework's stream.
        recording: whether the framework records gradients.
    """
    if _supported():
        _function(launcher, "cutlass_aot_open_fast_path", ctypes.c_int, 4)(way, function, tensor, recording)


def _supported() -> bool:
    """Whether objects have the layout of the stable ABI: CPython with its global lock."""
    return sys.implementation.name == "cpython" and "t" not in sys.abiflags


def _function(launcher: Library, name: str, result: Any, count: int) -> Any:
    prototype = ctypes.PYFUNCTYPE(result, *[ctypes.py_object] * count)
    return prototype(launcher.raw_address(name))

"""The fast path of a launch: an object in place of a method, without a frame of Python before native code.

A call through a method of Python costs a tenth of a launch; through this object, implemented in the bundle's
launcher (``builder/native/fast_path.c``), next to nothing.
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
    """An object that is called like ``slow_path``, and calls that until :func:`open_way`.

    Args:
        launcher: the bundle's.
        slow_path: takes every call that the fast path does not serve.
        failed: called with what native code raised and the arguments; raises what the caller is to see.

    Returns:
        The object; ``slow_path`` itself where this Python is not one that native code knows.
    """
    if not _supported():
        return slow_path
    made = _function(launcher, "cutlass_aot_fast_path", ctypes.py_object, 2)
    return made(slow_path, failed)


def open_way(launcher: Library, way: Any, function: Any, tensor: type, recording: Callable[[], bool]) -> None:
    """From now on, have calls on nothing but tensors of exactly this class go to ``function``.

    A second time does nothing.

    Args:
        launcher: the bundle's.
        way: of :func:`make`.
        function: a ``tvm_ffi.Function``.
        tensor: class whose instances native code takes with their framework's stream.
        recording: whether the framework records gradients.
    """
    if _supported():
        _function(launcher, "cutlass_aot_open_fast_path", ctypes.c_int, 4)(way, function, tensor, recording)


def _supported() -> bool:
    """Whether objects are laid out as the stable ABI says: CPython with its global lock."""
    return sys.implementation.name == "cpython" and "t" not in sys.abiflags


def _function(launcher: Library, name: str, result: Any, count: int) -> Any:
    prototype = ctypes.PYFUNCTYPE(result, *[ctypes.py_object] * count)
    return prototype(launcher.raw_address(name))

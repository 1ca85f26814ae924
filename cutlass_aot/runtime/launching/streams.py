"""Which CUDA stream a launch goes to: the one the caller names, or the operands' framework's current one."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any

from cutlass_aot.errors import OperandError
from cutlass_aot.runtime.launching.tensors import View, is_cupy, is_torch


def stream_handle(stream: Any, device: int) -> int:
    """The ``cudaStream_t`` of a stream, as a number.

    Args:
        stream: a torch or CuPy stream, an object with ``__cuda_stream__`` (cuda.core), a
            ``cuda.bindings`` ``CUstream``, or a handle as a number or ``ctypes.c_void_p``.
        device: CUDA device ordinal of the operands.

    Raises:
        OperandError: for anything else, or a torch stream of another device.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    if isinstance(stream, ctypes.c_void_p):
        return stream.value or 0
    of_device = getattr(stream, "device_index", None)
    if isinstance(of_device, int) and of_device != device:
        raise OperandError(
            f"the stream belongs to CUDA device {of_device}, the operands are on device {device}: "
            "pass a stream of that device"
        )
    if hasattr(stream, "cuda_stream"):
        return int(stream.cuda_stream)
    if hasattr(stream, "__cuda_stream__"):
        protocol = stream.__cuda_stream__
        # A method in cuda.core and torch; early producers had a plain tuple.
        _, handle = protocol() if callable(protocol) else protocol
        return int(handle)
    if hasattr(stream, "ptr"):
        return int(stream.ptr)
    if type(stream).__module__.startswith("cuda."):
        return int(stream)
    raise OperandError(
        f"expected a CUDA stream (torch, CuPy, cuda.core, cuda.bindings or a handle), got "
        f"{type(stream).__module__}.{type(stream).__qualname__}"
    )


def current_stream(operands: Sequence[Any], device: int) -> int | None:
    """Handle of the current stream of the operands' framework; None if they have no such thing."""
    operands = [operand.tensor if isinstance(operand, View) else operand for operand in operands]
    if any(is_torch(operand) for operand in operands):
        return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
    if any(is_cupy(operand) for operand in operands):
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return None

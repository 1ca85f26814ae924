"""Call native launch code: choose its stream and workspace, and translate its errors."""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Sequence
from typing import Any

from cutlass_aot.errors import CutlassAotError, DeviceError, LaunchError, OperandError
from cutlass_aot.runtime.launching.native import call_on
from cutlass_aot.runtime.launching.tensors import View, describe_operand, exported, is_cupy, is_torch, to_ffi


def stream_handle(stream: Any, device: int) -> int:
    """The ``cudaStream_t`` of a stream, as a number.

    ``stream`` is a torch or CuPy stream, an object with ``__cuda_stream__`` (cuda.core), a ``cuda.bindings``
    ``CUstream``, or a handle as a number or ``ctypes.c_void_p``.
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
        # A method in cuda.core and torch, a plain tuple in early producers.
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
    """Handle of the current stream of the operands' framework; None if the framework has none."""
    operands = [operand.tensor if isinstance(operand, View) else operand for operand in operands]
    if any(is_torch(operand) for operand in operands):
        return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
    if any(is_cupy(operand) for operand in operands):
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return None


WORKSPACE_ALIGNMENT = 128
"""Alignment in bytes that compiled code may expect of a workspace."""

# Compiled when an error occurs: a first launch is waited for.
_CUDA_ERROR = (
    r"cudaError[A-Z]\w*|CUDA_ERROR_\w+|CUDA (launch )?error|CUDA driver version|no CUDA-capable device|"
    r"NVIDIA driver"
)
_ARGUMENT = r"argument #(\d+)"


def call(function: Any, arguments: Sequence[Any], device: int, stream: Any = None) -> Any:
    """Call a native function on tensors of any kind: on a stream, or on the current one of their framework.

    What the function raises is passed on, not translated.
    """
    if stream is None and all(map(exported, arguments)):
        # Native code reads torch's current stream and sets it for the call.
        return function(*arguments)
    used = handle = current_stream(arguments, device) if stream is None else stream_handle(stream, device)
    if used is None:
        import tvm_ffi

        used = int(tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", device)))
    tensors = [argument if exported(argument) else to_ffi(argument, used) for argument in arguments]
    return call_on(function, tensors, device, handle)


def requires_gradient(operands: Sequence[Any]) -> bool:
    """Whether autograd would have to record a call on the operands."""
    # A loop, as this runs at each launch: any() with a generator takes three times as long.
    for operand in operands:  # noqa: SIM110
        if getattr(operand, "requires_grad", False) is True:
            return True
    return False


def without_gradients(names: Sequence[str], operands: Sequence[Any]) -> Sequence[Any]:
    """The operands, detached where needed; refused, as by ``out=``, if autograd would have to record it."""
    if not requires_gradient(operands):
        return operands
    if sys.modules["torch"].is_grad_enabled():
        name = next(
            name for name, operand in zip(names, operands, strict=False) if requires_gradient([operand])
        )
        raise OperandError(
            f"operand `{name}` requires a gradient, which a launch cannot give: pass {name}.detach(), call "
            "under torch.no_grad(), or use cutlass_aot.torch, whose operators have gradients"
        )
    return [
        operand.detach() if is_torch(operand) or isinstance(operand, View) else operand
        for operand in operands
    ]


def workspace_for(
    size: int, kernel_name: str, operands: Sequence[Any], device: int, given: Any, stream: Any
) -> Any:
    """The caller's workspace after a check, or one from torch's allocator for its current stream.

    A workspace has to be ``given`` if the caller names a stream: torch could reuse what it allocates on its
    current stream while the other stream still used it.
    """
    if given is None:
        tensors = [operand.tensor if isinstance(operand, View) else operand for operand in operands]
        tensors = [tensor for tensor in tensors if not isinstance(tensor, (int, float))]
        if stream is not None or not all(map(is_torch, tensors)):
            raise OperandError(
                f"kernel {kernel_name} needs a workspace of {size} bytes: pass it "
                "(it is allocated for you for torch tensors on torch's current stream alone)"
            )
        torch = sys.modules["torch"]
        return torch.empty(size, dtype=torch.uint8, device=tensors[0].device)
    found = describe_operand(given)
    if (
        found.dtype != "u8"
        or len(found.shape) != 1
        or found.strides != (1,)
        or found.shape[0] < size
        or found.device != device
        or found.address % WORKSPACE_ALIGNMENT
    ):
        raise OperandError(
            f"the workspace is unsupported: expected {size} or more bytes as a "
            f"contiguous u8 tensor on CUDA device {device}, aligned to {WORKSPACE_ALIGNMENT} bytes, "
            f"got {found.dtype} {found.shape} on device {found.device}"
        )
    return given


def translated(error: Exception, kernel_name: str, names: Sequence[str]) -> CutlassAotError:
    """Translate an error of native code; ``names`` are the caller's names of the operands, in order."""
    if isinstance(error, CutlassAotError):
        return error
    text = str(error).strip() or type(error).__name__
    if re.search(_CUDA_ERROR, text):
        return DeviceError(
            f"kernel {kernel_name} could not be launched: {text}; "
            "cutlass-aot doctor shows the GPU and the driver"
        )

    def named(match: re.Match[str]) -> str:
        position = int(match.group(1))
        return f"operand `{names[position]}`" if position < len(names) else match.group()

    return LaunchError(
        f"kernel {kernel_name} refused the call with operands {', '.join(names)}: "
        f"{re.sub(_ARGUMENT, named, text)}"
    )

"""Launch a kernel: operands into the form it takes, the stream it goes to, errors into ours."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cutlass_aot.errors import CutlassAotError, DeviceError, LaunchError, OperandError
from cutlass_aot.runtime.operands import (
    Form,
    describe_operand,
    exports,
    is_torch,
    kernel_form,
    reshape,
    to_ffi,
)
from cutlass_aot.runtime.streams import current_stream, stream_handle
from cutlass_aot.schema.kernel import Kernel
from cutlass_aot.schema.operands import OperandDescription

WORKSPACE_ALIGNMENT = 128
"""Bytes; the alignment that compiled code may expect of a workspace."""

_CUDA_ERROR = re.compile(
    r"cudaError[A-Z]\w*|CUDA_ERROR_\w+|CUDA (launch )?error|CUDA driver version|no CUDA-capable device"
)
_ARGUMENT = re.compile(r"argument #(\d+)")


@dataclass(frozen=True, slots=True)
class Plan:
    """What stays the same from launch to launch of a kernel on like operands.

    Attributes:
        function: the kernel's ``tvm_ffi.Function``.
        kernel_name: for messages.
        names: the caller's names of the operands, for messages.
        dtypes: element types of the operands.
        forms: shape and strides to give the kernel, None for an operand that passes as it is.
        device: CUDA device ordinal.
        native: whether compiled code can take the operands as they are, and torch's current stream with them.
        workspace_bytes: what the kernel needs beside its operands.
    """

    function: Any
    kernel_name: str
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    forms: tuple[Form | None, ...]
    device: int
    native: bool
    workspace_bytes: int


def make_plan(
    kernel: Kernel,
    kernel_name: str,
    function: Any,
    descriptions: Sequence[OperandDescription],
    operands: Sequence[Any],
) -> Plan:
    """Plan launches of ``kernel`` on operands that it supports."""
    device = descriptions[0].device
    return Plan(
        function=function,
        kernel_name=kernel_name,
        names=tuple(constraint.name for constraint in kernel.operands),
        dtypes=tuple(description.dtype for description in descriptions),
        forms=tuple(
            kernel_form(constraint, description)
            for constraint, description in zip(kernel.operands, descriptions, strict=True)
        ),
        device=-1 if device is None else device,
        native=all(is_torch(operand) and exports(operand) for operand in operands),
        workspace_bytes=kernel.workspace_bytes,
    )


def launch(plan: Plan, operands: Sequence[Any], stream: Any = None, workspace: Any = None) -> None:
    """Launch on operands like those that the plan was made for.

    Args:
        plan: of :func:`make_plan`.
        operands: in the order of the kernel.
        stream: see :meth:`cutlass_aot.runtime.handle.KernelHandle.launch`.
        workspace: likewise.

    Raises:
        OperandError: if an operand asks for gradients, or the workspace or stream is not usable.
        LaunchError: if compiled code refuses the call.
        DeviceError: if the driver does.
    """
    operands = _without_gradients(plan, operands)
    if stream is None and plan.native:
        # torch's current stream is read, and set for the call, by native code.
        arguments = [
            operand if form is None else reshape(operand, form, dtype)
            for operand, form, dtype in zip(operands, plan.forms, plan.dtypes, strict=True)
        ]
        if plan.workspace_bytes:
            arguments.append(_workspace(plan, operands, workspace))
        return _call(plan, arguments)
    return _launch_on_stream(plan, operands, stream, workspace)


def _call(plan: Plan, arguments: Sequence[Any]) -> None:
    """The call itself. Compiled code checks the arguments once more, at no cost in Python."""
    try:
        plan.function(*arguments)
    except Exception as error:
        raise _translated(plan, error) from error


def _launch_on_stream(plan: Plan, operands: Sequence[Any], stream: Any, workspace: Any) -> None:
    """Launch with the stream set in tvm_ffi's environment.

    Torch tensors are handed over as ``tvm_ffi.Tensor``: they themselves would set torch's current stream.
    """
    import tvm_ffi

    device = tvm_ffi.device("cuda", plan.device)
    extra = []
    if plan.workspace_bytes:
        if workspace is None:
            raise OperandError(
                f"kernel {plan.kernel_name} needs a workspace of {plan.workspace_bytes} bytes: pass it "
                "(it is allocated for you for torch tensors on torch's current stream alone)"
            )
        extra = [_workspace(plan, operands, workspace)]
    handle = current_stream(operands, plan.device) if stream is None else stream_handle(stream, plan.device)
    used = int(tvm_ffi.get_raw_stream(device)) if handle is None else handle
    arguments = [
        _handed_over(operand, form, dtype, used)
        for operand, form, dtype in zip(operands, plan.forms, plan.dtypes, strict=True)
    ]
    arguments += [to_ffi(operand, used) for operand in extra]
    if handle is None:
        return _call(plan, arguments)
    with tvm_ffi.use_raw_stream(device, handle):
        return _call(plan, arguments)


def _handed_over(operand: Any, form: Form | None, dtype: str, stream: int) -> Any:
    if form is None:
        return to_ffi(operand, stream)
    if is_torch(operand):
        return to_ffi(reshape(operand, form, dtype), stream)
    return reshape(to_ffi(operand, stream), form, dtype)


def _without_gradients(plan: Plan, operands: Sequence[Any]) -> Sequence[Any]:
    """Refuse operands that autograd would have to follow, as torch does for ``out=``."""
    if not any(getattr(operand, "requires_grad", False) is True for operand in operands):
        return operands
    if sys.modules["torch"].is_grad_enabled():
        name = next(
            name
            for name, operand in zip(plan.names, operands, strict=True)
            if getattr(operand, "requires_grad", False) is True
        )
        raise OperandError(
            f"operand `{name}` requires a gradient, which a launch cannot give: "
            f"pass {name}.detach(), or call under torch.no_grad()"
        )
    return [operand.detach() if is_torch(operand) else operand for operand in operands]


def _workspace(plan: Plan, operands: Sequence[Any], workspace: Any) -> Any:
    """The caller's workspace after a check, or one from torch's allocator for its current stream."""
    if workspace is None:
        torch = sys.modules["torch"]
        return torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=operands[0].device)
    found = describe_operand(workspace)
    if (
        found.dtype != "u8"
        or len(found.shape) != 1
        or found.strides != (1,)
        or found.shape[0] < plan.workspace_bytes
        or found.device != plan.device
        or found.address % WORKSPACE_ALIGNMENT
    ):
        raise OperandError(
            f"the workspace is unsupported: expected {plan.workspace_bytes} or more bytes as a "
            f"contiguous u8 tensor on CUDA device {plan.device}, aligned to {WORKSPACE_ALIGNMENT} bytes, "
            f"got {found.dtype} {found.shape} on device {found.device}"
        )
    return workspace


def _translated(plan: Plan, error: Exception) -> CutlassAotError:
    """Our error for one that came out of compiled code."""
    if isinstance(error, CutlassAotError):
        return error
    text = str(error).strip() or type(error).__name__
    if _CUDA_ERROR.search(text):
        return DeviceError(
            f"kernel {plan.kernel_name} could not be launched: {text}; "
            "cutlass-aot doctor shows the GPU and the driver"
        )

    def named(match: re.Match[str]) -> str:
        position = int(match.group(1))
        return f"operand `{plan.names[position]}`" if position < len(plan.names) else match.group()

    return LaunchError(
        f"kernel {plan.kernel_name} refused the call with operands {', '.join(plan.names)}: "
        f"{_ARGUMENT.sub(named, text)}"
    )

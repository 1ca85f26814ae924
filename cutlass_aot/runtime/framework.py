"""A GEMM by the operands' own framework, for policy ``warn``: torch, which alone writes into outputs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from cutlass_aot.errors import KernelNotFound, LaunchError
from cutlass_aot.runtime.launching.call import stream_handle
from cutlass_aot.runtime.launching.tensors import is_torch
from cutlass_aot.runtime.selection.match import arrangement
from cutlass_aot.runtime.selection.query import Query
from cutlass_aot.schema.kernels.operands import OperandDescription, Rejected

_DIRECT = ("f64", "f32", "f16", "bf16")
"""Element types that torch multiplies and stores as they are."""

_LEGACY_STREAM = 1
"""``cudaStreamLegacy``, an explicit handle of the default stream."""


def gemm(miss: KernelNotFound, query: Query, operands: Sequence[Any], stream: Any) -> None:
    """Compute ``out = a @ b`` by torch, on the stream given or its current one.

    Operands of one floating type go to ``torch.matmul(out=)``. Others are converted to f32 (f64 if one is
    f64), and the result to the output's type. ``miss`` is raised if torch cannot compute it.
    """
    order = arrangement(("a", "b", "out"), len(operands), query.names)
    if isinstance(order, Rejected):
        raise miss
    operands = [operands[place] for place in order]
    descriptions = [query.operands[place] for place in order]
    if (
        query.operation != "gemm"
        or query.epilogue
        or not all(is_torch(operand) for operand in operands)
        or not _fit(descriptions)
        or not all("f" in operand.dtype for operand in descriptions)
    ):
        raise miss
    torch = sys.modules["torch"]
    a, b, out = operands
    dtypes = {operand.dtype for operand in descriptions}
    try:
        with _on_stream(stream, descriptions[2].device), torch.no_grad():
            if len(dtypes) == 1 and dtypes <= {*_DIRECT}:
                torch.matmul(a, b, out=out)
            else:
                wide = torch.float64 if "f64" in dtypes else torch.float32
                out.copy_(torch.matmul(a.to(wide), b.to(wide)))
    except (RuntimeError, TypeError) as error:
        raise LaunchError(f"policy warn: torch cannot compute {query} either: {error}") from error


def _fit(operands: Sequence[OperandDescription]) -> bool:
    """Whether the shapes are those of a GEMM: torch would broadcast others, or resize the output."""
    if len(operands) != 3 or any(len(operand.shape) not in (2, 3) for operand in operands):
        return False
    a, b, out = operands
    *batch, m, k = a.shape
    n = b.shape[-1]
    return (
        b.shape == (*batch, k, n)
        and out.shape == (*batch, m, n)
        and a.device == b.device == out.device
        and a.device is not None
    )


def _on_stream(stream: Any, device: int | None) -> Any:
    if stream is None or device is None or device < 0:
        return nullcontext()
    cuda = sys.modules["torch"].cuda
    handle = stream_handle(stream, device)
    if handle in (0, _LEGACY_STREAM):
        return cuda.stream(cuda.default_stream(device))
    return cuda.stream(cuda.ExternalStream(handle, device=device))

"""SwiGLU with requantisation to FP8, declared. What it computes is in ``swiglu_kernel``."""

from __future__ import annotations

from functools import partial
from typing import Any

from cutlass_aot.kernels.row_designs import ELEMENTS
from cutlass_aot.runtime.declared import kernel
from cutlass_aot.schema.kernels.declaration import Operand
from cutlass_aot.schema.targets import targets_with

_MODULES = [f"cutlass_aot.kernels.{name}" for name in ("fp8", "row_designs", "swiglu_kernel", "vectors")]
_inputs = partial(Operand, "x", alignment=2 * ELEMENTS, divisibility=ELEMENTS)
_outputs = partial(Operand, "out", written=True, alignment=ELEMENTS, divisibility=ELEMENTS)
_scales = partial(Operand, "scale", "f32", written=True)


@kernel(
    name="swiglu_fp8",
    params={
        "n": ["any", 1024, 1536, 2048, 2560, 3072, 4096, 5120, 7168, 8192, 11008, 14336, 18432, 28672],
        "dtype": ["f8e4m3", "u8"],
    },
    targets=targets_with("fp8"),
    modules=_MODULES,
)
def swiglu_fp8(n: int | str, dtype: str) -> Any:
    """``silu(x[:, :n]) * x[:, n:]`` as FP8, with a scale for each 128 columns of a row.

    Args:
        n: columns of the output, a multiple of 128: ``any``, or a number that is compiled in.
        dtype: of the output: ``f8e4m3``, or ``u8`` for the same bytes where a framework has no FP8.
    """
    from cutlass_aot.kernels.swiglu_kernel import swiglu

    pairs, columns, blocks = (2 * n, n, n // 128) if isinstance(n, int) else ("256 * B", "128 * B", "B")
    return (
        swiglu,
        [_inputs("bf16", ("T", pairs)), _outputs(dtype, ("T", columns)), _scales(("T", blocks))],
    )


@kernel(
    name="fused_swiglu_fp8",
    params={
        "dtype": ["bf16", "f16"],
        "gate": ["halves", "alternating"],
        "out_dtype": ["f8e4m3", "u8"],
        "scales": ["rows", "columns"],
        "masked": [False, True],
    },
    targets=targets_with("fp8"),
    modules=_MODULES,
)
def fused_swiglu_fp8(dtype: str, gate: str, out_dtype: str, scales: str, masked: bool) -> Any:
    """SwiGLU into FP8 as the next GEMM of experts takes it; see :func:`swiglu_fp8`.

    Args:
        dtype: of the input: ``bf16`` or ``f16``.
        gate: where the gate is: in the first of two ``halves`` of the columns, or ``alternating`` with the
            up-projection, in the even columns.
        out_dtype: ``f8e4m3``, or ``u8`` for the same bytes where a framework has no FP8.
        scales: how the scales lie: ``rows``, a row's one after the other, or ``columns``, those of all rows
            for one block of 128 columns, as a GEMM with scale factors takes them.
        masked: whether there is a matrix for each group, of whose rows a number count; the others are not
            written.
    """
    from cutlass_aot.kernels.swiglu_kernel import fused_swiglu

    rows = ("G", "T") if masked else ("T",)
    return (
        fused_swiglu,
        [
            _inputs(dtype, (*rows, "256 * B")),
            _outputs(out_dtype, (*rows, "128 * B")),
            _scales((*rows, "B"), contiguous=-1 if scales == "rows" else -2),
            Operand("counts", "i32" if masked else None, ("G",)),
        ],
        (gate == "alternating",),
    )

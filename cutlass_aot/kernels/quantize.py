"""Rounding to FP8, declared. What it computes is in ``quantize_kernel``."""

from __future__ import annotations

from typing import Any

from cutlass_aot.kernels.row_designs import ELEMENTS
from cutlass_aot.runtime.declared import kernel
from cutlass_aot.schema.kernels.declaration import Operand
from cutlass_aot.schema.targets import targets_with


@kernel(
    name="quantize_fp8",
    params={"dtype": ["bf16", "f16"], "out_dtype": ["f8e4m3", "u8"], "scales": ["rows", "columns"]},
    targets=targets_with("fp8"),
    modules=[f"cutlass_aot.kernels.{name}" for name in ("fp8", "quantize_kernel", "row_designs", "vectors")],
)
def quantize_fp8(dtype: str, out_dtype: str, scales: str) -> Any:
    """``x`` as FP8, with a scale for each 128 columns of a row.

    Args:
        dtype: of the input: ``bf16`` or ``f16``.
        out_dtype: ``f8e4m3``, or ``u8`` for the same bytes where a framework has no FP8.
        scales: how the scales lie: ``rows``, a row's one after the other, or ``columns``, those of all rows
            for one block of 128 columns, as a GEMM with scale factors takes them.
    """
    from cutlass_aot.kernels.quantize_kernel import quantize

    columns = "128 * B"
    return (
        quantize,
        [
            Operand("x", dtype, ("T", columns), alignment=2 * ELEMENTS, divisibility=ELEMENTS),
            Operand(
                "out", out_dtype, ("T", columns), written=True, alignment=ELEMENTS, divisibility=ELEMENTS
            ),
            Operand("scale", "f32", ("T", "B"), written=True, contiguous=-1 if scales == "rows" else -2),
        ],
    )

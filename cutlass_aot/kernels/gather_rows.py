"""Rows in another order, declared. What it computes is in ``gather_rows_kernel``."""

from __future__ import annotations

from typing import Any

from cutlass_aot.runtime.declared import kernel
from cutlass_aot.schema.kernels.declaration import Operand

_WIDTHS = {"bf16": 2, "f16": 2, "f8e4m3": 1, "u8": 1}
"""Bytes of an element."""


@kernel(
    name="gather_rows",
    params={"dtype": ["bf16", "f16", "f8e4m3", "u8"], "scales": ["none", "rows", "columns"]},
    modules=[
        f"cutlass_aot.kernels.{name}" for name in ("gather_rows_kernel", "rows", "row_designs", "vectors")
    ],
)
def gather_rows(dtype: str, scales: str) -> Any:
    """``out[i] = x[index[i]]``, with scale factors of the rows; an index below 0 gives zeros.

    Args:
        dtype: of the rows: ``bf16``, ``f16``, ``f8e4m3`` or ``u8``.
        scales: ``none``, or how the scale factors of ``x`` lie: ``rows``, a row's one after the other, or
            ``columns``. Those of the output always lie in columns: of all rows for one block of 128 columns,
            as a GEMM with scale factors takes them.
    """
    if scales != "none" and _WIDTHS[dtype] > 1:
        return None

    from cutlass_aot.kernels.gather_rows_kernel import gather_rows

    elements = 16 // _WIDTHS[dtype]
    factors = None if scales == "none" else "f32"
    return (
        gather_rows,
        [
            Operand("x", dtype, ("S", "n"), alignment=16, divisibility=elements),
            Operand("scale", factors, ("S", "n / 128"), contiguous=-1 if scales == "rows" else -2),
            Operand("index", "i32", ("R",)),
            Operand("out", dtype, ("R", "n"), written=True, alignment=16, divisibility=elements),
            Operand("out_scale", factors, ("R", "n / 128"), written=True, contiguous=-2),
        ],
    )

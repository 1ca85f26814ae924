"""Softmax, declared. What it computes is in ``softmax_kernel``."""

from __future__ import annotations

from functools import partial
from typing import Any

from cutlass_aot.kernels.row_designs import LONGER_DESIGNS, available, cost
from cutlass_aot.runtime.declared import kernel
from cutlass_aot.schema.kernels.declaration import Operand

_ELEMENTS = {"bf16": 8, "f16": 8, "f32": 4}
"""Elements of a vector of 16 bytes."""


@kernel(
    name="softmax",
    params={"dtype": ["bf16", "f16", "f32"]},
    tuning={"row": LONGER_DESIGNS},
    cost=cost("n"),
    available=available,
    modules=[f"cutlass_aot.kernels.{name}" for name in ("row_designs", "rows", "softmax_kernel", "vectors")],
)
def softmax(dtype: str, row: tuple[int, int]) -> Any:
    """``out = exp(x - max(x)) / sum(exp(x - max(x)))``, along rows, in f32.

    Args:
        dtype: of both tensors: ``bf16``, ``f16`` or ``f32``.
        row: threads of a row, and vectors of 8 elements that each of them keeps.
    """
    from cutlass_aot.kernels.softmax_kernel import softmax

    rows = partial(Operand, extents=("T", "n"), alignment=16, divisibility=_ELEMENTS[dtype])
    return softmax, [rows("x", dtype), rows("out", dtype, written=True)], row

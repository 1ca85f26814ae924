"""Softmax, declared. What it computes is in ``softmax_kernel``."""

from __future__ import annotations

from functools import partial
from typing import Any

from cutlass_aot.kernels.row_designs import LONGER_DESIGNS, MODULES, available, cost
from cutlass_aot.runtime.declared import kernel
from cutlass_aot.schema.kernels.declaration import Operand

_ELEMENTS = {"bf16": 8, "f16": 8, "f32": 4}
"""Elements of a vector of 16 bytes."""


@kernel(
    name="softmax",
    params={"dtype": ["bf16", "f16", "f32"]},
    tuning=LONGER_DESIGNS,
    cost=cost("n", "4"),
    available=available,
    modules=[*MODULES, "cutlass_aot.kernels.softmax_kernel"],
)
def softmax(dtype: str, row: tuple[int, int], staged: bool) -> Any:
    """``out = exp(x - max(x)) / sum(exp(x - max(x)))``, along rows, in f32.

    Args:
        dtype: of both tensors: ``bf16``, ``f16`` or ``f32``.
        row: threads of a row, and vectors of 8 elements that each of them keeps.
        staged: whether they are kept in shared memory.
    """
    from cutlass_aot.kernels.softmax_kernel import softmax

    rows = partial(Operand, extents=("T", "n"), alignment=16, divisibility=_ELEMENTS[dtype])
    return softmax, [rows("x", dtype), rows("out", dtype, written=True)], (row, staged)

"""The weighted sum of experts' outputs, declared. What it computes is in ``gather_reduce_kernel``."""

from __future__ import annotations

from functools import partial
from typing import Any

from cutlass_aot.runtime.declared import kernel
from cutlass_aot.schema.kernels.declaration import Operand


@kernel(
    name="gather_reduce",
    params={"k": [1, 2, 4, 6, 8], "dtype": ["bf16", "f16"]},
    modules=["cutlass_aot.kernels.gather_reduce_kernel", "cutlass_aot.kernels.vectors"],
)
def gather_reduce(k: int, dtype: str) -> Any:
    """``out[t] = sum over j of weight[t, j] * expert_out[index[t, j]]``; an index below 0 adds nothing.

    Args:
        k: experts a token.
        dtype: of the experts' outputs and of the sum: ``bf16`` or ``f16``.
    """
    from cutlass_aot.kernels.gather_reduce_kernel import gather_reduce
    from cutlass_aot.kernels.vectors import VECTOR

    rows = partial(Operand, alignment=2 * VECTOR, divisibility=VECTOR)
    return (
        gather_reduce,
        [
            rows("expert_out", dtype, ("R", "N")),
            Operand("index", "i32", ("T", k)),
            Operand("weight", "f32", ("T", k)),
            rows("out", dtype, ("T", "N"), written=True),
        ],
        (k,),
    )

"""LayerNorm, declared. What it computes is in ``layer_norm_kernel``."""

from __future__ import annotations

from functools import partial
from typing import Any

from cutlass_aot.kernels.row_designs import DESIGNS, ELEMENTS, MODULES, available, cost
from cutlass_aot.runtime.declared import kernel
from cutlass_aot.schema.kernels.declaration import Operand


@kernel(
    name="layer_norm",
    params={"dtype": ["bf16", "f16"], "weight": ["bf16", "f16", "f32"], "bias": [True, False]},
    tuning=DESIGNS,
    cost=cost("n", "4"),
    available=available,
    modules=[*MODULES, "cutlass_aot.kernels.layer_norm_kernel"],
)
def layer_norm(dtype: str, weight: str, bias: bool, row: tuple[int, int], staged: bool) -> Any:
    """``out = (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias``, along rows, in f32.

    Args:
        dtype: of the input and the output: ``bf16`` or ``f16``.
        weight: element type of the weight and the bias, ``dtype`` or ``f32``.
        bias: whether there is a bias.
        row: threads of a row, and vectors of 8 elements that each of them keeps.
        staged: whether they are kept in shared memory.
    """
    if weight not in (dtype, "f32"):
        return None

    from cutlass_aot.kernels.layer_norm_kernel import layer_norm

    rows = partial(Operand, alignment=2 * ELEMENTS, divisibility=ELEMENTS)
    return (
        layer_norm,
        [
            rows("x", dtype, ("T", "n")),
            rows("weight", weight, ("n",)),
            rows("bias", weight if bias else None, ("n",)),
            rows("out", dtype, ("T", "n"), written=True),
            Operand("eps", "f32", ()),
        ],
        (row, staged),
    )

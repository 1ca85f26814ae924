"""RMSNorm, declared. What it computes is in ``rms_norm_kernel``."""

from __future__ import annotations

from functools import partial
from typing import Any

from cutlass_aot.runtime.declared import kernel
from cutlass_aot.schema.kernels.declaration import Operand


@kernel(
    name="rms_norm",
    params={
        "n": [128, 512, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192, 12288, 16384],
        "dtype": ["bf16", "f16"],
    },
    modules=["cutlass_aot.kernels.rms_norm_kernel", "cutlass_aot.kernels.vectors"],
)
def rms_norm(n: int, dtype: str) -> Any:
    """``out = x / sqrt(mean(x^2) + eps) * weight``, along rows, in f32.

    Args:
        n: elements of a row, a multiple of 8.
        dtype: of all tensors: ``bf16`` or ``f16``.
    """
    from cutlass_aot.kernels.rms_norm_kernel import rms_norm
    from cutlass_aot.kernels.vectors import VECTOR

    rows = partial(Operand, alignment=2 * VECTOR, divisibility=VECTOR)
    return (
        rms_norm,
        [
            rows("x", dtype, ("T", n)),
            rows("weight", dtype, (n,)),
            rows("out", dtype, ("T", n), written=True),
            Operand("eps", "f32", ()),
        ],
        (n,),
    )

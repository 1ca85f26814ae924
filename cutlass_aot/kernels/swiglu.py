"""SwiGLU with requantisation to FP8, declared. What it computes is in ``swiglu_kernel``."""

from __future__ import annotations

from typing import Any

from cutlass_aot.runtime.declared import kernel
from cutlass_aot.schema.kernels.declaration import Operand
from cutlass_aot.schema.targets import targets_with


@kernel(
    name="swiglu_fp8",
    params={
        "n": [1024, 1536, 2048, 2560, 3072, 4096, 5120, 7168, 8192, 11008, 14336, 18432, 28672],
        "dtype": ["f8e4m3", "u8"],
    },
    targets=targets_with("fp8"),
    modules=["cutlass_aot.kernels.swiglu_kernel", "cutlass_aot.kernels.vectors"],
)
def swiglu_fp8(n: int, dtype: str) -> Any:
    """``silu(x[:, :n]) * x[:, n:]`` as FP8, with a scale for each 128 columns of a row.

    Args:
        n: columns of the output, a multiple of 128.
        dtype: of the output: ``f8e4m3``, or ``u8`` for the same bytes where a framework has no FP8.
    """
    from cutlass_aot.kernels.swiglu_kernel import BLOCK_COLUMNS, swiglu
    from cutlass_aot.kernels.vectors import VECTOR

    return (
        swiglu,
        [
            Operand("x", "bf16", ("T", 2 * n), alignment=2 * VECTOR, divisibility=VECTOR),
            Operand("out", dtype, ("T", n), written=True, alignment=VECTOR, divisibility=VECTOR),
            Operand("scale", "f32", ("T", n // BLOCK_COLUMNS), written=True),
        ],
        (n,),
    )

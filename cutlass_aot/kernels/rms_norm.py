"""RMSNorm, declared. What it computes is in ``rms_norm_kernel``."""

from __future__ import annotations

from functools import partial
from typing import Any

from cutlass_aot.kernels.row_designs import DESIGNS, ELEMENTS, MODULES, available, cost, design_for
from cutlass_aot.runtime.declared import kernel
from cutlass_aot.schema.kernels.declaration import Operand
from cutlass_aot.schema.targets import targets_with

_MODULES = [*MODULES, "cutlass_aot.kernels.fp8", "cutlass_aot.kernels.rms_norm_kernel"]
_rows = partial(Operand, alignment=2 * ELEMENTS, divisibility=ELEMENTS)


@kernel(
    name="rms_norm",
    params={
        "n": ["any", 128, 512, 1024, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 7168, 8192, 12288, 16384],
        "dtype": ["bf16", "f16"],
    },
    tuning=DESIGNS,
    cost=cost("n", "4"),
    available=available,
    modules=_MODULES,
)
def rms_norm(n: int | str, dtype: str, row: tuple[int, int], staged: bool) -> Any:
    """``out = x / sqrt(mean(x^2) + eps) * weight``, along rows, in f32.

    Args:
        n: elements of a row, a multiple of 8: ``any``, or a number that is compiled in.
        dtype: of all tensors: ``bf16`` or ``f16``.
        row: threads of a row, and vectors of 8 elements that each of them keeps.
        staged: whether they are kept in shared memory.
    """
    if isinstance(n, int) and (staged or row != design_for(n)):
        return None

    from cutlass_aot.kernels.rms_norm_kernel import plain_rms_norm

    columns = "n" if n == "any" else n
    return (
        plain_rms_norm,
        [
            _rows("x", dtype, ("T", columns)),
            _rows("weight", dtype, (columns,)),
            _rows("out", dtype, ("T", columns), written=True),
            Operand("eps", "f32", ()),
        ],
        (row, staged),
    )


@kernel(
    name="fused_rms_norm",
    params={"dtype": ["bf16", "f16"], "weight": ["bf16", "f16", "f32"], "residual": [False, True]},
    tuning=DESIGNS,
    cost=cost("n", "4 + 4 * residual"),
    available=available,
    modules=_MODULES,
)
def fused_rms_norm(dtype: str, weight: str, residual: bool, row: tuple[int, int], staged: bool) -> Any:
    """RMSNorm of a sum with a residual, and with a weight in f32; see :func:`rms_norm`.

    Args:
        dtype: of the input, the residual and the output: ``bf16`` or ``f16``.
        weight: its element type, ``dtype`` or ``f32``.
        residual: whether a residual is added to the input, and the sum is written.
        row: threads of a row, and vectors of 8 elements that each of them keeps.
        staged: whether they are kept in shared memory.
    """
    if weight not in (dtype, "f32"):
        return None

    from cutlass_aot.kernels.rms_norm_kernel import fused_rms_norm

    summed = dtype if residual else None
    return (
        fused_rms_norm,
        [
            _rows("x", dtype, ("T", "n")),
            _rows("residual", summed, ("T", "n")),
            _rows("weight", weight, ("n",)),
            _rows("out", dtype, ("T", "n"), written=True),
            _rows("residual_out", summed, ("T", "n"), written=True),
            Operand("eps", "f32", ()),
        ],
        (row, staged),
    )


@kernel(
    name="rms_norm_fp8",
    params={
        "dtype": ["bf16", "f16"],
        "weight": ["bf16", "f16", "f32"],
        "residual": [False, True],
        "out_dtype": ["f8e4m3", "u8"],
        "scales": ["rows", "columns"],
    },
    tuning=DESIGNS,
    cost=cost("128 * B", "3 + 4 * residual"),
    available=available,
    targets=targets_with("fp8"),
    modules=_MODULES,
)
def rms_norm_fp8(
    dtype: str, weight: str, residual: bool, out_dtype: str, scales: str, row: tuple[int, int], staged: bool
) -> Any:
    """RMSNorm into FP8 with a scale for each 128 columns of a row; see :func:`fused_rms_norm`.

    Args:
        dtype: of the input and the residual: ``bf16`` or ``f16``.
        weight: its element type, ``dtype`` or ``f32``.
        residual: whether a residual is added to the input, and the sum is written.
        out_dtype: of the output: ``f8e4m3``, or ``u8`` for the same bytes where a framework has no
            FP8.
        scales: how the scales lie: ``rows``, a row's one after the other, or ``columns``, those of all rows
            for one block of 128 columns, as a GEMM with scale factors takes them.
        row: threads of a row, and vectors of 8 elements that each of them keeps.
        staged: whether they are kept in shared memory.
    """
    if weight not in (dtype, "f32"):
        return None

    from cutlass_aot.kernels.rms_norm_kernel import rms_norm

    columns = "128 * B"
    summed = dtype if residual else None
    return (
        rms_norm,
        [
            _rows("x", dtype, ("T", columns)),
            _rows("residual", summed, ("T", columns)),
            _rows("weight", weight, (columns,)),
            Operand(
                "out", out_dtype, ("T", columns), written=True, alignment=ELEMENTS, divisibility=ELEMENTS
            ),
            _rows("residual_out", summed, ("T", columns), written=True),
            Operand("scale", "f32", ("T", "B"), written=True, contiguous=-1 if scales == "rows" else -2),
            Operand("eps", "f32", ()),
        ],
        (row, staged),
    )

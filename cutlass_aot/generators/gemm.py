"""Operands of a GEMM in kernel records: a, b, out, then others. For generators of such kernels."""

from __future__ import annotations

from cutlass_aot.generators.protocol import Problem
from cutlass_aot.manifest.scales import ScaleRequest
from cutlass_aot.schema.kernels.constraints import LAYOUT_LETTERS, OperandConstraint
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.epilogue import Epilogue
from cutlass_aot.schema.kernels.kernel import Kernel

EXTENTS = {"a": ("L", "M", "K"), "b": ("L", "K", "N"), "out": ("L", "M", "N")}
"""Extents of each operand by their names, batch first."""

CONTIGUOUS = {letter: mode for mode, letter in LAYOUT_LETTERS.items()}
"""The contiguous mode by the layout's letter."""


def constraints(problem: Problem, alignment: int) -> tuple[OperandConstraint, ...]:
    """Operands of a GEMM: addresses, contiguous extents and strides are multiples of ``alignment`` bytes."""
    return tuple(
        OperandConstraint(
            name=name,
            dtype=dtype,
            extents=extents,
            contiguous=CONTIGUOUS[letter],
            divisibility=alignment * 8 // DTYPES[dtype].bits,
            alignment=alignment,
            written=name == "out",
        )
        for (name, extents), dtype, letter in zip(
            EXTENTS.items(), problem.dtypes, problem.layouts, strict=True
        )
    )


def problem_of_kernel(kernel: Kernel, epilogue: Epilogue | None = None) -> Problem:
    """The problem that a kernel was enumerated for; its first operands are a, b and out.

    Each generator describes epilogues in its own way, so the kernel's is an argument.
    """
    first = kernel.operands[: len(EXTENTS)]
    scales = {
        operand.scale.of: ScaleRequest(operand.dtype, operand.scale.block)
        for operand in kernel.operands
        if operand.scale is not None
    }
    return Problem(
        kernel.operation,
        tuple(operand.dtype for operand in first),
        kernel.layouts[: len(EXTENTS)],
        kernel.accumulator,
        scales=(scales.get("a"), scales.get("b")),
        epilogue=epilogue,
    )

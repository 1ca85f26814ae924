"""Operands of a GEMM in kernel records: a, b, out, then others. For generators of such kernels."""

from __future__ import annotations

from dataclasses import replace

from cutlass_aot.generators.protocol import Problem
from cutlass_aot.manifest.scales import ScaleRequest
from cutlass_aot.schema.kernels.accumulation import EXACT, Accumulation, RequestedAccumulation
from cutlass_aot.schema.kernels.constraints import LAYOUT_LETTERS, OperandConstraint, extent_of
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.epilogue import Epilogue
from cutlass_aot.schema.kernels.kernel import Kernel

EXTENTS = {"a": ("L", "M", "K"), "b": ("L", "K", "N"), "out": ("L", "M", "N")}
"""Extents of each operand by their names, batch first."""

GROUPED_GEMM, MASKED_GROUPED_GEMM = "grouped_gemm", "masked_grouped_gemm"
"""Operations on groups of rows, each with a B of its own.

They lie one after the other, and the last operand has the end of each; or each lies in a matrix of its own,
and the last operand says how many of its rows count."""

GROUPED_EXTENTS: dict[str, dict[str, tuple[str, ...]]] = {
    GROUPED_GEMM: {"a": ("M", "K"), "b": ("G", "K", "N"), "out": ("M", "N")},
    MASKED_GROUPED_GEMM: {"a": ("G", "M", "K"), "b": ("G", "K", "N"), "out": ("G", "M", "N")},
}
"""Extents of their operands: G is the number of groups."""

_GROUPS = {GROUPED_GEMM: "offsets", MASKED_GROUPED_GEMM: "rows"}
"""Names of their last operands."""

FP8 = ("f8e4m3", "f8e5m2")
"""Element types whose products sm_90a adds up with fewer bits than f32 has."""
FAST_SUMS_TARGET = "sm_90a"
"""The target whose tensor cores keep fewer bits of a sum of FP8 products than f32 has."""

CONTIGUOUS_MODES = {letter: mode for mode, letter in LAYOUT_LETTERS.items()}
"""The contiguous mode by the layout's letter."""


def constraints(problem: Problem, alignment: int) -> tuple[OperandConstraint, ...]:
    """Operands of a GEMM: addresses, contiguous extents and strides are multiples of ``alignment`` bytes."""
    return tuple(
        OperandConstraint(
            name=name,
            dtype=dtype,
            extents=extents,
            contiguous=CONTIGUOUS_MODES[letter],
            divisibility=alignment * 8 // DTYPES[dtype].bits,
            alignment=alignment,
            written=name == "out",
        )
        for (name, extents), dtype, letter in zip(
            GROUPED_EXTENTS.get(problem.operation, EXTENTS).items(),
            problem.dtypes,
            problem.layouts,
            strict=True,
        )
    )


def group_constraints(operation: str) -> tuple[OperandConstraint, ...]:
    """The last operand of a grouped GEMM; none of another operation."""
    if operation not in _GROUPS:
        return ()
    return (OperandConstraint(_GROUPS[operation], "i32", ("G",), -1, 1, 4),)


def scale_constraints(problem: Problem, alignment: int) -> tuple[OperandConstraint, ...]:
    """Scale factors as tensors, one for each block of a or b, the last of which may be partial.

    Those of rows of a lie one after the other, block of K after block of K; those of b the other way round.
    Addresses are multiples of ``alignment`` bytes.
    """
    found = []
    extents_of = GROUPED_EXTENTS.get(problem.operation, EXTENTS)
    for (name, extents), scale in zip(extents_of.items(), problem.scales, strict=False):
        if scale is not None:
            across = extents[-2] if name == "a" else extents[-1]
            across = across if scale.across == 1 else f"{across} / {scale.across}"
            found.append(
                OperandConstraint(
                    name=f"{name}_scale",
                    dtype=scale.dtype,
                    extents=(*extents[:-2], across, f"K / {scale.block}"),
                    contiguous=-2 if name == "a" else -1,
                    divisibility=1,
                    alignment=alignment,
                )
            )
    return tuple(found)


def has_fast_sums(problem: Problem, target: str) -> bool:
    """Whether tensor cores alone keep fewer bits of the sums of a problem than its accumulator has.

    Those of Hopper do of FP8 products, over which scale factors of blocks are added up in registers.
    """
    of_fp8 = [dtype for dtype in problem.dtypes[:2] if dtype in FP8]
    return (
        target == FAST_SUMS_TARGET
        and len(of_fp8) == 2
        and problem.accumulator == "f32"
        and problem.scales == (None, None)
    )


def with_sums(problem: Problem, accumulation: RequestedAccumulation, target: str) -> Problem:
    """A problem with sums that are exact or fast, if kernels of both kinds can be built for it."""
    return replace(problem, accumulation=accumulation) if has_fast_sums(problem, target) else problem


def accumulation_of(problem: Problem, target: str) -> Accumulation:
    """How a kernel for a problem adds up its sums, as its record has it: ``""`` where there is one way."""
    return problem.accumulation if has_fast_sums(problem, target) else ""


def scales_of(kernel: Kernel) -> dict[str, ScaleRequest]:
    """Scale factors of a kernel's operands, by the name of what they scale."""
    found = {}
    for operand in kernel.operands:
        if operand.scale is not None:
            found[operand.scale.of] = ScaleRequest(operand.dtype, operand.scale.block)
        elif operand.name in ("a_scale", "b_scale") and len(operand.extents) > 1 and not operand.written:
            across, along = (extent_of(str(extent)) for extent in operand.extents[-2:])
            if across is not None and along is not None and along.divisor > 1:
                found[operand.name[0]] = ScaleRequest(operand.dtype, along.divisor, across.divisor)
    return found


def problem_of_kernel(kernel: Kernel, epilogue: Epilogue | None = None) -> Problem:
    """The problem that a kernel was enumerated for; its first operands are a, b and out.

    Each generator describes epilogues in its own way, so the kernel's is an argument.
    """
    first = kernel.operands[: len(EXTENTS)]
    scales = scales_of(kernel)
    return Problem(
        kernel.operation,
        tuple(operand.dtype for operand in first),
        kernel.layouts[: len(EXTENTS)],
        kernel.accumulator,
        accumulation=kernel.accumulation or EXACT,
        scales=(scales.get("a"), scales.get("b")),
        epilogue=epilogue,
    )

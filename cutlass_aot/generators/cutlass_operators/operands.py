"""Operands of the scaled, mixed-input and grouped families of the CUTLASS Operator API.

It imports nothing of the package; operators are passed in. Dense GEMM is in
:mod:`cutlass_aot.generators.cutlass_operators.records`.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from cutlass_aot.generators.cutlass_operators import records
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.gemm import GROUPED_EXTENTS, group_constraints
from cutlass_aot.generators.protocol import Problem, ScaleRequest
from cutlass_aot.schema.kernels.constraints import (
    ANY_SHAPE,
    SWIZZLE_32X4X4,
    SWIZZLE_COLUMNS,
    OperandConstraint,
    Scale,
)
from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.kernels.dtypes import BY_DSL, DTYPES
from cutlass_aot.schema.kernels.epilogue import NUMBER, Epilogue, EpilogueOperand
from cutlass_aot.schema.kernels.formula import PAIRWISE, ROTATION, operations_in
from cutlass_aot.schema.kernels.kernel import Kernel

BLOCK_SCALED = "PersistentDenseBlockScaledGemm"
RUBIN_BLOCK_SCALED = "Sm107DenseBlockScaledGemm"
MIXED_INPUT = "MixedInputGemm"
GROUPED = "ContiguousOffset2D3DGemmDense"

FAMILIES = {
    BLOCK_SCALED: "SM100 block-scaled: MXFP8, MXFP4, MXFP8 with MXFP4 or MXFP6, NVFP4",
    RUBIN_BLOCK_SCALED: "SM107 block-scaled: MXFP8, MXFP4, NVFP4, and FP8 with FP4",
    MIXED_INPUT: "SM100 mixed input: integers in A are converted on the way, scaled by block if they are i4",
    GROUPED: "SM100 grouped: A and out hold all groups, one after the other along M",
}
"""Families besides dense GEMM, by the name of their operator class without ``Operator``."""

_SPREAD = 128
"""Elements that the contiguous extent is a multiple of where TMA spreads elements of 4 or 6 bits over bytes.
Source: CUDA driver API, ``cuTensorMapEncodeTiled``, for 16U4_ALIGN16B and 16U6_ALIGN16B."""

_SPREAD_ALIGNMENT = 32
"""Bytes; what TMA asks of the address of such an operand; the same source."""

_ALIGNMENT = 16
"""Bytes; what TMA asks of the address of any other."""


def problem_of(described: Any, operation: str) -> Problem:
    """The operands of an operator of these families, with scale factors, from its operand metadata."""
    metadata = SimpleNamespace(operands=described, operator_name=operation)
    dense = records.problem_of(SimpleNamespace(metadata=metadata))
    return Problem(
        operation,
        dense.dtypes,
        dense.layouts,
        dense.accumulator,
        scales=(_scale_request(described.A), _scale_request(described.B)),
    )


def _scale_request(operand: Any) -> ScaleRequest | None:
    mode = getattr(operand, "mode", None)
    if mode is None:
        return None
    return ScaleRequest(BY_DSL[operand.scale.dtype.__name__], math.prod(mode))


def design(operator: Any) -> dict[str, DesignValue]:
    """An operator's design as plain values.

    The metadata of block-scaled operators 0.3.0 has 2-CTA instructions for all; their code uses them only for
    tiles of 256 rows.
    """
    values = records.design(operator)
    if records.family(operator) == BLOCK_SCALED:
        values["use_2cta_mma"] = bool(operator.impl.use_2cta_instrs)
    return values


def record(
    operator: Any,
    problem: Problem,
    constraints: tuple[OperandConstraint, ...],
    target: str,
    device: DeviceProfile,
) -> Kernel:
    """The kernel record of an operator of these families."""
    chosen = design(operator)
    epilogue = problem.epilogue
    return Kernel.make(
        operation=problem.operation,
        generator=records.GENERATOR,
        operands=(*constraints, *(map(_number, epilogue.operands) if epilogue else ())),
        accumulator=problem.accumulator,
        epilogue=epilogue.formula if epilogue else "",
        design=chosen,
        target=target,
        constants=records.constants(chosen, device),
    )


def is_elementwise(epilogue: Epilogue | None) -> bool:
    """Whether kernels of block-scaled and grouped GEMMs take an epilogue: one output, of numbers alone."""
    if epilogue is None:
        return True
    of_neighbours = {ROTATION, *PAIRWISE}
    of_elements = all(
        of_neighbours.isdisjoint(operations_in(found.expression)) for found in epilogue.statements
    )
    return of_elements and all(operand.extents == NUMBER for operand in epilogue.operands)


def _number(operand: EpilogueOperand) -> OperandConstraint:
    return OperandConstraint(operand.name, operand.dtype, NUMBER, 0, 1, DTYPES[operand.dtype].bytes)


def block_scaled(operator: Any, problem: Problem) -> tuple[OperandConstraint, ...]:
    """Compact operands of a block-scaled GEMM, as it takes no strides: a, b, out, a_scale, b_scale."""
    mixed = len({DTYPES[dtype].bits for dtype in problem.dtypes[:2]}) > 1
    constraints = []
    for constraint in records.constraints(operator, problem):
        bits = DTYPES[constraint.dtype].bits
        spread = bits == 6 or (bits == 4 and mixed)
        constraints.append(
            constraint._replace(
                divisibility=math.lcm(constraint.divisibility, _SPREAD)
                if spread
                else constraint.divisibility,
                # The package asks for 96 bytes (128 elements of 6 bits), which nothing needs.
                alignment=_SPREAD_ALIGNMENT if spread else _ALIGNMENT,
                compact=True,
            )
        )
    for name, request in zip(("a", "b"), problem.scales, strict=True):
        if request is not None:
            scale = Scale(of=name, block=request.block, swizzle=SWIZZLE_32X4X4)
            constraints.append(_scale_operand(name, request.dtype, scale))
    return tuple(constraints)


def mixed_input(operator: Any, problem: Problem) -> tuple[OperandConstraint, ...]:
    """Operands of a mixed-input GEMM: a, b, out, and a_scale if a is scaled."""
    constraints = records.constraints(operator, problem)
    scale = problem.scales[0]
    if scale is None:
        return constraints
    factors = Scale(of="a", block=scale.block, swizzle=SWIZZLE_COLUMNS)
    return (*constraints, _scale_operand("a", scale.dtype, factors))


def grouped(operator: Any, problem: Problem) -> tuple[OperandConstraint, ...]:
    """Operands of a grouped GEMM: a, b, out, offsets (the end of each group along M)."""
    constraints = [
        constraint._replace(extents=GROUPED_EXTENTS[problem.operation][constraint.name])
        for constraint in records.constraints(operator, problem)
    ]
    return (*constraints, *group_constraints(problem.operation))


def _scale_operand(of: str, dtype: str, scale: Scale) -> OperandConstraint:
    return OperandConstraint(
        name=f"{of}_scale",
        dtype=dtype,
        extents=ANY_SHAPE,
        contiguous=-1,
        divisibility=1,
        alignment=_ALIGNMENT,
        scale=scale,
    )

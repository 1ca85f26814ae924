"""Records of scaled, mixed-input and grouped GEMMs, from objects that look like the package's operators."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from cutlass_aot.errors import GeneratorError
from cutlass_aot.generators.cutlass_operators import CutlassOperators, operands
from cutlass_aot.generators.gemm import problem_of_kernel
from cutlass_aot.generators.protocol import Problem, ScaleRequest
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.kernels.constraints import Scale
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import describe, supports
from cutlass_aot.schema.targets import targets_with
from tests.support.operators import Operator, element

MX, NV = ScaleRequest("f8e8m0", 32), ScaleRequest("f8e4m3", 16)


class PersistentDenseBlockScaledGemmOperator(Operator):
    pass


class MixedInputGemmOperator(Operator):
    pass


class ContiguousOffset2D3DGemmDenseOperator(Operator):
    pass


def operator_for(problem, kind=PersistentDenseBlockScaledGemmOperator, **design):
    """An operator of a problem: divisibility is 16 bytes, as far as whole elements reach."""
    made = kind(("f16", "f16", "f16"), problem.layouts, problem.accumulator, **design)
    described = made.metadata.operands
    for name, dtype in zip(("A", "B", "out"), problem.dtypes, strict=True):
        constraint = getattr(described, name)
        constraint.dtype = element(dtype)
        constraint.divisibility = 64 if DTYPES[dtype].bits == 6 else 128 // DTYPES[dtype].bits
    for name, scale in zip(("A", "B"), problem.scales, strict=True):
        if scale is not None:
            constraint = getattr(described, name)
            constraint.mode = (1, 1, scale.block)
            constraint.scale = SimpleNamespace(dtype=element(scale.dtype))
    return made


def gemm(a, b, out="bf16", scale=MX, layouts="tnt"):
    return Problem("gemm", (a, b, out), layouts, "f32", (scale, scale))


def by_name(constraints):
    return {constraint.name: constraint for constraint in constraints}


def test_block_scaled_operands_are_compact_and_come_with_their_factors():
    problem = gemm("f8e4m3", "f8e5m2")
    made = operands.block_scaled(operator_for(problem), problem)
    assert [constraint.name for constraint in made] == ["a", "b", "out", "a_scale", "b_scale"]
    assert all(constraint.compact for constraint in made[:3])
    assert [constraint.extents for constraint in made[:3]] == [
        ("L", "M", "K"),
        ("L", "K", "N"),
        ("L", "M", "N"),
    ]
    assert [constraint.written for constraint in made] == [False, False, True, False, False]
    assert [constraint.scale for constraint in made[3:]] == [
        Scale("a", 32, "K", "32x4x4"),
        Scale("b", 32, "K", "32x4x4"),
    ]
    assert {constraint.dtype for constraint in made[3:]} == {"f8e8m0"}


@pytest.mark.parametrize(
    ("a", "b", "of_a", "of_b"),
    [
        ("f8e4m3", "f8e4m3", (16, 16), (16, 16)),
        ("f4e2m1", "f4e2m1", (32, 16), (32, 16)),
        # TMA spreads elements over bytes: those of 6 bits, and those of 4 bits beside wider ones.
        ("f4e2m1", "f8e4m3", (128, 32), (16, 16)),
        ("f8e5m2", "f4e2m1", (16, 16), (128, 32)),
        ("f6e2m3", "f8e4m3", (128, 32), (16, 16)),
        ("f6e2m3", "f6e3m2", (128, 32), (128, 32)),
        ("f6e2m3", "f4e2m1", (128, 32), (128, 32)),
    ],
)
def test_divisibility_and_alignment_are_those_of_the_load(a, b, of_a, of_b):
    problem = gemm(a, b)
    made = by_name(operands.block_scaled(operator_for(problem), problem))
    assert (made["a"].divisibility, made["a"].alignment) == of_a
    assert (made["b"].divisibility, made["b"].alignment) == of_b


def test_integers_with_scale_factors_demand_whole_blocks_and_rows():
    scale = ScaleRequest("f16", 128)
    problem = Problem("gemm", ("i4", "f16", "f16"), "tnt", "f32", (scale, None))
    made = operands.mixed_input(operator_for(problem, MixedInputGemmOperator), problem)
    assert [constraint.name for constraint in made] == ["a", "b", "out", "a_scale"]
    assert not any(constraint.compact for constraint in made)
    given = [
        describe((264, 256), "i4"),
        describe((256, 64), "f16", strides=(1, 256)),
        describe((264, 64), "f16"),
    ]
    assert supports(made, [*given, describe((2, 264), "f16")])
    for shape, what in (
        ((268, 256), "M of `a` divisible by 8, got 268"),
        ((264, 320), "K of `a` divisible by 128"),
    ):
        m, k = shape
        others = [describe((m, k), "i4"), describe((k, 64), "f16", strides=(1, k)), describe((m, 64), "f16")]
        assert what in supports(made, [*others, describe((-(-k // 128), m), "f16")]).reason
    refused = supports(made, [*given, describe((3, 264), "f16")])
    assert "expected 528 scale factors, one for each 128 elements of `a` along K" in refused.reason


def test_integers_without_scale_factors_have_three_operands():
    problem = Problem("gemm", ("u8", "bf16", "bf16"), "tnt", "f32")
    made = operands.mixed_input(operator_for(problem, MixedInputGemmOperator), problem)
    assert [(constraint.name, constraint.dtype) for constraint in made] == [
        ("a", "u8"), ("b", "bf16"), ("out", "bf16"),
    ]  # fmt: skip


def test_a_grouped_gemm_has_no_batch():
    problem = Problem("grouped_gemm", ("bf16", "bf16", "bf16"), "tnt", "f32")
    made = operands.grouped(operator_for(problem, ContiguousOffset2D3DGemmDenseOperator), problem)
    assert [constraint.extents for constraint in made] == [("M", "K"), ("G", "K", "N"), ("M", "N"), ("G",)]
    assert not any(constraint.has_batch for constraint in made)
    b = describe((4, 64, 96), "bf16", strides=(64 * 96, 1, 64))
    a, out = describe((1000, 64), "bf16"), describe((1000, 96), "bf16")
    assert supports(made, [a, b, out, describe((4,), "i32")])
    assert (
        "expected extent G = 4 as `b` has, got 5" in supports(made, [a, b, out, describe((5,), "i32")]).reason
    )
    assert (
        "expected rank 2"
        in supports(made, [describe((1, 1000, 64), "bf16"), b, out, describe((4,), "i32")]).reason
    )


@pytest.mark.parametrize(
    "problem",
    [
        gemm("f8e4m3", "f8e4m3"),
        gemm("f4e2m1", "f4e2m1", scale=NV),
        Problem("gemm", ("i4", "f16", "f16"), "nnt", "f16", (ScaleRequest("f16", 64), None)),
        Problem("gemm", ("i8", "bf16", "f32"), "ttt", "f32"),
    ],
)
def test_a_record_gives_its_problem_back(problem):
    operator = operator_for(problem)
    assert operands.problem_of(operator.metadata.operands, "gemm") == problem
    make = operands.block_scaled if None not in problem.scales else operands.mixed_input
    kernel = Kernel.make(
        operation="gemm",
        generator="cutlass.operators",
        operands=make(operator, problem),
        accumulator=problem.accumulator,
        design={"family": "x"},
        target="sm_100a",
    )
    assert problem_of_kernel(kernel) == problem
    assert problem_of_kernel(from_plain(Kernel, to_plain(kernel), "a kernel record")) == problem


def test_the_design_says_what_the_code_does_where_the_metadata_does_not():
    operator = operator_for(gemm("f8e4m3", "f8e4m3"), use_2cta_mma=True)
    for used in (True, False):
        operator.impl.use_2cta_instrs = used
        assert operands.design(operator)["use_2cta_mma"] is used
    other = operator_for(gemm("f8e4m3", "f8e4m3"), MixedInputGemmOperator, use_2cta_mma=True)
    assert operands.design(other)["use_2cta_mma"] is True


def test_unknown_element_types_are_said():
    operator = operator_for(gemm("f8e4m3", "f8e4m3"))
    operator.metadata.operands.A.dtype = element("Float3")
    with pytest.raises(GeneratorError, match="expected dense operands"):
        operands.problem_of(operator.metadata.operands, "gemm")


def test_grouped_kernels_are_for_blackwell_alone():
    generator = CutlassOperators()
    assert generator.targets("grouped_gemm") == targets_with("tcgen05")
    assert "sm_90a" in generator.targets("gemm")
    for family in operands.FAMILIES:
        assert family in generator.design["family"]

"""What the SM90 GEMM offers for FP8 with scale factors and for groups, without the DSL."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest

import cutlass_aot
from cutlass_aot.errors import KernelNotFound, ManifestError
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.gemm import problem_of_kernel, scales_of
from cutlass_aot.generators.protocol import Problem, ScaleRequest
from cutlass_aot.generators.sm90_gemm.generator import SCALES, Sm90Gemm, plan_of
from cutlass_aot.generators.sm90_gemm.plan import SCALED_BLOCK, make_plan
from cutlass_aot.manifest.scales import parse_scales
from cutlass_aot.schema.kernels.cost import cost_of, names_of, numbers_of
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import describe, extent_names, packed, supports
from tests.support.bundles import write_bundle
from tests.support.replace import replace

FP8 = ("f8e4m3", "f8e4m3", "bf16")
SCALED = Problem("gemm", FP8, "tnt", "f32", scales=SCALES)
GROUPED = Problem("grouped_gemm", FP8, "tnt", "f32", scales=SCALES)
MASKED_GROUPED = Problem("masked_grouped_gemm", FP8, "tnt", "f32", scales=SCALES)
WIDE_GROUPED = Problem("grouped_gemm", ("bf16", "bf16", "bf16"), "tnt", "f32")
PROBLEMS = (SCALED, GROUPED, MASKED_GROUPED, WIDE_GROUPED)
MACHINE = {"sm_count": 132.0, "sm_mhz": 1980.0, "memory_bandwidth": 3350.0}


def enumerated(problem: Problem) -> list[Kernel]:
    return list(Sm90Gemm().enumerate(problem, "sm_90a", load_profile("h200")))


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_kernels_tell_their_problem_and_their_plan(problem: Problem) -> None:
    kernels = enumerated(problem)
    assert len(kernels) > 5
    for kernel in kernels:
        assert problem_of_kernel(kernel) == problem
        plan = plan_of(kernel)
        assert plan.scaled == (problem.scales == SCALES)
        assert plan.operation == problem.operation
        assert plan.groups == (problem.operation != "gemm")
        if plan.scaled:
            assert plan.tile[2] == SCALED_BLOCK
            rows, pieces = plan.factors
            assert rows == plan.tile[1 if plan.swap else 0]
            assert pieces * plan.piece == plan.tile[0 if plan.swap else 1]
            assert SCALED_BLOCK % plan.piece == 0
        if plan.groups:
            assert plan.active > 0
            assert plan.split == 1


@pytest.mark.parametrize(
    "change",
    [
        {"dtypes": ("bf16", "bf16", "bf16")},
        {"dtypes": ("f8e4m3", "f8e4m3", "f16")},
        {"layouts": "ttt"},
        {"scales": (SCALES[0], None)},
        {"scales": (ScaleRequest("f32", 64), SCALES[1])},
        {"scales": (SCALES[1], SCALES[1])},
        {"scales": (ScaleRequest("f8e8m0", 128), ScaleRequest("f8e8m0", 128, across=128))},
    ],
    ids=str,
)
def test_other_scale_factors_have_no_kernels(change: Mapping[str, object]) -> None:
    assert not enumerated(replace(SCALED, **change))


def test_groups_of_fp8_with_fast_sums_or_with_f32_results_have_no_kernels() -> None:
    assert not enumerated(replace(GROUPED, scales=(None, None), accumulation="fast"))
    for problem in (GROUPED, MASKED_GROUPED, WIDE_GROUPED):
        assert not enumerated(replace(problem, dtypes=(*problem.dtypes[:2], "f32")))
    assert enumerated(replace(SCALED, dtypes=("f8e4m3", "f8e4m3", "f32")))


def test_operands() -> None:
    operands = {operand.name: operand for operand in enumerated(SCALED)[0].operands}
    assert operands["a_scale"].extents == ("L", "M", "K / 128")
    assert operands["b_scale"].extents == ("L", "N / 128", "K / 128")
    assert (operands["a_scale"].contiguous, operands["b_scale"].contiguous) == (-2, -1)
    grouped = [(operand.name, operand.extents) for operand in enumerated(GROUPED)[0].operands]
    assert grouped == [
        ("a", ("M", "K")), ("b", ("G", "K", "N")), ("out", ("M", "N")),
        ("a_scale", ("M", "K / 128")), ("b_scale", ("G", "N / 128", "K / 128")), ("offsets", ("G",)),
    ]  # fmt: skip
    masked = enumerated(MASKED_GROUPED)[0].operands
    assert [operand.name for operand in masked] == ["a", "b", "out", "a_scale", "b_scale", "rows"]
    assert masked[3].extents == ("G", "M", "K / 128")
    assert scales_of(enumerated(GROUPED)[0]) == dict(zip("ab", SCALES, strict=True))


@pytest.mark.parametrize("rows", [1, 7, 333])
def test_scale_factors_of_any_rows_and_padding_are_taken(rows: int) -> None:
    operands = enumerated(SCALED)[0].operands
    n, k = 2112, 400
    padded = -(-rows // 4) * 4
    given = [
        describe((rows, k), "f8e4m3"),
        describe((k, n), "f8e4m3", strides=(1, k)),
        describe((rows, n), "bf16"),
        describe((rows, 4), "f32", strides=(1, padded)),
        describe((17, 4), "f32"),
    ]
    assert supports(operands, given)
    given[4] = describe((16, 4), "f32")
    assert "extent N / 128 = 17" in supports(operands, given).reason
    given[3:] = [describe((rows, 3), "f32", strides=(1, padded)), describe((17, 4), "f32")]
    assert "extent K / 128 = 4" in supports(operands, given).reason


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_cost_formula_prefers_small_tiles_for_few_rows(problem: Problem) -> None:
    kernels = enumerated(problem)
    (formula,) = {kernel.cost for kernel in kernels}
    extents = extent_names(kernels[0].operands)
    design = numbers_of(dict(kernels[0].design))
    assert names_of(formula) <= {*MACHINE, *extents, *design}

    def chosen(rows: int) -> Kernel:
        known = MACHINE | dict.fromkeys(extents, 1.0) | {"M": float(rows), "N": 4096.0, "K": 7168.0}
        costs = {kernel: cost_of(formula, known | numbers_of(dict(kernel.design))) for kernel in kernels}
        assert all(math.isfinite(cost) and cost > 0 for cost in costs.values())
        return min(kernels, key=costs.__getitem__)

    def rows_of(kernel: Kernel) -> int:
        tile = dict(kernel.design)["tile_shape"]
        assert isinstance(tile, tuple)
        return int(tile[0])

    assert rows_of(chosen(8)) < rows_of(chosen(8192))
    assert rows_of(chosen(8192)) >= 128


def test_operands_of_a_problem_satisfy_their_own_constraints() -> None:
    for problem in PROBLEMS:
        operands = enumerated(problem)[0].operands
        extents = dict.fromkeys(extent_names(operands), 256) | {"G": 3}
        assert supports(operands, packed(operands, extents))


def test_plans_that_are_impossible_are_refused() -> None:
    def plan(**fields: object) -> None:
        settings = {
            "tile": (128, 128, 128), "cluster": (1, 1, 1), "warp_groups": 2, "blocks": 1, "swap": False,
            "active": 132, "input_bits": 8, "output_bits": 16, "scaled": True,
        }  # fmt: skip
        make_plan(**{**settings, **fields})  # type: ignore[arg-type]

    plan(operation="grouped_gemm")
    with pytest.raises(ValueError, match="persistent"):
        plan(operation="grouped_gemm", active=0)
    with pytest.raises(ValueError, match="share no sums"):
        plan(operation="masked_grouped_gemm", cluster=(1, 1, 2))
    with pytest.raises(ValueError, match="not the 128 elements that tensor cores add up"):
        plan(tile=(128, 128, 64))
    for tile, blocks, swap in (((64, 24, 128), 3, True), ((64, 256, 128), 1, False)):
        with pytest.raises(ValueError, match="cannot hand over registers"):
            plan(tile=tile, blocks=blocks, warp_groups=1, swap=swap)


def test_scale_factors_of_blocks_in_manifests() -> None:
    table = {"a_scale": {"dtype": "f32", "block": 128}, "b_scale": {"dtype": "f32", "block": [128, 128]}}
    assert parse_scales(table, "kernels[0]") == (SCALES,)
    assert str(SCALES[1]) == "f32 x 128 x 128"
    for block in ([128], [128, 0], [128, 128, 128], "128"):
        with pytest.raises(ManifestError, match=r"kernels\[0\]\.a_scale\.block: .*expected"):
            parse_scales({"a_scale": {"dtype": "f32", "block": block}}, "kernels[0]")


def test_a_bundle_chooses_by_the_formula_and_expects_its_costs_alone(tmp_path: Path) -> None:
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", enumerated(SCALED) + enumerated(GROUPED)))
    for problem, name in ((SCALED, "L"), (GROUPED, "G")):
        operands = enumerated(problem)[0].operands
        given = packed(operands, {"M": 96, "N": 4096, "K": 7168, name: 8})
        choice = bundle.choose(*given, operation=problem.operation, gpu="H200")
        assert choice.tier == "declared"
        costs = [item.cost for item in choice.expected]
        assert None not in costs
        assert costs == sorted(costs, key=lambda cost: cost or 0.0)
        # Derived constants, which know nothing of scale factors and groups, are not shown beside.
        assert {item.microseconds for item in choice.expected} == {None}


@pytest.mark.parametrize("dtype", ["f8e4m3", "bf16", "f16"])
def test_offsets_of_64_bits_are_what_is_wrong(tmp_path: Path, dtype: str) -> None:
    """Not the element types of the operands, of which another group has all others."""
    f16 = Problem("grouped_gemm", ("f16", "f16", "f16"), "tnt", "f32")
    problems = {"f8e4m3": GROUPED, "bf16": WIDE_GROUPED, "f16": f16}
    kernels = [kernel for problem in (*problems.values(), *PROBLEMS) for kernel in enumerated(problem)[:1]]
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", list(dict.fromkeys(kernels))))
    operands = enumerated(problems[dtype])[0].operands
    *given, offsets = packed(operands, {"M": 96, "N": 512, "K": 1024, "G": 8})
    named = dict(zip(("a_scale", "b_scale"), given[3:], strict=False))
    named["offsets"] = describe(offsets.shape, "i64")
    with pytest.raises(KernelNotFound, match=rf"Nearest is grouped_gemm-{dtype}\.") as raised:
        bundle.find(*given[:3], **named, operation="grouped_gemm", target="sm_90a")
    assert "operand `offsets` is unsupported: expected element type i32, got i64" in str(raised.value)
    group, verdict = bundle.explain(*given[:3], **named, operation="grouped_gemm", target="sm_90a")[0]
    assert group.operands[0].dtype == dtype
    assert "expected element type i32, got i64" in verdict.reason


@pytest.mark.parametrize("problem", [GROUPED, MASKED_GROUPED, SCALED], ids=str)
def test_without_scale_factors_they_are_what_is_missing(tmp_path: Path, problem: Problem) -> None:
    """Rather than that groups of other element types expect those."""
    wide = [replace(each, dtypes=("bf16",) * 3, scales=(None, None)) for each in (GROUPED, MASKED_GROUPED)]
    plain = Kernel.make(
        operation="gemm", generator="plain", operands=enumerated(WIDE_GROUPED)[0].operands[:3],
        accumulator="f32", design={}, target="sm_90a",
    )  # fmt: skip
    kernels = [kernel for each in (*PROBLEMS, *wide) for kernel in enumerated(each)[:1]]
    bundle = cutlass_aot.open(write_bundle(tmp_path / "bundle", [*dict.fromkeys(kernels), plain]))
    constraints = enumerated(problem)[0].operands
    operands = packed(constraints, {"M": 96, "N": 512, "K": 1024, "G": 8, "L": 1})
    named = {
        constraint.name: operand
        for constraint, operand in zip(constraints[5:], operands[5:], strict=True)
    }  # fmt: skip
    with pytest.raises(KernelNotFound, match=rf"Nearest is {problem.operation}-f8e4m3\.") as raised:
        bundle.find(*operands[:3], **named, operation=problem.operation, target="sm_90a")
    expected = ", ".join(constraint.name for constraint in constraints)
    assert (
        f"expected {len(constraints)} operands ({expected}), got {3 + len(named)}, without a_scale, b_scale"
        in (str(raised.value))
    )
    with pytest.raises(KernelNotFound, match="got 4.*, without b_scale" if not named else "without b_scale"):
        bundle.find(*operands[:3], a_scale=operands[3], **named, operation=problem.operation, target="sm_90a")

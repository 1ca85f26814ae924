"""Exact and fast sums of FP8 on sm_90a: which kernels there are of each kind, and their records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cutlass_aot.generators.alternatives import alternatives
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.gemm import accumulation_of, has_fast_sums, problem_of_kernel
from cutlass_aot.generators.protocol import Problem, ScaleRequest
from cutlass_aot.generators.registry import find
from cutlass_aot.generators.sm90_gemm.generator import SCALES, Sm90Gemm, plan_of
from cutlass_aot.schema.kernels.epilogue import parse_epilogue
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.replace import replace

REPOSITORY = Path(__file__).parents[3]
EXACT = Problem("gemm", ("f8e4m3", "f8e4m3", "bf16"), "tnt", "f32")
FAST = replace(EXACT, accumulation="fast")
SCALED_ROWS = parse_epilogue(
    "D = accum * scale_a * scale_b",
    {"scale_a": {"dtype": "f32", "extents": "M"}, "scale_b": {"dtype": "f32", "extents": "N"}},
)


def enumerated(problem: Problem) -> list[Kernel]:
    return list(Sm90Gemm().enumerate(problem, "sm_90a", load_profile("h200")))


@pytest.mark.parametrize(
    "problem",
    [
        EXACT,
        replace(EXACT, dtypes=("f8e4m3", "f8e4m3", "f32")),
        replace(EXACT, epilogue=SCALED_ROWS),
        replace(EXACT, operation="grouped_gemm"),
        replace(EXACT, operation="masked_grouped_gemm"),
    ],
    ids=str,
)
def test_exact_sums_have_the_designs_of_kernels_with_scale_factors(problem: Problem) -> None:
    def designs(kernels: list[Kernel]) -> list[dict[str, object]]:
        return [{**dict(kernel.design), "family": ""} for kernel in kernels]

    kernels = enumerated(problem)
    scaled = enumerated(replace(problem, scales=SCALES, epilogue=None))
    assert designs(kernels) == designs(scaled)
    for kernel, other in zip(kernels, scaled, strict=True):
        assert (kernel.accumulation, other.accumulation) == ("exact", "")
        assert kernel.cost == other.cost != ""
        assert problem_of_kernel(kernel, problem.epilogue) == problem
        plan = plan_of(kernel)
        assert (plan.exact, plan.scaled, plan.promoted, plan.factor_stride) == (True, False, True, 0)
        # Without factors a tile at the edge begins where it wants to, and the ring has room for more.
        assert plan.multiples == (1, 1)
        assert plan.stages >= plan_of(other).stages or plan.staged_bytes > plan_of(other).staged_bytes


def test_few_rows_and_sums_in_parts_have_kernels() -> None:
    plans = [plan_of(kernel) for kernel in enumerated(EXACT)]
    assert {plan.split for plan in plans if plan.swap} == {1, 4}
    assert any(plan.active for plan in plans)


def test_the_two_kinds_are_groups_of_their_own() -> None:
    exact, fast = enumerated(EXACT)[0], enumerated(FAST)[0]
    assert (exact.accumulation, fast.accumulation) == ("exact", "fast")
    assert exact.group != fast.group
    assert exact.group_name == "gemm-f8e4m3.f8e4m3.bf16-f32-exact-tnt-sm_90a"
    assert fast.group_name == "gemm-f8e4m3.f8e4m3.bf16-f32-tnt-sm_90a"
    assert not enumerated(replace(FAST, operation="grouped_gemm"))


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_kernels_with_fast_sums_are_those_that_were_measured(gpu: str) -> None:
    tuning = json.loads((REPOSITORY / "manifests" / "tuning" / f"nvidia-{gpu}.json").read_text())
    kernels = {kernel.digest: kernel for kernel in enumerated(FAST)}
    (measured,) = (
        group["kernels"]
        for group in tuning["groups"]
        if group["digest"] == next(iter(kernels.values())).group
    )
    own = [kernel for kernel in measured if "Sm90ClusterGemm" in kernel["name"]]
    assert len(own) > 50
    assert all(kernels[kernel["digest"]].name == kernel["name"] for kernel in own)


@pytest.mark.parametrize(
    "change",
    [
        {"dtypes": ("bf16", "bf16", "bf16")},
        {"dtypes": ("bf16", "f8e4m3", "bf16")},
        {"accumulator": "f16"},
        {"scales": SCALES},
        {"scales": (ScaleRequest("f32", 128), None)},
        {"dtypes": (), "layouts": "", "accumulator": ""},
    ],
    ids=str,
)
def test_everything_else_has_one_kind(change: dict[str, object]) -> None:
    for problem in (replace(EXACT, **change), replace(FAST, **change)):
        assert not has_fast_sums(problem, "sm_90a")
        assert accumulation_of(problem, "sm_90a") == ""


def test_other_targets_have_one_kind() -> None:
    assert has_fast_sums(FAST, "sm_90a")
    assert has_fast_sums(replace(FAST, dtypes=("f8e5m2", "f8e4m3", "f32")), "sm_90a")
    assert not any(has_fast_sums(FAST, target) for target in ("sm_80", "sm_89", "sm_100a", "sm_120a"))


def test_a_table_that_asks_for_the_other_kind_is_told_so() -> None:
    generator = find("sm90_gemm").load()
    problem = replace(FAST, operation="grouped_gemm")
    words = alternatives(generator, problem, "sm_90a", load_profile("h200"))
    assert words.startswith('it has some with accumulation = "exact"')

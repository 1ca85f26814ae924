"""tools/check/group_costs.py: regrets by measured times, and a fit that finds the constants behind them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

pytest.importorskip("numpy")

from cutlass_aot.generators.gemm import GROUPED_GEMM
from cutlass_aot.generators.sm90_gemm.costs import cost_of_groups, group_times
from cutlass_aot.schema.kernels.cost import costs_of, numbers_of
from tools.bench import experts
from tools.check import group_costs

MACHINE = {"sm_count": 132, "sm_mhz": 1980, "memory_bandwidth": 3352}
DESIGNS: dict[str, dict[str, Any]] = {
    f"{tile[0]}x{tile[1]}": {
        "family": "Sm90GroupedGemm", "tile_shape": [*tile, 64], "cluster_shape": [1, 1, 1],
        "blocks_per_sm": 1, "swap_operands": tile[0] < 64, "persistent": True,
    }
    for tile in ((16, 128), (64, 128), (128, 128), (128, 256))
}  # fmt: skip


def written(path: Path, formula: str) -> Path:
    """A file whose times are what a formula says."""
    problems = []
    for groups in (1, 8, 64):
        for rows in (16, 200, 1500):
            extents = {"G": groups, "M": groups * rows, "N": 4096, "K": 2048}
            values = [
                MACHINE
                | extents
                | numbers_of({k: tuple(v) if isinstance(v, list) else v for k, v in d.items()})
                for d in DESIGNS.values()
            ]
            times = dict(zip(DESIGNS, costs_of(formula, values), strict=True))
            problems.append(
                {"name": f"bf16 {groups} x {rows}", "extents": extents}
                | {"microseconds": times | {"chosen": 1.0, "DeepGEMM": 2.0}}
            )
    path.write_text(json.dumps({"machine": MACHINE, "designs": DESIGNS, "problems": problems}))
    return path


def test_a_formula_that_made_the_times_has_no_regret(tmp_path: Path) -> None:
    times = group_times(GROUPED_GEMM, 16)
    path = written(tmp_path / "own.json", cost_of_groups(GROUPED_GEMM, 16, times))
    result = CliRunner().invoke(group_costs.main, [str(path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "| bf16, own.json | 9 | 1.000 | 1.00 | 1.00 |" in result.output
    assert "contiguous" not in result.output


def test_a_fit_finds_constants_that_made_the_times(tmp_path: Path) -> None:
    todays = group_times(GROUPED_GEMM, 16)
    others = todays._replace(product=todays.product * 3, load=todays.load / 2, start=todays.start * 2)
    formula = cost_of_groups(GROUPED_GEMM, 16, others)
    path = written(tmp_path / "others.json", formula)
    problems = group_costs.problems_of(path, "bf16")
    before = group_costs.regrets(cost_of_groups(GROUPED_GEMM, 16, todays), problems)
    fitted = group_costs.fit(GROUPED_GEMM, 16, todays, problems, 12)
    after = group_costs.regrets(cost_of_groups(GROUPED_GEMM, 16, fitted), problems)
    assert sum(after) <= sum(before)
    assert max(after) < 1.02
    values = [value for problem in problems for value in problem.values]
    measured = [time for problem in problems for time in problem.times]
    found = costs_of(cost_of_groups(GROUPED_GEMM, 16, fitted), values)
    assert max(abs(a / b - 1) for a, b in zip(found, measured, strict=True)) < 0.15
    result = CliRunner().invoke(group_costs.main, [str(path), "--fit", str(path)], catch_exceptions=False)
    assert "bf16, others.json, fitted" in result.output
    assert "bf16: GroupTimes(more=" in result.output


def test_problems_are_drawn_within_bounds_and_again_by_the_same_seed() -> None:
    cases = experts.Cases(None, None, False)
    for kind in ("contiguous", "masked", "bf16"):
        drawn = list(cases.drawn(kind, 30, 1))
        assert [name for name, _ in drawn] == [name for name, _ in cases.drawn(kind, 30, 1)]
        assert [name for name, _ in drawn] != [name for name, _ in cases.drawn(kind, 30, 2)]
        assert len({name for name, _ in drawn}) > 25
        for _, make in drawn:
            assert isinstance(make, partial)
            _, sizes, n, k, *_ = make.args
            assert 0 < sum(sizes) <= experts.MOST_DRAWN_ROWS
            assert 2 * sum(sizes) * n * k <= experts.MOST_DRAWN_OPERATIONS
            assert (n % 64, k % 128) == (0, 0)

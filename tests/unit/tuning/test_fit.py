"""Fits of the cost model: to times that the model itself gives, with noise, gaps and clocks that change."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
from dataclasses import replace

import pytest

from cutlass_aot.errors import TuningError
from cutlass_aot.runtime.selection.cost_model import Candidates, microseconds
from cutlass_aot.schema.kernels.tiling import Tiling, Traffic
from cutlass_aot.schema.tuning.costs import Costs, Machine, derived, from_logarithms, to_logarithms
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.schema.tuning.tuning import TunedGroup, TunedKernel, TunedProblem
from cutlass_aot.tuning.fit import FOLDS, accuracy, fit, fit_group, regret

H200 = Machine(132, 1980, 4917)
TRAFFIC = Traffic(2, 2, 2, 16)
TILES = [(64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 192), (128, 256), (256, 128)]
TILINGS = {
    f"{number:064x}": Tiling.make([(*tile, 64), (1, 1), False, "F", "clc", 1, False, None], {})
    for number, tile in enumerate(TILES)
}
ALL = Candidates.of(TILINGS, TRAFFIC, "sm_90a")
WEIGHTS = [(n, k) for n in (512, 1536, 4096, 7168) for k in (1024, 4096, 14336)]
PROBLEMS = [Extents(1, m, n, k) for m in (1, 16, 100, 333, 1024, 4096) for n, k in WEIGHTS]


def truth(tiling: Tiling) -> Costs:
    """Constants that differ from what is derived: by the tile, and for each kernel own factor."""
    base = derived(tiling, 16, "sm_90a", H200)
    chance = random.Random(f"{tiling.block_m} {tiling.block_n}")
    own = 1 + 0.3 * chance.random()
    return base._replace(
        launch=2.5, step=0.8 * base.step * own, tile=2.0 * own, bandwidth=3500.0, crowding=0.4, overlap=2.2
    )


def measured(noise: float = 0.01, clock: float = 0.0, seed: int = 1) -> list[TunedProblem]:
    """What a bench would find on a GPU with these constants."""
    chance = random.Random(seed)
    found = []
    for extents in PROBLEMS:
        slower = 1 + clock * chance.random()
        times = {
            digest: microseconds(truth(tiling), todo) * slower * (1 + noise * chance.gauss(0, 1))
            for digest, tiling, todo in zip(ALL.digests, ALL.tilings, ALL.work(extents, 132), strict=True)
        }
        ranked = sorted(times.items(), key=lambda item: item[1])
        bound = 1.5 * ranked[0][1]
        found.append(
            TunedProblem(
                extents,
                tuple(item for item in ranked if item[1] <= bound),
                tuple(item for item in ranked if item[1] > bound),
            )
        )
    return found


def mean_regret(costs: tuple[Costs, ...], problems: list[TunedProblem]) -> float:
    return statistics.geometric_mean(regret(ALL, costs, problem, H200) for problem in problems)


def test_a_fit_finds_the_constants_that_the_times_were_made_with() -> None:
    problems = measured(noise=0.0)
    found = fit(ALL, problems, H200)
    for own, tiling in zip(found.costs, ALL.tilings, strict=True):
        assert own.step == pytest.approx(truth(tiling).step, rel=0.05)
        # What empty rows cost, which few of the problems tell, trades off with it.
        assert own.bandwidth == pytest.approx(3500, rel=0.15)
    assert mean_regret(found.costs, problems) < 1.002
    assert mean_regret(tuple(ALL.derived(H200)), problems) > mean_regret(found.costs, problems)


def test_a_clock_that_changes_between_problems_does_not_disturb_a_fit() -> None:
    found = fit(ALL, measured(clock=0.08), H200)
    assert mean_regret(found.costs, measured(noise=0.0)) < 1.005


def test_a_kernel_that_was_not_measured_is_not_shunned() -> None:
    """The regression says what it takes: chosen among all, no slower than a choice that knows its times."""
    problems = measured(noise=0.0)
    for left_out in ALL.digests:
        known = [
            TunedProblem(
                problem.extents,
                tuple(item for item in problem.ranked if item[0] != left_out),
                tuple(item for item in problem.stopped if item[0] != left_out),
            )
            for problem in problems
        ]
        found = fit(ALL, [problem for problem in known if problem.ranked], H200)
        at = ALL.digests.index(left_out)
        assert found.costs[at].step == pytest.approx(truth(ALL.tilings[at]).step, rel=0.35)
        assert mean_regret(found.costs, problems) < 1.05
        # The same from the regression alone, as a bundle gets it for a kernel that the file does not name.
        predicted = found.regression.predict(ALL.tilings[at], ALL.derived(H200)[at])
        assert list(predicted) == pytest.approx(list(found.costs[at]), rel=1e-4)


def test_a_kernel_of_another_kind_takes_what_all_kernels_have_in_common() -> None:
    found = fit(ALL, measured(), H200).regression
    other = ALL.tilings[0]._replace(kind="another")
    base = derived(other, 16, "sm_90a", H200)
    assert set(found.kinds) == {"F"}
    assert found.predict(other, base).step < base.step


def test_accuracy_is_of_problems_that_the_fit_did_not_know() -> None:
    found = accuracy(ALL, measured(), H200)
    assert found is not None
    assert (found.problems, found.folds) == (len(PROBLEMS), FOLDS)
    assert 1 <= found.mean < 1.01
    assert found.mean <= found.p95 <= found.worst
    few = [problem for problem in measured() if problem.extents.n == 512]
    assert accuracy(ALL, few, H200) is None


def test_a_group_gets_constants_for_each_kernel_and_the_same_twice() -> None:
    kernels = tuple(TunedKernel(digest, "00" * 32, f"kernel {digest[-1]}") for digest in ALL.digests)
    group = TunedGroup("ab" * 32, "group", kernels, tuple(measured()))
    found = fit_group(group, TILINGS, TRAFFIC, "sm_90a", H200)
    assert found.model is not None
    assert all(kernel.costs is not None for kernel in found.kernels)
    assert fit_group(group, TILINGS, TRAFFIC, "sm_90a", H200) == found
    # A second fit does not build on the first.
    assert fit_group(found, TILINGS, TRAFFIC, "sm_90a", H200) == found
    bare = replace(group, problems=(TunedProblem(PROBLEMS[0], ()),))
    assert fit_group(bare, TILINGS, TRAFFIC, "sm_90a", H200) is bare


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(TuningError, match="there is nothing to fit the cost model to"):
        fit(ALL, [TunedProblem(PROBLEMS[0], ())], H200)


def test_constants_have_scales_without_bounds() -> None:
    costs = truth(ALL.tilings[0])
    assert from_logarithms(to_logarithms(costs)) == pytest.approx(costs, rel=1e-4)
    far = [value + 3 for value in to_logarithms(costs)]
    assert 0 < from_logarithms(far).tail < 1 < from_logarithms(far).overlap


def test_numpy_is_imported_for_a_fit_alone() -> None:
    code = (
        "import sys, cutlass_aot.tuning.fit, cutlass_aot.runtime.bundle\n"
        "assert 'numpy' not in sys.modules\n"
        "sys.modules['numpy'] = None\n"
        "from cutlass_aot.errors import TuningError\n"
        "try:\n    cutlass_aot.tuning.fit.import_numpy()\n"
        "except TuningError as error:\n    assert 'numpy>=1.26' in str(error), error\n"
        "else:\n    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

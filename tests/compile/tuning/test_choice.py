"""How well the choice does on the times in manifests/tuning: a regression of it is seen without a GPU.

Kernels are enumerated as a build does; nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cutlass_aot.builder.build import make_plan
from cutlass_aot.builder.settings import Settings
from cutlass_aot.runtime.selection.cost_model import Candidates
from cutlass_aot.runtime.selection.tiers import Ranked, tuned
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.tuning.tuned import rankings
from cutlass_aot.schema.tuning.tuning import Accuracy, TunedGroup, TunedProblem, Tuning, read_tuning
from cutlass_aot.tuning.fit import accuracy
from tests.support.paths import REPOSITORY
from tools.check.selection import candidates_of, regrets, without_kernels

pytestmark = pytest.mark.compile

Group = tuple[TunedGroup, Candidates]

FILES = REPOSITORY / "manifests" / "tuning"


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    """The kernels of manifests/sm90.toml by digest."""
    settings = Settings(tmp_path_factory.mktemp("store"), 2, timeout=600, tell=lambda event: None)
    planned = make_plan(REPOSITORY / "manifests" / "sm90.toml", settings).kernels
    return {item.kernel.digest: item.kernel for item in planned}


@pytest.fixture(scope="module", params=["nvidia-h100.json", "nvidia-h200.json"])
def tuning(request: pytest.FixtureRequest) -> Tuning:
    return read_tuning(FILES / request.param)


@pytest.fixture(scope="module")
def groups(kernels: dict[str, Kernel], tuning: Tuning) -> list[Group]:
    return [(g, candidates_of([kernels[kernel.digest] for kernel in g.kernels])) for g in tuning.groups]


def test_problems_whose_n_and_k_were_not_measured(groups: list[Group], tuning: Tuning) -> None:
    for group, candidates in groups:
        assert group.model is not None
        in_the_file = group.model.accuracy
        assert in_the_file is not None
        assert in_the_file.mean <= 1.015
        assert in_the_file.p95 <= 1.09
        # A third of the problems tells it nearly as well, and takes a third of the time.
        found = accuracy(candidates, group.problems[::3], tuning.machine)
        assert found is not None
        assert found.mean == pytest.approx(in_the_file.mean, abs=0.01)
        assert found.p95 <= 1.12


def test_problems_that_were_measured(groups: list[Group], tuning: Tuning) -> None:
    """By the constants in the file, without the times."""
    for group, candidates in groups:
        costs = {kernel.digest: kernel.costs for kernel in group.kernels}
        known = [own for digest in candidates.digests if (own := costs[digest]) is not None]
        found = Accuracy.of(regrets(candidates, known, group.problems, tuning.machine), 1)
        assert found.mean <= 1.02
        assert found.p95 <= 1.1


def test_kernels_that_were_not_measured(groups: list[Group], tuning: Tuning) -> None:
    for group, candidates in groups:
        # By a third of the problems, as above.
        found = Accuracy.of(without_kernels(candidates, group.problems[::3], tuning.machine), 1)
        assert found.mean <= 1.06


def test_without_any_measurement(groups: list[Group], tuning: Tuning) -> None:
    for group, candidates in groups:
        costs = candidates.derived(tuning.machine)
        found = Accuracy.of(regrets(candidates, costs, group.problems, tuning.machine), 1)
        assert found.mean <= 1.08


def hidden(group: TunedGroup, candidates: Candidates) -> Iterator[tuple[TunedProblem, TunedProblem]]:
    """Problems at which nine of ten kernels have a time, and the same without those of this package's.

    A file is like that if it was measured before these kernels were there.
    """
    own = {d for d, t in zip(candidates.digests, candidates.tilings, strict=True) if "Cluster" in t.kind}
    for problem in group.problems:
        if len(problem.ranked) + len(problem.stopped) >= 0.9 * len(candidates.digests):
            ranked = tuple(item for item in problem.ranked if item[0] not in own)
            stopped = tuple(item for item in problem.stopped if item[0] not in own)
            if ranked:
                yield problem, TunedProblem(problem.extents, ranked, stopped)


def test_a_measured_problem_does_not_shun_kernels_that_were_not_measured_at_it(
    groups: list[Group], kernels: dict[str, Kernel], tuning: Tuning
) -> None:
    for group, candidates in groups:
        found = []
        for whole, part in hidden(group, candidates):
            alone = replace(tuning, groups=(replace(group, problems=(part,)),))
            objects = {digest: (kernels[digest], None) for digest in candidates.digests}
            (ranking,) = rankings(alone, objects)
            choice = tuned(Ranked(ranking), lambda of=candidates: of, part.extents, tuning.machine)
            assert choice is not None
            times = dict((*whole.stopped, *whole.ranked))
            # The first that has a time: of the others nothing is known.
            chosen = next(digest for digest in choice.digests if digest in times)
            found.append(times[chosen] / whole.ranked[0][1])
        assert len(found) >= 40
        assert Accuracy.of(found, 1).mean <= 1.03


def test_other_groups_get_constants_of_kernels_alike(kernels: dict[str, Kernel], tuning: Tuning) -> None:
    """The kernels of half precision are those of bfloat16 with another element type."""
    without = replace(
        tuning, groups=tuple(group for group in tuning.groups if not group.name.startswith("gemm-f16."))
    )
    found = {r.group: r for r in rankings(without, {d: (kernel, None) for d, kernel in kernels.items()})}
    names = {kernel.group: kernel.group_name for kernel in kernels.values()}
    by_name = {names[digest]: ranking for digest, ranking in found.items()}
    # Exact sums of FP8 were not measured, and have a cost formula, which constants of others do not replace.
    formulas = {kernel.group for kernel in kernels.values() if kernel.cost}
    assert len(formulas) == 3
    assert found.keys() == names.keys() - formulas
    half, brain = (by_name[f"gemm-{t}.{t}.{t}-f32-tnt-sm_90a"] for t in ("f16", "bf16"))
    assert (half.measured_as, brain.measured_as) == ("gemm-bf16.bf16.bf16-f32-tnt-sm_90a", "")
    assert half.problems.extents == brain.problems.extents
    for ours, theirs in zip(half.problems, brain.problems, strict=True):
        assert (ours.seconds, len(ours.slower)) == (theirs.seconds, len(theirs.slower))
    assert sorted(costs for _, costs in half.costs) == sorted(costs for _, costs in brain.costs)


@pytest.mark.parametrize("path", sorted(FILES.iterdir()), ids=lambda path: path.name)
def test_a_file_is_written_as_it_was_read(path: Path) -> None:
    assert read_tuning(path).to_bytes() == path.read_bytes()


def test_constants_serve_the_other_gpu_when_scaled(kernels: dict[str, Kernel]) -> None:
    """Of kernels that were measured on both, by the constants of the one at the problems of the other."""
    one, other = (read_tuning(FILES / f"nvidia-{gpu}.json") for gpu in ("h100", "h200"))
    for fitted_on, measured_on in ((one, other), (other, one)):
        for group in measured_on.groups:
            (same,) = (g for g in fitted_on.groups if g.digest == group.digest)
            costs = {kernel.digest: kernel.costs for kernel in same.kernels}
            both = [kernels[kernel.digest] for kernel in group.kernels if costs.get(kernel.digest)]
            candidates = candidates_of(both)
            scaled = [
                own.on(fitted_on.machine, measured_on.machine)
                for digest in candidates.digests
                if (own := costs[digest]) is not None
            ]
            found = regrets(candidates, scaled, group.problems, measured_on.machine)
            assert Accuracy.of(found, 1).mean <= 1.04

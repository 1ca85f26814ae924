"""How well kernels are chosen: ``python -m tools.check.selection BUNDLE --tuning FILE``.

No GPU is needed: the times are those of tuning files. For each group it prints the regret, which is the time
of the kernel that is chosen over that of the fastest that was measured, as a geometric mean, of 95% of the
problems and at worst, for

- ``derived``: the cost model with constants derived from designs (the tier ``default order``);
- ``fitted, n and k left out``: fitted without the problems of the same n and k, a third at a time, and
  corrected by the others, as a bundle chooses;
- ``fitted, kernels left out``: fitted without a third of the kernels at a time, which take constants from the
  regression, and chosen among all, without corrections;
- ``fitted``: on the problems that it was fitted to, without corrections;
- ``fitted, on FILE``: on the problems of another file, given with ``--on``, corrected by those of the first.

For groups that a heuristic ranked when the bundle was built it prints how the derived constants order the
kernels that the heuristic ranks: how often both take the same first, and how long the derived model expects
the heuristic's first to take, its own as 1 (geometric mean).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

import cutlass_aot
from cutlass_aot.runtime.files.verified_read import read_file
from cutlass_aot.runtime.selection.cost_model import Candidates, microseconds
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.tiling import Tiling, Traffic
from cutlass_aot.schema.tuning.costs import Costs, Machine, typical_machine
from cutlass_aot.schema.tuning.ranking import RankedProblems, Ranking
from cutlass_aot.schema.tuning.tuned import ranked
from cutlass_aot.schema.tuning.tuning import Accuracy, TunedGroup, TunedProblem, Tuning, read_tuning
from cutlass_aot.tuning.fit import FOLDS, fit, regret
from tools.bench.command import markdown

Line = tuple[str, str, Accuracy]


def candidates_of(kernels: Sequence[Kernel]) -> Candidates:
    """Kernels of one group as candidates."""
    first = kernels[0]
    tilings = {kernel.digest: Tiling.of(kernel) for kernel in kernels}
    return Candidates.of(tilings, Traffic.of(first.operands), first.target)


def regrets(
    candidates: Candidates,
    costs: Sequence[Costs],
    problems: Sequence[TunedProblem],
    machine: Machine,
    known: RankedProblems | None = None,
) -> list[float]:
    """The regret at each problem with a measured kernel; ``known`` problems correct the estimates."""
    return [regret(candidates, costs, problem, machine, known) for problem in problems if problem.ranked]


def without_kernels(
    candidates: Candidates, problems: Sequence[TunedProblem], machine: Machine
) -> list[float]:
    """Regrets where the fit knows two thirds of the kernels, and the regression says what the others take."""
    found = []
    for fold in range(FOLDS):
        left_out = set(sorted(candidates.digests)[fold::FOLDS])
        known = [_without(problem, left_out) for problem in problems]
        # A kernel without times gets what the regression says of it.
        costs = fit(candidates, [problem for problem in known if problem.ranked], machine).costs
        found += regrets(candidates, costs, problems, machine)
    return found


def _without(problem: TunedProblem, digests: set[str]) -> TunedProblem:
    return TunedProblem(
        problem.extents,
        tuple(item for item in problem.ranked if item[0] not in digests),
        tuple(item for item in problem.stopped if item[0] not in digests),
    )


def lines_of(
    group: TunedGroup, candidates: Candidates, tuning: Tuning, others: Mapping[str, Tuning]
) -> Iterator[Line]:
    """The lines of one group of a tuning file."""
    problems, machine = group.problems, tuning.machine
    costs = fit(candidates, problems, machine).costs
    derived = candidates.derived(machine)
    yield group.name, "derived", Accuracy.of(regrets(candidates, derived, problems, machine), 1)
    if group.model is not None and group.model.accuracy is not None:
        yield group.name, "fitted, n and k left out", group.model.accuracy
    found = without_kernels(candidates, problems, machine)
    yield group.name, "fitted, kernels left out", Accuracy.of(found, FOLDS)
    yield group.name, "fitted", Accuracy.of(regrets(candidates, costs, problems, machine), 1)
    known = RankedProblems(ranked(problem) for problem in problems if problem.ranked)
    for name, other in others.items():
        for measured in other.groups:
            if measured.digest == group.digest:
                new = [problem for problem in measured.problems if known.find(problem.extents) is None]
                found = regrets(candidates, costs, new, machine, known)
                if found:
                    yield group.name, f"fitted, on {name}", Accuracy.of(found, 1)


def against_heuristic(bundle: cutlass_aot.Bundle) -> Iterator[tuple[str, int, float, float, float]]:
    """For each ranking of the build, over the problems at which it ranks several kernels.

    Group, problems, kernels of a problem on average, share of equal firsts, ratio of expected times.
    """
    for entry in bundle.groups:
        handles = bundle.kernels(group=entry.name)
        candidates = candidates_of([handle.kernel for handle in handles])
        machine = typical_machine(entry.target)
        derived = dict(zip(candidates.digests, candidates.derived(machine), strict=True))
        for reference in entry.rankings:
            if reference.measured:
                continue
            what = str(bundle.path / reference.file.path)
            ranking = Ranking.from_bytes(read_file(bundle.path, reference.file), what)
            problems = [problem for problem in ranking.problems if len(problem.kernels) > 1]
            equal, ratios, compared = 0, [], 0
            for problem in problems:
                todo = dict(
                    zip(candidates.digests, candidates.work(problem.extents, machine.sm_count), strict=True)
                )
                times = {digest: microseconds(derived[digest], todo[digest]) for digest in problem.kernels}
                first = times[problem.kernels[0]]
                compared += len(times)
                equal += first == min(times.values())
                ratios.append(math.log(first / min(times.values())))
            if count := len(problems):
                ratio = math.exp(math.fsum(ratios) / count)
                yield entry.name, count, compared / count, equal / count, ratio


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--tuning",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A tuning file of the bundle's kernels; may be given again.",
)
@click.option(
    "--on",
    "others",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A tuning file of other problems, measured with --exhaustive; may be given again.",
)
def main(bundle: Path, files: tuple[Path, ...], others: tuple[Path, ...]) -> None:
    """Print how well the kernels of BUNDLE are chosen, and how its heuristic and the cost model agree."""
    opened = cutlass_aot.open(bundle, check=False)
    kernels = {handle.digest: handle.kernel for handle in opened.kernels()}
    measured = {file.stem: read_tuning(file) for file in others}
    rows = []
    for file in files:
        tuning = read_tuning(file)
        for group in tuning.groups:
            members = candidates_of([kernels[kernel.digest] for kernel in group.kernels])
            for name, how, found in lines_of(group, members, tuning, measured):
                numbers = f"{found.mean:.3f}", f"{found.p95:.2f}", f"{found.worst:.2f}"
                rows.append((name, how, str(found.problems), *numbers))
    if rows:
        click.echo(markdown(("group", "chosen by", "problems", "regret", "95%", "worst"), rows))
    agreed = [
        (name, str(count), f"{compared:.1f}", f"{equal:.2f}", f"{ratio:.2f}")
        for name, count, compared, equal, ratio in against_heuristic(opened)
    ]
    if agreed:
        head = ("group", "problems", "kernels", "same first", "expected time of the heuristic's first")
        click.echo(("\n" if rows else "") + markdown(head, agreed))


if __name__ == "__main__":
    main()

"""How well each tier of choosing does on measured problems: ``python -m tools.check.selection BUNDLE``.

No GPU is needed: the times are those of the bundle's measured rankings, and of tuning files given with
``--on``. For each group it prints, as geometric means over the problems, the time of the best kernel over the
time of the kernel that a tier chooses (1 is the best there is) and the worst problem:

- ``default order``: the estimate alone;
- ``nearest, left out``: each problem chosen from the ranking without it;
- ``nearest, FILE``: problems of another tuning file, measured with ``--exhaustive``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click

import cutlass_aot
from cutlass_aot.runtime.files.verified_read import read_file
from cutlass_aot.runtime.selection import tiers
from cutlass_aot.runtime.selection.cost_model import Candidates, candidate_of
from cutlass_aot.runtime.selection.tiers import Preference, Ranked
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblem, Ranking
from cutlass_aot.schema.tuning.tuned import rankings
from cutlass_aot.schema.tuning.tuning import read_tuning
from tools.bench.command import markdown

Choose = Callable[[Extents], Preference | None]


@dataclass(frozen=True)
class Score:
    """How a tier did on a group's problems.

    Attributes:
        group: the group's name.
        tier: what chose.
        problems: how many it had an answer for.
        unanswered: how many it had none for.
        mean: geometric mean of the best time over the chosen kernel's.
        worst: the least of them.
        where: the problem of the worst.
    """

    group: str
    tier: str
    problems: int
    unanswered: int
    mean: float
    worst: float
    where: str


def scores(
    bundle: cutlass_aot.Bundle, others: Mapping[str, Sequence[Ranking]], sm_count: int
) -> Iterator[Score]:
    """Scores of every group that has a measured ranking.

    Args:
        bundle: an open bundle.
        others: name of a tuning file to its rankings.
        sm_count: SMs of the GPU that was measured.
    """
    for group in bundle.groups:
        kernels = bundle.kernels(group=group.name)
        candidates = Candidates({handle.digest: candidate_of(handle.kernel) for handle in kernels})
        for reference in group.rankings:
            if not reference.measured:
                continue
            what = str(bundle.path / reference.file.path)
            ranking = Ranking.from_bytes(read_file(bundle.path, reference.file), what)
            yield from _of_ranking(group.name, ranking, candidates, others, sm_count)


def _of_ranking(
    name: str,
    ranking: Ranking,
    candidates: Candidates,
    others: Mapping[str, Sequence[Ranking]],
    sm_count: int,
) -> Iterator[Score]:
    problems = ranking.problems
    yield _score(name, "default order", problems, lambda e: tiers.default_order(candidates, e, sm_count))

    def left_out(extents: Extents) -> Preference | None:
        rest = Ranked([problem for problem in problems if problem.extents != extents])
        return tiers.nearest_tuned(rest, extents, candidates, sm_count)

    yield _score(name, "nearest, left out", problems, left_out)
    whole = Ranked(problems)
    for file, measured in others.items():
        for other in measured:
            if other.group == ranking.group:
                yield _score(
                    name,
                    f"nearest, {file}",
                    other.problems,
                    lambda e: tiers.nearest_tuned(whole, e, candidates, sm_count),
                )


def _score(group: str, tier: str, problems: Sequence[RankedProblem], choose: Choose) -> Score:
    shares: list[tuple[float, str]] = []
    for problem in problems:
        preference = choose(problem.extents)
        if preference is None:
            continue
        times = dict(zip(problem.kernels, problem.seconds, strict=True))
        # A kernel that was not measured to the end lost by more than all that were.
        time = times.get(preference.digests[0], problem.seconds[-1] * tiers.UNMEASURED)
        shares.append((problem.seconds[0] / time, str(problem.extents)))
    mean = math.exp(sum(math.log(share) for share, _ in shares) / len(shares)) if shares else math.nan
    worst, where = min(shares, default=(math.nan, "-"))
    return Score(group, tier, len(shares), len(problems) - len(shares), mean, worst, where)


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--on",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A tuning file of other problems, measured with --exhaustive; may be given again.",
)
@click.option("--sm-count", default=132, show_default=True, help="SMs of the GPU that was measured.")
def main(bundle: Path, files: tuple[Path, ...], sm_count: int) -> None:
    """Print how well each tier of choosing does on the measured problems of BUNDLE."""
    opened = cutlass_aot.open(bundle, check=False)
    others = {file.stem: rankings(read_tuning(file)) for file in files}
    lines = []
    for score in scores(opened, others, sm_count):
        count = f"{score.problems}" + (f" (+{score.unanswered})" if score.unanswered else "")
        means = f"{score.mean:.3f}", f"{score.worst:.2f}"
        lines.append((score.group, score.tier, count, *means, score.where))
    head = ("group", "chosen by", "problems", "best / chosen, mean", "worst", "at")
    click.echo(markdown(head, lines))


if __name__ == "__main__":
    main()

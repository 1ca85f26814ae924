"""Which kernel for a problem: four tiers, each a pure function, the first that knows an answer decides.

1. ``tuned``: this very problem was measured on this model of GPU.
2. ``nearest tuned``: problems near it were; their times are carried over by the default order's estimate.
3. ``modelled``: a ranking made when the bundle was built has this problem, or one near it.
4. ``default order``: a stated estimate of time, not the first that fits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from math import log2
from typing import NamedTuple

from cutlass_aot.runtime.selection.cost_model import Candidates
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblem

NEAR = 2.0
"""How far a problem may be from a ranked one to be near it: octaves, in the extent that differs most."""

NEIGHBOURS = 8
"""Ranked problems that decide about a problem between them."""

UNMEASURED = 1.5
"""Time of a kernel that was dropped while measuring, in times of the slowest that was not."""


class Preference(NamedTuple):
    """What a tier says of a problem.

    Attributes:
        tier: ``tuned``, ``nearest tuned``, ``modelled`` or ``default order``.
        reason: why, in words.
        digests: kernels it has a word on, best first, at least one of them a candidate.
    """

    tier: str
    reason: str
    digests: tuple[str, ...]


class Ranked:
    """A ranking, made ready for look-ups: it finds one, and those near another.

    Args:
        problems: of the ranking.
    """

    def __init__(self, problems: Sequence[RankedProblem]) -> None:
        self.problems = problems
        self._exact = {problem.extents: problem for problem in problems}
        # By all extents but M, of which there are few, then by M.
        self._by_weights: dict[tuple[float, float, float], list[tuple[float, RankedProblem]]] = {}
        for problem in sorted(problems, key=lambda problem: problem.extents):
            extents = problem.extents
            place = (log2(extents.batch), log2(extents.n), log2(extents.k))
            self._by_weights.setdefault(place, []).append((log2(extents.m), problem))
        self._rates: dict[tuple[Extents, int, tuple[str, ...]], list[float]] = {}

    def exact(self, extents: Extents) -> RankedProblem | None:
        """The problem of these extents."""
        return self._exact.get(extents)

    def near(self, extents: Extents) -> list[tuple[float, RankedProblem]]:
        """The nearest problems with their distances in octaves, nearest first; none beyond :data:`NEAR`."""
        batch, m, n, k = log2(extents.batch), log2(extents.m), log2(extents.n), log2(extents.k)
        found = []
        for (other_batch, other_n, other_k), along_m in self._by_weights.items():
            steps = (abs(batch - other_batch), abs(n - other_n), abs(k - other_k))
            if max(steps) > NEAR:
                continue
            aside = sum(steps)
            for other_m, problem in along_m:
                step = abs(m - other_m)
                if step <= NEAR:
                    found.append((aside + step, problem.extents, problem))
        return [(far, problem) for far, _, problem in nsmallest(NEIGHBOURS, found)]

    def rates(self, problem: RankedProblem, candidates: Candidates, sm_count: int) -> Sequence[float]:
        """For each candidate, the logarithm of its measured time over its estimate, at one of the problems.

        What was not measured to the end was slower than all that was.
        """
        # Shapes decide which groups serve, and so which candidates there are.
        key = (problem.extents, sm_count, candidates.digests)
        found = self._rates.get(key)
        if found is None:
            times = dict(zip(problem.kernels, problem.seconds, strict=True))
            best, unknown = problem.seconds[0], problem.seconds[-1] * UNMEASURED
            estimates = candidates.estimates(problem.extents, sm_count)
            found = [
                log2(times.get(digest, unknown) / best / estimate)
                for digest, estimate in zip(candidates.digests, estimates, strict=True)
            ]
            self._rates[key] = found
        return found


def merged(rankings: Sequence[Ranked]) -> Ranked:
    """Measured rankings of several groups as one, so that a kernel is judged among those of all groups."""
    if len(rankings) == 1:
        return rankings[0]
    times: dict[Extents, dict[str, float]] = {}
    for ranking in rankings:
        for problem in ranking.problems:
            known = times.setdefault(problem.extents, {})
            known.update(zip(problem.kernels, problem.seconds, strict=True))
    return Ranked([_ranked(extents, known) for extents, known in times.items()])


def _ranked(extents: Extents, times: Mapping[str, float]) -> RankedProblem:
    kernels = tuple(sorted(times, key=lambda digest: (times[digest], digest)))
    return RankedProblem(extents, kernels, tuple(times[digest] for digest in kernels))


def tuned(ranking: Ranked, extents: Extents) -> Preference | None:
    """The first tier: measured times of this very problem."""
    problem = ranking.exact(extents)
    if problem is None:
        return None
    count = len(problem.kernels)
    reason = f"{extents} was measured: {problem.seconds[0] * 1e6:.1f} µs, the best of {count}"
    return Preference("tuned", reason, problem.kernels)


def nearest_tuned(
    ranking: Ranked, extents: Extents, candidates: Candidates, sm_count: int
) -> Preference | None:
    """The second tier: measured times of near problems, carried over.

    A kernel's time at a near problem is multiplied by the ratio of its estimates for the two problems, so
    that what differs between them, whole waves above all, is counted. Near problems weigh in by distance.

    Args:
        ranking: measured on the model of GPU that is chosen for.
        extents: of the problem.
        candidates: kernels that there are.
        sm_count: SMs of the GPU.
    """
    near = ranking.near(extents)
    if not near:
        return None
    weights = [1.0 / (far + 0.05) for far, _ in near]
    total = sum(weights)
    scores = [log2(estimate) for estimate in candidates.estimates(extents, sm_count)]
    for weight, (_, problem) in zip(weights, near, strict=True):
        share = weight / total
        rates = ranking.rates(problem, candidates, sm_count)
        scores = [score + share * rate for score, rate in zip(scores, rates, strict=True)]
    ordered = sorted(candidates.alphabetical, key=scores.__getitem__)
    nearest = ", ".join(str(problem.extents) for _, problem in near[:3])
    digests = tuple(candidates.digests[position] for position in ordered)
    return Preference("nearest tuned", f"measured near {extents}: {nearest}", digests)


def modelled(rankings: Iterable[tuple[str, Ranked]], extents: Extents) -> Preference | None:
    """The third tier: the ranking of this problem, or of the nearest, out of the first that has one.

    Args:
        rankings: each with the name of the GPU it was modelled for.
        extents: of the problem.
    """
    for gpu, ranking in rankings:
        problem = ranking.exact(extents)
        if problem is not None:
            return Preference("modelled", f"{extents} was ranked for {gpu}", problem.kernels)
        near = ranking.near(extents)
        if near:
            problem = near[0][1]
            reason = f"{problem.extents}, near {extents}, was ranked for {gpu}"
            return Preference("modelled", reason, problem.kernels)
    return None


def default_order(candidates: Candidates, extents: Extents, sm_count: int) -> Preference:
    """The last tier: by the estimate; the order of the candidates decides between equals."""
    estimates = candidates.estimates(extents, sm_count)
    ordered = sorted(range(len(estimates)), key=estimates.__getitem__)
    digests = tuple(candidates.digests[position] for position in ordered)
    return Preference("default order", f"the least estimated time on {sm_count} SMs", digests)

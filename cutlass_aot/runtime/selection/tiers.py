"""Choose a kernel for a problem: four tiers, each a pure function; :func:`prefer` asks them in order.

1. ``tuned``: this very problem was measured on this model of GPU.
2. ``nearest tuned``: near problems were measured; their times are scaled by the default order's estimate.
3. ``modelled``: a ranking made when the bundle was built has this problem, or one near it.
4. ``default order``: an estimate of time (:mod:`~.selection.cost_model`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nsmallest
from math import log2
from typing import NamedTuple

from cutlass_aot.runtime.selection.cost_model import Candidates
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblem

NEAR = 2.0
"""Largest distance of near problems: octaves, in the extent that differs most."""

NEIGHBOURS = 8
"""Most near problems that are used for a problem."""

UNMEASURED = 1.5
"""Assumed time of a kernel that was dropped while measuring, relative to the slowest that was not."""


class Preference(NamedTuple):
    """A tier's answer for a problem: the tier's name, why in words, and the kernels that it ranks.

    ``digests`` is best first; at least one is a candidate.
    """

    tier: str
    reason: str
    digests: tuple[str, ...]


class Ranked:
    """A ranking, indexed to find a problem and the problems near it."""

    def __init__(self, problems: Sequence[RankedProblem]) -> None:
        self.problems = problems
        self._exact = {problem.extents: problem for problem in problems}
        # By all extents but M, of which few combinations occur, then by M.
        self._by_weights: dict[tuple[float, float, float], list[tuple[float, RankedProblem]]] = {}
        for problem in sorted(problems, key=lambda problem: problem.extents):
            extents = problem.extents
            place = (log2(extents.batch), log2(extents.n), log2(extents.k))
            self._by_weights.setdefault(place, []).append((log2(extents.m), problem))
        self._rates: dict[tuple[Extents, int, tuple[str, ...]], list[float]] = {}

    def exact(self, extents: Extents) -> RankedProblem | None:
        """The problem of these extents; None if it is not in the ranking."""
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

        A kernel that was not measured to the end counts as slower than all that were.
        """
        # The candidates are part of the key: which groups serve, and so which candidates, depends on shapes.
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


class KnownSpeeds(NamedTuple):
    """What a bundle knows of the speed of some groups' kernels.

    ``measured`` are rankings of the GPU model that is chosen for, ``modelled`` those of a model with the GPU
    they are for, and ``elsewhere`` the other GPU models that were measured.
    """

    measured: list[Ranked]
    modelled: list[tuple[str, Ranked]]
    elsewhere: set[str]


def prefer(
    known: KnownSpeeds, candidates: Callable[[], Candidates], extents: Extents, gpu: str | None, sm_count: int
) -> Preference:
    """The preference of the first tier that has data for the problem.

    ``candidates`` gives the kernels, all of one target, each of which serves the problem; it is called only
    if their estimated times are needed. ``gpu`` is the GPU model that is chosen for, None if none was named.
    """
    if known.measured:
        ranking = merged(known.measured)
        found = tuned(ranking, extents) or nearest_tuned(ranking, extents, candidates(), sm_count)
        if found is not None:
            return found
    found = modelled(known.modelled, extents) or default_order(candidates(), extents, sm_count)
    if known.elsewhere and not known.measured:
        where = "no GPU was named" if gpu is None else f"not on {gpu!r}"
        reason = f"{found.reason}; measured on {', '.join(sorted(known.elsewhere))}, {where}"
        found = Preference(found.tier, reason, found.digests)
    return found


def merged(rankings: Sequence[Ranked]) -> Ranked:
    """Measured rankings of several groups as one, so that kernels compete across groups."""
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
    """The second tier: measured times of near problems, scaled.

    A kernel's time at a near problem is multiplied by the ratio of its estimates for the two problems, which
    accounts for differences between them, above all in whole waves. Near problems are weighted by distance.
    ``ranking`` was measured on the model of GPU that is chosen for.
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
    """The third tier: a ranking of this problem, or of the nearest, from the first that has one.

    ``rankings`` come with the names of the GPUs that they were modelled for.
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
    """The last tier: by the estimate; equals are in the order of the candidates."""
    estimates = candidates.estimates(extents, sm_count)
    ordered = sorted(range(len(estimates)), key=estimates.__getitem__)
    digests = tuple(candidates.digests[position] for position in ordered)
    return Preference("default order", f"the least estimated time on {sm_count} SMs", digests)

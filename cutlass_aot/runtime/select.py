"""Which kernel for a problem: four tiers, each a pure function, the first that knows an answer decides.

1. ``tuned``: this very problem was measured on this model of GPU.
2. ``nearest tuned``: problems near it were; their times are carried over by the default order's estimate.
3. ``modelled``: a ranking made when the bundle was built has this problem, or one near it.
4. ``default order``: a stated estimate of time, not the first that fits.

A kernel's estimated time, in multiply-adds of one streaming multiprocessor (SM) for each step along K::

    clusters = L * (clusters along M) * (clusters along N), with the tile of each of their blocks
    waves    = ceil(clusters / clusters that run at once)
    a wave   = tile_m * tile_n + 64 * (tile_m + tile_n)          for the part of a tile that one SM computes
    split    = 1 / parts + 1000 / K                              1 if no cluster splits K into parts
    estimate = waves * a wave * split

The second term of a wave is the traffic of its operands, which weighs more in small tiles; the factor is what
orders the measurements of ``manifests/tuning`` best (``tools/check_selection.py`` prints how well). How many
clusters run at once is what the device profile says, if a kernel has it compiled in, else SMs over the size
of a cluster. A kernel whose two blocks share a tile (``use_2cta_mma``) gives each SM half of it. K counts for
kernels alone that split it: else it is the same for all. Among equals: larger tiles, then smaller clusters,
then the dynamic scheduler ("clc"), then the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest
from math import log2, prod
from typing import NamedTuple, TypeGuard

from cutlass_aot.schema.kernel import DesignValue, Kernel
from cutlass_aot.schema.ranking import Extents, RankedProblem
from cutlass_aot.schema.targets import Target

TRAFFIC = 64
"""Weight of loading one element of an operand, in multiply-adds."""

ADDING_UP = 1000
"""Elements of K that take as long as it takes several blocks to add up their parts of a sum; a round number
that orders the measurements of ``manifests/tuning`` well, as for :data:`TRAFFIC`."""

NEAR = 2.0
"""How far a problem may be from a ranked one to be near it: octaves, in the extent that differs most."""

NEIGHBOURS = 8
"""Ranked problems that are asked about a problem between them."""

UNMEASURED = 1.5
"""Time of a kernel that was dropped while measuring, in times of the slowest that was not."""

_USUAL_SMS = {8: 108, 9: 132, 10: 148, 12: 170}
"""SMs of a typical GPU by major compute capability, where no device was asked: A100, H100, B200, RTX 5090."""

_SCHEDULERS = {"clc": 0, "static": 1}
_UNKNOWN_TILE = (64, 64)
_TILES_SWAPPED = ("TgvGemm",)
"""Families that compute the transposed problem: the first extent of their tile runs along N."""

DECISIVE = ("tile_shape", "cluster_shape", "use_2cta_mma", "family", "tile_scheduler")
"""Names in a design that a choice looks at."""

SortKey = tuple[float, int, int, int, str]


class Candidate(NamedTuple):
    """What choosing needs of a kernel; kernels that differ in nothing of it share one.

    Attributes:
        tile_m: rows of the output that a block, or a pair of blocks, computes.
        tile_n: columns of it.
        pair: blocks that share a tile, 1 or 2.
        cluster_m: blocks of a cluster along M.
        cluster_n: blocks of a cluster along N.
        swapped: whether the tile's first extent runs along N.
        cluster: blocks of a cluster.
        at_once: clusters that run at once by the device profile it was compiled with; 0 if it says nothing.
        scheduler: its rank among equals.
    """

    tile_m: int
    tile_n: int
    pair: int
    cluster_m: int
    cluster_n: int
    swapped: bool
    cluster: int
    at_once: int
    scheduler: int

    @classmethod
    def make(cls, values: Sequence[DesignValue | None], constants: Mapping[str, int]) -> Candidate:
        """A kernel's part of a choice; what a design lacks gets usual values.

        Args:
            values: what its design says of :data:`DECISIVE`, None for what it does not say.
            constants: numbers of a device profile that it has compiled in.
        """
        tile, cluster, use_2cta_mma, family, scheduler = values
        tile_m, tile_n = tile[:2] if _is_shape(tile) and len(tile) >= 2 else _UNKNOWN_TILE
        blocks = cluster if _is_shape(cluster) else (1, 1)
        size = prod(blocks)
        return cls(
            tile_m=tile_m,
            tile_n=tile_n,
            pair=2 if use_2cta_mma is True else 1,
            cluster_m=blocks[0] if blocks else 1,
            cluster_n=blocks[1] if len(blocks) > 1 else 1,
            swapped=family in _TILES_SWAPPED,
            cluster=size,
            at_once=constants.get(f"max_active_clusters_{size}", 0),
            scheduler=_SCHEDULERS.get(str(scheduler), len(_SCHEDULERS)),
        )


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
    """A ranking, ready to be asked about problems: it finds one, and those near another.

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
        self._rates: dict[tuple[Extents, int], dict[str, float]] = {}

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

    def rates(
        self, problem: RankedProblem, candidates: Mapping[str, Candidate], sm_count: int
    ) -> Mapping[str, float]:
        """For each candidate, the logarithm of its measured time over its estimate, at one of the problems.

        What was not measured to the end was slower than all that was.
        """
        found = self._rates.get((problem.extents, sm_count))
        if found is None:
            times = dict(zip(problem.kernels, problem.seconds, strict=True))
            best, unknown = problem.seconds[0], problem.seconds[-1] * UNMEASURED
            found = {
                digest: log2(
                    times.get(digest, unknown) / best / estimate(candidate, problem.extents, sm_count)
                )
                for digest, candidate in candidates.items()
            }
            self._rates[problem.extents, sm_count] = found
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
    ranking: Ranked, extents: Extents, candidates: Mapping[str, Candidate], sm_count: int
) -> Preference | None:
    """The second tier: measured times of near problems, carried over.

    A kernel's time at a near problem is multiplied by the ratio of its estimates for the two problems, so
    that what differs between them, whole waves above all, is counted. Near problems weigh in by distance.

    Args:
        ranking: measured on the model of GPU that is chosen for.
        extents: of the problem.
        candidates: kernels that there are, by digest.
        sm_count: SMs of the GPU.
    """
    near = ranking.near(extents)
    if not near:
        return None
    totals = dict.fromkeys(candidates, 0.0)
    weights = 0.0
    for far, problem in near:
        weight = 1.0 / (far + 0.05)
        weights += weight
        for digest, rate in ranking.rates(problem, candidates, sm_count).items():
            totals[digest] += weight * rate
    scores = {
        digest: totals[digest] / weights + log2(estimate(candidate, extents, sm_count))
        for digest, candidate in candidates.items()
    }
    ordered = tuple(sorted(scores, key=lambda digest: (scores[digest], digest)))
    nearest = ", ".join(str(problem.extents) for _, problem in near[:3])
    return Preference("nearest tuned", f"measured near {extents}: {nearest}", ordered)


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


def default_order(candidates: Mapping[str, Candidate], extents: Extents, sm_count: int) -> Preference:
    """The last tier: by the estimate, then by what breaks ties; the order given decides between equals."""
    keys = {candidate: _order(candidate, extents, sm_count) for candidate in set(candidates.values())}
    ordered = tuple(sorted(candidates, key=lambda digest: keys[candidates[digest]]))
    return Preference("default order", f"the least estimated time on {sm_count} SMs", ordered)


def usual_sm_count(target: str) -> int:
    """SMs of a typical GPU of a target, where no device was asked."""
    return _USUAL_SMS.get(Target.parse(target).major, 132)


def sort_key(kernel: Kernel, extents: Extents, sm_count: int | None = None) -> SortKey:
    """What functionally equivalent kernels of one target are sorted by: the estimate, then what breaks ties.

    Args:
        kernel: one of them.
        extents: of the problem.
        sm_count: SMs of the GPU; None for that of a typical GPU of the kernel's target.
    """
    candidate = candidate_of(kernel)
    return (*_order(candidate, extents, sm_count or usual_sm_count(kernel.target)), kernel.name)


def candidate_of(kernel: Kernel) -> Candidate:
    """A kernel's part of a choice."""
    design = dict(kernel.design)
    return Candidate.make([design.get(name) for name in DECISIVE], dict(kernel.constants))


def estimate(candidate: Candidate, extents: Extents, sm_count: int) -> float:
    """Estimated time for each step along K, in multiply-adds of one SM; see the module's description."""
    rows, columns = (extents.n, extents.m) if candidate.swapped else (extents.m, extents.n)
    tile_m, tile_n, pair = candidate.tile_m, candidate.tile_n, candidate.pair
    # Written out: this is asked of every kernel of a group at each problem not seen before.
    cluster_m, cluster_n = candidate.cluster_m, candidate.cluster_n
    clusters_m = ((rows + tile_m - 1) // tile_m * pair + cluster_m - 1) // cluster_m
    clusters_n = ((columns + tile_n - 1) // tile_n + cluster_n - 1) // cluster_n
    at_once = candidate.at_once or sm_count // candidate.cluster or 1
    waves = (extents.batch * clusters_m * clusters_n + at_once - 1) // at_once
    wave = tile_m / pair * tile_n + TRAFFIC * (tile_m / pair + tile_n)
    split = candidate.cluster // (cluster_m * cluster_n)
    if split > 1:
        wave *= 1 / split + ADDING_UP / extents.k
    return waves * wave


def _order(candidate: Candidate, extents: Extents, sm_count: int) -> tuple[float, int, int, int]:
    return (
        estimate(candidate, extents, sm_count),
        -candidate.tile_m * candidate.tile_n,
        candidate.cluster,
        candidate.scheduler,
    )


def _is_shape(value: DesignValue | None) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, (tuple, list)) and all(isinstance(e, int) and e > 0 for e in value)

"""Estimate the time of kernels from the few properties that decide it.

A kernel's estimated time, in multiply-adds of one streaming multiprocessor (SM) for each step along K::

    clusters = L * (clusters along M) * (clusters along N), with the tile of each of their blocks
    waves    = ceil(clusters / clusters that run at once)
    a wave   = tile_m * tile_n + 64 * (tile_m + tile_n)          for the part of a tile that one SM computes
    split    = 1 / parts + 1000 / K                              1 if no cluster splits K into parts
    estimate = waves * a wave * split

The second term of a wave is the traffic of its operands, which weighs more in small tiles; the factor is the
one that orders the measurements of ``manifests/tuning`` best (``tools/check/selection.py`` prints how well).
How many clusters run at once is taken from the device profile, if the kernel has it compiled in, else it is
SMs over the size of a cluster. If two blocks share a tile (``use_2cta_mma``), each SM computes half of it. K
matters only for kernels that split it. Among equals: larger tiles, then smaller clusters, then the dynamic
scheduler ("clc"), then the name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.targets import Target
from cutlass_aot.schema.tuning.ranking import Extents

if TYPE_CHECKING:
    from cutlass_aot.schema.kernels.kernel import Kernel

TRAFFIC = 64
"""Weight of loading one element of an operand, in multiply-adds."""

ADDING_UP = 1000
"""Cost of adding up the parts of a sum that several blocks computed, in elements of K; a round number that
orders the measurements of ``manifests/tuning`` well, as for :data:`TRAFFIC`."""

_USUAL_SMS = {8: 108, 9: 132, 10: 148, 12: 170}
"""SMs of a typical GPU by major compute capability, where no device is known: A100, H100, B200, RTX 5090."""

_SCHEDULERS = {"clc": 0, "static": 1}
_UNKNOWN_TILE = (64, 64)
_TILES_SWAPPED = ("TgvGemm",)
"""Families that compute the transposed problem: the first extent of their tile runs along N."""

DECISIVE = ("tile_shape", "cluster_shape", "use_2cta_mma", "family", "tile_scheduler")
"""Names of the design values that candidates are made of."""

SortKey = tuple[float, int, int, int, str]


class Candidate(NamedTuple):
    """The properties of a kernel that decide its estimate; kernels that agree in all of them share one.

    Attributes:
        tile_m: rows of the output that a block, or a pair of blocks, computes.
        tile_n: columns of it.
        pair: blocks that share a tile, 1 or 2.
        cluster_m: blocks of a cluster along M.
        cluster_n: blocks of a cluster along N.
        swapped: whether the tile's first extent runs along N.
        cluster: blocks of a cluster.
        at_once: clusters that run at once by the device profile it was compiled with; 0 without one.
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
        """Make a candidate from a kernel's design; missing values get the usual ones.

        ``values`` are in the order of :data:`DECISIVE`, None for those that the design does not have;
        ``constants`` are the numbers of the device profile that it has compiled in.
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


class _Side(NamedTuple):
    """Tile and cluster extents along M or N; many kernels share them."""

    along_n: bool
    tile: int
    pair: int
    cluster: int


class _Terms(NamedTuple):
    """The parts of an estimate that are the same for all problems; sides are positions in a list of them."""

    first: int
    second: int
    at_once: int
    wave: float
    part: float
    adding_up: int


class Candidates:
    """Kernels to choose from, prepared for estimates for many problems.

    Args:
        by_digest: candidates by the kernels' digests; the order decides between full equals.

    Attributes:
        digests: of the kernels, in the order in which equals are preferred.
        alphabetical: positions in ``digests``, in order of the digests.
    """

    def __init__(self, by_digest: Mapping[str, Candidate]) -> None:
        ordered = sorted(by_digest.items(), key=lambda item: _among_equals(item[1]))
        self.digests = tuple(digest for digest, _ in ordered)
        self.alphabetical = tuple(sorted(range(len(ordered)), key=self.digests.__getitem__))
        self._candidates = [candidate for _, candidate in ordered]
        sides = [_sides(candidate) for candidate in self._candidates]
        self._sides = list(dict.fromkeys(side for both in sides for side in both))
        position = {side: number for number, side in enumerate(self._sides)}
        self._positions = [(position[first], position[second]) for first, second in sides]
        self._terms: dict[int, list[_Terms]] = {}

    @classmethod
    def merged(cls, parts: Iterable[Candidates]) -> Candidates:
        """The candidates of several groups; the order of the groups decides between full equals."""
        return cls(
            {
                digest: candidate
                for part in parts
                for digest, candidate in zip(part.digests, part._candidates, strict=True)
            }
        )

    def estimates(self, extents: Extents, sm_count: int) -> list[float]:
        """Estimated time of each per step along K, in multiply-adds of one SM, in order of ``digests``."""
        terms = self._terms.get(sm_count)
        if terms is None:
            terms = self._terms[sm_count] = [
                _terms(candidate, places, sm_count)
                for candidate, places in zip(self._candidates, self._positions, strict=True)
            ]
        batch, m, n, k = extents
        # For speed, as this runs for each new problem: shared parts are computed once, without function
        # calls.
        clusters = [
            (((n if along_n else m) + tile - 1) // tile * pair + cluster - 1) // cluster
            for along_n, tile, pair, cluster in self._sides
        ]
        return [
            (batch * clusters[first] * clusters[second] + at_once - 1)
            // at_once
            * (wave * (part + adding_up / k))
            for first, second, at_once, wave, part, adding_up in terms
        ]


def _sides(candidate: Candidate) -> tuple[_Side, _Side]:
    """The side along the first extent of its tile, and the one along the second."""
    return (
        _Side(candidate.swapped, candidate.tile_m, candidate.pair, candidate.cluster_m),
        _Side(not candidate.swapped, candidate.tile_n, 1, candidate.cluster_n),
    )


def _terms(candidate: Candidate, sides: tuple[int, int], sm_count: int) -> _Terms:
    rows = candidate.tile_m / candidate.pair
    split = candidate.cluster // (candidate.cluster_m * candidate.cluster_n)
    return _Terms(
        *sides,
        at_once=candidate.at_once or sm_count // candidate.cluster or 1,
        wave=rows * candidate.tile_n + TRAFFIC * (rows + candidate.tile_n),
        part=1 / split,
        adding_up=ADDING_UP if split > 1 else 0,
    )


def estimate(candidate: Candidate, extents: Extents, sm_count: int) -> float:
    """The estimate for one kernel; see :meth:`Candidates.estimates`."""
    return Candidates({"": candidate}).estimates(extents, sm_count)[0]


def usual_sm_count(target: str) -> int:
    """SMs of a typical GPU of a target, where no device is known."""
    return _USUAL_SMS.get(Target.parse(target).major, 132)


def sort_key(kernel: Kernel, extents: Extents, sm_count: int | None = None) -> SortKey:
    """Sort key of functionally equivalent kernels of one target: the estimate, then the tie-breakers.

    ``sm_count`` is None for that of a typical GPU of the kernel's target.
    """
    candidate = candidate_of(kernel)
    time = estimate(candidate, extents, sm_count or usual_sm_count(kernel.target))
    return (time, *_among_equals(candidate), kernel.name)


def candidate_of(kernel: Kernel) -> Candidate:
    """The candidate for a kernel."""
    design = dict(kernel.design)
    return Candidate.make([design.get(name) for name in DECISIVE], dict(kernel.constants))


def _among_equals(candidate: Candidate) -> tuple[int, int, int]:
    return (-candidate.tile_m * candidate.tile_n, candidate.cluster, candidate.scheduler)


def _is_shape(value: DesignValue | None) -> TypeGuard[tuple[int, ...]]:
    return isinstance(value, (tuple, list)) and all(isinstance(e, int) and e > 0 for e in value)

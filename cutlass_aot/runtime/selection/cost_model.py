"""Estimate the time of a kernel for a problem from its tiling and fifteen constants.

A kernel's clusters fill the GPU wave after wave; a block computes a tile in steps along K::

    waves   = ceil(clusters / clusters that run at once); of a persistent kernel, see work()
    whole   = waves, less where the last wave is not full and its blocks are faster for it  (tail)
    step    = step * ((share of the GPU at work + 0.15) / 1.15) ^ crowding,
              longer where two SMs of a pair, or two blocks of an SM, are at work      (pairing, sharing),
              and as long as loading takes, if that is more, where rows begin within
              a sector (misalignment) or a line of memory                              (within_line)
    compute = whole * (tile + steps * step)
    memory  = (bytes read + bytes written, which count for more
               + emptiness * bytes of rows that are not there
               + partial_sectors * bytes of an output whose rows begin within a sector
               + partial_lines * bytes of one whose rows begin within a line alone) / bandwidth,
              longer where some SMs, or pairs of them, have two blocks and others one  (unevenness)
    time    = launch + (compute^overlap + memory^overlap) ^ (1 / overlap)

The constants (:class:`~cutlass_aot.schema.tuning.costs.Costs`) are fitted to measurements by
:mod:`cutlass_aot.tuning.fit` or derived from the design. ``tools/check/selection.py`` prints how well the
model orders the kernels that were measured. Among equals: larger tiles, then smaller clusters, then the
dynamic scheduler ("clc"), then the name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING

from cutlass_aot.schema.bundles.tiling_table import TilingTable
from cutlass_aot.schema.kernels.tiling import Tiling, Traffic
from cutlass_aot.schema.named_tuple import NamedTuple
from cutlass_aot.schema.tuning.costs import (
    Costs,
    Derivation,
    Machine,
    derivation,
    derived,
    is_of_ampere,
    typical_machine,
)
from cutlass_aot.schema.tuning.ranking import Extents

if TYPE_CHECKING:
    from cutlass_aot.schema.kernels.kernel import Kernel

_SECTOR_BYTES = 32
"""What the device memory moves at once, at multiples of it. Source: CUDA C++ Best Practices Guide, "Coalesced
Access to Global Memory"."""

_LINE_BYTES = 128
"""What the L2 cache has one tag for. Source: as above."""

_WRITTEN = 1.5
"""What a byte that is written counts in bytes that are read: a round number by which the problems of
``manifests/tuning/nvidia-h200.json`` whose n and k a fit did not know have the least regret."""

_FILLED = {1: 1.0, 2: 1.0, 4: 0.92, 8: 0.91, 16: 0.87}
"""Share of the SMs that clusters of so many blocks can fill, as one lies in a group of SMs (GPC): it gives
the numbers of clusters of H200 and B200 in ``generators/devices``."""

_FILLED_OTHERWISE = 0.88
"""The same for other sizes: by times of kernels, fewer than 40 clusters of three run at once on an H200."""

SortKey = tuple[float, int, int, int, str]


class Work(NamedTuple):
    """What a kernel has to do for a problem on a GPU; the terms of the estimate that have no constants.

    Attributes:
        waves: of clusters.
        filled: the same without rounding up; 1 if there is one wave.
        steps: along K, of a block.
        at_work: clusters over those that run at once with one block an SM; at most 1.
        paired: 1 if that is above a half, so that both SMs of some pair (TPC) have a block, else 0.
        shared: 1 if an SM has two blocks, else 0.
        misaligned: the share of a tile's rows and columns that is there, and so is loaded, if rows along K
            are not a multiple of 32 bytes; else 0.
        within_line: the same share if they are one of 32 bytes, but not of 128; else 0.
        megabytes: of all operands, with what is written counted as in :data:`_WRITTEN`.
        empty: megabytes of rows and columns of tiles that are beyond the operands.
        partial_sectors: megabytes of the output if its rows are not a multiple of 32 bytes, so that parts of
            sectors are written; else 0.
        partial_lines: the same if they are one of 32 bytes, but not of 128; else 0.
        uneven: most blocks of an SM over their average, less 1, while not all SMs have as many as have room;
            the same of pairs of SMs (TPC) where an SM has room for one block; else 0.
    """

    waves: float
    filled: float
    steps: float
    at_work: float
    paired: float
    shared: float
    misaligned: float
    within_line: float
    megabytes: float
    empty: float
    partial_sectors: float
    partial_lines: float
    uneven: float


def work(tiling: Tiling, places: int, extents: Extents, traffic: Traffic) -> Work:
    """The work of a kernel; ``places`` is how many of its clusters run at once.

    A persistent kernel launches as many clusters as the GPU that it was compiled for runs at once. Where
    fewer fit, they take turns: each computes all its tiles before the next begins.
    """
    # Unpacked, as looking fields up would take most of the time.
    batch, m, n, k = extents
    bytes_a, bytes_b, bytes_out, _ = traffic
    cluster_m, cluster_n, block_m, block_n, depth, split, blocks, blocks_per_sm, active, _, within, _ = tiling
    down, across = -(-m // cluster_m), -(-n // cluster_n)
    clusters = batch * down * across
    launched = min(clusters, active * blocks_per_sm) if active else clusters
    waves = -(-(-(-launched // places) * clusters) // launched)
    at_work = clusters * blocks_per_sm / places
    if within:
        # The last tile begins early, unless the output is smaller than a tile.
        missing_m, missing_n = max(0, block_m - m), max(0, block_n - n)
    else:
        missing_m, missing_n = down * cluster_m - m, across * cluster_n - n
    a, b, row_a, row_out = bytes_a * batch * k, bytes_b * batch * k, bytes_a * k, bytes_out * n
    misaligned = within_line = 0.0
    if row_a % _LINE_BYTES:
        loaded_m = cluster_m * min(1, m / block_m) if within else m / down
        loaded_n = cluster_n * min(1, n / block_n) if within else n / across
        loaded = (loaded_m + loaded_n) / (cluster_m + cluster_n)
        if row_a % _SECTOR_BYTES:
            misaligned = loaded
        else:
            within_line = loaded
    written = batch * m * row_out
    return Work(
        waves,
        clusters / places if waves > 1 else 1.0,
        -(-k // (depth * split)),
        at_work if at_work < 1.0 else 1.0,
        1.0 if at_work > 0.5 else 0.0,
        1.0 if blocks_per_sm > 1 and at_work > 1 else 0.0,
        misaligned,
        within_line,
        (a * m + b * n + _WRITTEN * written) / 1e6,
        (a * missing_m * across + b * missing_n * down) / 1e6,
        written / 1e6 if row_out % _SECTOR_BYTES else 0.0,
        written / 1e6 if row_out % _LINE_BYTES and not row_out % _SECTOR_BYTES else 0.0,
        _uneven(at_work, blocks_per_sm, blocks),
    )


def _uneven(at_work: float, blocks_per_sm: int, blocks: int) -> float:
    if blocks_per_sm == 1 and blocks == 1:
        # Blocks go to pairs that have none first. Those of a cluster fill pairs.
        return 1 / at_work - 1 if 0.5 < at_work < 1 else 0.0
    return ceil(at_work) / at_work - 1 if 1 < at_work < blocks_per_sm else 0.0


def compute_and_memory(costs: Costs, work: Work) -> tuple[float, float]:
    """Microseconds of computing, and of moving operands, as if each had the GPU for itself.

    Written for numbers and for numpy arrays alike: a fit has one of each for every kernel and problem.
    """
    whole = (1 - costs.tail) * work.filled + costs.tail * work.waves
    step = costs.step * ((work.at_work + 0.15) / 1.15) ** costs.crowding * (1 + costs.pairing * work.paired)
    loading = costs.misalignment * (work.misaligned + costs.within_line * work.within_line)
    step = step * (1 + costs.sharing * work.shared) * (1 + loading**4) ** 0.25
    moved = work.megabytes + costs.emptiness * work.empty
    moved = moved + costs.partial_sectors * work.partial_sectors + costs.partial_lines * work.partial_lines
    memory = moved / costs.bandwidth * 1e3 * (1 + costs.unevenness * work.uneven)
    return whole * (costs.tile + work.steps * step), memory


def microseconds(costs: Costs, work: Work) -> float:
    """The estimate: the time of a launch, and of computing and moving operands, which overlap."""
    compute, memory = compute_and_memory(costs, work)
    overlap = costs.overlap
    # Powers of shares of the longer, which do not overflow; without max(), for arrays.
    longer = (compute + memory + abs(compute - memory)) / 2
    overlapping: float = longer * ((compute / longer) ** overlap + (memory / longer) ** overlap) ** (
        1 / overlap
    )
    return costs.launch + overlapping


class Estimate(NamedTuple):
    """The expected time of a kernel in microseconds, and what takes most of it.

    ``bound`` is ``launch``, ``compute`` or ``memory``.
    """

    microseconds: float
    bound: str


def estimate(costs: Costs, work: Work) -> Estimate:
    """The expected time of a kernel, and what takes most of it."""
    compute, memory = compute_and_memory(costs, work)
    parts = {"launch": costs.launch, "compute": compute, "memory": memory}
    return Estimate(microseconds(costs, work), max(parts, key=parts.__getitem__))


class Candidates:
    """Kernels of a group to choose from, prepared for estimates for many problems.

    Args:
        table: the kernels' tilings.
        digest: gives the digest of a kernel by its position in the table.
        traffic: of the group's operands.
        target: of the group.
    """

    def __init__(
        self, table: TilingTable, digest: Callable[[int], str], traffic: Traffic, target: str
    ) -> None:
        self.table = table
        self.traffic = traffic
        self.target = target
        self._digest = digest
        self._digests: tuple[str, ...] | None = None
        self._tilings: tuple[Tiling, ...] | None = None
        self._clusters: frozenset[tuple[int, int]] | None = None
        self._derived: dict[Machine, list[Costs]] = {}

    @classmethod
    def of(cls, tilings: Mapping[str, Tiling], traffic: Traffic, target: str) -> Candidates:
        """Candidates by their digests; the order decides between full equals."""
        return cls(TilingTable.of(list(tilings.values())), list(tilings).__getitem__, traffic, target)

    @classmethod
    def merged(cls, parts: Sequence[Candidates]) -> Candidates:
        """The candidates of several groups; the order of the groups decides between full equals."""
        tilings = {
            digest: tiling
            for part in parts
            for digest, tiling in zip(part.digests, part.tilings, strict=True)
        }
        return cls.of(tilings, parts[0].traffic, parts[0].target)

    @property
    def digests(self) -> tuple[str, ...]:
        """Digests of the kernels, in the order in which equals are preferred."""
        if self._digests is None:
            self._digests = tuple(map(self._digest, self.table.column("position")))
        return self._digests

    def digest(self, number: int) -> str:
        """One of :attr:`digests`."""
        return self._digest(self.table.position(number))

    @property
    def tilings(self) -> tuple[Tiling, ...]:
        """The kernels' tilings, in order of :attr:`digests`."""
        if self._tilings is None:
            self._tilings = self.table.tilings()
        return self._tilings

    def work(self, extents: Extents, sm_count: int) -> list[Work]:
        """The work of each kernel, in order of ``digests``."""
        traffic, clusters = self.traffic, self.clusters(sm_count)
        return [work(tiling, places(tiling, clusters), extents, traffic) for tiling in self.tilings]

    def estimator(self, costs: Sequence[Costs], sm_count: int) -> Callable[[str, Extents], float]:
        """Gives the estimate for a kernel, by its digest, and a problem, in microseconds."""
        kernels = dict(zip(self.digests, zip(self.tilings, costs, strict=True), strict=True))
        clusters = self.clusters(sm_count)

        def estimate(digest: str, extents: Extents) -> float:
            tiling, own = kernels[digest]
            return microseconds(own, work(tiling, places(tiling, clusters), extents, self.traffic))

        return estimate

    def clusters(self, sm_count: int) -> Mapping[int, int]:
        """How many clusters run at once, by their size."""
        if self._clusters is None:
            self._clusters = self.table.clusters()
        return _clusters(self._clusters, sm_count)

    def unmeasured(self, machine: Machine) -> Sequence[Costs] | Derivation:
        """Constants of kernels of which nothing was measured: how they are derived, if that is one way."""
        if any(map(is_of_ampere, self.table.kinds)):
            return self.derived(machine)
        return derivation(self.traffic.input_bits, self.target, machine)

    def derived(self, machine: Machine) -> list[Costs]:
        """Constants of each kernel of which nothing was measured, in order of ``digests``."""
        found = self._derived.get(machine)
        if found is None:
            bits = self.traffic.input_bits
            found = [derived(tiling, bits, self.target, machine) for tiling in self.tilings]
            self._derived[machine] = found
        return found


def places(tiling: Tiling, clusters: Mapping[int, int]) -> int:
    """How many clusters of a kernel run at once; ``clusters`` are those of :meth:`Candidates.clusters`.

    A persistent kernel launches no more than the number that it has compiled in.
    """
    at_once = clusters[tiling.blocks]
    return min(tiling.active_clusters or at_once, at_once) * tiling.blocks_per_sm


@lru_cache(maxsize=256)
def _clusters(compiled: frozenset[tuple[int, int]], sm_count: int) -> Mapping[int, int]:
    """Sizes of clusters, as blocks, to how many run at once.

    ``compiled`` has each size with the numbers that kernels have compiled in, 0 for none.
    """
    known = {size: count for size, count in sorted(compiled) if count}
    return {size: clusters_at_once(size, known, sm_count) for size in sorted({size for size, _ in compiled})}


def clusters_at_once(blocks: int, known: Mapping[int, int], sm_count: int) -> int:
    """How many clusters of so many blocks run at once, with one block an SM.

    ``known`` is the number for some sizes. If one does not fit this GPU, kernels were compiled for another,
    and none is used. Clusters are limited by what is known of those that are as large or smaller: two of four
    blocks have to have room where one of eight has.
    """
    most = int(sm_count * _FILLED.get(blocks, _FILLED_OTHERWISE) / blocks)
    if known and all(count * size <= sm_count for size, count in known.items()):
        if blocks in known:
            return known[blocks]
        most = min([most, *(n // (blocks // size) for size, n in known.items() if blocks % size == 0)])
    return max(1, most)


def sort_key(kernel: Kernel, extents: Extents, sm_count: int | None = None) -> SortKey:
    """Sort key of functionally equivalent kernels of one target: the derived estimate, then the tie-breakers.

    ``sm_count`` is None for that of a typical GPU of the kernel's target.
    """
    tiling, traffic, machine = Tiling.of(kernel), Traffic.of(kernel.operands), typical_machine(kernel.target)
    clusters = clusters_at_once(tiling.blocks, {}, sm_count or machine.sm_count)
    todo = work(tiling, places(tiling, {tiling.blocks: clusters}), extents, traffic)
    costs = derived(tiling, traffic.input_bits, kernel.target, machine)
    return (microseconds(costs, todo), *tiling.preference, kernel.name)

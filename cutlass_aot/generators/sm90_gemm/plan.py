"""Designs of the SM90 GEMM in plain numbers: tiles, stages, shared memory. It imports no DSL."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cutlass_aot.generators.gemm import GROUPED_EXTENTS

WARP = 32
WARPS = 4
"""Warps of a warp group, which issue one tensor-core instruction together."""
THREADS = WARP * WARPS
"""Threads of a warp group."""

MAX_GRID_YZ = 65535
"""Blocks of a grid along y, and along z. Source: CUDA Programming Guide, "Compute Capabilities"."""

SHARED_BYTES = 228 * 1024
"""Shared memory of a multiprocessor of compute capability 9.0. Source: as above."""
RESERVED_BYTES = 1024
"""Bytes of shared memory that the system reserves for each block that runs there."""
ALIGNMENT = 1024
"""Bytes; the ring of stages begins at a multiple, since the 128-byte swizzle repeats after so many."""

LINE_BYTES = 128
"""Bytes of an operand along K: the span of the widest swizzle."""

GROUP_ROWS = 8
"""Rows of a swizzled group: lines of 128 bytes whose 16-byte pieces are exchanged by their number."""

ROWS = 64
"""Rows of a tensor-core instruction."""

REGISTERS = 64 * 1024
"""Registers of a multiprocessor; each of its four parts has a fourth of them. Source: as above."""

OTHER_REGISTERS = 64
"""Registers that a thread which computes needs beside its sums."""

MOST_STAGED_COLUMNS = 32
"""Most columns of results that a persistent block keeps in shared memory at once, beside the ring."""

MOST_REGISTERS = 255
"""Registers that a thread can have. Source: CUDA Programming Guide, "Compute Capabilities"."""

LOADING_REGISTERS = 40
"""Registers of a thread that loads, after it has handed over the others."""

MOST_PAIRED = 64
"""Sums of a thread up to which it has registers for the products of two tiles along K beside them, where at
most two warp groups compute."""

SCALED_BLOCK = 128
"""Elements along K that share a scale factor, and rows of the weights that do."""


def whole_groups(rows: int, sharers: int) -> bool:
    """Whether each of the blocks that share a tile of so many rows loads whole swizzled groups of them."""
    return sharers == 1 or rows % (GROUP_ROWS * sharers) == 0


@dataclass(frozen=True, slots=True)
class Plan:
    """One design, worked out for element types.

    Rows and columns are those of the tensor core: with ``swap`` its rows run along N of the output.

    Attributes:
        tile: rows, columns and depth of a block's tile.
        cluster: blocks of a cluster along rows, columns and K.
        warp_groups: those that compute; each has whole instructions of 64 rows of the tile.
        blocks: blocks that run on one multiprocessor at once.
        swap: whether A and B have exchanged their roles.
        active: clusters that run at once if blocks are persistent (each computes tile after tile), else 0.
        band: clusters along the rows that are computed one after another, for reuse in the L2 cache.
        stages: stages of the ring.
        stage_bytes: bytes of one stage.
        staged_bits: bits of an element of the results in shared memory, or before they are stored: 32, an
            accumulator, if several blocks add up or an epilogue follows, else the output's.
        scaled: whether A has a scale factor for each row and 128 of K, and B for 128 columns and 128 of K.
        exact: whether registers add up the sums of each 128 of K, without scale factors.
        operation: ``"gemm"``, or one on groups of rows of A, each with a B of its own; blocks are then
            persistent.
        scale_columns: columns of the sums that share a scale which an epilogue stores; 1 without one.
        ping_pong: whether two warp groups take turns at the tiles of a block: each computes a whole one, and
            stores it while the other computes the next. ``warp_groups`` is then 1.
    """

    tile: tuple[int, int, int]
    cluster: tuple[int, int, int]
    warp_groups: int
    blocks: int
    swap: bool
    active: int
    band: int
    stages: int
    stage_bytes: int
    staged_bits: int
    scaled: bool = False
    exact: bool = False
    operation: str = "gemm"
    scale_columns: int = 1
    ping_pong: bool = False

    @property
    def all_warp_groups(self) -> int:
        """Warp groups of a block that compute, at one tile or in turns at several."""
        return self.warp_groups * (2 if self.ping_pong else 1)

    @property
    def groups(self) -> bool:
        """Whether rows of A are of groups."""
        return self.operation in GROUPED_EXTENTS

    @property
    def rests(self) -> bool:
        """Whether a warp group computes nothing where all of its rows are behind the end of a group."""
        return self.groups and not self.swap and self.warp_groups > 1

    @property
    def promoted(self) -> bool:
        """Whether tensor cores add up 128 of K alone, and registers the rest in f32."""
        return self.scaled or self.exact

    @property
    def output_rows(self) -> int:
        """Which mode of a tile or a cluster the rows of the output run along."""
        return 1 if self.swap else 0

    @property
    def rows_per_cluster(self) -> int:
        """Rows of the output that a cluster computes."""
        return self.tile[self.output_rows] * self.cluster[self.output_rows]

    @property
    def blocks_per_cluster(self) -> int:
        """Blocks of a cluster."""
        return math.prod(self.cluster)

    @property
    def most_across(self) -> int:
        """An output of at most so many clusters across is computed row by row, without bands.

        Single blocks start one after the other on the multiprocessors of one GPC, whose reads of the same
        data the L2 cache answers once. Some 16 of them so share few rows and few columns. Of clusters each
        starts on another GPC.
        """
        return 8 if self.blocks_per_cluster == 1 and not self.groups else 0

    @property
    def sharers(self) -> int:
        """Blocks that load into a block's stages: those of its row and its column in the cluster, with it."""
        return self.cluster[0] + self.cluster[1] - 1

    @property
    def totals(self) -> int:
        """Sums that each thread that computes holds."""
        rows, columns, _ = self.tile
        return rows * columns // (self.warp_groups * THREADS)

    @property
    def pairs(self) -> bool:
        """Whether a thread has room for the products of two tiles along K beside its sums.

        It then adds those of one while the next are computed.
        """
        alone = self.tile[0] == ROWS * self.warp_groups <= 2 * ROWS and self.blocks == 1
        return self.promoted and not self.swap and alone and self.totals <= MOST_PAIRED

    @property
    def hands_over(self) -> bool:
        """Whether the loading warps hand registers over. Only a whole warp group can, so one loads then."""
        # A single loading warp takes as many registers from the others as a warp group does: each part of the
        # multiprocessor has as many for each of its warps as the part with the most warps.
        warps = self.blocks * (self.all_warp_groups + 1)
        sums = self.totals
        if self.promoted:
            sums += (2 if self.pairs else 1) * ROWS * self.tile[1] // THREADS
        return sums + OTHER_REGISTERS > REGISTERS // WARPS // WARP // warps

    @property
    def computing_registers(self) -> int:
        """Registers of a thread that computes, after the others have handed theirs over: a multiple of 8."""
        left = REGISTERS // THREADS // self.blocks - LOADING_REGISTERS
        return left // self.all_warp_groups // 8 * 8

    @property
    def threads(self) -> int:
        """Threads of a block: the warp groups that compute, and the warps, or warp group, that load.

        One warp loads operands, and one scale factors, if there are any.
        """
        if self.hands_over:
            return (self.all_warp_groups + 1) * THREADS
        return self.all_warp_groups * THREADS + (2 * WARP if self.scaled else WARP)

    @property
    def factors(self) -> tuple[int, int]:
        """Scale factors of a stage: those of A's rows, and those of pieces of B's columns.

        A piece is what shares a factor wherever the tile begins, which is at a multiple of a piece.
        """
        rows, columns = (self.tile[1], self.tile[0]) if self.swap else self.tile[:2]
        return rows, columns // self.piece

    @property
    def piece(self) -> int:
        """Columns of B, which are the tensor core's rows with ``swap``, of a tile that share a factor."""
        return ROWS if self.swap else math.gcd(self.tile[1], SCALED_BLOCK)

    @property
    def multiples(self) -> tuple[int, int]:
        """Rows and columns of which a tile begins at a multiple, also one that is moved back."""
        piece = max(self.piece if self.scaled else 1, self.scale_columns)
        return (piece, 1) if self.swap else (1, piece)

    @property
    def factor_stride(self) -> int:
        """Scale factors from those of one stage to those of the next: a multiple of 16 bytes."""
        return -(-sum(self.factors) // 4) * 4 if self.scaled else 0

    @property
    def split(self) -> int:
        """Blocks of a cluster that share the sum along K."""
        return self.cluster[2]

    @property
    def direct(self) -> bool:
        """Whether results are stored from registers, without a detour through shared memory.

        Neighbouring threads exchange some, so that four threads hold 16 neighbouring results: a whole sector
        of memory of 16-bit ones, where tiles begin at a multiple. Where A and B have exchanged their roles,
        only 16-bit results can be transposed between threads.
        """
        if self.swap:
            return self.split == 1 and self.staged_bits == 16
        return self.split == 1 and self.tile[1] % 16 == 0

    @property
    def by_tma(self) -> bool:
        """Whether TMA stores results, while the warps that computed them go on to the next tile.

        Of two blocks on a multiprocessor, one computes while the other stores.
        """
        persistent = bool(self.active) and (self.promoted or self.groups) and self.blocks == 1
        return persistent and self.direct and not (self.swap or self.ping_pong) and self.staged_bits == 16

    @property
    def box_columns(self) -> int:
        """Columns of what one TMA instruction stores: a line of shared memory of at most 128 bytes."""
        return math.gcd(self.tile[1], LINE_BYTES * 8 // self.staged_bits)

    @property
    def vector(self) -> int:
        """Elements that a thread reads back and stores at once."""
        return 16 * 8 // self.staged_bits

    @property
    def staged_stride(self) -> int:
        """Elements from one line of the results to the next in shared memory.

        Lines run along the contiguous mode of the output. They are padded so that the threads of a warp,
        which hold two columns each of eight rows, write to different banks.
        """
        if self.swap:
            return self.tile[0] + 4
        columns = self.staged_columns
        return columns if columns % 16 else columns + 8

    @property
    def staged_columns(self) -> int:
        """Columns of results that are in shared memory at once."""
        columns = self.tile[1]
        if not self.active:
            return columns
        return max(width for width in range(8, MOST_STAGED_COLUMNS + 1, 8) if columns % width == 0)

    @property
    def staged_bytes(self) -> int:
        """Bytes of results in shared memory."""
        if self.by_tma:
            return self.warp_groups * ROWS * self.tile[1] * self.staged_bits // 8
        if self.direct:
            return 0
        lines = self.staged_columns if self.swap else self.tile[0]
        return lines * self.staged_stride * self.staged_bits // 8

    @property
    def staged_offset(self) -> int:
        """Bytes before the results: the ring if blocks are persistent, for the next tile is in it; else 0."""
        return self.stages * self.stage_bytes if self.active else 0

    @property
    def shared_bytes(self) -> int:
        """Bytes of the ring and the results."""
        return max(self.stages * self.stage_bytes, self.staged_offset + self.staged_bytes)


def make_plan(
    *,
    tile: tuple[int, int, int],
    cluster: tuple[int, int, int],
    warp_groups: int,
    blocks: int,
    swap: bool,
    active: int = 0,
    input_bits: int,
    output_bits: int,
    fused: bool = False,
    scaled: bool = False,
    exact: bool = False,
    operation: str = "gemm",
    scale_columns: int = 1,
    ping_pong: bool = False,
) -> Plan:
    """Work out a design: as many stages as shared memory has room for.

    Bits are those of an element; ``fused`` is true if there is an epilogue, which takes the sums as they are,
    ``scaled`` if there are scale factors, ``exact`` if registers add up the sums of each 128 of K without,
    ``scale_columns`` and ``ping_pong`` are those of :class:`Plan`.
    Raises :class:`ValueError` if the results, or two stages, do not fit, the registers of several blocks
    do not suffice, or blocks cannot share the results or an operand's tile equally.
    """
    rows, columns, depth = tile
    capacity = SHARED_BYTES // blocks - RESERVED_BYTES - ALIGNMENT
    stage_bytes = (rows + columns) * depth * input_bits // 8
    plan = Plan(
        tile=tile,
        cluster=cluster,
        warp_groups=warp_groups,
        blocks=blocks,
        swap=swap,
        active=active,
        band=max(1, 8 // cluster[0]),
        stages=0,
        stage_bytes=stage_bytes,
        staged_bits=32 if cluster[2] > 1 or fused else output_bits,
        scaled=scaled,
        exact=exact,
        operation=operation,
        scale_columns=scale_columns,
        ping_pong=ping_pong,
    )
    if plan.promoted and depth * input_bits // 8 != SCALED_BLOCK:
        raise ValueError(
            f"a tile along K of {depth} is not the {SCALED_BLOCK} elements that tensor cores add up"
        )
    if plan.hands_over:
        # Registers come in eights. With fewer than they ask for, the warps that compute would wait for ever.
        given = REGISTERS // (blocks * plan.threads) // 8 * 8 * plan.threads
        needed = THREADS * (plan.all_warp_groups * plan.computing_registers + LOADING_REGISTERS)
        if plan.computing_registers > MOST_REGISTERS or needed > given:
            raise ValueError(
                f"{blocks} blocks of {plan.all_warp_groups} warp groups cannot hand over registers: a thread "
                f"would compute with {plan.computing_registers}"
            )
    if ping_pong and (plan.promoted or not (active and warp_groups == 1 and plan.direct)):
        raise ValueError(
            "warp groups that take turns have a tile each in a persistent block, which they store from "
            "registers, and tensor cores add up all of it"
        )
    if plan.groups and not (active and cluster[2] == 1):
        raise ValueError("blocks of a grouped GEMM are persistent, and share no sums")
    if blocks > 1 and plan.hands_over and not plan.promoted:
        raise ValueError(f"{blocks} blocks with a tile {tile} leave no registers to hand over")
    lines = depth * input_bits // 8 // LINE_BYTES
    for extent, sharers in ((rows, cluster[1]), (columns, cluster[0])):
        if not whole_groups(extent, sharers) and (extent % sharers or lines > 1):
            raise ValueError(f"{sharers} blocks cannot load equal parts of {extent} rows of {lines} lines")
    if rows * columns % (plan.vector * plan.split):
        raise ValueError(f"{plan.split} blocks cannot store equal parts of a tile {tile}")
    factor_bytes = plan.factor_stride * 4
    stages = (capacity - (plan.staged_bytes if active else 0)) // (stage_bytes + factor_bytes)
    plan = replace(plan, stages=stages)
    if stages < 2 or plan.shared_bytes + stages * factor_bytes > capacity:
        raise ValueError(
            f"tile {tile} needs {max(2 * stage_bytes, plan.shared_bytes)} bytes of shared memory, "
            f"there are {capacity} for each of {blocks} blocks"
        )
    return plan

"""Scale factors: a warp loads them into the ring beside the operands, threads read those of their sums.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from cutlass_aot.generators.sm90_gemm.plan import ROWS, SCALED_BLOCK, THREADS, WARP, WARPS
from cutlass_aot.generators.sm90_gemm.ring import Ring, following
from cutlass_aot.generators.sm90_gemm.schedule import Schedule, place_after, tile_of
from cutlass_aot.generators.sm90_gemm.tiles import Block, corner_of


@cute.jit  # type: ignore[untyped-decorator]
def load_all_factors(
    scales: tuple[Any, Any], ring: Ring, schedule: Schedule, block: Block, plan: cutlass.Constexpr
) -> None:
    """Load the factors of all tiles of this block; ``scales`` are those of the caller's a and b.

    One warp does so, and the others wait for it if it takes longer than they do for a tile along K.
    """
    of_a, of_b = scales
    count_a, _ = plan.factors
    place = cutlass.Int32(0), cutlass.Int32(1)
    row, column = schedule.row, schedule.column
    for cluster in cutlass.range(schedule.first, schedule.last, schedule.step, unroll=1):
        tile = tile_of(schedule, cluster, (row, column), block.lane, plan)
        corner = corner_of(tile, block, schedule.extents, plan)
        first_a, first_b = (corner.column, corner.row) if plan.swap else (corner.row, corner.column)
        from_a = cute.domain_offset((first_a, schedule.first_k, tile.batch), of_a)
        block_b = (cutlass.Int32(first_b) // plan.piece + block.lane) * plan.piece // SCALED_BLOCK
        from_b = cute.domain_offset((block_b, schedule.first_k, tile.group), of_b)
        left = rows_there(first_a, count_a, of_a.shape[0]), of_b.shape[0] - block_b
        if in_fours(from_a, left[0]):
            place = load_factors((from_a, from_b), left, ring, place, schedule.count_k, block.lane, 4, plan)
        else:
            place = load_factors((from_a, from_b), left, ring, place, schedule.count_k, block.lane, 1, plan)
        row, column = place_after(schedule, cluster, (row, column), plan)


def rows_there(first: Any, count: int, rows: Any) -> Any:
    """How many of so many rows from row ``first`` on are there; 0 or less if it is behind the last.

    ``first`` is 64-bit: of a block whose tile is behind the end of its group, it can exceed 2^31 - 1.
    """
    return cutlass.Int32(cutlass.min(rows - first, count))


def in_fours(from_a: Any, left: Any) -> Any:
    """Whether factors of A can be loaded 16 bytes at a time, wherever along K, and none behind the last."""
    return ((from_a.iterator.toint() // 4 | from_a.stride[1] | left) & 3) == 0


@cute.jit  # type: ignore[untyped-decorator]
def load_factors(
    scales: tuple[Any, Any],
    left: tuple[Any, Any],
    ring: Ring,
    place: tuple[Any, Any],
    count_k: Any,
    lane: Any,
    vector: cutlass.Constexpr,
    plan: cutlass.Constexpr,
) -> tuple[Any, Any]:
    """Load the factors of a tile of the output, of so many tiles along K.

    A lane has one address for all rows of A, which are as far apart as the lanes reach together, and one for
    a piece of B. Of rows and pieces that are not there, shared memory keeps what it had: their sums are not
    stored.

    Args:
        scales: factors of A from the tile's first row on, and of B from this lane's piece on.
        left: of the tile's rows those that are there, and whole blocks of B from this lane's on.
        ring: what they are loaded into.
        place: stage and phase of the ring.
        count_k: tiles along K.
        lane: of this warp.
        vector: factors that are loaded at once.
        plan: everything else that is compiled in.

    Returns:
        Stage and phase of what follows.
    """
    stage, phase = place
    of_a, of_b = scales
    left_a, left_b = left
    count_a, count_b = plan.factors
    reach = WARP * vector
    turns = -(-count_a // reach)
    there = cute.make_rmem_tensor(turns + 1, cutlass.Boolean)
    for turn in cutlass.range_constexpr(turns):
        there[turn] = turn * reach + lane * vector < left_a
    there[turns] = (lane < count_b) & (left_b > 0)
    from_a, from_b = of_a.iterator + lane * vector, of_b.iterator
    for _index_k in cutlass.range(count_k, unroll=1):
        cute.arch.mbarrier_wait(ring.empty + stage, phase)
        to = ring.factors + stage * plan.factor_stride
        for turn in cutlass.range_constexpr(turns):
            if there[turn]:
                begin_load(from_a + turn * reach, to + turn * reach + lane * vector, vector)
        if there[turns]:
            begin_load(from_b, to + count_a + lane, 1)
        from_a, from_b = from_a + of_a.stride[1], from_b + of_b.stride[1]
        cute.arch.cp_async_mbarrier_arrive_noinc(ring.full + stage)
        stage, phase = following(stage, phase, plan)
    return stage, phase


def begin_load(source: Any, to: Any, count: int) -> None:
    """Begin to load some factors into shared memory."""
    copy = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Float32, num_bits_per_copy=32 * count)
    layout = cute.make_layout(count)
    source, to = (
        cute.make_ptr(cutlass.Float32, pointer.toint(), pointer.memspace, assumed_align=4 * count)
        for pointer in (source, to)
    )
    cute.copy(copy, cute.make_tensor(source, layout), cute.make_tensor(to, layout))


def room_for_factors(plan: Any) -> tuple[Any, Any] | None:
    """Registers for the factors of a thread's sums: of A's rows, and of pieces of B; None without factors."""
    if not plan.scaled:
        return None
    rows, columns, _ = plan.tile
    blocks = rows // (ROWS * plan.warp_groups)
    counts = (columns // 4, blocks) if plan.swap else (2 * blocks, plan.factors[1])
    return cute.make_rmem_tensor(counts[0], cutlass.Float32), cute.make_rmem_tensor(
        counts[1], cutlass.Float32
    )


def read_factors(to: tuple[Any, Any] | None, ring: Ring, stage: Any, thread: Any, plan: Any) -> None:
    """Read the factors of the sums that a thread has, of a stage: of A's rows, and of pieces of B, if any.

    A thread has two neighbouring columns of each eight, in two of each 64 rows of the tensor core.
    """
    if to is None:
        return
    memory = ring.factors + stage * plan.factor_stride
    rows, columns, _ = plan.tile
    count_a, count_b = plan.factors
    of_a, of_b = to
    lane = thread % WARP
    group, row = thread // THREADS, thread % THREADS // WARP * (ROWS // WARPS) + lane // 4
    blocks = range(rows // (ROWS * plan.warp_groups))
    if plan.swap:
        pairs = cute.make_tensor(memory + lane % 4 * 2, cute.make_layout((2, columns // 8), stride=(1, 8)))
        found = cute.make_tensor(of_a.iterator, cute.make_layout((2, columns // 8)))
        cute.autovec_copy(pairs, found)
        for block in blocks:
            of_b[block] = memory[count_a + block * plan.warp_groups + group]
    else:
        for block in blocks:
            for half in range(2):
                of_a[block * 2 + half] = memory[(block * plan.warp_groups + group) * ROWS + row + half * 8]
        for index in range(count_b):
            of_b[index] = memory[count_a + index]

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
from cutlass_aot.generators.sm90_gemm.tiles import Block, Corner, Tile, corner_of


@cute.jit  # type: ignore[untyped-decorator]
def load_all_factors(
    scales: tuple[Any, Any], ring: Ring, schedule: Schedule, block: Block, plan: cutlass.Constexpr
) -> None:
    """Load the factors of all tiles of this block; ``scales`` are those of the caller's a and b."""
    stage = cutlass.Int32(0)
    phase = cutlass.Int32(1)
    row, column = schedule.row, schedule.column
    for cluster in cutlass.range(schedule.first, schedule.last, schedule.step, unroll=1):
        tile = tile_of(schedule, cluster, (row, column), block.lane, plan)
        corner = corner_of(tile, block, schedule.extents, plan)
        from_a, from_b = factors_of(scales, tile, corner, block.lane, plan)
        for index_k in cutlass.range(schedule.first_k, schedule.first_k + schedule.count_k, unroll=1):
            cute.arch.mbarrier_wait(ring.empty + stage, phase)
            load_factors(from_a, from_b, index_k, ring.factors + stage * plan.factor_stride, block.lane, plan)
            cute.arch.cp_async_mbarrier_arrive_noinc(ring.full + stage)
            stage, phase = following(stage, phase, plan)
        row, column = place_after(schedule, cluster, (row, column), plan)


@cute.jit  # type: ignore[untyped-decorator]
def factors_of(
    scales: tuple[Any, Any], tile: Tile, corner: Corner, lane: Any, plan: cutlass.Constexpr
) -> tuple[Any, Any]:
    """Where a lane finds the factors of a tile that it loads: those of A's rows, and one of a piece of B.

    A row, or a piece, that is not there has the factors of the last.
    """
    of_a, of_b = scales
    first_a, first_b = (corner.column, corner.row) if plan.swap else (corner.row, corner.column)
    count, _ = plan.factors
    pieces = of_b.shape[0]
    from_a = [
        of_a[row_of_factor(first_a, turn * WARP + lane, of_a.shape[0]), None, tile.batch]
        for turn in range((count + WARP - 1) // WARP)
    ]
    piece = cutlass.Int32(first_b) // plan.piece + lane
    from_b = of_b[cutlass.min(piece * plan.piece // SCALED_BLOCK, pieces - 1), None, tile.group]
    return from_a, from_b


def row_of_factor(first: Any, place: Any, rows: Any) -> Any:
    """The row of A at a place of a tile that begins at row ``first``; the last row behind the end of A.

    ``first`` is 64-bit: of a block whose tile is behind the end of its group, it can exceed 2^31 - 1.
    """
    # It may wrap around here. The rows from it to the last fit, or are less than 0: the sum wraps back.
    wrapped = cutlass.Int32(first)
    return wrapped + cutlass.min(place, rows - 1 - wrapped)


@cute.jit  # type: ignore[untyped-decorator]
def load_factors(
    from_a: cutlass.Constexpr, from_b: Any, index_k: Any, to: Any, lane: Any, plan: cutlass.Constexpr
) -> None:
    """Begin to load the factors of a tile along K into shared memory, a lane's part of them."""
    copy = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Float32, num_bits_per_copy=32)
    count_a, count_b = plan.factors
    for turn in cutlass.range_constexpr(len(from_a)):
        place = turn * WARP + lane
        if cutlass.const_expr((turn + 1) * WARP <= count_a):
            cute.copy(copy, one_of(from_a[turn], index_k), one_of_shared(to, place))
        else:
            if place < count_a:
                cute.copy(copy, one_of(from_a[turn], index_k), one_of_shared(to, place))
    if lane < count_b:
        cute.copy(copy, one_of(from_b, index_k), one_of_shared(to, count_a + lane))


def one_of(tensor: Any, index: Any) -> Any:
    """One element of a tensor of rank 1, as a tensor."""
    return cute.make_tensor(tensor.iterator + tensor.layout(index), cute.make_layout(1))


def one_of_shared(memory: Any, place: Any) -> Any:
    """One element of shared memory, as a tensor."""
    return cute.make_tensor(memory + place, cute.make_layout(1))


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

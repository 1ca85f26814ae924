"""The warps that compute: sums of one tile after the other, and what is stored of them.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warpgroup

from cutlass_aot.generators.sm90_gemm.epilogue import Output
from cutlass_aot.generators.sm90_gemm.mainloop import Operands, sum_products
from cutlass_aot.generators.sm90_gemm.plan import ROWS, THREADS, WARPS
from cutlass_aot.generators.sm90_gemm.register_store import store_sums
from cutlass_aot.generators.sm90_gemm.ring import Ring, ahead, sharer_of, skip_stages
from cutlass_aot.generators.sm90_gemm.scaled_mainloop import sum_scaled
from cutlass_aot.generators.sm90_gemm.schedule import Schedule, in_turns, place_after, tile_of
from cutlass_aot.generators.sm90_gemm.staged_store import finish, lay_down, meet
from cutlass_aot.generators.sm90_gemm.tiles import Block, Tile, corner_of
from cutlass_aot.generators.sm90_gemm.tma_store import store_by_tma
from cutlass_aot.generators.sm90_gemm.turns import begin_turns


@cute.jit  # type: ignore[untyped-decorator]
def compute_tiles(
    tiled_mma: cute.TiledMma,
    part_mma: cute.TiledMma,
    ring: Ring,
    staged: Any,
    schedule: Schedule,
    block: Block,
    output: Output,
    store: Any,
    dtype: cutlass.Constexpr,
    plan: cutlass.Constexpr,
) -> None:
    """Compute and store all tiles of this block; sums that several blocks add up are left in shared memory.

    Args:
        tiled_mma: of all warp groups that compute.
        part_mma: of them, over as many columns as lie in shared memory at once; for its layout alone.
        ring: operands.
        staged: where results lie in shared memory.
        schedule: the tiles.
        block: this one.
        output: where to store, and what is done before.
        store: TMA atom that stores results, and the coordinates of the output; None without.
        dtype: element type of A and B.
        plan: everything else that is compiled in.
    """
    tile_m, tile_n, _ = plan.tile
    stage = cutlass.Int32(0)
    phase = cutlass.Int32(0)
    turn = None
    if cutlass.const_expr(plan.ping_pong):
        # This warp group has all of a tile. The stages of the other's tiles come between those of its own.
        turn = block.warp // WARPS
        begin_turns(turn)
        schedule = in_turns(schedule, turn, plan)
        stage, phase = ahead(stage, phase, turn * schedule.count_k, plan)
        block = block._replace(thread=block.thread % THREADS, warp=block.warp % WARPS)
    group_mma = tiled_mma.get_slice(cute.arch.make_warp_uniform(block.thread // THREADS) * THREADS)
    operands = Operands(
        tiled_mma,
        tiled_mma.make_fragment_A(group_mma.partition_A(ring.a)),
        tiled_mma.make_fragment_B(group_mma.partition_B(ring.b)),
    )
    total = cute.make_rmem_tensor(tiled_mma.partition_shape_C((tile_m, tile_n)), cutlass.Float32)
    tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
    sharer = sharer_of(block, plan)
    # Where parts of the tile of results lie in shared memory, as this thread writes and reads them.
    width = plan.staged_columns
    lines = cute.make_layout(
        (tile_m, width), stride=(1, plan.staged_stride) if plan.swap else (plan.staged_stride, 1)
    )
    writes = part_mma.get_slice(block.thread).partition_C(cute.make_tensor(staged, lines))

    row, column = schedule.row, schedule.column
    for cluster in cutlass.range(schedule.first, schedule.last, schedule.step, unroll=1):
        total.fill(0.0)
        tile = tile_of(schedule, cluster, (row, column), block.lane, plan)
        count_k = schedule.count_k
        if cutlass.const_expr(plan.rests):  # noqa: SIM102 (the other is known at run time)
            if first_row_in_group(tile, block, plan) >= tile.end - tile.start:
                count_k = cutlass.Int32(0)
        if cutlass.const_expr(plan.promoted):
            stage, phase = sum_scaled(
                total, operands, ring, (stage, phase), count_k, block, sharer, dtype, plan
            )
        else:
            stage, phase = sum_products(
                total, operands, ring, (stage, phase), count_k, block, sharer, turn, plan
            )
        if cutlass.const_expr(plan.rests):
            left = schedule.count_k - count_k
            stage, phase = skip_stages(ring, (stage, phase), left, block, sharer, plan)
        if cutlass.const_expr(plan.ping_pong):
            stage, phase = ahead(stage, phase, schedule.count_k, plan)
        corner = corner_of(tile, block, schedule.extents, plan)
        if cutlass.const_expr(plan.by_tma):
            if cutlass.const_expr(plan.groups):
                # TMA knows no end of a group.
                if corner.row + tile_m <= tile.end:
                    store_by_tma(total, staged, store, block, tile, corner, output, plan)
                else:
                    store_sums(total, block.thread, tile, corner, output, plan)
            else:
                store_by_tma(total, staged, store, block, tile, corner, output, plan)
        elif cutlass.const_expr(plan.direct):
            store_sums(total, block.thread, tile, corner, output, plan)
        else:
            for piece in cutlass.range_constexpr(tile_n // width):
                # Every thread is done with what lay here: stages, or the piece before.
                meet(plan)
                lay_down(total, writes, piece, plan)
                if cutlass.const_expr(plan.split == 1):
                    meet(plan)
                    finish(staged, block, tile, corner, piece * width, output, plan)
        row, column = place_after(schedule, cluster, (row, column), plan)
    if cutlass.const_expr(plan.by_tma):
        # Shared memory stays until the last results have been read.
        cute.arch.cp_async_bulk_wait_group(0, read=True)


def first_row_in_group(tile: Tile, block: Block, plan: Any) -> Any:
    """The first row of this thread's warp group, counted from the beginning of the tile's group."""
    group = block.warp // WARPS
    return (tile.row * plan.cluster[0] + block.rank_m) * plan.tile[0] + group * ROWS

"""The warp that loads operands: TMA loads of one tile along K after the other, for one tile after the other.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.generators.sm90_gemm.plan import whole_groups
from cutlass_aot.generators.sm90_gemm.ring import Ring, following
from cutlass_aot.generators.sm90_gemm.schedule import Schedule, place_after, tile_of
from cutlass_aot.generators.sm90_gemm.tiles import Block, Tile, moved_back
from cutlass_aot.generators.sm90_gemm.tma import tma_parts, unswizzled


@cute.jit  # type: ignore[untyped-decorator]
def load_operands(
    loads: tuple[Any, Any],
    tensors: tuple[Any, Any],
    ring: Ring,
    schedule: Schedule,
    block: Block,
    dtype: cutlass.Constexpr,
    plan: cutlass.Constexpr,
) -> None:
    """Load A and B of all tiles of this block.

    Args:
        loads: TMA atoms of A and B.
        tensors: A and B as TMA coordinates, (M, K, L) and (N, K, L).
        ring: what they are loaded into.
        schedule: the tiles.
        block: this one.
        dtype: element type of A and B.
        plan: everything else that is compiled in.
    """
    cluster_m, cluster_n, _ = plan.cluster
    depth = plan.tile[2]
    # Of A and of B: a block's rank among those that share the operand, those of its row or of its column in
    # the cluster, and their number; bits of their ranks; and the ring as their loads fill it.
    sharing = (block.rank_n, cluster_n), (block.rank_m, cluster_m)
    corner = block.rank_k * (cluster_m * cluster_n)
    row_bits = sum(1 << (i * cluster_m) for i in range(cluster_n))
    column_bits = sum(1 << i for i in range(cluster_m))
    masks = (
        cutlass.Int16(cutlass.Int32(row_bits) << (corner + block.rank_m)),
        cutlass.Int16(cutlass.Int32(column_bits) << (corner + block.rank_n * cluster_m)),
    )
    filled = [
        stages if whole_groups(rows, sharers) else unswizzled(memory, dtype, (rows, depth, plan.stages))
        for stages, memory, rows, (_, sharers) in zip(
            (ring.a, ring.b), (ring.memory_a, ring.memory_b), plan.tile[:2], sharing, strict=True
        )
    ]
    stage = cutlass.Int32(0)
    phase = cutlass.Int32(1)
    row, column = schedule.row, schedule.column
    for cluster in cutlass.range(schedule.first, schedule.last, schedule.step, unroll=1):
        tile = tile_of(schedule, cluster, (row, column), block.lane, plan)
        batches = (tile.group, tile.batch) if plan.swap else (tile.batch, tile.group)
        begins = begins_of(tile, block, schedule.extents, plan)
        parts = [
            tma_parts(
                loads[at],
                tensors[at],
                filled[at],
                (plan.tile[at], depth),
                begins[at],
                sharing[at],
                batches[at],
            )
            for at in range(2)
        ]
        for index_k in cutlass.range(schedule.first_k, schedule.first_k + schedule.count_k, unroll=1):
            cute.arch.mbarrier_wait(ring.empty + stage, phase)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(ring.full + stage, plan.stage_bytes)
            for load, (to, where), mask, (_, sharers) in zip(loads, parts, masks, sharing, strict=True):
                cute.copy(
                    load,
                    where[None, index_k],
                    to[None, stage],
                    tma_bar_ptr=ring.full + stage,
                    mcast_mask=mask if sharers > 1 else None,
                )
            stage, phase = following(stage, phase, plan)
        row, column = place_after(schedule, cluster, (row, column), plan)


def begins_of(tile: Tile, block: Block, extents: tuple[Any, Any], plan: Any) -> list[tuple[Any, Any]]:
    """Of A and of B: the row from which tiles are counted, and the number of this block's from there.

    Behind the end of its group a block's row may exceed 2^31 - 1: it wraps around, and TMA fills in zeros.
    """
    numbers = tile.row * plan.cluster[0] + block.rank_m, tile.column * plan.cluster[1] + block.rank_n
    return [
        (tile.start + number * plan.tile[at], cutlass.Int32(0))
        if tile.start is not None and at == plan.output_rows
        else (moved_back(number, plan.tile[at], extents[at], plan.multiples[at]), number)
        for at, number in enumerate(numbers)
    ]

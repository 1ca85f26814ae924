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
from cutlass_aot.generators.sm90_gemm.tiles import Block, moved_back
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
    tile_m, tile_n, tile_k = plan.tile
    cluster_m, cluster_n, _ = plan.cluster
    load_a, load_b = loads
    tensor_a, tensor_b = tensors
    # Bits of the ranks that share A, those of a row, and of those that share B, those of a column.
    corner = block.rank_k * (cluster_m * cluster_n)
    row_bits = sum(1 << (i * cluster_m) for i in range(cluster_n))
    column_bits = sum(1 << i for i in range(cluster_m))
    mask_a = cutlass.Int16(cutlass.Int32(row_bits) << (corner + block.rank_m))
    mask_b = cutlass.Int16(cutlass.Int32(column_bits) << (corner + block.rank_n * cluster_m))
    filled_a, filled_b = ring.a, ring.b
    if cutlass.const_expr(not whole_groups(tile_m, cluster_n)):
        filled_a = unswizzled(ring.memory_a, dtype, (tile_m, tile_k, plan.stages))
    if cutlass.const_expr(not whole_groups(tile_n, cluster_m)):
        filled_b = unswizzled(ring.memory_b, dtype, (tile_n, tile_k, plan.stages))
    stage = cutlass.Int32(0)
    phase = cutlass.Int32(1)
    row, column = schedule.row, schedule.column
    for cluster in cutlass.range(schedule.first, schedule.last, schedule.step, unroll=1):
        tile = tile_of(schedule, cluster, (row, column), block.lane, plan)
        batch_a, batch_b = (tile.group, tile.batch) if plan.swap else (tile.batch, tile.group)
        row_of_blocks = tile.row * cluster_m + block.rank_m
        column_of_blocks = tile.column * cluster_n + block.rank_n
        first_a, first_b = None, None
        if cutlass.const_expr(plan.groups):
            if cutlass.const_expr(plan.swap):
                first_b = tile.start + column_of_blocks * tile_n
            else:
                first_a = tile.start + row_of_blocks * tile_m
        to_a, from_a = tma_parts(
            load_a,
            tensor_a,
            filled_a,
            (tile_m, tile_k),
            begin(0, row_of_blocks, first_a, schedule.extents, plan),
            (block.rank_n, cluster_n),
            batch_a,
        )
        to_b, from_b = tma_parts(
            load_b,
            tensor_b,
            filled_b,
            (tile_n, tile_k),
            begin(1, column_of_blocks, first_b, schedule.extents, plan),
            (block.rank_m, cluster_m),
            batch_b,
        )
        for index_k in cutlass.range(schedule.first_k, schedule.first_k + schedule.count_k, unroll=1):
            cute.arch.mbarrier_wait(ring.empty + stage, phase)
            with cute.arch.elect_one():
                cute.arch.mbarrier_arrive_and_expect_tx(ring.full + stage, plan.stage_bytes)
            cute.copy(
                load_a,
                from_a[None, index_k],
                to_a[None, stage],
                tma_bar_ptr=ring.full + stage,
                mcast_mask=mask_a if cluster_n > 1 else None,
            )
            cute.copy(
                load_b,
                from_b[None, index_k],
                to_b[None, stage],
                tma_bar_ptr=ring.full + stage,
                mcast_mask=mask_b if cluster_m > 1 else None,
            )
            stage, phase = following(stage, phase, plan)
        row, column = place_after(schedule, cluster, (row, column), plan)


def begin(at: int, number: Any, first: Any, extents: tuple[Any, Any], plan: Any) -> tuple[Any, Any]:
    """The row of an operand from which tiles are counted, and the number of a tile from there.

    ``number`` is that of a tile along the rows (``at`` is 0) or columns (1) of the output. One of a group
    begins at row ``first``, which else is None.
    """
    if first is None:
        return moved_back(number, plan.tile[at], extents[at], plan.multiples[at]), number
    return first, cutlass.Int32(0)

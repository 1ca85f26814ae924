"""Groups of rows of A, each with a matrix B of its own: which of them a cluster's tile is of.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.generators.gemm import GROUPED_GEMM
from cutlass_aot.generators.sm90_gemm.plan import WARP
from cutlass_aot.generators.sm90_gemm.tiles import Tile, place, tiles_of


@cute.jit  # type: ignore[untyped-decorator]
def group_of(
    cluster: Any, groups: Any, rows: Any, across: Any, lane: Any, plan: cutlass.Constexpr
) -> tuple[Any, Any, Any, Any, Any]:
    """Which group a cluster's tile is of: its number, its first cluster, row and rows; and all clusters.

    All lanes of a warp look together.
    ``groups`` has the end of each group along the rows, or how many of its own rows count; ``rows`` is their
    number, which bounds whatever is there. Clusters of a group are numbered after those of the groups before,
    ``across`` of them along the columns of the output.
    """
    count = groups.shape[0]
    number, first, start, size, before = (cutlass.Int32(0) for _ in range(5))
    for chunk in cutlass.range(tiles_of(count, WARP), unroll=1):
        # The last turn has too few groups for some lanes, which count nothing.
        left = count - chunk * WARP
        at = chunk * WARP + cutlass.min(lane, left - 1)
        begin = cutlass.Int32(0)
        end = cutlass.max(cutlass.min(groups[at], rows), 0)
        if cutlass.const_expr(plan.operation == GROUPED_GEMM):  # noqa: SIM102 (the other is known at run time)
            if at > 0:
                begin = cutlass.max(cutlass.min(groups[at - 1], rows), 0)
        here = cutlass.max(end - begin, 0)
        if lane >= left:
            here = cutlass.Int32(0)
        clusters = tiles_of(here, plan.rows_per_cluster) * across
        total = clusters
        for step in cutlass.range_constexpr(5):
            other = cute.arch.shuffle_sync_up(total, 1 << step, mask_and_clamp=0)
            if lane >= 1 << step:
                total = total + other
        from_cluster = before + total - clusters
        found = cute.arch.vote_ballot_sync((cluster >= from_cluster) & (cluster < before + total))
        if found != 0:
            owner = cute.arch.popc((found & -found) - 1)
            number = chunk * WARP + owner
            first = cute.arch.shuffle_sync(from_cluster, owner)
            start = cute.arch.shuffle_sync(begin, owner)
            size = cute.arch.shuffle_sync(here, owner)
        before = before + cute.arch.shuffle_sync(total, WARP - 1)
    return number, first, start, size, before


@cute.jit  # type: ignore[untyped-decorator]
def tile_in_group(
    cluster: Any, groups: Any, rows: Any, across: Any, lane: Any, plan: cutlass.Constexpr
) -> Tile:
    """A cluster's tile; the arguments are those of :func:`group_of`."""
    number, first, start, size, _ = group_of(cluster, groups, rows, across, lane, plan)
    along = tiles_of(size, plan.rows_per_cluster)
    if cutlass.const_expr(plan.swap):
        row, column = place(cluster - first, across, along, plan)
    else:
        row, column = place(cluster - first, along, across, plan)
    batch = cutlass.Int32(0) if plan.operation == GROUPED_GEMM else number
    return Tile(row, column, batch, number, start, start + size)

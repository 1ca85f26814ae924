"""Which tiles a block computes, one after the other, and which part of K.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute

from cutlass_aot.generators.sm90_gemm.groups import group_of, tile_in_group
from cutlass_aot.generators.sm90_gemm.plan import MAX_GRID_YZ
from cutlass_aot.generators.sm90_gemm.tiles import Block, Tile, place, tiles_of


class Schedule(NamedTuple):
    """The tiles of a launch, in clusters, and those of them that a block has a part in.

    Attributes:
        rows: of the output.
        batch: of this block, without groups.
        clusters_m: clusters along the rows of the tensor core.
        clusters_n: clusters along its columns.
        extents: its rows and columns of the output.
        first: number of the block's first tile.
        last: number behind the last of all.
        step: from one of the block's to its next.
        row: row of the first tile, in clusters; 0 with groups.
        column: its column.
        first_k: where this block's slice of K begins, in tiles.
        count_k: tiles of that slice. It may have none: the sum is then zero.
        groups: (G,), see :func:`~.groups.group_of`; None without.
    """

    rows: Any
    batch: Any
    clusters_m: Any
    clusters_n: Any
    extents: tuple[Any, Any]
    first: Any
    last: Any
    step: Any
    row: Any
    column: Any
    first_k: Any
    count_k: Any
    groups: Any

    def across(self, plan: Any) -> Any:
        """Clusters along the columns of the output."""
        return self.clusters_m if plan.swap else self.clusters_n


@cute.jit  # type: ignore[untyped-decorator]
def schedule_of(shape: Any, depth: Any, block: Block, groups: Any, plan: cutlass.Constexpr) -> Schedule:
    """The tiles of an output of a shape (L, M, N) with K of ``depth``.

    How many those of groups are, :func:`with_count` finds. Divisions take long: these are done while the
    launch before still runs.
    """
    tile_m, tile_n, tile_k = plan.tile
    cluster_m, cluster_n, split = plan.cluster
    index, batch_low, batch_high = block.in_grid
    batches, rows, columns = shape
    if cutlass.const_expr(plan.swap):
        rows, columns = columns, rows
    clusters_m = tiles_of(rows, tile_m * cluster_m)
    clusters_n = tiles_of(columns, tile_n * cluster_n)
    batch = batch_low + batch_high * MAX_GRID_YZ
    # One tile a block, or, of a persistent one, every so many of them.
    first = index // plan.blocks_per_cluster
    last = first + 1
    step = cutlass.Int32(1)
    if cutlass.const_expr(plan.active > 0):
        last = clusters_m * clusters_n
        step = block.grid_x // plan.blocks_per_cluster
    row, column = cutlass.Int32(0), cutlass.Int32(0)
    if cutlass.const_expr(not plan.groups):
        row, column = place(first, clusters_m, clusters_n, plan)
    tiles_k = tiles_of(depth, tile_k)
    each = tiles_k // split
    more = tiles_k % split
    first_k = block.rank_k * each + cutlass.min(block.rank_k, more)
    count_k = each
    if block.rank_k < more:
        count_k = each + 1
    if batch >= batches:
        count_k = cutlass.Int32(0)
    return Schedule(
        rows=shape[1],
        batch=batch,
        clusters_m=clusters_m,
        clusters_n=clusters_n,
        extents=(rows, columns),
        first=first,
        last=last,
        step=step,
        row=row,
        column=column,
        first_k=first_k,
        count_k=count_k,
        groups=groups,
    )


def with_count(schedule: Schedule, lane: Any, plan: Any) -> Schedule:
    """The schedule with the number of tiles of groups, which is in the memory of the GPU."""
    if not plan.groups:
        return schedule
    across = schedule.across(plan)
    *_, last = group_of(cutlass.Int32(-1), schedule.groups, schedule.rows, across, lane, plan)
    return schedule._replace(last=last)


def in_turns(schedule: Schedule, turn: Any, plan: Any) -> Schedule:
    """Of a block's tiles, every second one: those of the first or the second warp group that take turns."""
    first = schedule.first + turn * schedule.step
    at = schedule.row, schedule.column
    if not plan.groups:
        at = place(first, schedule.clusters_m, schedule.clusters_n, plan)
    return schedule._replace(first=first, step=2 * schedule.step, row=at[0], column=at[1])


def tile_of(schedule: Schedule, cluster: Any, at: tuple[Any, Any], lane: Any, plan: Any) -> Tile:
    """The tile of a number; ``at`` is its row and column, in clusters, if it is not of a group."""
    if plan.groups:
        across = schedule.across(plan)
        tile: Tile = tile_in_group(cluster, schedule.groups, schedule.rows, across, lane, plan)
        return tile
    return Tile(*at, schedule.batch, schedule.batch, None, schedule.rows)


def place_after(schedule: Schedule, cluster: Any, at: tuple[Any, Any], plan: Any) -> tuple[Any, Any]:
    """Row and column of the block's next tile, in clusters, after one of a number and place ``at``.

    Of groups, :func:`tile_of` finds them. A block that is not persistent has no next one.
    """
    if plan.active and not plan.groups:
        at = place(cluster + schedule.step, schedule.clusters_m, schedule.clusters_n, plan)
    return at

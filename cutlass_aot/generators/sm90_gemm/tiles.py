"""Where tiles lie: a block in its cluster, the order of clusters, and the corner of a block's tile.

Rows and columns are those of the tensor core, unless it says "of the output".
Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute


class Block(NamedTuple):
    """Where a block stands in the grid and in its cluster, and a thread in it.

    Attributes:
        thread: number of the thread.
        warp: number of its warp.
        lane: of the thread in it.
        in_grid: number of the block in the grid, along x, y and z.
        grid_x: blocks along x.
        rank: of the block in its cluster.
        rank_m: along the rows.
        rank_n: along the columns.
        rank_k: along K.
    """

    thread: Any
    warp: Any
    lane: Any
    in_grid: tuple[Any, Any, Any]
    grid_x: Any
    rank: Any
    rank_m: Any
    rank_n: Any
    rank_k: Any


class Tile(NamedTuple):
    """What a cluster computes.

    Attributes:
        row: in clusters, among those of its group.
        column: likewise.
        batch: of the rows of A, and the output.
        group: the group, which is the batch of B; without groups it is ``batch``.
        start: first row of its group in the batch of the output; None without groups.
        end: row of the output behind the last that is stored.
    """

    row: Any
    column: Any
    batch: Any
    group: Any
    start: Any
    end: Any


class Corner(NamedTuple):
    """Where a block's tile begins, and the first row and column that are its own: those before are another's.

    64-bit: past the last row or column there can be number 2^31 - 1, and an offset exceeds that.
    """

    row: Any
    column: Any
    own_row: Any
    own_column: Any


@cute.jit  # type: ignore[untyped-decorator]
def block_of(plan: cutlass.Constexpr) -> Block:
    """This block, and this thread in it."""
    cluster_m, cluster_n, _ = plan.cluster
    thread, _, _ = cute.arch.thread_idx()
    in_grid = cute.arch.block_idx()
    grid_x, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    lane = cute.arch.lane_idx()
    rank = cutlass.Int32(0)
    if cutlass.const_expr(plan.blocks_per_cluster > 1):
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    return Block(
        thread,
        warp,
        lane,
        in_grid,
        grid_x,
        rank,
        rank % cluster_m,
        rank // cluster_m % cluster_n,
        rank // (cluster_m * cluster_n),
    )


@cute.jit  # type: ignore[untyped-decorator]
def place(cluster: Any, clusters_m: Any, clusters_n: Any, plan: cutlass.Constexpr) -> Any:
    """Row and column of a cluster, among clusters: down a band of rows, then on to the next column.

    Clusters that run at the same time so share both operands in the L2 cache. Known to be wrong: with tiles
    of 8 rows of ``a``, from 2^31 - 7 rows on, the clusters of a band are 2^31, which wraps around.
    """
    band = cutlass.Int32(plan.band)
    if cutlass.const_expr(plan.most_across > 0):  # noqa: SIM102 (the other is known at run time)
        if clusters_n <= plan.most_across:
            band = cutlass.Int32(1)
    in_band = clusters_n * band
    first = cluster // in_band * band
    height = cutlass.min(clusters_m - first, band)
    rest = cluster % in_band
    return first + rest % height, rest // height


def tiles_of(extent: Any, tile: int) -> Any:
    """Tiles along an extent; the sum of both may exceed 2^31 - 1. The division rounds down: 0 has none."""
    return (extent - 1) // tile + 1


@cute.jit  # type: ignore[untyped-decorator]
def moved_back(tile: Any, width: cutlass.Constexpr, extent: Any, multiple: cutlass.Constexpr = 1) -> Any:
    """What to add to where a tile begins so that it ends within the extent: 0, or less for the last tile.

    It still begins at a multiple of ``multiple``, so that it may end at the first one after the extent. TMA
    takes time for rows that are not there (docs/internals/sm90-gemm.md). The last tile so begins early, and
    computes rows of the one before again. An extent below a tile's width stays as it is.
    """
    # Near 2^31 the products wrap around, and the difference, which fits, wraps back.
    end = extent
    if cutlass.const_expr(multiple > 1):
        end = tiles_of(extent, multiple) * multiple
    back = cutlass.min(end - (tile + 1) * width, 0)
    if extent < width:
        back = cutlass.Int32(0)
    return back


def corner_of(tile: Tile, block: Block, extents: tuple[Any, Any], plan: Any) -> Corner:
    """The corner of a block's tile of an output with so many rows and columns."""
    starts, own = [], []
    places = (tile.row, block.rank_m), (tile.column, block.rank_n)
    for at, (clusters, rank) in enumerate(places):
        number = clusters * plan.cluster[at] + rank
        first = cutlass.Int64(number) * plan.tile[at]
        if tile.start is not None and at == plan.output_rows:
            first = first + tile.start
            starts.append(first)
        else:
            starts.append(first + moved_back(number, plan.tile[at], extents[at], plan.multiples[at]))
        own.append(first)
    return Corner(*starts, *own)

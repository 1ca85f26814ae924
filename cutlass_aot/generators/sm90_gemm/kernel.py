"""A tensor-core GEMM for sm_90a in CuTe DSL: TMA, warp specialisation, clusters along M, N and K.

out[l, m, n] = epilogue(sum over k of a[l, m, k] * b[l, k, n]), computed in f32

One block computes one tile of ``out``, or the part of it that a slice of K gives; a persistent one tile after
tile, loading the next while it stores one. A warp of its own issues TMA loads into a ring of stages; one to
three warp groups take them out with WGMMA, and store the results from their registers. Blocks of a cluster
share operands by multicast, along M and N, and share the sum along K: each keeps its partial tile in shared
memory, and each adds up its part of the tile over all of them, in a fixed order, so that equal operands give
equal bits. Nothing is kept in device memory between them, so that no launch needs a workspace.

With few rows in ``a``, the roles are exchanged (``swap``): the rows of the weights fill the 64 rows that a
tensor-core instruction has at least, and the rows of ``a`` its columns, of which there can be eight.

Import it inside a worker only: it imports the DSL. docs/internals/sm90-gemm.md says what each part brought.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.cutlass_dsl import dsl_user_op
from cutlass.utils import LayoutEnum
from cutlass.utils import hopper_helpers as hopper

from cutlass_aot.generators import dsl
from cutlass_aot.generators.sm90_gemm import epilogue as fused
from cutlass_aot.generators.sm90_gemm.plan import (
    ALIGNMENT,
    CONTIGUOUS,
    LOADING_REGISTERS,
    MAX_GRID_YZ,
    ROWS,
    SCALED_BLOCK,
    THREADS,
    WARP,
    WARPS,
    whole_groups,
)
from cutlass_aot.schema.kernels.epilogue import COLUMN, ELEMENT, ROW

LOADS = 6
"""Vectors of results that a thread loads before it stores the first."""

STORES = 8
"""Vectors of results that the threads of a warp exchange before they store the first."""

SAME_ROW, SAME_COLUMN = (1, 2), (4, 8, 16)
"""Bits of the numbers of the lanes that store elements of the same rows, and of the same columns."""

ALL_OF_IT = ((0, True),)
"""Where the reduction of all elements lies, and that it is there."""

RESULTS_BARRIER = 1
"""Named barrier of the warp groups that compute."""

UNROLLED = 4
"""Tiles along K of a turn of the loop, where sums are scaled after each."""


@cute.jit  # type: ignore[untyped-decorator]
def place(cluster: Any, clusters_m: Any, clusters_n: Any, group: cutlass.Constexpr) -> Any:
    """Row and column of a cluster, among clusters: down a group of rows, then on to the next column.

    Clusters that run at the same time so share both operands in the L2 cache.
    """
    in_group = clusters_n * group
    first = cluster // in_group * group
    height = cutlass.min(clusters_m - first, group)
    rest = cluster % in_group
    return first + rest % height, rest // height


@cute.jit  # type: ignore[untyped-decorator]
def moved_back(tile: Any, width: cutlass.Constexpr, extent: Any) -> Any:
    """What to add to where a tile begins so that it ends within the extent: 0, or less for the last tile.

    TMA takes time for rows that are not there (docs/internals/sm90-gemm.md). The last tile so begins early,
    and computes rows of the one before again. An extent below a tile's width stays as it is.
    """
    # Near 2^31 the product wraps around, and the difference, which fits, wraps back.
    back = cutlass.min(extent - (tile + 1) * width, 0)
    if extent < width:
        back = cutlass.Int32(0)
    return back


def tma_parts(
    load: cute.CopyAtom,
    tensor: cute.Tensor,
    shared: cute.Tensor,
    shape: tuple[int, int],
    place_of_tile: tuple[Any, Any],
    sharing: tuple[Any, int],
    batch: Any,
    first_row: Any = None,
) -> tuple[Any, Any]:
    """What a block loads of an operand: where to, by stage, and where from, by tile along its rows and K.

    ``shape`` is that of a tile, ``place_of_tile`` its number along the rows and their extent, ``sharing`` the
    block's rank among those that share the operand, and their number: each loads its share of the rows for
    all. ``shared`` is the swizzled ring, or, where shares are not whole groups, that of :func:`unswizzled`.
    Rows are counted from ``first_row`` if that is given.
    """
    rank, sharers = sharing
    number, extent = place_of_tile
    from_row = moved_back(number, shape[0], extent) if first_row is None else first_row
    rows = shape[0]
    if not whole_groups(rows, sharers):
        # TMA swizzles by the address in shared memory, so that a share can begin anywhere among eight rows.
        whole, (rows, depth) = shared, (rows // sharers, shape[1])
        places = cute.make_layout((rows, depth, whole.shape[2]), stride=whole.stride)
        shared = cute.make_tensor(whole.iterator + cute.assume(rank * (rows * depth), divby=depth), places)
        from_row, number = from_row + rank * rows, number * sharers
        rank, sharers = cutlass.Int32(0), 1
    tiles = cute.local_tile(
        cute.domain_offset((from_row, 0, 0), tensor), (rows, shape[1]), (None, None, batch)
    )
    to, where = cpasync.tma_partition(
        load,
        rank,
        cute.make_layout(sharers),
        cute.group_modes(shared, 0, 2),
        cute.group_modes(tiles, 0, 2),
    )
    return to, where[None, number, None]


def unswizzled(memory: Any, dtype: Any, shape: tuple[int, int, int]) -> Any:
    """A ring of tiles (rows, K, stages) of one line of 128 bytes a row, each line where its bytes lie."""
    rows, depth, _ = shape
    layout = cute.make_layout(shape, stride=(depth, 1, rows * depth))
    return cute.make_tensor(cute.recast_ptr(memory, dtype=dtype), layout)


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
    height = plan.tokens
    number, first, start, size, before = (cutlass.Int32(0) for _ in range(5))
    for chunk in cutlass.range((count + WARP - 1) // WARP, unroll=1):
        index = chunk * WARP + lane
        place = cutlass.min(index, count - 1)
        begin = cutlass.Int32(0)
        end = cutlass.max(cutlass.min(groups[place], rows), 0)
        if cutlass.const_expr(plan.groups == CONTIGUOUS):  # noqa: SIM102 (the other is known at run time)
            if place > 0:
                begin = cutlass.max(cutlass.min(groups[place - 1], rows), 0)
        here = cutlass.max(end - begin, 0)
        if index >= count:
            here = cutlass.Int32(0)
        clusters = (here + (height - 1)) // height * across
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
def place_in_group(
    cluster: Any, groups: Any, rows: Any, across: Any, lane: Any, plan: cutlass.Constexpr
) -> tuple[Any, Any, Any, Any, Any, Any]:
    """Of a cluster's tile: row and column among those of its group, batch, group, its first row and its end.

    The batch is that of the rows of A and the output.
    """
    number, first, start, size, _ = group_of(cluster, groups, rows, across, lane, plan)
    along = (size + (plan.tokens - 1)) // plan.tokens
    if cutlass.const_expr(plan.swap):
        row, column = place(cluster - first, across, along, plan.group)
    else:
        row, column = place(cluster - first, along, across, plan.group)
    of_rows = cutlass.Int32(0) if plan.groups == CONTIGUOUS else number
    return row, column, of_rows, number, start, start + size


def tiles_of(extent: Any, tile: int) -> Any:
    """Tiles along an extent of at least 1; the sum of both may exceed 2^31 - 1."""
    return (extent - 1) // tile + 1


@cute.kernel  # type: ignore[untyped-decorator]
def gemm_kernel(
    load_a: cute.CopyAtom,
    tensor_a: cute.Tensor,
    load_b: cute.CopyAtom,
    tensor_b: cute.Tensor,
    out: cute.Tensor,
    tiled_mma: cute.TiledMma,
    part_mma: cute.TiledMma,
    layout_a: cute.ComposedLayout,
    layout_b: cute.ComposedLayout,
    scales: Any,
    groups: Any,
    operands: Any,
    dtype: cutlass.Constexpr,
    epilogue: cutlass.Constexpr,
    plan: cutlass.Constexpr,
) -> None:
    """Compute this block's tile, or its part of one.

    Args:
        load_a: TMA atom of A.
        tensor_a: (M, K, L), as TMA coordinates.
        load_b: TMA atom of B.
        tensor_b: (N, K, L), as TMA coordinates.
        out: (L, M, N), whatever is exchanged.
        tiled_mma: of all warp groups that compute.
        part_mma: of them, over as many columns as lie in shared memory at once; for its layout alone.
        layout_a: (M of a tile, K of a tile, stages) in shared memory.
        layout_b: (N of a tile, K of a tile, stages) in shared memory.
        scales: scale factors of the caller's a, (M, K / 128, L), and of b, (N / 128, K / 128, L), both
            quotients rounded up; empty without.
        groups: (G,), see :func:`group_of`; None without.
        operands: tensors and numbers that the epilogue reads and writes.
        dtype: element type of A and B.
        epilogue: formula, None to store the sums converted.
        plan: everything else that is compiled in.
    """
    tile_m, tile_n, tile_k = plan.tile
    cluster_m, cluster_n, split = plan.cluster
    blocks = cluster_m * cluster_n * split
    stages = plan.stages
    mma_warps = plan.warp_groups * WARPS

    thread, _, _ = cute.arch.thread_idx()
    block, batch_low, batch_high = cute.arch.block_idx()
    grid_x, _, _ = cute.arch.grid_dim()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    lane = cute.arch.lane_idx()

    # Where this block stands in its cluster.
    rank = cutlass.Int32(0)
    if cutlass.const_expr(blocks > 1):
        rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    rank_m = rank % cluster_m
    rank_n = rank // cluster_m % cluster_n
    rank_k = rank // (cluster_m * cluster_n)
    batches, rows, columns = out.shape
    if cutlass.const_expr(plan.swap):
        rows, columns = columns, rows
    clusters_m = tiles_of(rows, tile_m * cluster_m)
    clusters_n = tiles_of(columns, tile_n * cluster_n)
    # Where tiles end at the latest.
    end_rows, end_columns = rows, columns
    if cutlass.const_expr(plan.scaled):
        if cutlass.const_expr(plan.swap):
            end_rows = tiles_of(rows, plan.piece) * plan.piece
        else:
            end_columns = tiles_of(columns, plan.piece) * plan.piece
    batch = batch_low + batch_high * MAX_GRID_YZ
    # One tile a block, or, of a persistent one, every so many of them.
    first = block // blocks
    last = first + 1
    step = cutlass.Int32(1)
    if cutlass.const_expr(plan.active > 0):
        last = clusters_m * clusters_n
        step = grid_x // blocks
    # Divisions take long: this is done while the launch before still runs.
    first_row, first_column = cutlass.Int32(0), cutlass.Int32(0)
    across = clusters_m if plan.swap else clusters_n
    if cutlass.const_expr(not plan.groups):
        first_row, first_column = place(first, clusters_m, clusters_n, plan.group)

    # This block's slice of K, in tiles. A slice may have none: the sum is then zero.
    tiles_k = tiles_of(tensor_a.shape[1], tile_k)
    each = tiles_k // split
    more = tiles_k % split
    first_k = rank_k * each + cutlass.min(rank_k, more)
    count_k = each
    if rank_k < more:
        count_k = each + 1
    if batch >= batches:
        count_k = cutlass.Int32(0)

    # Shared memory: a full and an empty barrier a stage; the ring; the results, where the ring comes to hold
    # other tiles, else they come to lie in it.
    smem = cutlass.utils.SmemAllocator()
    full = smem.allocate_array(cutlass.Int64, 2 * stages)
    empty = full + stages
    ring = smem.allocate(plan.shared_bytes, ALIGNMENT)
    staged_dtype = cutlass.Float32 if plan.staged_bits == 32 else out.element_type
    staged = cute.recast_ptr(ring + plan.staged_offset, dtype=staged_dtype)
    ring_b = ring + stages * (tile_m * tile_k * dtype.width // 8)
    factors = None
    if cutlass.const_expr(plan.scaled):
        factors = smem.allocate_array(cutlass.Float32, stages * plan.factor_stride)
    shared_a = cute.make_tensor(cute.recast_ptr(ring, layout_a.inner, dtype=dtype), layout_a.outer)
    shared_b = cute.make_tensor(cute.recast_ptr(ring_b, layout_b.inner, dtype=dtype), layout_b.outer)

    # A stage is empty when every warp that computes has let go of it, in all blocks that share what is
    # loaded into it: a block's loads go to those of its row and to those of its column in the cluster.
    sharers = cluster_m + cluster_n - 1
    if warp == 0:
        with cute.arch.elect_one():
            for stage in cutlass.range_constexpr(stages):
                cute.arch.mbarrier_init(full + stage, 1 + WARP if plan.scaled else 1)
                cute.arch.mbarrier_init(empty + stage, mma_warps * sharers)
        cute.arch.mbarrier_init_fence()
    if warp == mma_warps:
        cpasync.prefetch_descriptor(load_a)
        cpasync.prefetch_descriptor(load_b)
    if cutlass.const_expr(blocks > 1):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
    else:
        cute.arch.sync_threads()
    # Up to here the launch before may still run, whose results may be operands. The one after may set up.
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    tokens = out.shape[1]
    if cutlass.const_expr(plan.groups):
        *_, last = group_of(cutlass.Int32(-1), groups, tokens, across, lane, plan)

    if cutlass.const_expr(plan.hands_over):  # noqa: SIM102 (the other is known at run time)
        if warp >= mma_warps:
            cute.arch.setmaxregister_decrease(LOADING_REGISTERS)
    if warp == mma_warps:
        # Bits of the ranks that share A, those of a row, and of those that share B, those of a column.
        corner = rank_k * (cluster_m * cluster_n)
        row_bits = sum(1 << (i * cluster_m) for i in range(cluster_n))
        column_bits = sum(1 << i for i in range(cluster_m))
        mask_a = cutlass.Int16(cutlass.Int32(row_bits) << (corner + rank_m))
        mask_b = cutlass.Int16(cutlass.Int32(column_bits) << (corner + rank_n * cluster_m))
        filled_a, filled_b = shared_a, shared_b
        if cutlass.const_expr(not whole_groups(tile_m, cluster_n)):
            filled_a = unswizzled(ring, dtype, (tile_m, tile_k, stages))
        if cutlass.const_expr(not whole_groups(tile_n, cluster_m)):
            filled_b = unswizzled(ring_b, dtype, (tile_n, tile_k, stages))
        stage = cutlass.Int32(0)
        phase = cutlass.Int32(1)
        row_of_clusters, column_of_clusters = first_row, first_column
        for cluster in cutlass.range(first, last, step, unroll=1):
            batch_a, batch_b, from_row, from_column = batch, batch, None, None
            if cutlass.const_expr(plan.groups):
                row_of_clusters, column_of_clusters, of_tokens, group, from_token, _ = place_in_group(
                    cluster, groups, tokens, across, lane, plan
                )
                batch_a, batch_b = (group, of_tokens) if plan.swap else (of_tokens, group)
            tile_row = row_of_clusters * cluster_m + rank_m
            tile_column = column_of_clusters * cluster_n + rank_n
            if cutlass.const_expr(plan.groups):
                if cutlass.const_expr(plan.swap):
                    from_column, tile_column = from_token + tile_column * tile_n, cutlass.Int32(0)
                else:
                    from_row, tile_row = from_token + tile_row * tile_m, cutlass.Int32(0)
            to_a, from_a = tma_parts(
                load_a,
                tensor_a,
                filled_a,
                (tile_m, tile_k),
                (tile_row, end_rows),
                (rank_n, cluster_n),
                batch_a,
                from_row,
            )
            to_b, from_b = tma_parts(
                load_b,
                tensor_b,
                filled_b,
                (tile_n, tile_k),
                (tile_column, end_columns),
                (rank_m, cluster_m),
                batch_b,
                from_column,
            )
            for index_k in cutlass.range(first_k, first_k + count_k, unroll=1):
                cute.arch.mbarrier_wait(empty + stage, phase)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full + stage, plan.stage_bytes)
                cute.copy(
                    load_a,
                    from_a[None, index_k],
                    to_a[None, stage],
                    tma_bar_ptr=full + stage,
                    mcast_mask=mask_a if cluster_n > 1 else None,
                )
                cute.copy(
                    load_b,
                    from_b[None, index_k],
                    to_b[None, stage],
                    tma_bar_ptr=full + stage,
                    mcast_mask=mask_b if cluster_m > 1 else None,
                )
                stage += 1
                if stage == stages:
                    stage = cutlass.Int32(0)
                    phase = phase ^ 1
            if cutlass.const_expr(plan.active > 0 and not plan.groups):
                row_of_clusters, column_of_clusters = place(
                    cluster + step, clusters_m, clusters_n, plan.group
                )

    if cutlass.const_expr(plan.scaled):  # noqa: SIM102 (the other is known at run time)
        if warp == mma_warps + 1:
            stage = cutlass.Int32(0)
            phase = cutlass.Int32(1)
            row_of_clusters, column_of_clusters = first_row, first_column
            for cluster in cutlass.range(first, last, step, unroll=1):
                batches_of_factors, from_token = (batch, batch), None
                if cutlass.const_expr(plan.groups):
                    row_of_clusters, column_of_clusters, of_tokens, group, from_token, _ = place_in_group(
                        cluster, groups, tokens, across, lane, plan
                    )
                    batches_of_factors = of_tokens, group
                begin = corner_of(
                    row_of_clusters,
                    column_of_clusters,
                    (rank_m, rank_n),
                    (end_rows, end_columns),
                    plan,
                    from_token,
                )
                from_a, from_b = factors_of(scales, begin, lane, batches_of_factors, plan)
                for index_k in cutlass.range(first_k, first_k + count_k, unroll=1):
                    cute.arch.mbarrier_wait(empty + stage, phase)
                    load_factors(from_a, from_b, index_k, factors + stage * plan.factor_stride, lane, plan)
                    cute.arch.cp_async_mbarrier_arrive_noinc(full + stage)
                    stage += 1
                    if stage == stages:
                        stage = cutlass.Int32(0)
                        phase = phase ^ 1
                if cutlass.const_expr(plan.active > 0 and not plan.groups):
                    row_of_clusters, column_of_clusters = place(
                        cluster + step, clusters_m, clusters_n, plan.group
                    )

    if warp < mma_warps:
        if cutlass.const_expr(plan.hands_over):
            cute.arch.setmaxregister_increase(plan.computing_registers)
        group_mma = tiled_mma.get_slice(cute.arch.make_warp_uniform(thread // THREADS) * THREADS)
        of_a = tiled_mma.make_fragment_A(group_mma.partition_A(shared_a))
        of_b = tiled_mma.make_fragment_B(group_mma.partition_B(shared_b))
        total = cute.make_rmem_tensor(tiled_mma.partition_shape_C((tile_m, tile_n)), cutlass.Float32)
        tiled_mma.set(warpgroup.Field.ACCUMULATE, True)
        # The block of the cluster that this lane tells that a stage is empty: of its row, then its column.
        sharer = rank
        if cutlass.const_expr(sharers > 1):
            corner = rank_k * (cluster_m * cluster_n)
            sharer = corner + lane * cluster_m + rank_m
            if lane >= cluster_n:
                other = lane - cluster_n
                if other >= rank_m:
                    other = other + 1
                sharer = corner + rank_n * cluster_m + other
        # Where parts of the tile of results lie in shared memory, as this thread writes and reads them.
        width = plan.staged_columns
        lines = cute.make_layout(
            (tile_m, width), stride=(1, plan.staged_stride) if plan.swap else (plan.staged_stride, 1)
        )
        writes = part_mma.get_slice(thread).partition_C(cute.make_tensor(staged, lines))

        stage = cutlass.Int32(0)
        phase = cutlass.Int32(0)
        row_of_clusters, column_of_clusters = first_row, first_column
        for cluster in cutlass.range(first, last, step, unroll=1):
            total.fill(0.0)
            before = stage
            batch_out, from_token, end = batch, None, tokens
            if cutlass.const_expr(plan.groups):
                row_of_clusters, column_of_clusters, batch_out, _, from_token, end = place_in_group(
                    cluster, groups, tokens, across, lane, plan
                )
            if cutlass.const_expr(plan.scaled):
                stage, phase = sum_scaled(
                    total, tiled_mma, of_a, of_b, (full, empty), factors, (stage, phase), count_k,
                    (thread, lane, sharer, sharers), dtype, plan,
                )  # fmt: skip
            else:
                for index_k in cutlass.range(count_k, unroll=1):
                    cute.arch.mbarrier_wait(full + stage, phase)
                    warpgroup.fence()
                    for piece in cutlass.range_constexpr(cute.size(of_a, mode=[2])):
                        at = (None, None, piece, stage)
                        cute.gemm(tiled_mma, total, of_a[at], of_b[at], total)
                    warpgroup.commit_group()
                    # One tile's instructions stay in flight; those of the tile before are done.
                    warpgroup.wait_group(1)
                    if index_k > 0:
                        release(empty + before, lane, sharer, sharers)
                    before = stage
                    stage += 1
                    if stage == stages:
                        stage = cutlass.Int32(0)
                        phase = phase ^ 1
                warpgroup.wait_group(0)
                if count_k > 0:
                    release(empty + before, lane, sharer, sharers)
            begin = corner_of(
                row_of_clusters,
                column_of_clusters,
                (rank_m, rank_n),
                (end_rows, end_columns),
                plan,
                from_token,
            )
            if cutlass.const_expr(plan.direct):
                store_sums(total, thread, begin, (batch_out, end), out, operands, epilogue, plan)
            else:
                for piece in cutlass.range_constexpr(tile_n // width):
                    # Every thread is done with what lay here: stages, or the piece before.
                    meet(plan)
                    lay_down(total, writes, piece, plan)
                    if cutlass.const_expr(split == 1):
                        meet(plan)
                        finish(
                            staged,
                            thread,
                            rank,
                            begin,
                            piece * width,
                            (batch_out, end),
                            out,
                            operands,
                            epilogue,
                            plan,
                        )
            if cutlass.const_expr(plan.active > 0 and not plan.groups):
                row_of_clusters, column_of_clusters = place(
                    cluster + step, clusters_m, clusters_n, plan.group
                )

    if cutlass.const_expr(split > 1):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        if warp < mma_warps:
            at_last = corner_of(first_row, first_column, (rank_m, rank_n), (end_rows, end_columns), plan)
            finish(staged, thread, rank, at_last, 0, (batch, tokens), out, operands, epilogue, plan)

    if cutlass.const_expr(blocks > 1):
        # A block stays until no other reads its shared memory or tells it that a stage is empty.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()


@cute.jit  # type: ignore[untyped-decorator]
def factors_of(scales: Any, corner: Any, lane: Any, batches: Any, plan: cutlass.Constexpr) -> tuple[Any, Any]:
    """Where a lane finds the factors of a tile that it loads: those of A's rows, and one of a piece of B.

    ``corner`` is that of :func:`corner_of`, ``batches`` those of A and B. A row, or a piece, that is not
    there has the factors of the last.
    """
    of_a, of_b = scales
    batch_a, batch_b = batches
    first_a, first_b = (corner[1], corner[0]) if plan.swap else corner[:2]
    count, _ = plan.factors
    rows, pieces = of_a.shape[0], of_b.shape[0]
    from_a = [
        of_a[cutlass.min(cutlass.Int32(first_a) + (turn * WARP + lane), rows - 1), None, batch_a]
        for turn in range((count + WARP - 1) // WARP)
    ]
    piece = cutlass.Int32(first_b) // plan.piece + lane
    from_b = of_b[cutlass.min(piece * plan.piece // SCALED_BLOCK, pieces - 1), None, batch_b]
    return from_a, from_b


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


@cute.jit  # type: ignore[untyped-decorator]
def sum_scaled(
    total: Any,
    tiled_mma: Any,
    of_a: Any,
    of_b: Any,
    barriers: Any,
    factors: Any,
    state: Any,
    count_k: Any,
    who: Any,
    dtype: cutlass.Constexpr,
    plan: cutlass.Constexpr,
) -> tuple[Any, Any]:
    """Add up the products of all tiles along K, each times its factors.

    Args:
        total: sums of this thread, which are 0.
        tiled_mma: of all warp groups that compute.
        of_a: A in shared memory, as its instructions take it.
        of_b: B likewise.
        barriers: those that say that a stage is full, and empty.
        factors: those of all stages, in shared memory.
        state: stage and phase of the ring.
        count_k: tiles along K.
        who: thread, lane, whom this lane tells that a stage is empty, and how many are told.
        dtype: element type of A and B.
        plan: everything else that is compiled in.

    Returns:
        Stage and phase of what follows.
    """
    full, empty = barriers
    stage, phase = state
    thread, lane, sharer, sharers = who
    rows, columns, _ = plan.tile
    blocks = rows // (ROWS * plan.warp_groups)
    shape = tiled_mma.partition_shape_C((ROWS * plan.warp_groups, columns))
    part = cute.make_rmem_tensor(shape, cutlass.Float32)
    along_k = cute.nvgpu.OperandMajorMode.K
    first_mma = hopper.make_trivial_tiled_mma(
        dtype, dtype, along_k, along_k, cutlass.Float32, (plan.warp_groups, 1, 1), (ROWS, columns)
    )
    first_mma.set(warpgroup.Field.ACCUMULATE, False)
    mmas = first_mma, tiled_mma
    own = room_for_factors(plan)
    alone = count_k
    if cutlass.const_expr(plan.pairs):
        alone = count_k % 2
    for _index_k in cutlass.range(alone, unroll=1 if plan.pairs else UNROLLED):
        cute.arch.mbarrier_wait(full + stage, phase)
        read_factors(own, factors + stage * plan.factor_stride, thread, plan)
        for block in cutlass.range_constexpr(blocks):
            issue(mmas, part, of_a, of_b, block, stage)
            # Other warp groups, or blocks, compute meanwhile.
            warpgroup.wait_group(0)
            if cutlass.const_expr(block == blocks - 1):
                release(empty + stage, lane, sharer, sharers)
            add_scaled(total, part, own, block, plan)
        stage, phase = following(stage, phase, plan)
    if cutlass.const_expr(plan.pairs):
        # The products of one tile are added while those of the next are computed.
        other, others = cute.make_rmem_tensor(shape, cutlass.Float32), room_for_factors(plan)
        for _pair in cutlass.range(count_k // 2, unroll=1):
            cute.arch.mbarrier_wait(full + stage, phase)
            read_factors(own, factors + stage * plan.factor_stride, thread, plan)
            issue(mmas, part, of_a, of_b, 0, stage)
            before = stage
            stage, phase = following(stage, phase, plan)
            cute.arch.mbarrier_wait(full + stage, phase)
            read_factors(others, factors + stage * plan.factor_stride, thread, plan)
            issue(mmas, other, of_a, of_b, 0, stage)
            warpgroup.wait_group(1)
            release(empty + before, lane, sharer, sharers)
            add_scaled(total, part, own, 0, plan)
            warpgroup.wait_group(0)
            release(empty + stage, lane, sharer, sharers)
            add_scaled(total, other, others, 0, plan)
            stage, phase = following(stage, phase, plan)
    return stage, phase


@cute.jit  # type: ignore[untyped-decorator]
def following(stage: Any, phase: Any, plan: cutlass.Constexpr) -> tuple[Any, Any]:
    """The next stage of the ring, and its phase."""
    stage = stage + 1
    if stage == plan.stages:
        stage = cutlass.Int32(0)
        phase = phase ^ 1
    return stage, phase


def issue(mmas: tuple[Any, Any], part: Any, of_a: Any, of_b: Any, block: int, stage: Any) -> None:
    """Begin to multiply 64 rows of each warp group with a tile along K.

    ``mmas`` are that of the first instruction, which takes ``part`` for 0, and that of the others.
    """
    warpgroup.fence()
    for piece in range(cute.size(of_a, mode=[2])):
        rows = of_a[None, block, piece, stage]
        rows = cute.make_tensor(rows.iterator, cute.append_ones(rows.layout, up_to_rank=2))
        cute.gemm(mmas[piece > 0], part, rows, of_b[None, None, piece, stage], part)
    warpgroup.commit_group()


def room_for_factors(plan: Any) -> tuple[Any, Any]:
    """Registers for the factors of a thread's sums: of A's rows, and of pieces of B."""
    rows, columns, _ = plan.tile
    blocks = rows // (ROWS * plan.warp_groups)
    counts = (columns // 4, blocks) if plan.swap else (2 * blocks, plan.factors[1])
    return cute.make_rmem_tensor(counts[0], cutlass.Float32), cute.make_rmem_tensor(
        counts[1], cutlass.Float32
    )


def read_factors(to: tuple[Any, Any], memory: Any, thread: Any, plan: Any) -> None:
    """Read the factors of the sums that a thread has, of a stage: of A's rows, and of pieces of B.

    A thread has two neighbouring columns of each eight, in two of each 64 rows of the tensor core.
    """
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


def add_scaled(total: Any, part: Any, factors: tuple[Any, Any], block: int, plan: Any) -> None:
    """Add the sums over one tile along K, times their factors, to those of the tiles before.

    ``part`` are those of a block of 64 rows of each warp group, ``factors`` what :func:`read_factors` read.
    """
    _, columns, _ = plan.tile
    of_a, of_b = factors
    products: dict[tuple[int, int], Any] = {}
    for group in range(columns // 8):
        for place in range(4):
            if plan.swap:
                key = group * 2 + place % 2, block
            else:
                key = block * 2 + place // 2, group * 8 // plan.piece
            if key not in products:
                products[key] = of_a[key[0]] * of_b[key[1]]
            index = group * 4 + place
            whole = block * columns // 2 + index
            total[whole] = total[whole] + settled(part[index]) * products[key]


@cute.jit  # type: ignore[untyped-decorator]
def meet(plan: cutlass.Constexpr) -> None:
    """Wait for all threads that compute."""
    cute.arch.barrier(barrier_id=RESULTS_BARRIER, number_of_threads=plan.warp_groups * THREADS)


@cute.jit  # type: ignore[untyped-decorator]
def store_sums(
    total: Any,
    thread: Any,
    corner: Any,
    bounds: Any,
    out: Any,
    operands: Any,
    epilogue: cutlass.Constexpr,
    plan: cutlass.Constexpr,
) -> None:
    """Store a tile of sums from registers.

    Args:
        total: of this thread: two neighbours of each eight columns, in two of each 64 rows.
        thread: of those that compute.
        corner: row and column where the tile begins, and the first of each that are to be stored.
        bounds: batch of the tile, and the end of the rows of the output that are stored.
        out: (L, M, N).
        operands: of the epilogue.
        epilogue: formula, or None.
        plan: everything else that is compiled in.
    """
    batches, _, columns = out.shape
    batch, rows = bounds
    first_row, first_column, own_row, own_column = corner
    lane = thread % WARP
    # Of the tile, the row and the column of the output where this thread's first four neighbours begin.
    row, column = lane // 4, lane % 2 * 8 + lane % 4 // 2 * 4
    warp_row = thread // THREADS * ROWS + thread % THREADS // WARP * (ROWS // WARPS)
    if cutlass.const_expr(plan.swap):
        first_row, first_column, own_row, own_column = first_column, first_row, own_column, own_row
        column = column + warp_row
    else:
        row = row + warp_row
    if batch >= batches:
        rows = cutlass.Int32(0)
    row_offset, row_count = stored_part(row, first_row, own_row, rows)
    column_offset, column_count = stored_part(column, first_column, own_column, columns)
    todo = pieces(plan)
    # The rows of which this thread has some, and what it has reduced of them.
    own_rows = sorted({more_rows for *_, more_rows, _ in todo})
    partial = fused.partial_results(epilogue, len(own_rows))
    for begin in cutlass.range_constexpr(0, len(todo), STORES):
        # The threads exchange what several vectors need before any is stored: an exchange takes long.
        pending = []
        for first, second, more_rows, more_columns in todo[begin : begin + STORES]:
            inside = (row_offset + more_rows < row_count) & (column_offset + more_columns < column_count)
            at = first_row + (row + more_rows), first_column + (column + more_columns), cutlass.Int64(batch)
            one, two = (converted_pair(total, index, out, epilogue) for index in (first, second))
            if cutlass.const_expr(plan.swap):
                one, two = transposed(one), transposed(two)
            pending.append((inside, at, four_neighbours(one, two, lane % 2 == 1)))
        for place in cutlass.range_constexpr(len(pending)):
            inside, at, result = pending[place]
            _, _, more_rows, more_columns = todo[begin + place]
            # Bound here: in the branch, the number would be one that is known at run time alone.
            emit_in_row = functools.partial(emit, row=own_rows.index(more_rows))
            if inside:
                emit_in_row(result.load(), at, out, operands, epilogue, partial)
            ends = place + 1 == len(pending) or todo[begin + place + 1][3] != more_columns
            if cutlass.const_expr(len(partial) > 0 and ends):
                columns_are = column_offset + more_columns < column_count
                across = [(at[1] + index, columns_are) for index in range(fused.VECTOR)]
                fused.flush(epilogue, partial, operands, ROW, SAME_COLUMN, across)
    if cutlass.const_expr(len(partial) > 0):
        down = [(first_row + (row + more), row_offset + more < row_count) for more in own_rows]
        fused.flush(epilogue, partial, operands, COLUMN, SAME_ROW, down)
        fused.flush(epilogue, partial, operands, ELEMENT, (*SAME_ROW, *SAME_COLUMN), ALL_OF_IT)


def stored_part(place: Any, first: Any, own: Any, extent: Any) -> tuple[Any, Any]:
    """What says whether a place of a tile is to be stored: an offset, which then is below a count.

    ``place`` is counted from the tile's ``first`` row or column; those from ``own`` to ``extent`` are stored.
    Unsigned, so that one comparison suffices: an offset before the first is a large one.
    """
    count = cutlass.max(extent - own, 0)
    most = cutlass.Int64((1 << 31) - 1)
    offset = cutlass.Int32(first - own) + place
    return cutlass.Uint32(offset), cutlass.Uint32(cutlass.min(count, most))


def pieces(plan: Any) -> list[tuple[int, int, int, int]]:
    """What a thread stores at once of a tile: two pairs of sums, of which an exchange makes four neighbours.

    Each is the indices of the first and the second pair, and the rows and columns of the tile of the output
    before what the warp stores, which has eight rows and 16 columns.
    """
    rows, columns, _ = plan.tile
    found = []
    for block in range(rows // (ROWS * plan.warp_groups)):
        for group in range(columns // 8):
            index, down, across = (
                (block * columns // 8 + group) * 4,
                block * ROWS * plan.warp_groups,
                group * 8,
            )
            if plan.swap:
                # The tensor core's 16 rows of a warp are columns of the output.
                found.append((index, index + 2, across, down))
            elif group % 2 == 0:
                found += [(index + half, index + half + 4, down + half * 4, across) for half in (0, 2)]
    return found


def converted_pair(total: Any, index: int, out: Any, epilogue: Any) -> Any:
    """Two neighbouring sums as results, or as they are for an epilogue."""
    pair = cute.make_rmem_tensor(2, cutlass.Float32)
    pair[0], pair[1] = settled(total[index]), settled(total[index + 1])
    if epilogue is not None:
        return pair
    converted = cute.make_rmem_tensor(2, out.element_type)
    converted.store(pair.load().to(out.element_type))
    return converted


def four_neighbours(first: Any, second: Any, odd: Any) -> Any:
    """Four neighbours of eight columns, of two from each of two threads: of the first eight, or the second.

    Of two threads next to each other, the even one gets those of ``first``, the odd one those of ``second``.
    """
    four = cute.make_rmem_tensor(4, first.element_type)
    words, one, two = (cute.recast_tensor(tensor, cutlass.Int32) for tensor in (four, first, second))
    count = cute.size(one)
    for word in range(count):
        given = cutlass.Int32(cutlass.select_(odd, one[word], two[word]))
        taken = cutlass.Int32(cute.arch.shuffle_sync_bfly(given, 1))
        words[word] = cutlass.Int32(cutlass.select_(odd, taken, one[word]))
        words[count + word] = cutlass.Int32(cutlass.select_(odd, two[word], taken))
    return four


def transposed(pair: Any) -> Any:
    """Of eight rows of which each thread of a warp has two neighbours of one, two neighbours of a column."""
    result = cute.make_rmem_tensor(2, pair.element_type)
    word = cute.recast_tensor(pair, cutlass.Int32)[0]
    cute.recast_tensor(result, cutlass.Int32)[0] = move_matrix(word)
    return result


@dsl_user_op  # type: ignore[untyped-decorator]
def move_matrix(word: Any, *, loc: Any = None, ip: Any = None) -> Any:
    """Transpose a matrix of 8 x 8 elements of 16 bits, of which each thread of a warp has two.

    Source: PTX ISA, "movmatrix".
    """
    return cutlass.Int32(
        llvm.inline_asm(
            cutlass.Int32.mlir_type,
            [cutlass.Int32(word).ir_value(loc=loc, ip=ip)],
            "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;",
            "=r,r",
            has_side_effects=True,
            asm_dialect=llvm.AsmDialect.AD_ATT,
            loc=loc,
            ip=ip,
        )
    )


def emit(
    result: Any,
    at: tuple[Any, Any, Any],
    out: Any,
    operands: Any,
    epilogue: cutlass.Constexpr,
    partial: Any,
    row: int = 0,
) -> None:
    """Store neighbouring results of a row, or store and reduce what the epilogue makes of sums.

    ``partial`` is what this thread has reduced, ``row`` the place of the row in it.
    """
    if epilogue is None:
        fused.store(out, at, result)
        return
    values = fused.results(epilogue, result, operands, at)
    given = fused.by_name(epilogue, operands)
    for statement, value in zip(epilogue.statements, values, strict=True):
        if not statement.reduction:
            fused.store(given[statement.name][1] if statement.name in given else out, at, value)
    fused.take(epilogue, partial, values, row)


@cute.jit  # type: ignore[untyped-decorator]
def lay_down(total: Any, writes: Any, part: cutlass.Constexpr, plan: cutlass.Constexpr) -> None:
    """Convert some columns of a tile of sums into shared memory.

    Args:
        total: of this thread: two neighbours of each eight columns, in two of each 64 rows.
        writes: where those of one part lie.
        part: its number.
        plan: everything else that is compiled in.
    """
    rows, columns, _ = plan.tile
    count = plan.staged_columns // 2
    for block in cutlass.range_constexpr(rows // (ROWS * plan.warp_groups)):
        for index in cutlass.range_constexpr(0, count, 2):
            first = block * (columns // 2) + part * count + index
            pair = cute.make_rmem_tensor(2, cutlass.Float32)
            pair[0], pair[1] = settled(total[first]), settled(total[first + 1])
            converted = cute.make_rmem_tensor(2, writes.element_type)
            converted.store(pair.load().to(writes.element_type))
            place = block * count + index
            if cutlass.const_expr(plan.swap):
                writes[place], writes[place + 1] = converted[0], converted[1]
            else:
                target = writes.iterator + writes.layout(place)
                cute.autovec_copy(converted, cute.make_tensor(target, cute.make_layout(2)))


def corner_of(
    row_of_clusters: Any,
    column_of_clusters: Any,
    ranks: tuple[Any, Any],
    extents: tuple[Any, Any],
    plan: cutlass.Constexpr,
    from_token: Any = None,
) -> tuple[Any, Any, Any, Any]:
    """Where a block's tile begins, and the first row and column that are its own: those before are another's.

    Rows of the output are counted from ``from_token`` if that is given.
    64-bit: past the last row or column there can be number 2^31 - 1, and an offset exceeds that.
    """
    starts, own = [], []
    for at, (clusters, rank) in enumerate(zip((row_of_clusters, column_of_clusters), ranks, strict=True)):
        tile = clusters * plan.cluster[at] + rank
        first = cutlass.Int64(tile) * plan.tile[at]
        if from_token is not None and at == (1 if plan.swap else 0):
            first = first + from_token
            starts.append(first)
        else:
            starts.append(first + moved_back(tile, plan.tile[at], extents[at]))
        own.append(first)
    return (*starts, *own)


@cute.jit  # type: ignore[untyped-decorator]
def finish(
    staged: Any,
    thread: Any,
    rank: Any,
    corner: Any,
    skipped: cutlass.Constexpr,
    bounds: Any,
    out: Any,
    operands: Any,
    epilogue: cutlass.Constexpr,
    plan: cutlass.Constexpr,
) -> None:
    """Store what lies in shared memory, or this block's part of what several blocks add up.

    Args:
        staged: results, or sums over slices of K, a line after the other.
        thread: of those that compute.
        rank: of the block in its cluster.
        corner: row and column where the tile begins, and the first of each that are to be stored.
        skipped: columns of the tile before those in shared memory.
        bounds: batch of the tile, and the end of the rows of the output that are stored.
        out: (L, M, N).
        operands: of the epilogue.
        epilogue: formula, or None.
        plan: everything else that is compiled in.
    """
    tile_m, width, vector = plan.tile[0], plan.staged_columns, plan.vector
    in_plane = plan.cluster[0] * plan.cluster[1]
    batches, _, columns = out.shape
    batch, rows = bounds
    first_row, first_column, own_row, own_column = corner
    first_column = first_column + skipped
    if cutlass.const_expr(plan.swap):
        own_row, own_column = own_column, own_row
    threads = plan.warp_groups * THREADS
    along = (tile_m if plan.swap else width) // vector
    vectors = tile_m * width // vector // plan.split
    turns = (vectors + threads - 1) // threads
    partial = fused.partial_results(epilogue, 1)
    # As many neighbouring lanes as a power of two have elements of the same row of the output.
    neighbours = math.gcd(WARP, math.gcd(along, vectors))
    same_row = [1 << bit for bit in range(neighbours.bit_length() - 1)]
    if cutlass.const_expr(plan.split == 1 and not plan.swap and plan.staged_bits == 32):
        # The many places of wide results are the same for each tile. They are worked out anew: kept, they
        # would take the registers of the sums.
        thread = unknown(thread, cutlass.Int32, "=r,0")
    for batch_of_turns in cutlass.range_constexpr((turns + LOADS - 1) // LOADS):
        # All of a batch are loaded before any is stored: another block's memory is far away.
        pending = []
        for turn in cutlass.range_constexpr(batch_of_turns * LOADS, min(turns, (batch_of_turns + 1) * LOADS)):
            mine = turn * threads + thread
            whole = cutlass.const_expr((turn + 1) * threads <= vectors)
            linear = rank // in_plane * vectors + (mine if whole else cutlass.min(mine, vectors - 1))
            line = linear // along
            place_in_line = linear % along * vector
            if cutlass.const_expr(plan.swap):
                row, column = first_column + line, first_row + place_in_line
            else:
                row, column = first_row + line, first_column + place_in_line
            inside = (row < rows) & (column < columns) & (batch < batches)
            inside = inside & (row >= own_row) & (column >= own_column)
            if cutlass.const_expr(not whole):
                inside = inside & (mine < vectors)
            offset = cute.assume(line * plan.staged_stride + place_in_line, divby=vector)
            pending.append(
                (inside, (row, column, cutlass.Int64(batch)), loaded(staged, offset, rank % in_plane, plan))
            )
        for inside, at, result in pending:
            if inside:
                emit(result, at, out, operands, epilogue, partial)
            if cutlass.const_expr(len(partial) > 0):
                row_is = (at[0] >= own_row) & (at[0] < rows) & (batch < batches)
                fused.flush(epilogue, partial, operands, COLUMN, same_row, [(at[0], row_is)])
                across = [(at[1] + index, inside) for index in range(plan.vector)]
                fused.flush(epilogue, partial, operands, ROW, (), across)
    if cutlass.const_expr(len(partial) > 0):
        fused.flush(epilogue, partial, operands, ELEMENT, (*SAME_ROW, *SAME_COLUMN), ALL_OF_IT)


def settled(value: Any) -> Any:
    """A sum as it is here, for the compiler an unknown one.

    To the compiler, the instruction that waits for the tensor cores has nothing to do with their results: it
    moves the conversion of a result before the wait. The assembler sees that, and makes every tensor-core
    instruction wait for the one before.
    """
    return unknown(value, cutlass.Float32, "=f,0")


@dsl_user_op  # type: ignore[untyped-decorator]
def unknown(value: Any, dtype: Any, registers: str, *, loc: Any = None, ip: Any = None) -> Any:
    """A value that the compiler takes for a new one, where this stands; it emits no code."""
    return dtype(
        llvm.inline_asm(
            dtype.mlir_type,
            [dtype(value).ir_value(loc=loc, ip=ip)],
            "",
            registers,
            has_side_effects=True,
            asm_dialect=llvm.AsmDialect.AD_ATT,
            loc=loc,
            ip=ip,
        )
    )


@cute.jit  # type: ignore[untyped-decorator]
def release(barrier: Any, lane: Any, sharer: Any, sharers: cutlass.Constexpr) -> None:
    """Tell all blocks that load into a stage that this warp has done with it."""
    if lane < sharers:
        if cutlass.const_expr(sharers > 1):
            cute.arch.mbarrier_arrive(barrier, sharer)
        else:
            cute.arch.mbarrier_arrive(barrier)


@cute.jit  # type: ignore[untyped-decorator]
def loaded(staged: Any, offset: Any, rank_mn: Any, plan: cutlass.Constexpr) -> Any:
    """Neighbouring results, or their sum over the blocks that share the sum along K, in the order of K."""
    parts = []
    for slice_k in cutlass.range_constexpr(plan.split):
        memory = staged
        if cutlass.const_expr(plan.split > 1):
            memory = cute.arch.map_dsmem_ptr(staged, rank_mn + slice_k * plan.cluster[0] * plan.cluster[1])
        part = cute.make_rmem_tensor(plan.vector, staged.dtype)
        cute.autovec_copy(cute.make_tensor(memory + offset, cute.make_layout(plan.vector)), part)
        parts.append(part.load())
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@cute.jit  # type: ignore[untyped-decorator]
def gemm(
    a: cute.Tensor,
    b: cute.Tensor,
    out: cute.Tensor,
    epilogue: cutlass.Constexpr,
    plan: cutlass.Constexpr,
    *others: Any,
) -> None:
    """Launch the kernel.

    Args:
        a: (L, M, K).
        b: (L, K, N).
        out: (L, M, N).
        epilogue: an :class:`~cutlass_aot.schema.kernels.epilogue.Epilogue`, or None.
        plan: a :class:`~cutlass_aot.generators.sm90_gemm.plan.Plan`.
        others: scale factors of a and b, if the plan has them, what the epilogue reads and writes, groups
            if the plan has them, then the CUDA stream.
    """
    *operands, stream = others
    scales: tuple[Any, ...] = ()
    if cutlass.const_expr(plan.scaled):
        of_a, of_b, *operands = operands
        if cutlass.const_expr(plan.groups == CONTIGUOUS):
            of_a = one_batch(of_a)
        scales = tuple(
            cute.make_tensor(scale.iterator, cute.select(scale.layout, [1, 2, 0])) for scale in (of_a, of_b)
        )
    groups = None
    if cutlass.const_expr(plan.groups):
        *operands, groups = operands
        if cutlass.const_expr(plan.groups == CONTIGUOUS):
            a, out = one_batch(a), one_batch(out)
    operands = [dsl.as_bytes(operand) for operand in operands]
    left = cute.make_tensor(a.iterator, cute.select(a.layout, [1, 2, 0]))
    right = cute.make_tensor(b.iterator, cute.select(b.layout, [2, 1, 0]))
    batches, rows, columns = out.shape
    if cutlass.const_expr(plan.swap):
        left, right = right, left
        rows, columns = columns, rows
    dtype = a.element_type
    major_a, major_b = LayoutEnum.from_tensor(left), LayoutEnum.from_tensor(right)
    tile_m, tile_n, tile_k = plan.tile
    layout_a = shared_layout(major_a, dtype, (tile_m, tile_k), plan.stages)
    layout_b = shared_layout(major_b, dtype, (tile_n, tile_k), plan.stages)
    cluster_m, cluster_n, _ = plan.cluster
    blocks = cluster_m * cluster_n * plan.split
    load_a, tensor_a = tma_load(left, major_a, (tile_m, tile_k), cluster_n)
    load_b, tensor_b = tma_load(right, major_b, (tile_n, tile_k), cluster_m)
    tiled_mma, part_mma = (
        hopper.make_trivial_tiled_mma(
            dtype,
            dtype,
            major_a.sm90_mma_major_mode(),
            major_b.sm90_mma_major_mode(),
            cutlass.Float32,
            (plan.warp_groups, 1, 1),
            (ROWS, width),
        )
        for width in (tile_n, plan.staged_columns)
    )
    clusters = tiles_of(rows, tile_m * cluster_m) * tiles_of(columns, tile_n * cluster_n)
    if cutlass.const_expr(plan.groups):
        # How many tiles there are is in the memory of the GPU.
        clusters, batches = plan.active, 1
    elif cutlass.const_expr(plan.active > 0):
        clusters = cutlass.min(clusters, plan.active)
    gemm_kernel(
        load_a, tensor_a, load_b, tensor_b, out, tiled_mma, part_mma, layout_a, layout_b, scales,
        groups, tuple(operands), dtype, epilogue, plan,
    ).launch(
        grid=(clusters * blocks, cutlass.min(batches, MAX_GRID_YZ), tiles_of(batches, MAX_GRID_YZ)),
        block=(plan.threads, 1, 1),
        cluster=(blocks, 1, 1) if blocks > 1 else None,
        min_blocks_per_mp=plan.blocks if plan.hands_over else 1,
        # Without it the DSL asks the GPU at hand, which a builder has not.
        preferred_smem_carveout=100 if plan.hands_over and plan.blocks > 1 else None,
        use_pdl=True,
        stream=stream,
    )  # fmt: skip


def one_batch(tensor: Any) -> Any:
    """A matrix as a batch of one."""
    (rows, columns), (stride, _) = tensor.shape, tensor.stride
    layout = cute.make_layout((1, rows, columns), stride=(rows * stride, *tensor.stride))
    return cute.make_tensor(tensor.iterator, layout)


def tma_load(tensor: Any, major: Any, tile: tuple[int, int], sharers: int) -> Any:
    """TMA atom by which each of so many blocks loads its share of an operand's tile, and the coordinates."""
    dtype, operation = tensor.element_type, load_operation(sharers)
    layout = shared_layout(major, dtype, tile, None)
    if whole_groups(tile[0], sharers):
        return cpasync.make_tiled_tma_atom(operation, tensor, layout, tile, sharers)
    rows, depth = tile[0] // sharers, tile[1]
    share = cute.make_composed_layout(layout.inner, 0, cute.make_layout((rows, depth), stride=(depth, 1)))
    return cpasync.make_tiled_tma_atom(operation, tensor, share, (rows, depth))


def shared_layout(major: Any, dtype: Any, tile: tuple[int, int], stages: int | None) -> Any:
    """Layout of an operand's tile in shared memory, swizzled as TMA writes and WGMMA reads it.

    Args:
        major: layout of the operand, by its non-contracted mode and K.
        dtype: element type.
        tile: its extents.
        stages: of them, in a third mode; None for one tile without it.
    """
    # The depth of a tile has whole lines of 128 bytes; along the other mode a line is what fits.
    along_k = major.sm90_mma_major_mode() == cute.nvgpu.OperandMajorMode.K
    atom = warpgroup.make_smem_layout_atom(
        hopper.get_smem_layout_atom(major, dtype, tile[1] if along_k else tile[0]), dtype
    )
    order = (0, 1) if along_k else (1, 0)
    if stages is None:
        return cute.tile_to_shape(atom, tile, order)
    return cute.tile_to_shape(atom, (*tile, stages), (*order, 2))


def load_operation(sharers: int) -> Any:
    """TMA load into one block, or into all blocks that share the operand."""
    if sharers > 1:
        return cpasync.CopyBulkTensorTileG2SMulticastOp()
    return cpasync.CopyBulkTensorTileG2SOp()

"""Forward convolution on the tensor cores of SM100 and SM103, in CuTe DSL. It imports the DSL.

One warp loads into a ring of stages, another has the tensor core take them out (tcgen05), and four fetch the
sums from tensor memory and store them.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import nvvm
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05
from cutlass.cutlass_dsl import dsl_user_op
from cutlass.utils import blackwell_helpers as blackwell

from cutlass_aot.kernels.conv2d_fprop_plan import ALIGNMENT, WARP
from cutlass_aot.kernels.conv2d_fprop_tiles import (
    filter_load,
    find_pixels,
    im2col_load,
    im2col_tiles,
    load_tiles,
    shared_layout,
    store_tile,
)

STORE_WARPS = 4
"""Each reaches a quarter of tensor memory's 128 lanes: the pixels of a tile."""
STORE_THREADS = STORE_WARPS * WARP
LOAD_WARP = STORE_WARPS
MMA_WARP = STORE_WARPS + 1
THREADS = (STORE_WARPS + 2) * WARP
COLUMNS_A_TURN = 32
"""Sums of a pixel that a thread fetches at once."""
RESULTS_BARRIER = 1
"""Named barrier of the warps that store."""


def launch(pixels: Any, taps: Any, results: Any, blocks: Any, convolution: Any, stream: Any) -> None:
    """Launch it, from host code.

    Args:
        pixels: ((W, H, N), C).
        taps: (K, (C, S, R)).
        results: ((Q, P, N), K).
        blocks: one a tile of results.
        convolution: the geometry.
        stream: CUDA stream.
    """
    tile_pixels, tile_filters, _ = convolution.tile
    dtype = pixels.element_type
    tiled_mma = blackwell.make_trivial_tiled_mma(
        dtype,
        dtype,
        OperandMajorMode.K,
        OperandMajorMode.K,
        cutlass.Float32,
        tcgen05.CtaGroup.ONE,
        (tile_pixels, tile_filters),
    )
    load_a, tensor_a = im2col_load(pixels, convolution)
    load_b, tensor_b = filter_load(taps, convolution)
    conv2d_fprop_kernel(
        load_a,
        tensor_a,
        load_b,
        tensor_b,
        results,
        tiled_mma,
        blackwell.make_smem_layout_a(tiled_mma, convolution.tile, dtype, convolution.stages),
        blackwell.make_smem_layout_b(tiled_mma, convolution.tile, dtype, convolution.stages),
        convolution,
    ).launch(grid=(blocks, 1, 1), block=(THREADS, 1, 1), min_blocks_per_mp=1, use_pdl=True, stream=stream)


@cute.kernel  # type: ignore[untyped-decorator]
def conv2d_fprop_kernel(
    load_a: cute.CopyAtom,
    tensor_a: cute.Tensor,
    load_b: cute.CopyAtom,
    tensor_b: cute.Tensor,
    results: cute.Tensor,
    tiled_mma: cute.TiledMma,
    layout_a: cute.ComposedLayout,
    layout_b: cute.ComposedLayout,
    convolution: cutlass.Constexpr,
) -> None:
    """Compute one tile of the output.

    Args:
        load_a: TMA atom of the activations.
        tensor_a: (output pixels, (C, S, R)), as TMA coordinates.
        load_b: TMA atom of the filters.
        tensor_b: (K, (C, S, R)), as TMA coordinates.
        results: ((Q, P, N), K), the output.
        tiled_mma: one instruction for the whole tile.
        layout_a: the ring of activations in shared memory, as the instruction takes it apart.
        layout_b: the ring of filters, likewise.
        convolution: everything else that is compiled in.
    """
    tile_pixels, tile_filters, tile_channels = convolution.tile
    stages = convolution.stages
    dtype = results.element_type
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    tiles_along_filters = cute.ceil_div(cute.size(results, mode=[1]), tile_filters)
    tile_row = block // tiles_along_filters
    tile_column = block % tiles_along_filters

    smem = cutlass.utils.SmemAllocator()
    full = smem.allocate_array(cutlass.Int64, 2 * stages + 1)
    empty = full + stages
    computed = empty + stages
    sums_address = smem.allocate_array(cutlass.Int32, 1)
    places = cute.make_tensor(smem.allocate_array(cutlass.Int64, tile_pixels), cute.make_layout(tile_pixels))
    ring = smem.allocate(convolution.ring_bytes, ALIGNMENT)
    ring_b = ring + stages * tile_pixels * tile_channels * dtype.width // 8

    if warp == 0:
        with cute.arch.elect_one():
            for barrier in cutlass.range_constexpr(2 * stages + 1):
                cute.arch.mbarrier_init(full + barrier, 1)
        cute.arch.mbarrier_init_fence()
    if warp == LOAD_WARP:
        cpasync.prefetch_descriptor(load_a)
        cpasync.prefetch_descriptor(load_b)
    if warp == MMA_WARP:
        cute.arch.alloc_tmem(tile_filters, sums_address)
        cute.arch.relinquish_tmem_alloc_permit()
        before_threads_meet()
    cute.arch.sync_threads()
    # Up to here the launch before may still run, whose results may be operands. The one after may set up.
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()
    after_threads_met()
    sums_pointer = cute.arch.retrieve_tmem_ptr(cutlass.Float32, 16, sums_address)
    shape = tiled_mma.partition_shape_C((tile_pixels, tile_filters))
    sums = cute.make_tensor(sums_pointer, tiled_mma.make_fragment_C(shape).layout)

    tiles_a = im2col_tiles(tensor_a, tile_row, convolution)
    tiles_b = cute.local_tile(tensor_b, (tile_filters, (tile_channels,)), (tile_column, None))
    if warp == LOAD_WARP:
        to_a, to_b = (
            shared_layout(dtype, tile_pixels, convolution),
            shared_layout(dtype, tile_filters, convolution),
        )
        load_tiles(
            load_a,
            tiles_a,
            cute.make_tensor(cute.recast_ptr(ring, to_a.inner, dtype=dtype), to_a.outer),
            load_b,
            tiles_b,
            cute.make_tensor(cute.recast_ptr(ring_b, to_b.inner, dtype=dtype), to_b.outer),
            full,
            empty,
            convolution,
        )
    if warp == MMA_WARP:
        shared_a = cute.make_tensor(cute.recast_ptr(ring, layout_a.inner, dtype=dtype), layout_a.outer)
        shared_b = cute.make_tensor(cute.recast_ptr(ring_b, layout_b.inner, dtype=dtype), layout_b.outer)
        of_a = tiled_mma.make_fragment_A(shared_a)
        of_b = tiled_mma.make_fragment_B(shared_b)
        stage = cutlass.Int32(0)
        phase = cutlass.Int32(0)
        for step in cutlass.range(cute.size(tiles_a, mode=[2]), unroll=1):
            cute.arch.mbarrier_wait(full + stage, phase)
            after_threads_met()
            for part in cutlass.range_constexpr(cute.size(of_a, mode=[2])):
                # The first instruction of all overwrites what was in tensor memory.
                tiled_mma.set(tcgen05.Field.ACCUMULATE, step != 0 if part == 0 else True)
                at = (None, None, part, stage)
                cute.gemm(tiled_mma, sums, of_a[at], of_b[at], sums)
            with cute.arch.elect_one():
                tcgen05.commit(empty + stage)
            stage += 1
            if stage == stages:
                stage = cutlass.Int32(0)
                phase = phase ^ 1
        with cute.arch.elect_one():
            tcgen05.commit(computed)
    if warp < STORE_WARPS:
        find_pixels(places, results, tile_row, thread, convolution)
        cute.arch.mbarrier_wait(computed, 0)
        after_threads_met()
        # Everything loaded was computed with: results may come to lie where the ring was.
        staged = cute.recast_ptr(ring, dtype=dtype)
        lines = cute.make_layout((tile_pixels, tile_filters), stride=(convolution.staged_stride, 1))
        turn_shape = (tile_pixels, COLUMNS_A_TURN)
        fetched = cute.flat_divide(sums[((None, None), 0, 0)], turn_shape)
        written = cute.flat_divide(cute.make_tensor(staged, lines), turn_shape)
        operation = tcgen05.Ld32x32bOp(tcgen05.Repetition(COLUMNS_A_TURN))
        fetch = tcgen05.make_tmem_copy(
            cute.make_copy_atom(operation, cutlass.Float32), fetched[None, None, 0, 0]
        ).get_slice(thread)
        source = fetch.partition_S(fetched)
        target = fetch.partition_D(written)
        for turn in cutlass.range_constexpr(tile_filters // COLUMNS_A_TURN):
            piece = (None, None, None, 0, turn)
            total = cute.make_rmem_tensor(target[piece].shape, cutlass.Float32)
            cute.copy(fetch, source[piece], total)
            cute.arch.fence_view_async_tmem_load()
            converted = cute.make_rmem_tensor(total.layout, dtype)
            converted.store(total.load().to(dtype))
            cute.autovec_copy(converted, target[piece])
        before_threads_meet()
        cute.arch.barrier(barrier_id=RESULTS_BARRIER, number_of_threads=STORE_THREADS)
        store_tile(staged, places, results, tile_column, thread, STORE_THREADS, convolution)

    cute.arch.sync_threads()
    if warp == MMA_WARP:
        after_threads_met()
        cute.arch.dealloc_tmem(sums_pointer, tile_filters)


@dsl_user_op  # type: ignore[untyped-decorator]
def before_threads_meet(*, loc: Any = None, ip: Any = None) -> None:
    """Order this thread's use of tensor memory before a barrier. Source: PTX ISA, tcgen05.fence."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.BEFORE_THREAD_SYNC, loc=loc, ip=ip)


@dsl_user_op  # type: ignore[untyped-decorator]
def after_threads_met(*, loc: Any = None, ip: Any = None) -> None:
    """Order this thread's use of tensor memory after a barrier. Source: PTX ISA, tcgen05.fence."""
    nvvm.tcgen05_fence(nvvm.Tcgen05FenceKind.AFTER_THREAD_SYNC, loc=loc, ip=ip)

"""Forward convolution on the tensor cores of SM90, in CuTe DSL. It imports the DSL.

A warp of its own loads into a ring of stages; two warp groups take half of the pixels each out of it, with
WGMMA.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.cutlass_dsl import dsl_user_op
from cutlass.utils import hopper_helpers as hopper

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

WARP_GROUPS = 2
WARP_GROUP = 4 * WARP
MMA_THREADS = WARP_GROUPS * WARP_GROUP
MMA_WARPS = MMA_THREADS // WARP
THREADS = MMA_THREADS + WARP
INSTRUCTION_ROWS = 64
RESULTS_BARRIER = 1
"""Named barrier of the warp groups that compute."""


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
    load_a, tensor_a = im2col_load(pixels, convolution)
    load_b, tensor_b = filter_load(taps, convolution)
    tiled_mma = hopper.make_trivial_tiled_mma(
        dtype,
        dtype,
        OperandMajorMode.K,
        OperandMajorMode.K,
        cutlass.Float32,
        (WARP_GROUPS, 1, 1),
        (INSTRUCTION_ROWS, tile_filters),
    )
    conv2d_fprop_kernel(
        load_a,
        tensor_a,
        load_b,
        tensor_b,
        results,
        tiled_mma,
        shared_layout(dtype, tile_pixels, convolution),
        shared_layout(dtype, tile_filters, convolution),
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
        tiled_mma: of both warp groups.
        layout_a: (pixels, channels, stages) in shared memory.
        layout_b: (filters, channels, stages) in shared memory.
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
    full = smem.allocate_array(cutlass.Int64, 2 * stages)
    empty = full + stages
    places = cute.make_tensor(smem.allocate_array(cutlass.Int64, tile_pixels), cute.make_layout(tile_pixels))
    ring = smem.allocate(convolution.ring_bytes, ALIGNMENT)
    bytes_a = stages * tile_pixels * tile_channels * dtype.width // 8
    shared_a = cute.make_tensor(cute.recast_ptr(ring, layout_a.inner, dtype=dtype), layout_a.outer)
    shared_b = cute.make_tensor(cute.recast_ptr(ring + bytes_a, layout_b.inner, dtype=dtype), layout_b.outer)

    if warp == 0:
        with cute.arch.elect_one():
            for stage in cutlass.range_constexpr(stages):
                cute.arch.mbarrier_init(full + stage, 1)
                cute.arch.mbarrier_init(empty + stage, MMA_WARPS)
        cute.arch.mbarrier_init_fence()
    if warp == MMA_WARPS:
        cpasync.prefetch_descriptor(load_a)
        cpasync.prefetch_descriptor(load_b)
    cute.arch.sync_threads()
    # Up to here the launch before may still run, whose results may be operands. The one after may set up.
    cute.arch.griddepcontrol_wait()
    cute.arch.griddepcontrol_launch_dependents()

    tiles_a = im2col_tiles(tensor_a, tile_row, convolution)
    tiles_b = cute.local_tile(tensor_b, (tile_filters, (tile_channels,)), (tile_column, None))
    if warp == MMA_WARPS:
        load_tiles(load_a, tiles_a, shared_a, load_b, tiles_b, shared_b, full, empty, convolution)
    else:
        find_pixels(places, results, tile_row, thread, convolution)
        group_mma = tiled_mma.get_slice(cute.arch.make_warp_uniform(thread // WARP_GROUP) * WARP_GROUP)
        of_a = tiled_mma.make_fragment_A(group_mma.partition_A(shared_a))
        of_b = tiled_mma.make_fragment_B(group_mma.partition_B(shared_b))
        shape = tiled_mma.partition_shape_C((tile_pixels, tile_filters))
        total = cute.make_rmem_tensor(shape, cutlass.Float32)
        total.fill(0.0)
        tiled_mma.set(warpgroup.Field.ACCUMULATE, True)

        stage = cutlass.Int32(0)
        before = cutlass.Int32(0)
        phase = cutlass.Int32(0)
        for step in cutlass.range(cute.size(tiles_a, mode=[2]), unroll=1):
            cute.arch.mbarrier_wait(full + stage, phase)
            warpgroup.fence()
            for part in cutlass.range_constexpr(cute.size(of_a, mode=[2])):
                at = (None, None, part, stage)
                cute.gemm(tiled_mma, total, of_a[at], of_b[at], total)
            warpgroup.commit_group()
            # One step's instructions stay in flight; those of the step before are done.
            warpgroup.wait_group(1)
            if step > 0:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive(empty + before)
            before = stage
            stage += 1
            if stage == stages:
                stage = cutlass.Int32(0)
                phase = phase ^ 1
        warpgroup.wait_group(0)
        for index in cutlass.range_constexpr(cute.size(total)):
            total[index] = settled(total[index])

        # The last stage is not released: nothing is loaded any more. Once all are through, it may be written.
        cute.arch.barrier(barrier_id=RESULTS_BARRIER, number_of_threads=MMA_THREADS)
        staged = cute.recast_ptr(ring, dtype=dtype)
        lines = cute.make_layout((tile_pixels, tile_filters), stride=(convolution.staged_stride, 1))
        converted = cute.make_rmem_tensor(total.layout, dtype)
        converted.store(total.load().to(dtype))
        cute.autovec_copy(converted, tiled_mma.get_slice(thread).partition_C(cute.make_tensor(staged, lines)))
        cute.arch.barrier(barrier_id=RESULTS_BARRIER, number_of_threads=MMA_THREADS)
        store_tile(staged, places, results, tile_column, thread, MMA_THREADS, convolution)


@dsl_user_op  # type: ignore[untyped-decorator]
def settled(value: Any, *, loc: Any = None, ip: Any = None) -> Any:
    """A sum as it is here, for the compiler an unknown one: it emits no code.

    To the compiler, the instruction that waits for the tensor cores has nothing to do with their results: it
    moves the conversion of a result before the wait. The assembler sees that, and makes every tensor-core
    instruction wait for the one before.
    """
    return cutlass.Float32(
        llvm.inline_asm(
            cutlass.Float32.mlir_type,
            [cutlass.Float32(value).ir_value(loc=loc, ip=ip)],
            "",
            "=f,0",
            has_side_effects=True,
            asm_dialect=llvm.AsmDialect.AD_ATT,
            loc=loc,
            ip=ip,
        )
    )

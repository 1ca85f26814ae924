"""A tensor-core GEMM for sm_90a in CuTe DSL: TMA, warp specialisation, clusters along M, N and K.

out[l, m, n] = epilogue(sum over k of a[l, m, k] * b[l, k, n]), computed in f32

One block computes one tile of ``out``, or the part of it that a slice of K gives; a persistent one tile after
tile, loading the next while it stores one. A warp of its own issues TMA loads into a ring of stages; one to
three warp groups take them out with WGMMA, and store the results from their registers, or have TMA store
them. Blocks of a cluster share operands by multicast, along M and N, and share the sum along K: each keeps
its partial tile in shared memory, and each adds up its part of the tile over all of them, in a fixed order,
so that equal operands give equal bits. Nothing is kept in device memory between them, so that no launch needs
a workspace.

With few rows in ``a``, the roles are exchanged (``swap``): the rows of the weights fill the 64 rows that a
tensor-core instruction has at least, and the rows of ``a`` its columns, of which there can be eight.

Import it inside a worker only: it imports the DSL. docs/internals/sm90-gemm.md says what each part brought.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync

from cutlass_aot.generators.sm90_gemm.consumer import compute_tiles
from cutlass_aot.generators.sm90_gemm.epilogue import Output
from cutlass_aot.generators.sm90_gemm.plan import ALIGNMENT, LOADING_REGISTERS, WARPS
from cutlass_aot.generators.sm90_gemm.producer import load_operands
from cutlass_aot.generators.sm90_gemm.ring import Ring, begin_barriers
from cutlass_aot.generators.sm90_gemm.scale_factors import load_all_factors
from cutlass_aot.generators.sm90_gemm.schedule import schedule_of, tile_of, with_count
from cutlass_aot.generators.sm90_gemm.staged_store import finish
from cutlass_aot.generators.sm90_gemm.tiles import block_of, corner_of


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
    store: Any,
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
        store: TMA atom that stores results, and the coordinates of the output; None without.
        groups: (G,), see :func:`~.groups.group_of`; None without.
        operands: tensors and numbers that the epilogue reads and writes.
        dtype: element type of A and B.
        epilogue: formula, None to store the sums converted.
        plan: everything else that is compiled in.
    """
    tile_m, _, tile_k = plan.tile
    stages, blocks = plan.stages, plan.blocks_per_cluster
    mma_warps = plan.all_warp_groups * WARPS
    block = block_of(plan)
    output = Output(out, operands, epilogue)
    schedule = schedule_of(out.shape, tensor_a.shape[1], block, groups, plan)

    # Shared memory: a full and an empty barrier a stage; the ring; the results, where the ring comes to hold
    # other tiles, else they come to lie in it.
    smem = cutlass.utils.SmemAllocator()
    full = smem.allocate_array(cutlass.Int64, 2 * stages)
    memory = smem.allocate(plan.shared_bytes, ALIGNMENT)
    staged_dtype = cutlass.Float32 if plan.staged_bits == 32 else out.element_type
    staged = cute.recast_ptr(memory + plan.staged_offset, dtype=staged_dtype)
    memory_b = memory + stages * (tile_m * tile_k * dtype.width // 8)
    factors = None
    if cutlass.const_expr(plan.scaled):
        bytes_ = stages * plan.factor_stride * 4
        factors = cute.recast_ptr(smem.allocate(bytes_, 16), dtype=cutlass.Float32)
    ring = Ring(
        full=full,
        empty=full + stages,
        memory_a=memory,
        memory_b=memory_b,
        a=cute.make_tensor(cute.recast_ptr(memory, layout_a.inner, dtype=dtype), layout_a.outer),
        b=cute.make_tensor(cute.recast_ptr(memory_b, layout_b.inner, dtype=dtype), layout_b.outer),
        factors=factors,
    )
    if block.warp == 0:
        begin_barriers(ring, plan)
    if block.warp == mma_warps:
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
    schedule = with_count(schedule, block.lane, plan)

    if cutlass.const_expr(plan.hands_over):  # noqa: SIM102 (the other is known at run time)
        if block.warp >= mma_warps:
            cute.arch.setmaxregister_decrease(LOADING_REGISTERS)
    if block.warp == mma_warps:
        load_operands((load_a, load_b), (tensor_a, tensor_b), ring, schedule, block, dtype, plan)
    if cutlass.const_expr(plan.scaled):  # noqa: SIM102 (the other is known at run time)
        if block.warp == mma_warps + 1:
            load_all_factors(scales, ring, schedule, block, plan)
    if block.warp < mma_warps:
        if cutlass.const_expr(plan.hands_over):
            cute.arch.setmaxregister_increase(plan.computing_registers)
        compute_tiles(tiled_mma, part_mma, ring, staged, schedule, block, output, store, dtype, plan)

    if cutlass.const_expr(plan.split > 1):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
        if block.warp < mma_warps:
            only = tile_of(schedule, schedule.first, (schedule.row, schedule.column), block.lane, plan)
            finish(staged, block, only, corner_of(only, block, schedule.extents, plan), 0, output, plan)
    if cutlass.const_expr(blocks > 1):
        # A block stays until no other reads its shared memory or tells it that a stage is empty.
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()

"""The launch of the SM90 GEMM: operands as TMA and tensor cores take them, and the grid.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.utils import LayoutEnum
from cutlass.utils import hopper_helpers as hopper

from cutlass_aot.generators import dsl
from cutlass_aot.generators.gemm import GROUPED_GEMM
from cutlass_aot.generators.sm90_gemm.kernel import gemm_kernel
from cutlass_aot.generators.sm90_gemm.plan import MAX_GRID_YZ, ROWS
from cutlass_aot.generators.sm90_gemm.tiles import tiles_of
from cutlass_aot.generators.sm90_gemm.tma import shared_layout, tma_load
from cutlass_aot.generators.sm90_gemm.tma_store import tma_store
from cutlass_aot.schema.kernels.constraints import BATCH


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
        if cutlass.const_expr(plan.operation == GROUPED_GEMM):
            of_a = one_batch(of_a)
        scales = tuple(
            cute.make_tensor(scale.iterator, cute.select(scale.layout, [1, 2, 0])) for scale in (of_a, of_b)
        )
    groups = None
    if cutlass.const_expr(plan.groups):
        *operands, groups = operands
        if cutlass.const_expr(plan.operation == GROUPED_GEMM):
            a, out = one_batch(a), one_batch(out)
            operands = [
                one_batch(given) if operand.extents[:1] == (BATCH,) else given
                for operand, given in zip(epilogue.operands if epilogue else (), operands, strict=True)
            ]
    if cutlass.const_expr(epilogue is not None and epilogue.halves):
        out = with_columns(out, b.shape[2])
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
    blocks = plan.blocks_per_cluster
    load_a, tensor_a = tma_load(left, major_a, (tile_m, tile_k), cluster_n)
    load_b, tensor_b = tma_load(right, major_b, (tile_n, tile_k), cluster_m)
    store = None
    if cutlass.const_expr(plan.by_tma):
        store = tma_store(cute.make_tensor(out.iterator, cute.select(out.layout, [1, 2, 0])), plan)
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
        store, groups, tuple(operands), dtype, epilogue, plan,
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


def with_columns(out: Any, columns: Any) -> Any:
    """An output as if it had as many columns as there are sums, of which each two have one result."""
    batches, rows, _ = out.shape
    return cute.make_tensor(out.iterator, cute.make_layout((batches, rows, columns), stride=out.stride))

"""Results that TMA stores from shared memory, while the warps that computed them go on to the next tile.

A whole tile is stored, also the rows and columns of one that begins early, which another block stores too:
both compute the same bits.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync, warp
from cutlass.utils import LayoutEnum

from cutlass_aot.generators.sm90_gemm.epilogue import Output
from cutlass_aot.generators.sm90_gemm.plan import ROWS, THREADS, WARP, WARPS
from cutlass_aot.generators.sm90_gemm.register_store import converted_pair
from cutlass_aot.generators.sm90_gemm.tiles import Block, Corner, Tile
from cutlass_aot.generators.sm90_gemm.tma import shared_layout

FIRST_BARRIER = 2
"""Named barrier of the first warp group; the others have those after it."""


def box_layout(dtype: Any, plan: Any, boxes: int | None) -> Any:
    """Layout in shared memory of the boxes that TMA stores: (rows, columns, boxes)."""
    return shared_layout(LayoutEnum.ROW_MAJOR, dtype, (ROWS, plan.box_columns), boxes)


def tma_store(out: Any, plan: Any) -> tuple[Any, Any]:
    """TMA atom that stores a box of the output (M, N, L), and the output's coordinates."""
    layout = box_layout(out.element_type, plan, None)
    atom, coordinates = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileS2GOp(), out, layout, (ROWS, plan.box_columns)
    )
    return atom, coordinates


@cute.jit  # type: ignore[untyped-decorator]
def store_by_tma(
    total: Any,
    staged: Any,
    store: tuple[Any, Any],
    block: Block,
    tile: Tile,
    corner: Corner,
    output: Output,
    plan: cutlass.Constexpr,
) -> None:
    """Lay a tile of sums down in shared memory, and begin to store it.

    Args:
        total: of this thread: two neighbours of each eight columns, in two of each 64 rows.
        staged: where results lie in shared memory; each warp group has a part of it.
        store: TMA atom, and coordinates of the output (M, N, L).
        block: this one.
        tile: what the cluster computes.
        corner: where the block's part of it begins.
        output: where to.
        plan: everything else that is compiled in.
    """
    atom, coordinates = store
    dtype = output.tensor.element_type
    rows, columns, _ = plan.tile
    width = plan.box_columns
    boxes = columns // width
    group = block.warp // WARPS
    memory = staged + group * (ROWS * columns)
    layout = box_layout(dtype, plan, boxes)
    shared = cute.make_tensor(cute.recast_ptr(memory, layout.inner, dtype=dtype), layout.outer)
    copy = cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 4), dtype)
    lane = block.thread % WARP
    row = block.warp % WARPS * (ROWS // WARPS) + lane % 16
    # TMA exchanges the 16-byte pieces of a line by the number of the 128-byte line that they are in.
    line = row * width // 64 % (width // 8)
    swizzled = (lane // 16) ^ line
    for part in cutlass.range_constexpr(rows // (ROWS * plan.warp_groups)):
        # What was laid down before has been read.
        if block.warp % WARPS == 0:
            cute.arch.cp_async_bulk_wait_group(0, read=True)
        cute.arch.barrier(barrier_id=FIRST_BARRIER + group, number_of_threads=THREADS)
        for index in cutlass.range_constexpr(columns // 16):
            words = cute.make_rmem_tensor(8, dtype)
            for quarter in cutlass.range_constexpr(4):
                first = part * columns // 2 + index * 8 + quarter * 2
                pair = converted_pair(total, first, output)
                words[quarter * 2], words[quarter * 2 + 1] = pair[0], pair[1]
            piece = index * 2 % (width // 8) ^ swizzled
            to = memory + (index * 16 // width * (ROWS * width) + row * width + piece * 8)
            to = cute.make_ptr(dtype, to.toint(), cute.AddressSpace.smem, assumed_align=16)
            cute.copy(copy, words, cute.make_tensor(to, cute.make_layout(8)))
        cute.arch.fence_proxy("async.shared", space="cta")
        cute.arch.barrier(barrier_id=FIRST_BARRIER + group, number_of_threads=THREADS)
        if block.warp % WARPS == 0:
            begin = cutlass.Int32(corner.row) + (part * plan.warp_groups + group) * ROWS
            there = cute.local_tile(
                cute.domain_offset((begin, cutlass.Int32(corner.column), 0), coordinates),
                (ROWS, width),
                (None, None, tile.batch),
            )
            source, target = cpasync.tma_partition(
                atom, 0, cute.make_layout(1), cute.group_modes(shared, 0, 2), cute.group_modes(there, 0, 2)
            )
            for box in cutlass.range_constexpr(boxes):
                cute.copy(atom, source[None, box], target[None, 0, box])
            cute.arch.cp_async_bulk_commit_group()

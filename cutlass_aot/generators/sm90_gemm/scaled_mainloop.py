"""The loop over K of FP8 operands: sums over each 128 of K are added in f32, scaled if there are factors.

Tensor cores keep fewer bits of a sum of FP8 products than f32 has. So they add up 128 of K, and registers
have the sum over all of K: its error does not grow with K.
Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warpgroup
from cutlass.utils import hopper_helpers as hopper

from cutlass_aot.generators.sm90_gemm.mainloop import Operands
from cutlass_aot.generators.sm90_gemm.plan import ROWS
from cutlass_aot.generators.sm90_gemm.registers import settled
from cutlass_aot.generators.sm90_gemm.ring import Ring, following, release
from cutlass_aot.generators.sm90_gemm.scale_factors import read_factors, room_for_factors
from cutlass_aot.generators.sm90_gemm.tiles import Block

UNROLLED = 4
"""Tiles along K of a turn of the loop, where sums are added after each."""


@cute.jit  # type: ignore[untyped-decorator]
def sum_scaled(
    total: Any,
    operands: Operands,
    ring: Ring,
    state: tuple[Any, Any],
    count_k: Any,
    block: Block,
    sharer: Any,
    dtype: cutlass.Constexpr,
    plan: cutlass.Constexpr,
) -> tuple[Any, Any]:
    """Add up the products of all tiles along K, each times its factors if it has some.

    Args:
        total: sums of this thread, which are 0.
        operands: A and B.
        ring: stages, and their factors if there are any.
        state: stage and phase of the ring.
        count_k: tiles along K.
        block: this one.
        sharer: the block that this lane tells that a stage is empty.
        dtype: element type of A and B.
        plan: everything else that is compiled in.

    Returns:
        Stage and phase of what follows.
    """
    stage, phase = state
    rows, columns, _ = plan.tile
    instructions = rows // (ROWS * plan.warp_groups)
    shape = operands.mma.partition_shape_C((ROWS * plan.warp_groups, columns))
    part = cute.make_rmem_tensor(shape, cutlass.Float32)
    along_k = cute.nvgpu.OperandMajorMode.K
    first_mma = hopper.make_trivial_tiled_mma(
        dtype, dtype, along_k, along_k, cutlass.Float32, (plan.warp_groups, 1, 1), (ROWS, columns)
    )
    first_mma.set(warpgroup.Field.ACCUMULATE, False)
    mmas = first_mma, operands.mma
    own = room_for_factors(plan)
    alone = count_k
    if cutlass.const_expr(plan.pairs):
        alone = count_k % 2
    # Without factors, the compiler would keep more of the sums of several turns than there are registers for.
    spills = plan.exact and instructions > 1
    for _index_k in cutlass.range(alone, unroll=1 if plan.pairs or spills else UNROLLED):
        cute.arch.mbarrier_wait(ring.full + stage, phase)
        read_factors(own, ring, stage, block.thread, plan)
        for index in cutlass.range_constexpr(instructions):
            issue(mmas, part, operands, index, stage)
            # Other warp groups, or blocks, compute meanwhile.
            warpgroup.wait_group(0)
            if cutlass.const_expr(index == instructions - 1):
                release(ring.empty + stage, block.lane, sharer, plan)
            add_scaled(total, part, own, index, plan)
        stage, phase = following(stage, phase, plan)
    if cutlass.const_expr(plan.pairs):
        # The products of one tile are added while those of the next are computed.
        other, others = cute.make_rmem_tensor(shape, cutlass.Float32), room_for_factors(plan)
        for _pair in cutlass.range(count_k // 2, unroll=1):
            cute.arch.mbarrier_wait(ring.full + stage, phase)
            read_factors(own, ring, stage, block.thread, plan)
            issue(mmas, part, operands, 0, stage)
            before = stage
            stage, phase = following(stage, phase, plan)
            cute.arch.mbarrier_wait(ring.full + stage, phase)
            read_factors(others, ring, stage, block.thread, plan)
            issue(mmas, other, operands, 0, stage)
            warpgroup.wait_group(1)
            release(ring.empty + before, block.lane, sharer, plan)
            add_scaled(total, part, own, 0, plan)
            warpgroup.wait_group(0)
            release(ring.empty + stage, block.lane, sharer, plan)
            add_scaled(total, other, others, 0, plan)
            stage, phase = following(stage, phase, plan)
    return stage, phase


def issue(mmas: tuple[Any, Any], part: Any, operands: Operands, block: int, stage: Any) -> None:
    """Begin to multiply 64 rows of each warp group with a tile along K.

    ``mmas`` are that of the first instruction, which takes ``part`` for 0, and that of the others.
    """
    warpgroup.fence()
    for piece in range(cute.size(operands.a, mode=[2])):
        rows = operands.a[None, block, piece, stage]
        rows = cute.make_tensor(rows.iterator, cute.append_ones(rows.layout, up_to_rank=2))
        cute.gemm(mmas[piece > 0], part, rows, operands.b[None, None, piece, stage], part)
    warpgroup.commit_group()


def add_scaled(total: Any, part: Any, factors: tuple[Any, Any] | None, block: int, plan: Any) -> None:
    """Add the sums over one tile along K, times their factors, to those of the tiles before.

    ``part`` are those of a block of 64 rows of each warp group, ``factors`` what :func:`read_factors` read.
    """
    _, columns, _ = plan.tile
    if factors is None:
        for index in range(columns // 2):
            whole = block * columns // 2 + index
            total[whole] = total[whole] + settled(part[index])
        return
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

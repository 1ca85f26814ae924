"""The loop over K: tensor-core instructions on one stage of the ring after the other.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import warpgroup

from cutlass_aot.generators.sm90_gemm.ring import Ring, following, release
from cutlass_aot.generators.sm90_gemm.tiles import Block
from cutlass_aot.generators.sm90_gemm.turns import end_turn, wait_for_turn


class Operands(NamedTuple):
    """What tensor cores multiply.

    Attributes:
        mma: of all warp groups that compute.
        a: A in shared memory, as its instructions take it.
        b: B likewise.
    """

    mma: Any
    a: Any
    b: Any


@cute.jit  # type: ignore[untyped-decorator]
def sum_products(
    total: Any,
    operands: Operands,
    ring: Ring,
    state: tuple[Any, Any],
    count_k: Any,
    block: Block,
    sharer: Any,
    turn: Any,
    plan: cutlass.Constexpr,
) -> tuple[Any, Any]:
    """Add up the products of all tiles along K.

    Args:
        total: sums of this thread, which are 0.
        operands: A and B.
        ring: stages.
        state: stage and phase of the ring.
        count_k: tiles along K.
        block: this one.
        sharer: the block that this lane tells that a stage is empty.
        turn: number of this warp group if it takes turns with another, else None.
        plan: everything else that is compiled in.

    Returns:
        Stage and phase of what follows.
    """
    stage, phase = state
    before = stage
    if cutlass.const_expr(plan.ping_pong):
        wait_for_turn(turn)
    for index_k in cutlass.range(count_k, unroll=1):
        cute.arch.mbarrier_wait(ring.full + stage, phase)
        warpgroup.fence()
        for piece in cutlass.range_constexpr(cute.size(operands.a, mode=[2])):
            at = (None, None, piece, stage)
            cute.gemm(operands.mma, total, operands.a[at], operands.b[at], total)
        warpgroup.commit_group()
        # One tile's instructions stay in flight; those of the tile before are done.
        warpgroup.wait_group(1)
        if index_k > 0:
            release(ring.empty + before, block.lane, sharer, plan)
        before = stage
        stage, phase = following(stage, phase, plan)
    if cutlass.const_expr(plan.ping_pong):
        end_turn(turn)
    warpgroup.wait_group(0)
    if count_k > 0:
        release(ring.empty + before, block.lane, sharer, plan)
    return stage, phase

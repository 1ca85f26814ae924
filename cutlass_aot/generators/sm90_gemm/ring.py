"""The ring of stages of operands in shared memory, and the barriers that say which are full and which empty.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute

from cutlass_aot.generators.sm90_gemm.plan import WARP, WARPS
from cutlass_aot.generators.sm90_gemm.tiles import Block


class Ring(NamedTuple):
    """Stages of operands in shared memory.

    Attributes:
        full: barriers, one a stage: what is loaded into it is there.
        empty: barriers, one a stage: it may be loaded into.
        memory_a: where tiles of A begin.
        memory_b: where tiles of B begin.
        a: (rows of a tile, K of a tile, stages), swizzled.
        b: the same of B.
        factors: scale factors, stage by stage; None without.
    """

    full: Any
    empty: Any
    memory_a: Any
    memory_b: Any
    a: Any
    b: Any
    factors: Any


@cute.jit  # type: ignore[untyped-decorator]
def begin_barriers(ring: Ring, plan: cutlass.Constexpr) -> None:
    """Initialise the barriers; one warp does so.

    A stage is full when its bytes have arrived, and every lane that loads scale factors has said so of its
    own. It is empty when every warp that computes has let go of it, in all blocks that share what is loaded
    into it: a block's loads go to those of its row and to those of its column in the cluster.
    """
    with cute.arch.elect_one():
        for stage in cutlass.range_constexpr(plan.stages):
            cute.arch.mbarrier_init(ring.full + stage, 1 + WARP if plan.scaled else 1)
            cute.arch.mbarrier_init(ring.empty + stage, plan.warp_groups * WARPS * plan.sharers)
    cute.arch.mbarrier_init_fence()


@cute.jit  # type: ignore[untyped-decorator]
def following(stage: Any, phase: Any, plan: cutlass.Constexpr) -> tuple[Any, Any]:
    """The next stage of the ring, and its phase."""
    stage = stage + 1
    if stage == plan.stages:
        stage = cutlass.Int32(0)
        phase = phase ^ 1
    return stage, phase


def ahead(stage: Any, phase: Any, count: Any, plan: Any) -> tuple[Any, Any]:
    """The stage of the ring so many stages on, and its phase."""
    place = stage + count
    return place % plan.stages, phase ^ (place // plan.stages & 1)


@cute.jit  # type: ignore[untyped-decorator]
def sharer_of(block: Block, plan: cutlass.Constexpr) -> Any:
    """The block of the cluster that this lane tells that a stage is empty: of its row, then of its column."""
    cluster_m, cluster_n, _ = plan.cluster
    sharer = block.rank
    if cutlass.const_expr(plan.sharers > 1):
        corner = block.rank_k * (cluster_m * cluster_n)
        sharer = corner + block.lane * cluster_m + block.rank_m
        if block.lane >= cluster_n:
            other = block.lane - cluster_n
            if other >= block.rank_m:
                other = other + 1
            sharer = corner + block.rank_n * cluster_m + other
    return sharer


@cute.jit  # type: ignore[untyped-decorator]
def release(barrier: Any, lane: Any, sharer: Any, plan: cutlass.Constexpr) -> None:
    """Tell all blocks that load into a stage that this warp has done with it."""
    if lane < plan.sharers:
        if cutlass.const_expr(plan.sharers > 1):
            cute.arch.mbarrier_arrive(barrier, sharer)
        else:
            cute.arch.mbarrier_arrive(barrier)


@cute.jit  # type: ignore[untyped-decorator]
def skip_stages(
    ring: Ring,
    state: tuple[Any, Any],
    count: Any,
    block: Block,
    sharer: Any,
    plan: cutlass.Constexpr,
) -> tuple[Any, Any]:
    """Let go of so many stages when they are full, without a use of them.

    ``state`` is the stage and phase of the first; those of what follows are returned.
    """
    stage, phase = state
    for _index in cutlass.range(count, unroll=1):
        cute.arch.mbarrier_wait(ring.full + stage, phase)
        release(ring.empty + stage, block.lane, sharer, plan)
        stage, phase = following(stage, phase, plan)
    return stage, phase

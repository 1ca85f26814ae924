"""Numbers of each warp of a row, shared with all of its threads, and sums of them. It imports the DSL.

Warps of a block share them in its shared memory; blocks of a cluster write into each other's.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels.row_designs import WARP, RowDesign


class Shared(NamedTuple):
    """Shared memory for numbers of each warp of a row.

    Attributes:
        numbers: (warp of the row, number) f32.
        barriers: of a cluster, one for each number, by which its blocks know that it is there; else None.
    """

    numbers: Any
    barriers: Any


@cute.jit  # type: ignore[untyped-decorator]
def _begin(barriers: Any, count: cutlass.Constexpr) -> None:
    """Make barriers, and say to the cluster that this block's shared memory may be written."""
    thread, _, _ = cute.arch.thread_idx()
    if thread == 0:
        for i in cutlass.range_constexpr(count):
            cute.arch.mbarrier_init(barriers + i, 1)
        cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()


def shared_numbers(design: RowDesign, count: int) -> Shared | None:
    """Shared memory for numbers of each warp of a row; None if a warp has the whole row.

    A kernel calls it once, before it shares the first number.

    Args:
        design: the design.
        count: numbers of a warp.
    """
    if design.threads <= WARP:
        return None
    layout = cute.make_layout((design.threads // WARP, count))
    memory = cute.arch.alloc_smem(cutlass.Float32, cute.size(layout), alignment=16)
    barriers = None
    if design.blocks > 1:
        barriers = cute.arch.alloc_smem(cutlass.Int64, count)
        _begin(barriers, count)
    return Shared(cute.make_tensor(memory, layout), barriers)


@cute.jit  # type: ignore[untyped-decorator]
def share(
    values: list[Any], first: cutlass.Constexpr, design: cutlass.Constexpr, numbers: Any, barriers: Any
) -> None:
    """Share numbers of each warp with all threads of the row.

    Blocks of a cluster write into each other's memory with stores that count their bytes at a barrier there:
    a barrier of the cluster would wait for what is on its way to global memory, too.

    Args:
        values: f32, equal in all threads of a warp.
        first: numbers that were shared before.
        design: the design, whose rows have more threads than a warp.
        numbers: of :class:`Shared`.
        barriers: of :class:`Shared`.
    """
    thread, _, _ = cute.arch.thread_idx()
    if cutlass.const_expr(barriers is None):
        if thread % WARP == 0:
            for i in cutlass.range_constexpr(len(values)):
                numbers[thread // WARP, first + i] = values[i]
        cute.arch.sync_threads()
    else:
        barrier = barriers + first
        if cutlass.const_expr(first == 0):
            cute.arch.cluster_wait()
        if thread == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, design.threads // WARP * 4 * len(values))
        # A lane for each block.
        if thread % WARP < design.blocks:
            there = cute.arch.map_dsmem_ptr(numbers.iterator, thread % WARP)
            counted = cute.arch.map_dsmem_ptr(barrier, thread % WARP).toint()
            warp = cute.arch.block_idx_in_cluster() * (design.block_threads // WARP) + thread // WARP
            for i in cutlass.range_constexpr(len(values)):
                place = (there + cute.crd2idx((warp, first + i), numbers.layout)).toint()
                cute.arch.inline_ptx(
                    "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [{$r0}], {$r1}, [{$r2}];",
                    read_only_args=[place, values[i], counted],
                )
        cute.arch.mbarrier_wait(barrier, 0)


def shared_by_warps(number: int, design: RowDesign, shared: Any) -> tuple[list[Any], int]:
    """What the warps of a row shared, dealt to the lanes of this warp.

    Returns:
        this lane's, and the lanes of a group that have those of all warps together.
    """
    thread, _, _ = cute.arch.thread_idx()
    warps = design.threads // WARP
    group = min(warps, WARP)
    return [shared.numbers[first + thread % group, number] for first in range(0, warps, group)], group


def sum_of_row(value: Any, number: int, design: RowDesign, shared: Any) -> Any:
    """The sum of a number over the threads of a row, for each of them.

    Args:
        value: f32.
        number: numbers that were shared before.
        design: the design.
        shared: by :func:`shared_numbers`.
    """
    value = cute.arch.warp_reduction_sum(value, threads_in_group=min(design.threads, WARP))
    if design.threads <= WARP:
        return value
    share([value], number, design, shared.numbers, shared.barriers)
    parts, group = shared_by_warps(number, design, shared)
    return cute.arch.warp_reduction_sum(sum(parts[1:], parts[0]), threads_in_group=group)

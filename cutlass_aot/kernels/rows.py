"""Rows of a matrix that threads hold in registers, for kernels that reduce them. It imports the DSL.

A row belongs to ``row_threads`` threads: a part of a warp, a warp, a whole block, or the blocks of a cluster,
which write into each other's shared memory. Each of them keeps the first ``steps`` of its vectors in
registers, so that a row of up to ``row_threads * steps`` vectors is read once; all of these loads are issued
before the first of them is used. What lies beyond is read again when it is needed, so that each design
computes a row of any length.

Vectors have 16 bytes of the row's element type. Vector ``v`` of a row belongs to thread ``v % row_threads``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels.row_designs import BLOCK_THREADS, ELEMENTS, MOST_BLOCK_THREADS, WARP
from cutlass_aot.kernels.vectors import load

EARLY_REGISTERS = 16
"""Registers of a thread for weights that are loaded before the row is reduced."""

PREFETCHING_ROWS = 32
"""Rows whose threads fetch weights into the L2 cache: the first ones, for all that are reduced meanwhile."""


@cute.jit  # type: ignore[untyped-decorator]
def prefetch_weights(
    vectors: Any, row: Any, lane: Any, count: Any, steps: cutlass.Constexpr, row_threads: cutlass.Constexpr
) -> None:
    """Fetch what is needed after the row is reduced into the L2 cache, where it takes no registers.

    Args:
        vectors: a matrix of one row, by :func:`.vectors.in_vectors`.
        row: the row that this thread reduces.
        lane: this thread among the row's.
        count: vectors of the row.
        steps: vectors that a thread keeps.
        row_threads: threads of the row.
    """
    if row < PREFETCHING_ROWS:
        for step in cutlass.range_constexpr(steps):
            source = vectors[(None, (0, cutlass.min(step * row_threads + lane, count - 1)))]
            cute.arch.inline_ptx("prefetch.global.L2 [{$r0}];", read_only_args=[source.iterator.toint()])


def blocks_of_row(row_threads: int) -> int:
    """Blocks of a row: one, or those of a cluster."""
    return max(1, row_threads // MOST_BLOCK_THREADS)


def launch_shape(rows: Any, row_threads: int) -> dict[str, Any]:
    """The grid, the block and the cluster for a number of rows, as ``launch`` takes them."""
    blocks = blocks_of_row(row_threads)
    threads = max(BLOCK_THREADS, row_threads // blocks)
    rows_of_block = max(1, threads // row_threads)
    return {
        "grid": (cute.ceil_div(rows, rows_of_block) * blocks, 1, 1),
        "block": (threads, 1, 1),
        "cluster": (blocks, 1, 1) if blocks > 1 else None,
    }


def vector_elements(dtype: Any) -> int:
    """Elements of a vector of 16 bytes."""
    return int(128 // dtype.width)


def steps_of(held: int, dtype: Any) -> int:
    """Vectors that a thread keeps of a row, by a design's number for elements of 16 bits."""
    return held * ELEMENTS // vector_elements(dtype)


def own_row(tensor: Any, elements: int, row_threads: int) -> tuple[Any, Any, Any, Any]:
    """The place of this thread: its row, its number among the row's threads, and the vectors of the row.

    The last of the four is the number of vectors that it may write: none for a thread whose row would be
    beyond the last one, which computes the last one too, so that it takes part in shuffles.
    """
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rows, columns = tensor.shape
    count = columns // elements
    blocks = blocks_of_row(row_threads)
    if blocks > 1:
        return block // blocks, block % blocks * MOST_BLOCK_THREADS + thread, count, count
    if row_threads >= BLOCK_THREADS:
        return block, thread, count, count
    row = block * (BLOCK_THREADS // row_threads) + thread // row_threads
    writable = cutlass.select_(row < rows, cutlass.Int32(count), cutlass.Int32(0))
    return cutlass.min(row, rows - 1), thread % row_threads, count, writable


def load_row(
    vectors: Any, row: Any, lane: Any, count: Any, held: Any, row_threads: int, streamed: bool
) -> None:
    """Load the vectors that this thread keeps; one beyond the row's ``count`` is the row's last.

    There is no branch, so that all loads are issued at once.

    Args:
        vectors: the matrix, by :func:`.vectors.in_vectors`.
        row: the row.
        lane: this thread among the row's.
        count: vectors of the row.
        held: (vector, step), written.
        row_threads: threads of the row.
        streamed: whether nothing else reads the row again, so that it takes no room in the L1 cache.
    """
    for step in range(held.shape[1]):
        vector = cutlass.min(step * row_threads + lane, count - 1)
        held[None, step].store(load(vectors, row, vector, streamed))


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


def shared_numbers(row_threads: int, count: int) -> Shared | None:
    """Shared memory for numbers of each warp of a row; None if a warp has the whole row.

    A kernel calls it once, before it shares the first number.

    Args:
        row_threads: threads of a row.
        count: numbers of a warp.
    """
    if row_threads <= WARP:
        return None
    layout = cute.make_layout((row_threads // WARP, count))
    memory = cute.arch.alloc_smem(cutlass.Float32, cute.size(layout), alignment=16)
    barriers = None
    if blocks_of_row(row_threads) > 1:
        barriers = cute.arch.alloc_smem(cutlass.Int64, count)
        _begin(barriers, count)
    return Shared(cute.make_tensor(memory, layout), barriers)


@cute.jit  # type: ignore[untyped-decorator]
def share(
    values: list[Any], first: cutlass.Constexpr, row_threads: cutlass.Constexpr, numbers: Any, barriers: Any
) -> None:
    """Share numbers of each warp with all threads of the row.

    Blocks of a cluster write into each other's memory with stores that count their bytes at a barrier there:
    a barrier of the cluster would wait for what is on its way to global memory, too.

    Args:
        values: f32, equal in all threads of a warp.
        first: numbers that were shared before.
        row_threads: threads of a row, more than a warp.
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
        blocks = blocks_of_row(row_threads)
        barrier = barriers + first
        if cutlass.const_expr(first == 0):
            cute.arch.cluster_wait()
        if thread == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(barrier, row_threads // WARP * 4 * len(values))
        # A lane for each block.
        if thread % WARP < blocks:
            there = cute.arch.map_dsmem_ptr(numbers.iterator, thread % WARP)
            counted = cute.arch.map_dsmem_ptr(barrier, thread % WARP).toint()
            warp = cute.arch.block_idx_in_cluster() * (MOST_BLOCK_THREADS // WARP) + thread // WARP
            for i in cutlass.range_constexpr(len(values)):
                place = (there + cute.crd2idx((warp, first + i), numbers.layout)).toint()
                cute.arch.inline_ptx(
                    "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [{$r0}], {$r1}, [{$r2}];",
                    read_only_args=[place, values[i], counted],
                )
        cute.arch.mbarrier_wait(barrier, 0)


def shared_by_warps(number: int, row_threads: int, shared: Any) -> tuple[list[Any], int]:
    """What the warps of a row shared, dealt to the lanes of this warp.

    Returns:
        this lane's, and the lanes of a group that have those of all warps together.
    """
    thread, _, _ = cute.arch.thread_idx()
    warps = row_threads // WARP
    group = min(warps, WARP)
    return [shared.numbers[first + thread % group, number] for first in range(0, warps, group)], group


def sum_of_row(value: Any, number: int, row_threads: int, shared: Any) -> Any:
    """The sum of a number over the threads of a row, for each of them.

    Args:
        value: f32.
        number: numbers that were shared before.
        row_threads: threads of a row.
        shared: by :func:`shared_numbers`.
    """
    value = cute.arch.warp_reduction_sum(value, threads_in_group=min(row_threads, WARP))
    if row_threads <= WARP:
        return value
    share([value], number, row_threads, shared.numbers, shared.barriers)
    parts, group = shared_by_warps(number, row_threads, shared)
    return cute.arch.warp_reduction_sum(sum(parts[1:], parts[0]), threads_in_group=group)


def beyond(steps: int, row_threads: int, lane: Any, count: Any) -> tuple[Any, Any]:
    """The first of this thread's vectors behind those that it keeps, and the end of a loop over them.

    Threads of a warp go around the loop equally often, for the sake of shuffles: a vector may be beyond the
    row's ``count``.
    """
    group = min(row_threads, WARP)
    return steps * row_threads + lane, cute.ceil_div(count, group) * group


def kept(condition: Any, value: Any) -> Any:
    """An f32 value under a condition; else 0."""
    return cutlass.select_(condition, value, cutlass.Float32(0.0))


def keep_packed(held: Any) -> None:
    """Keep vectors as they were loaded: code after this converts them to f32 anew.

    Otherwise the compiler holds them in f32, in twice the registers, from a reduction to what comes after it.
    """
    words = cute.recast_tensor(held, cutlass.Int32)
    for i in range(cute.size(words.shape)):
        words[i] = cute.arch.inline_ptx(
            "mov.b32 {$w0}, {$r0};", write_only_types=[cutlass.Int32], read_only_args=[words[i]]
        )


def fits_early(*held: Any) -> bool:
    """Whether weights have room in registers beside a row, so that they are loaded together with it."""
    bits = sum(cute.size(tensor.shape) * tensor.element_type.width for tensor in held)
    return int(bits) // 32 <= EARLY_REGISTERS

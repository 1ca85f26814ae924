"""Rows of a matrix that threads hold in registers, for kernels that reduce them. It imports the DSL.

A row belongs to ``row_threads`` threads: a part of a warp, a warp, or a whole block. Each of them keeps the
first ``steps`` of its vectors in registers, so that a row of up to ``row_threads * steps`` vectors is read
once; all of these loads are issued before the first of them is used. What lies beyond is read again when it
is needed, so that each design computes a row of any length.

Vectors have 16 bytes of the row's element type. Vector ``v`` of a row belongs to thread ``v % row_threads``.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels.row_designs import BLOCK_THREADS, ELEMENTS, WARP
from cutlass_aot.kernels.vectors import load

EARLY_REGISTERS = 16
"""Registers of a thread for weights that are loaded before the row is reduced."""


def block_threads(row_threads: int) -> int:
    """Threads of a block: several rows' where a row has few."""
    return max(BLOCK_THREADS, row_threads)


def blocks_of(rows: Any, row_threads: int) -> Any:
    """Blocks for a number of rows."""
    return cute.ceil_div(rows, block_threads(row_threads) // row_threads)


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


@cute.jit  # type: ignore[untyped-decorator]
def _over_row(value: Any, row_threads: cutlass.Constexpr, shared: Any, largest: cutlass.Constexpr) -> Any:
    """Reduce a number of each thread over the threads of its row: the sum, or the largest."""
    group = min(row_threads, WARP)
    if cutlass.const_expr(largest):
        value = cute.arch.warp_reduction_max(value, threads_in_group=group)
    else:
        value = cute.arch.warp_reduction_sum(value, threads_in_group=group)
    if cutlass.const_expr(row_threads > WARP):
        thread, _, _ = cute.arch.thread_idx()
        if thread % WARP == 0:
            shared[thread // WARP] = value
        cute.arch.sync_threads()
        value = shared[0]
        for warp in cutlass.range_constexpr(1, row_threads // WARP):
            if cutlass.const_expr(largest):
                value = cute.arch.fmax(value, shared[warp])
            else:
                value += shared[warp]
    return value


def shared_numbers(row_threads: int) -> Any:
    """Shared memory for one of :func:`sum_of_row` or :func:`largest_of_row`; None if none is needed.

    A block must not use it twice.
    """
    if row_threads <= WARP:
        return None
    warps = row_threads // WARP
    return cute.make_tensor(
        cute.arch.alloc_smem(cutlass.Float32, warps, alignment=16), cute.make_layout(warps)
    )


def sum_of_row(value: Any, row_threads: int, shared: Any) -> Any:
    """The sum of a number over the threads of a row, for each of them."""
    return _over_row(value, row_threads, shared, False)


def largest_of_row(value: Any, row_threads: int, shared: Any) -> Any:
    """The largest of a number over the threads of a row, for each of them; NaN is ignored."""
    return _over_row(value, row_threads, shared, True)


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


def fits_early(held: Any) -> bool:
    """Whether weights have room in registers beside a row, so that they are loaded together with it."""
    return int(cute.size(held.shape)) * int(held.element_type.width) // 32 <= EARLY_REGISTERS

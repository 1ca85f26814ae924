"""Rows of a matrix and their threads, for kernels that reduce rows. It imports the DSL.

A row belongs to the threads of a design (:mod:`.row_designs`): a part of a warp, a warp, a whole block, or
the blocks of a cluster. Vectors have 16 bytes of the row's element type. In each step the threads of a row
have one vector each, those that follow the vectors of the step before. A thread keeps its vectors of the
first steps (:mod:`.kept_rows`); what lies beyond is read again when it is needed, so that each design
computes a row of any length.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels.row_designs import (
    BLOCK_THREADS,
    ELEMENTS,
    WARP,
    RowDesign,
)
from cutlass_aot.kernels.vectors import load


def launch_shape(rows: Any, design: RowDesign, registers: int, kept: int = 1) -> dict[str, Any]:
    """The grid, the block and the cluster for a number of rows, as ``launch`` takes them.

    Args:
        rows: of the matrix.
        design: the design.
        registers: of a thread of a staged design, by which it is computed how many blocks an SM is to have
            room for. The compiler keeps to that; without it, it takes more registers, and fewer rows are on
            their way.
        kept: rows that a block keeps: more than one where there are several matrices.
    """
    return {
        "grid": (cute.ceil_div(rows, max(1, design.block_threads // design.threads)) * design.blocks, 1, 1),
        "block": (design.block_threads, 1, 1),
        "cluster": (design.blocks, 1, 1) if design.blocks > 1 else None,
        "min_blocks_per_mp": design.resident_blocks(registers, kept) if design.staged else 0,
        # Without it the DSL asks the GPU at hand, which a builder has not.
        "preferred_smem_carveout": 100 if design.staged else None,
    }


def vector_elements(dtype: Any) -> int:
    """Elements of a vector of 16 bytes."""
    return int(128 // dtype.width)


def steps_of(held: int, dtype: Any) -> int:
    """Vectors that a thread keeps of a row, by a design's number for elements of 16 bits."""
    return held * ELEMENTS // vector_elements(dtype)


def design_of(row: tuple[int, int], staged: bool, dtype: Any) -> RowDesign:
    """A design for an element type."""
    threads, held = row
    return RowDesign(threads, steps_of(held, dtype), staged)


def own_row(tensor: Any, elements: int, design: RowDesign) -> tuple[Any, Any, Any, Any]:
    """The place of this thread: its row, its number among the row's threads, and the vectors of the row.

    The last of the four is the number of vectors that it may write: none for a thread whose row would be
    beyond the last one, which computes the last one too, so that it takes part in shuffles.
    """
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    rows, columns = tensor.shape
    count = columns // elements
    if design.blocks > 1:
        return block // design.blocks, block % design.blocks * design.block_threads + thread, count, count
    if design.threads >= BLOCK_THREADS:
        return block, thread, count, count
    row = block * (BLOCK_THREADS // design.threads) + thread // design.threads
    writable = cutlass.select_(row < rows, cutlass.Int32(count), cutlass.Int32(0))
    return cutlass.min(row, rows - 1), thread % design.threads, count, writable


def load_row(
    vectors: Any, row: Any, lane: Any, count: Any, held: Any, row_threads: int, streamed: bool
) -> None:
    """Load this thread's vectors of a row into registers; one beyond the row's ``count`` is the row's last.

    There is no branch, so that all loads are issued at once.

    Args:
        vectors: the matrix, by :func:`.vectors.in_vectors`.
        row: the row.
        lane: this thread among the row's.
        count: vectors of the row.
        held: (vector, step), written.
        row_threads: threads of the row.
        streamed: whether the loads take no room in the L1 cache.
    """
    for step in range(held.shape[1]):
        vector = cutlass.min(step * row_threads + lane, count - 1)
        held[None, step].store(load(vectors, row, vector, streamed))


def beyond(design: RowDesign, lane: Any, count: Any) -> tuple[Any, Any]:
    """The first of this thread's vectors behind those that it keeps, and the end of a loop over them.

    Threads of a warp go around the loop equally often, for the sake of shuffles: a vector may be beyond the
    row's ``count``.
    """
    group = min(design.threads, WARP)
    return design.steps * design.threads + lane, cute.ceil_div(count, group) * group


def masked(condition: Any, value: Any) -> Any:
    """An f32 value under a condition; else 0."""
    return cutlass.select_(condition, value, cutlass.Float32(0.0))

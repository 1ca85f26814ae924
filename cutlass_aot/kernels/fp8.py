"""FP8 with a scale for each 128 columns of a row, as kernels write it. It imports the DSL.

For a block of 128 columns of a row::

    scale = max(|y| over the block, 2^-100) / 448
    out   = y / scale, rounded to f8e4m3

448 is the largest number of f8e4m3. Neighbouring threads of a warp share a block of columns, eight or four
columns each, so that its maximum takes shuffles and no shared memory. A thread has vectors of several blocks,
whose maxima are reduced together: for four blocks over 16 threads this takes five shuffles instead of
sixteen. Each thread then computes the factor of one block, and another shuffle for each block hands it to
the others.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels.row_designs import WARP
from cutlass_aot.kernels.vectors import largest_of

BLOCK_COLUMNS = 128
"""Columns that share a scale."""

LARGEST = 448.0
SMALLEST_MAXIMUM = 2.0**-100


def as_fp8(out: Any) -> Any:
    """An output as f8e4m3, where it has its bytes as u8; else as it is."""
    return cute.recast_tensor(out, cutlass.Float8E4M3FN) if out.element_type == cutlass.Uint8 else out


def own_place(count: Any, rows: int, threads: int) -> tuple[Any, Any, Any]:
    """The place of this thread where each warp has some rows of as many vectors as it has threads.

    Consecutive warps have the same rows and consecutive vectors, until the rows end: memory is faster in that
    order.

    Args:
        count: vectors of a row.
        rows: how many consecutive rows a warp has.
        threads: of a block, in a grid with :func:`blocks_of` blocks along x.

    Returns:
        the first row, the vector, and rows from one turn of the grid to the next.
    """
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    blocks, _, _ = cute.arch.grid_dim()
    warps = threads // WARP
    parts = cute.ceil_div(count, WARP)
    warp = block * warps + thread // WARP
    return warp // parts * rows, warp % parts * WARP + thread % WARP, blocks * warps // parts * rows


def blocks_of(count: Any, groups: Any, threads: int) -> Any:
    """Blocks along x for :func:`own_place`.

    Args:
        count: vectors of a row.
        groups: groups of rows, one for a warp; the last may have fewer rows.
        threads: of a block.
    """
    return cute.ceil_div(cute.ceil_div(count, WARP) * groups, threads // WARP)


def _store(outputs: Any, row: Any, vector: Any, values: Any) -> None:
    """Store f32 values as one vector of FP8, four of them in a word."""
    held = cute.make_rmem_tensor(values.shape, cutlass.Float8E4M3FN)
    held.store(values.to(cutlass.Float8E4M3FN))
    words = cute.recast_tensor(held, cutlass.Int32).load()
    # The compiler takes no vector of one word.
    value = words[0] if cute.size(words.shape) == 1 else words.ir_value()
    cute.arch.store(outputs[(None, (row, vector))].iterator, value)


def _deal_maxima(maxima: list[Any], threads: int) -> Any:
    """The largest of each number over neighbouring threads: to each of them that of one number.

    In each exchange a thread hands over half of the numbers that it has.

    Args:
        maxima: f32, as many as a power of two.
        threads: neighbours, as many as a power of two, of which the first ones get the first number.
    """
    thread, _, _ = cute.arch.thread_idx()
    offset = threads // 2
    while offset:
        kept = given = maxima
        if len(maxima) > 1:
            upper = thread & offset != 0
            pairs = list(zip(maxima[: len(maxima) // 2], maxima[len(maxima) // 2 :], strict=True))
            kept = [cutlass.select_(upper, second, first) for first, second in pairs]
            given = [cutlass.select_(upper, first, second) for first, second in pairs]
        maxima = [
            cute.arch.fmax(own, cute.arch.shuffle_sync_bfly(other, offset))
            for own, other in zip(kept, given, strict=True)
        ]
        offset //= 2
    return maxima[0]


@cute.jit  # type: ignore[untyped-decorator]
def store_scaled(
    outputs: Any,
    scale: Any,
    place: tuple[Any, Any],
    step: cutlass.Constexpr,
    end: tuple[Any, Any],
    values: list[Any],
) -> None:
    """Store vectors of this thread as FP8, and the scales of their blocks of columns.

    All threads of a warp have to call it, those too whose vectors are beyond the end and are not stored.

    Args:
        outputs: the output, by :func:`.vectors.in_vectors`, of as many elements as each of ``values``.
        scale: (rows, columns / 128).
        place: the row and the vector of the first. Consecutive threads share a block of columns, the first of
            which has the block's first vector.
        step: rows and vectors from one to the next, whole blocks of columns.
        end: the first row, and the first vector of a row, that are not stored; whole blocks are before it.
        values: vectors of f32, of some elements that divide 128; no more than threads share a block.
    """
    thread, _, _ = cute.arch.thread_idx()
    row, vector = place
    threads = BLOCK_COLUMNS // cute.size(values[0].shape)
    numbers = 1 << (len(values) - 1).bit_length()
    threads_of_vector = threads // numbers
    maxima = [cute.arch.fmax(cutlass.Float32(SMALLEST_MAXIMUM), largest_of(cute.math.abs(v))) for v in values]
    maxima += [cutlass.Float32(SMALLEST_MAXIMUM)] * (numbers - len(values))
    largest = _deal_maxima(maxima, threads)
    factor = LARGEST / largest
    for i in cutlass.range_constexpr(len(values)):
        own = factor
        if cutlass.const_expr(len(values) > 1):
            own = cute.arch.shuffle_sync(
                factor, i * threads_of_vector, mask_and_clamp=(WARP - threads) << 8 | WARP - 1
            )
        if row + i * step[0] < end[0] and vector + i * step[1] < end[1]:
            _store(outputs, row + i * step[0], vector + i * step[1], values[i] * own)
    dealt = thread % threads // threads_of_vector
    row, vector = row + dealt * step[0], vector + dealt * step[1]
    stored = thread % threads_of_vector == 0 and row < end[0] and vector < end[1]
    if cutlass.const_expr(numbers > len(values)):
        stored = stored and dealt < len(values)
    if stored:
        scale[row, vector // threads] = largest / LARGEST

"""FP8 with a scale for each 128 columns of a row, as kernels write it. It imports the DSL.

For a block of 128 columns of a row::

    scale = max(|y| over the block, 2^-100) / 448
    out   = y / scale, rounded to f8e4m3

448 is the largest number of f8e4m3. Neighbouring threads of a warp share a block of columns, eight or four
columns each, so that its maximum takes four or five shuffles and no shared memory.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels.vectors import largest_of

BLOCK_COLUMNS = 128
"""Columns that share a scale."""

LARGEST = 448.0
SMALLEST_MAXIMUM = 2.0**-100


def as_fp8(out: Any) -> Any:
    """An output as f8e4m3, where it has its bytes as u8; else as it is."""
    return cute.recast_tensor(out, cutlass.Float8E4M3FN) if out.element_type == cutlass.Uint8 else out


def _store(outputs: Any, row: Any, vector: Any, values: Any) -> None:
    """Store f32 values as one vector of FP8, four of them in a word."""
    held = cute.make_rmem_tensor(values.shape, cutlass.Float8E4M3FN)
    held.store(values.to(cutlass.Float8E4M3FN))
    words = cute.recast_tensor(held, cutlass.Int32).load()
    # The compiler takes no vector of one word.
    value = words[0] if cute.size(words.shape) == 1 else words.ir_value()
    cute.arch.store(outputs[(None, (row, vector))].iterator, value)


@cute.jit  # type: ignore[untyped-decorator]
def store_scaled(outputs: Any, scale: Any, row: Any, vector: Any, count: Any, values: Any) -> None:
    """Store f32 values of this thread as FP8, and the scale of their block of columns.

    All threads of a warp have to call it, those too whose vector is beyond ``count`` and is not stored.

    Args:
        outputs: the output, by :func:`.vectors.in_vectors`, of as many elements as there are values.
        scale: (rows, columns / 128).
        row: the row.
        vector: which vector; threads that share a block of columns follow each other.
        count: vectors of the row, in whole blocks, or 0.
        values: of f32: some that divide 128.
    """
    threads = BLOCK_COLUMNS // cute.size(values.shape)
    largest = cute.arch.fmax(cutlass.Float32(SMALLEST_MAXIMUM), largest_of(cute.math.abs(values)))
    largest = cute.arch.warp_reduction_max(largest, threads_in_group=threads)
    if vector < count:
        _store(outputs, row, vector, values * (LARGEST / largest))
        if vector % threads == 0:
            scale[row, vector // threads] = largest / LARGEST

"""Rounding to FP8 with a scale for each 128 columns of a row, in CuTe DSL. It imports the DSL.

Scales are those of :mod:`.fp8`. A thread has vectors of rows that follow each other, at the same columns, so
that where the scales of a block of columns lie side by side, a warp writes those of several rows together.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels import fp8
from cutlass_aot.kernels.vectors import VECTOR, floats, in_vectors, load

THREADS = 128
ROWS = 8
"""Rows of a thread: with eight, scales of a block of columns fill 32 bytes, the least that memory moves."""


@cute.kernel  # type: ignore[untyped-decorator]
def quantize_kernel(x: cute.Tensor, out: cute.Tensor, scale: cute.Tensor) -> None:
    """Round a part of the columns of some rows.

    Args:
        x: (T, n).
        out: (T, n) f8e4m3.
        scale: (T, n / 128) f32.
    """
    inputs, outputs = in_vectors(x), in_vectors(out)
    rows, count = x.shape[0], x.shape[1] // VECTOR
    first, vector, _ = fp8.own_place(count, ROWS, THREADS)
    held = cute.make_rmem_tensor(((1, VECTOR), ROWS), x.element_type)
    if first < rows:
        for i in cutlass.range_constexpr(ROWS):
            row = cutlass.min(first + i, rows - 1)
            held[None, i].store(load(inputs, row, cutlass.min(vector, count - 1)))
        values = [floats(held[None, i]) for i in range(ROWS)]
        fp8.store_scaled(outputs, scale, (first, vector), (1, 0), (rows, count), values)


@cute.jit  # type: ignore[untyped-decorator]
def quantize(x: cute.Tensor, out: cute.Tensor, scale: cute.Tensor, stream: Any) -> None:
    """Launch the kernel.

    Args:
        x: (T, n).
        out: (T, n) f8e4m3, or its bytes as u8.
        scale: (T, n / 128) f32.
        stream: CUDA stream.
    """
    rows, columns = x.shape
    quantize_kernel(x, fp8.as_fp8(out), scale).launch(
        grid=(fp8.blocks_of(columns // VECTOR, cute.ceil_div(rows, ROWS), THREADS), 1, 1),
        block=(THREADS, 1, 1),
        stream=stream,
    )

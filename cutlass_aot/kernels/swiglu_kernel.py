"""SwiGLU with requantisation to FP8, in CuTe DSL. It imports the DSL.

For a row t and a block b of 128 columns, with gate = x[t, :n] and up = x[t, n:]::

    y           = silu(gate) * up                       silu(v) = v / (1 + exp(-v)), all in f32
    scale[t, b] = max(|y| over the block, 2^-100) / 448
    out[t, :]   = y / scale[t, b], rounded to f8e4m3

448 is the largest number of f8e4m3. Sixteen threads share a block of columns, eight columns each, so that
its maximum takes four shuffles and no shared memory.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels.vectors import VECTOR, in_vectors, load_floats, store

BLOCK_COLUMNS = 128
"""Columns that share a scale."""

LARGEST = 448.0
SMALLEST_MAXIMUM = 2.0**-100
THREADS = 256
THREADS_A_BLOCK = BLOCK_COLUMNS // VECTOR
BLOCKS_A_STEP = THREADS // THREADS_A_BLOCK


@cute.kernel  # type: ignore[untyped-decorator]
def swiglu_kernel(x: cute.Tensor, out: cute.Tensor, scale: cute.Tensor, n: cutlass.Constexpr) -> None:
    """Compute one row's blocks of columns, as many of them as this block of threads has room for.

    Args:
        x: (T, 2n).
        out: (T, n) f8e4m3.
        scale: (T, n / 128) f32.
        n: columns of ``out``.
    """
    thread, _, _ = cute.arch.thread_idx()
    row, step, _ = cute.arch.block_idx()
    inputs = in_vectors(x)
    outputs = in_vectors(out)

    # What lies beyond the last block of columns computes that one again and stores the same: all threads of
    # a warp have to take part in its shuffles.
    block = cutlass.min(step * BLOCKS_A_STEP + thread // THREADS_A_BLOCK, n // BLOCK_COLUMNS - 1)
    vector = block * THREADS_A_BLOCK + thread % THREADS_A_BLOCK
    gate = load_floats(inputs, row, vector)
    up = load_floats(inputs, row, vector + n // VECTOR)
    y = gate / (1.0 + cute.math.exp(-gate, fastmath=True)) * up
    magnitude = cute.math.abs(y)
    largest = cutlass.Float32(SMALLEST_MAXIMUM)
    for i in cutlass.range_constexpr(VECTOR):
        largest = cute.arch.fmax(largest, magnitude[i])
    largest = cute.arch.warp_reduction_max(largest, threads_in_group=THREADS_A_BLOCK)
    store(outputs, row, vector, y * (LARGEST / largest))
    if thread % THREADS_A_BLOCK == 0:
        scale[row, block] = largest / LARGEST


@cute.jit  # type: ignore[untyped-decorator]
def swiglu(x: cute.Tensor, out: cute.Tensor, scale: cute.Tensor, n: cutlass.Constexpr, stream: Any) -> None:
    """Launch the kernel.

    Args:
        x: (T, 2n).
        out: (T, n) f8e4m3, or its bytes as u8.
        scale: (T, n / 128) f32.
        n: columns of ``out``.
        stream: CUDA stream.
    """
    if cutlass.const_expr(out.element_type != cutlass.Float8E4M3FN):
        out = cute.recast_tensor(out, cutlass.Float8E4M3FN)
    steps = (n // BLOCK_COLUMNS - 1) // BLOCKS_A_STEP + 1
    swiglu_kernel(x, out, scale, n).launch(grid=(x.shape[0], steps, 1), block=(THREADS, 1, 1), stream=stream)

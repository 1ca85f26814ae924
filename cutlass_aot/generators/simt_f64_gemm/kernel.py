"""FP64 GEMM without tensor cores, in CuTe DSL: one thread computes one element of the output.

out[l, m, n] = sum over k of a[l, m, k] * b[l, k, n]

It is written to be read and to be right for every extent and stride, not to be fast. Import it inside a
worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

MAX_GRID_YZ = 65535
"""Blocks of a grid along y, and along z. Source: CUDA Programming Guide, "Compute Capabilities"."""


@cute.kernel  # type: ignore[untyped-decorator]
def gemm_kernel(a: cute.Tensor, b: cute.Tensor, out: cute.Tensor, tile_shape: cutlass.Constexpr) -> None:
    """Compute the tiles of ``out`` that fall to this block.

    Args:
        a: (L, M, K).
        b: (L, K, N).
        out: (L, M, N).
        tile_shape: rows and columns of a tile, and so of a block's threads.
    """
    thread_column, thread_row, _ = cute.arch.thread_idx()
    block_column, block_row, block_batch = cute.arch.block_idx()
    _, blocks_row, blocks_batch = cute.arch.grid_dim()
    batches, rows, columns = out.shape
    depth = a.shape[2]

    # 64-bit, because what comes after the last row, column or batch can exceed 2^31 - 1.
    column = cutlass.Int64(block_column) * tile_shape[1] + thread_column
    first_row = cutlass.Int64(block_row) * tile_shape[0] + thread_row
    batch = cutlass.Int64(block_batch)
    # A grid has fewer blocks along y and z than there can be tiles and batches: each block takes every
    # blocks_row-th row of tiles and every blocks_batch-th batch.
    while batch < batches:
        row = first_row
        while row < rows:
            if column < columns:
                total = cutlass.Float64(0.0)
                for k in cutlass.range(depth):
                    total = cute.math.fma(a[batch, row, k], b[batch, k, column], total)
                out[batch, row, column] = total
            row += cutlass.Int64(blocks_row) * tile_shape[0]
        batch += blocks_batch


@cute.jit  # type: ignore[untyped-decorator]
def gemm(
    a: cute.Tensor,
    b: cute.Tensor,
    out: cute.Tensor,
    tile_shape: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Launch the kernel.

    Args:
        a: (L, M, K).
        b: (L, K, N).
        out: (L, M, N).
        tile_shape: rows and columns of a tile.
        stream: CUDA stream.
    """
    batches, rows, columns = out.shape
    gemm_kernel(a, b, out, tile_shape).launch(
        grid=(
            (columns - 1) // tile_shape[1] + 1,
            cutlass.min((rows - 1) // tile_shape[0] + 1, MAX_GRID_YZ),
            cutlass.min(batches, MAX_GRID_YZ),
        ),
        block=(tile_shape[1], tile_shape[0], 1),
        stream=stream,
    )

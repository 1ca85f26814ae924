"""Rows in another order, with their scale factors, in CuTe DSL. It imports the DSL.

    out[i]       = x[index[i]]
    out_scale[i] = scale[index[i]]

An index below zero stands for no row, and gives zeros. One of S or more is not checked, and reads outside
``x``.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels.rows import vector_elements
from cutlass_aot.kernels.vectors import in_vectors, keep_packed, load, store_streamed

WARP = 32
THREADS = 128
LOADS = 4
"""Vectors, or factors, that a thread loads before it stores one."""

FACTOR_COLUMNS = THREADS // WARP * LOADS
"""Columns of factors of a block, for as many rows as a warp has lanes: rows follow each other in a column."""


def _factor_blocks(out_scale: Any) -> Any:
    """Blocks that copy factors."""
    if out_scale is None:
        return 0
    rows, columns = out_scale.shape
    return cute.ceil_div(rows, WARP) * cute.ceil_div(columns, FACTOR_COLUMNS)


@cute.jit  # type: ignore[untyped-decorator]
def _gather_factors(scale: cute.Tensor, index: cute.Tensor, out_scale: cute.Tensor, block: Any) -> None:
    """Copy the factors of a warp's width of rows, for some of the columns."""
    thread, _, _ = cute.arch.thread_idx()
    rows, columns = out_scale.shape
    parts = cute.ceil_div(columns, FACTOR_COLUMNS)
    row = block // parts * WARP + thread % WARP
    first = block % parts * FACTOR_COLUMNS + thread // WARP
    given = index[cutlass.min(row, rows - 1)]
    source = cutlass.max(given, 0)
    held = cute.make_rmem_tensor(LOADS, cutlass.Float32)
    for step in cutlass.range_constexpr(LOADS):
        held[step] = scale[source, cutlass.min(first + step * (THREADS // WARP), columns - 1)]
    # Otherwise the compiler moves loads behind the conditions of what is stored.
    keep_packed(held)
    for step in cutlass.range_constexpr(LOADS):
        column = first + step * (THREADS // WARP)
        if row < rows and column < columns:
            out_scale[row, column] = held[step] if given >= 0 else cutlass.Float32(0.0)


@cute.jit  # type: ignore[untyped-decorator]
def _gather_row(x: cute.Tensor, index: cute.Tensor, out: cute.Tensor, row: Any) -> None:
    """Copy one row. What is written is streamed, so that the rows of ``x`` stay in the L2 cache."""
    thread, _, _ = cute.arch.thread_idx()
    elements = vector_elements(x.element_type)
    inputs, outputs = in_vectors(x, elements), in_vectors(out, elements)
    count = x.shape[1] // elements
    given = index[row]
    source = cutlass.max(given, 0)
    held = cute.make_rmem_tensor(((1, elements), LOADS), x.element_type)
    for base in cutlass.range(thread, count, LOADS * THREADS, unroll=1):
        for step in cutlass.range_constexpr(LOADS):
            place = cutlass.min(base + step * THREADS, count - 1)
            held[None, step].store(load(inputs, source, place))
        words = cute.recast_tensor(held, cutlass.Int32)
        if given < 0:
            words.fill(0)
        for step in cutlass.range_constexpr(LOADS):
            vector = base + step * THREADS
            if vector < count:
                store_streamed(outputs, row, vector, held[None, step])


@cute.kernel  # type: ignore[untyped-decorator]
def gather_rows_kernel(
    x: cute.Tensor,
    scale: Any,
    index: cute.Tensor,
    out: cute.Tensor,
    out_scale: Any,
) -> None:
    """Copy factors of several rows, in the first blocks, or one row.

    Args:
        x: (S, n).
        scale: (S, blocks), or None.
        index: (R) i32.
        out: (R, n).
        out_scale: (R, blocks), or None.
    """
    block, _, _ = cute.arch.block_idx()
    factor_blocks = _factor_blocks(out_scale)
    if cutlass.const_expr(scale is None):
        _gather_row(x, index, out, block)
    elif block < factor_blocks:
        _gather_factors(scale, index, out_scale, block)
    else:
        _gather_row(x, index, out, block - factor_blocks)


@cute.jit  # type: ignore[untyped-decorator]
def gather_rows(
    x: cute.Tensor,
    scale: cute.Tensor | None,
    index: cute.Tensor,
    out: cute.Tensor,
    out_scale: cute.Tensor | None,
    stream: Any,
) -> None:
    """Launch the kernel.

    Args:
        x: (S, n).
        scale: (S, blocks) f32, or None.
        index: (R) i32.
        out: (R, n).
        out_scale: (R, blocks) f32, or None.
        stream: CUDA stream.
    """
    blocks = _factor_blocks(out_scale) + out.shape[0]
    gather_rows_kernel(x, scale, index, out, out_scale).launch(
        grid=(blocks, 1, 1), block=(THREADS, 1, 1), stream=stream
    )

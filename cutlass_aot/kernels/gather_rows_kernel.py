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
from cutlass_aot.kernels.vectors import in_vectors, load

THREADS = 128
LOADS = 4
"""Vectors that a thread loads before it stores one."""


@cute.kernel  # type: ignore[untyped-decorator]
def gather_rows_kernel(
    x: cute.Tensor,
    scale: Any,
    index: cute.Tensor,
    out: cute.Tensor,
    out_scale: Any,
) -> None:
    """Copy one row.

    Args:
        x: (S, n).
        scale: (S, blocks), or None.
        index: (R) i32.
        out: (R, n).
        out_scale: (R, blocks), or None.
    """
    thread, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    elements = vector_elements(x.element_type)
    inputs, outputs = in_vectors(x, elements), in_vectors(out, elements)
    count = x.shape[1] // elements
    given = index[row]
    source = cutlass.max(given, 0)

    if cutlass.const_expr(scale is not None):
        for block in cutlass.range(thread, scale.shape[1], THREADS, unroll=1):
            factor = scale[source, block]
            out_scale[row, block] = factor if given >= 0 else cutlass.Float32(0.0)
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
                outputs[(None, (row, vector))].store(held[None, step].load())


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
    gather_rows_kernel(x, scale, index, out, out_scale).launch(
        grid=(out.shape[0], 1, 1), block=(THREADS, 1, 1), stream=stream
    )

"""SwiGLU with requantisation to FP8, in CuTe DSL. It imports the DSL.

For a row t, with its gate and its up-projection::

    y = silu(gate) * up                       silu(v) = v / (1 + exp(-v)), all in f32

which is stored as FP8 with a scale for each 128 columns (:mod:`.fp8`). The gate is the first half of the
row's columns, or its even columns. A thread has vectors of rows that follow each other, at the same columns,
so that where the scales of a block of columns lie side by side, a warp writes those of several rows together.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels import fp8
from cutlass_aot.kernels.vectors import VECTOR, floats, in_vectors, load

THREADS = 128
LOADS = 4
"""Vectors that a thread loads before it uses one: of four rows, or of two whose gate is apart."""

MASKED_ROWS = 64
"""Rows of a group that are computed at a time where few may count: of all warps of some blocks, so that none
begins with rows that others have."""


def _rows_of_thread(alternating: bool) -> int:
    return LOADS if alternating else LOADS // 2


def _gates(held: Any, row: int, alternating: bool) -> tuple[Any, Any]:
    """The gate and the up-projection of a row, as f32.

    Args:
        held: (vector, part, row). There is one part where the gate alternates; else the first part is the
            gate, and the second the up-projection.
        row: which of a thread's rows.
        alternating: whether the gate is in the even columns of a vector.
    """
    if not alternating:
        return floats(held[None, 0, row]), floats(held[None, 1, row])
    values = floats(held[None, 0, row])
    even, odd = (cute.make_rmem_tensor(((1, VECTOR // 2),), cutlass.Float32) for _ in range(2))
    for i in range(VECTOR // 2):
        even[i], odd[i] = values[2 * i], values[2 * i + 1]
    return even.load(), odd.load()


def _gated(held: Any, row: int, alternating: bool) -> Any:
    """``silu(gate) * up`` of a row; see :func:`_gates`."""
    gate, up = _gates(held, row, alternating)
    return _silu(gate) * up


@cute.kernel  # type: ignore[untyped-decorator]
def swiglu_kernel(
    x: cute.Tensor,
    out: cute.Tensor,
    scale: cute.Tensor,
    counts: Any,
    alternating: cutlass.Constexpr,
) -> None:
    """Compute a part of the columns of some rows, or of every so many rows of a group.

    Args:
        x: (G, T, 2n).
        out: (G, T, n) f8e4m3.
        scale: (G, T, n / 128) f32.
        counts: (G) i32, the rows of each group that count, or None for all.
        alternating: whether the gate is in the even columns of ``x``, and not in its first half.
    """
    _, _, group = cute.arch.block_idx()
    inputs = in_vectors(x[group, None, None])
    outputs = in_vectors(out[group, None, None], VECTOR // 2 if alternating else VECTOR)
    scales = scale[group, None, None]
    count = outputs.shape[1][1]
    end = out.shape[1]
    if cutlass.const_expr(counts is not None):
        end = cutlass.min(counts[group], end)
    rows = _rows_of_thread(alternating)
    begin, vector, stride = fp8.own_place(count, rows, THREADS)
    place = cutlass.min(vector, count - 1)

    held = cute.make_rmem_tensor(((1, VECTOR), LOADS // rows, rows), x.element_type)
    for first in cutlass.range(begin, end, stride, unroll=1):
        for i in cutlass.range_constexpr(rows):
            row = cutlass.min(first + i, end - 1)
            held[None, 0, i].store(load(inputs, row, place))
            if cutlass.const_expr(not alternating):
                held[None, 1, i].store(load(inputs, row, place + count))
        values = [_gated(held, i, alternating) for i in range(rows)]
        fp8.store_scaled(outputs, scales, (first, vector), (1, 0), (end, count), values)


def _silu(values: Any) -> Any:
    """``v / (1 + exp(-v))``, by the approximate reciprocal, whose error is below that of f32's last bit."""
    below = 1.0 + cute.math.exp(-values, fastmath=True)
    found = cute.make_rmem_tensor(values.shape, cutlass.Float32)
    for i in range(cute.size(values.shape)):
        found[i] = values[i] * cute.arch.rcp_approx(below[i])
    return found.load()


def _in_one_group(tensor: Any) -> Any:
    """A matrix as the only one of a batch."""
    layout = tensor.layout
    return cute.make_tensor(tensor.iterator, cute.make_layout((1, *layout.shape), stride=(0, *layout.stride)))


@cute.jit  # type: ignore[untyped-decorator]
def fused_swiglu(
    x: cute.Tensor,
    out: cute.Tensor,
    scale: cute.Tensor,
    counts: cute.Tensor | None,
    alternating: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Launch the kernel.

    Args:
        x: (T, 2n), or (G, T, 2n).
        out: (T, n), or (G, T, n), f8e4m3, or its bytes as u8.
        scale: (T, n / 128), or (G, T, n / 128), f32.
        counts: (G) i32, the rows of each group that count, or None for all.
        alternating: whether the gate is in the even columns of ``x``, and not in its first half.
        stream: CUDA stream.
    """
    out = fp8.as_fp8(out)
    if cutlass.const_expr(counts is None):
        x, out, scale = _in_one_group(x), _in_one_group(out), _in_one_group(scale)
    groups, rows, columns = out.shape
    if cutlass.const_expr(counts is not None):
        rows = cutlass.min(rows, MASKED_ROWS)
    count = columns // (VECTOR // 2 if alternating else VECTOR)
    row_groups = cute.ceil_div(rows, _rows_of_thread(alternating))
    swiglu_kernel(x, out, scale, counts, alternating).launch(
        grid=(fp8.blocks_of(count, row_groups, THREADS), 1, groups),
        block=(THREADS, 1, 1),
        stream=stream,
    )


@cute.jit  # type: ignore[untyped-decorator]
def swiglu(x: cute.Tensor, out: cute.Tensor, scale: cute.Tensor, stream: Any) -> None:
    """Launch the kernel for one matrix, whose first half of columns is the gate; see :func:`fused_swiglu`."""
    fused_swiglu(x, out, scale, None, False, stream)

"""SwiGLU with requantisation to FP8, in CuTe DSL. It imports the DSL.

For a row t, with its gate and its up-projection::

    y = silu(gate) * up                       silu(v) = v / (1 + exp(-v)), all in f32

which is stored as FP8 with a scale for each 128 columns (:mod:`.fp8`). The gate is the first half of the
row's columns, or its even columns. A thread loads 64 bytes before it uses the first of them.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels import fp8
from cutlass_aot.kernels.vectors import VECTOR, in_vectors, load

WARP = 32
THREADS = 128
LOADS = 4
"""Vectors that a thread loads before it uses one."""

MASKED_ROWS = 64
"""Blocks that share the rows of a group, of which few may count."""


def _pairs(loaded: Any) -> tuple[Any, Any]:
    """The elements of even columns and those of odd columns of a vector, as f32."""
    values = loaded.to(cutlass.Float32)
    even, odd = (cute.make_rmem_tensor(((1, VECTOR // 2),), cutlass.Float32) for _ in range(2))
    for i in range(VECTOR // 2):
        even[i], odd[i] = values[2 * i], values[2 * i + 1]
    return even.load(), odd.load()


@cute.kernel  # type: ignore[untyped-decorator]
def swiglu_kernel(
    x: cute.Tensor,
    out: cute.Tensor,
    scale: cute.Tensor,
    counts: Any,
    alternating: cutlass.Constexpr,
) -> None:
    """Compute a part of the columns of a row, or of every so many rows of a group.

    Args:
        x: (G, T, 2n).
        out: (G, T, n) f8e4m3.
        scale: (G, T, n / 128) f32.
        counts: (G) i32, the rows of each group that count, or None for all.
        alternating: whether the gate is in the even columns of ``x``, and not in its first half.
    """
    thread, _, _ = cute.arch.thread_idx()
    first, part, group = cute.arch.block_idx()
    stride, _, _ = cute.arch.grid_dim()
    elements = VECTOR // 2 if alternating else VECTOR
    steps = LOADS if alternating else LOADS // 2
    inputs = in_vectors(x[group, None, None])
    outputs = in_vectors(out[group, None, None], elements)
    scales = scale[group, None, None]
    count = out.shape[2] // elements
    end = out.shape[1]
    if cutlass.const_expr(counts is not None):
        end = cutlass.min(counts[group], end)
    base = part * (steps * THREADS) + thread

    held = cute.make_rmem_tensor(((1, VECTOR), LOADS), x.element_type)
    for row in cutlass.range(first, end, stride, unroll=1):
        for step in cutlass.range_constexpr(steps):
            place = cutlass.min(base + step * THREADS, count - 1)
            if cutlass.const_expr(alternating):
                held[None, step].store(load(inputs, row, place, True))
            else:
                held[None, 2 * step].store(load(inputs, row, place, True))
                held[None, 2 * step + 1].store(load(inputs, row, place + count, True))
        for step in cutlass.range_constexpr(steps):
            vector = base + step * THREADS
            # All threads of a warp take part in shuffles, or none does.
            if vector - thread % WARP < count:
                if cutlass.const_expr(alternating):
                    gate, up = _pairs(held[None, step].load())
                else:
                    gate = held[None, 2 * step].load().to(cutlass.Float32)
                    up = held[None, 2 * step + 1].load().to(cutlass.Float32)
                y = _silu(gate) * up
                fp8.store_scaled(outputs, scales, row, vector, count, y)


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
    blocks = rows
    if cutlass.const_expr(counts is not None):
        blocks = cutlass.min(rows, MASKED_ROWS)
    columns_of_block = THREADS * LOADS * VECTOR // 2
    swiglu_kernel(x, out, scale, counts, alternating).launch(
        grid=(blocks, cute.ceil_div(columns, columns_of_block), groups),
        block=(THREADS, 1, 1),
        stream=stream,
    )


@cute.jit  # type: ignore[untyped-decorator]
def swiglu(x: cute.Tensor, out: cute.Tensor, scale: cute.Tensor, stream: Any) -> None:
    """Launch the kernel for one matrix, whose first half of columns is the gate; see :func:`fused_swiglu`."""
    fused_swiglu(x, out, scale, None, False, stream)

"""RMSNorm, in CuTe DSL. It imports the DSL.

    h[t]   = x[t] + residual[t]                                  x[t] if there is no residual
    out[t] = h[t] / sqrt(mean(h[t]^2) + eps) * weight

in f32. The sum with the residual is rounded to the input's type, written, and used as rounded. ``out`` is
rounded once to its element type; as f8e4m3 it is divided by a scale for each 128 columns of a row, which
brings the largest of them to 448.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels import fp8, rows
from cutlass_aot.kernels.vectors import as_row, in_vectors, load, store, sum_of


def _normalised(values: Any, factor: Any, gain: Any) -> Any:
    return values.to(cutlass.Float32) * factor * gain.to(cutlass.Float32)


@cute.jit  # type: ignore[untyped-decorator]
def _write(
    outputs: Any, scale: cute.Tensor | None, row: Any, vector: Any, writable: Any, values: Any
) -> None:
    """Store f32 values as one vector, with the scale of their block of columns where there are scales."""
    if cutlass.const_expr(scale is not None):
        fp8.store_scaled(outputs, scale, row, vector, writable, values)
    elif vector < writable:
        store(outputs, row, vector, values)


@cute.kernel  # type: ignore[untyped-decorator]
def rms_norm_kernel(
    x: cute.Tensor,
    residual: cute.Tensor | None,
    weight: cute.Tensor,
    out: cute.Tensor,
    residual_out: cute.Tensor | None,
    scale: cute.Tensor | None,
    eps: cutlass.Float32,
    row_threads: cutlass.Constexpr,
    steps: cutlass.Constexpr,
) -> None:
    """Normalise a block's rows.

    Args:
        x: (T, n).
        residual: (T, n), or None.
        weight: (1, n).
        out: (T, n).
        residual_out: (T, n), or None.
        scale: (T, n / 128), or None.
        eps: added to the mean square.
        row_threads: threads of a row.
        steps: vectors that a thread keeps.
    """
    dtype = x.element_type
    elements = rows.vector_elements(dtype)
    row, lane, count, writable = rows.own_row(x, elements, row_threads)
    inputs, weights = in_vectors(x, elements), in_vectors(weight, elements)
    outputs = in_vectors(out, elements)
    shared = rows.shared_numbers(row_threads, 1)

    held = cute.make_rmem_tensor(((1, elements), steps), dtype)
    gain = cute.make_rmem_tensor(((1, elements), steps), weight.element_type)
    rows.load_row(inputs, row, lane, count, held, row_threads, True)
    if cutlass.const_expr(residual is not None):
        residuals, sums = in_vectors(residual, elements), in_vectors(residual_out, elements)
        added = cute.make_rmem_tensor(((1, elements), steps), dtype)
        rows.load_row(residuals, row, lane, count, added, row_threads, True)
    early = rows.fits_early(gain)
    if cutlass.const_expr(early):
        # Required after the sum alone: on its way meanwhile.
        rows.load_row(weights, 0, lane, count, gain, row_threads, False)
    else:
        rows.prefetch_weights(weights, row, lane, count, steps, row_threads)

    first, end = rows.beyond(steps, row_threads, lane, count)
    total = cutlass.Float32(0.0)
    for step in cutlass.range_constexpr(steps):
        vector = step * row_threads + lane
        values = held[None, step].load().to(cutlass.Float32)
        if cutlass.const_expr(residual is not None):
            rounded = (values + added[None, step].load().to(cutlass.Float32)).to(dtype)
            held[None, step].store(rounded)
            values = rounded.to(cutlass.Float32)
            if vector < writable:
                store(sums, row, vector, rounded)
        total += rows.kept(vector < count, sum_of(values * values))
    for other in cutlass.range(first, end, row_threads, unroll=1):
        place = cutlass.min(other, count - 1)
        found = load(inputs, row, place).to(cutlass.Float32)
        if cutlass.const_expr(residual is not None):
            rounded = (found + load(residuals, row, place).to(cutlass.Float32)).to(dtype)
            found = rounded.to(cutlass.Float32)
            if other < writable:
                store(sums, row, other, rounded)
        total += rows.kept(other < count, sum_of(found * found))

    rows.keep_packed(held)
    total = rows.sum_of_row(total, 0, row_threads, shared)
    factor = cute.math.rsqrt(total / cutlass.Float32(x.shape[1]) + eps)
    if cutlass.const_expr(not early):
        rows.load_row(weights, 0, lane, count, gain, row_threads, False)

    for step in cutlass.range_constexpr(steps):
        vector = step * row_threads + lane
        values = _normalised(held[None, step].load(), factor, gain[None, step].load())
        _write(outputs, scale, row, vector, writable, values)
    for other in cutlass.range(first, end, row_threads, unroll=1):
        place = cutlass.min(other, count - 1)
        # What this thread wrote, where the residual may have been overwritten.
        source = inputs if residual is None else sums
        found = _normalised(load(source, row, place), factor, load(weights, 0, place))
        _write(outputs, scale, row, other, writable, found)


@cute.jit  # type: ignore[untyped-decorator]
def rms_norm(
    x: cute.Tensor,
    residual: cute.Tensor | None,
    weight: cute.Tensor,
    out: cute.Tensor,
    residual_out: cute.Tensor | None,
    scale: cute.Tensor | None,
    eps: cutlass.Float32,
    row_threads: cutlass.Constexpr,
    held: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Launch the kernel.

    Args:
        x: (T, n).
        residual: (T, n), or None.
        weight: (n).
        out: (T, n); f8e4m3, or its bytes as u8, with scales.
        residual_out: (T, n) with a residual, or None.
        scale: (T, n / 128) f32, or None.
        eps: added to the mean square.
        row_threads: threads of a row.
        held: vectors of 8 elements that a thread keeps.
        stream: CUDA stream.
    """
    rms_norm_kernel(
        x, residual, as_row(weight), fp8.as_fp8(out), residual_out, scale, eps, row_threads,
        rows.steps_of(held, x.element_type),
    ).launch(
        **rows.launch_shape(x.shape[0], row_threads), stream=stream
    )  # fmt: skip


@cute.jit  # type: ignore[untyped-decorator]
def fused_rms_norm(
    x: cute.Tensor,
    residual: cute.Tensor | None,
    weight: cute.Tensor,
    out: cute.Tensor,
    residual_out: cute.Tensor | None,
    eps: cutlass.Float32,
    row_threads: cutlass.Constexpr,
    held: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Launch the kernel without scales; see :func:`rms_norm`."""
    rms_norm(x, residual, weight, out, residual_out, None, eps, row_threads, held, stream)


@cute.jit  # type: ignore[untyped-decorator]
def plain_rms_norm(
    x: cute.Tensor,
    weight: cute.Tensor,
    out: cute.Tensor,
    eps: cutlass.Float32,
    row_threads: cutlass.Constexpr,
    held: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Launch the kernel without scales and without a residual; see :func:`rms_norm`."""
    rms_norm(x, None, weight, out, None, None, eps, row_threads, held, stream)

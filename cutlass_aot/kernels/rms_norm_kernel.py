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
from cutlass_aot.kernels.kept_rows import KeptRow, keep_packed, keep_row, wait_for
from cutlass_aot.kernels.row_designs import RowDesign
from cutlass_aot.kernels.row_reductions import shared_numbers, sum_of_row
from cutlass_aot.kernels.row_weights import Weights, begin_weights, weights_of
from cutlass_aot.kernels.vectors import as_row, floats, in_vectors, load_floats, store, sum_of

STEPS_TOGETHER = 4
"""Most steps of a row in registers whose scales are found together. Where the row is in shared memory, they
are found one by one: there are fewer registers."""

STAGED_REGISTERS = 48
"""Registers of a thread by which the blocks of an SM are computed for a staged design: with these, no kernel
for sm_90a spills."""


def _normalised(values: Any, factor: Any, gain: Any) -> Any:
    return values * factor * gain


def _normalised_steps(
    kept: KeptRow, gains: Weights, steps: range, factor: Any, lane: Any, count: Any, design: RowDesign
) -> list[Any]:
    """What this thread keeps of a row, normalised, of some steps."""
    found = []
    for step in steps:
        (gain,) = weights_of(gains, step, lane, count, design)
        found.append(_normalised(floats(kept.vectors[None, step]), factor, gain))
    return found


@cute.jit  # type: ignore[untyped-decorator]
def _write(
    outputs: Any,
    scale: cute.Tensor | None,
    row: Any,
    vector: Any,
    step: cutlass.Constexpr,
    writable: Any,
    values: list[Any],
) -> None:
    """Store f32 values as vectors, with the scales of their blocks of columns where there are scales.

    Args:
        outputs: the output, by :func:`.vectors.in_vectors`.
        scale: (T, n / 128), or None.
        row: the row.
        vector: of the first.
        step: vectors from one to the next, if there are several.
        writable: the first vector that is not stored.
        values: vectors of f32.
    """
    if cutlass.const_expr(scale is not None):
        fp8.store_scaled(outputs, scale, (row, vector), (0, step), (row + 1, writable), values)
    else:
        for i in cutlass.range_constexpr(len(values)):
            if vector + i * step < writable:
                store(outputs, row, vector + i * step, values[i])


@cute.kernel  # type: ignore[untyped-decorator]
def rms_norm_kernel(
    x: cute.Tensor,
    residual: cute.Tensor | None,
    weight: cute.Tensor,
    out: cute.Tensor,
    residual_out: cute.Tensor | None,
    scale: cute.Tensor | None,
    eps: cutlass.Float32,
    design: cutlass.Constexpr,
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
        design: a :class:`~cutlass_aot.kernels.row_designs.RowDesign`.
    """
    row_threads, steps = design.threads, design.steps
    dtype = x.element_type
    elements = rows.vector_elements(dtype)
    row, lane, count, writable = rows.own_row(x, elements, design)
    inputs, weights = in_vectors(x, elements), in_vectors(weight, elements)
    outputs = in_vectors(out, elements)
    shared = shared_numbers(design, 1)

    kept = keep_row(inputs, row, lane, count, design)
    held = kept.vectors
    if cutlass.const_expr(residual is not None):
        residuals, sums = in_vectors(residual, elements), in_vectors(residual_out, elements)
        to_add = keep_row(residuals, row, lane, count, design)
        added = to_add.vectors
    gains = begin_weights([weights], row, lane, count, design)

    first, end = rows.beyond(design, lane, count)
    total = cutlass.Float32(0.0)
    for step in cutlass.range_constexpr(steps):
        vector = step * row_threads + lane
        wait_for(kept, step)
        values = floats(held[None, step])
        if cutlass.const_expr(residual is not None):
            wait_for(to_add, step)
            rounded = (values + floats(added[None, step])).to(dtype)
            held[None, step].store(rounded)
            values = rounded.to(cutlass.Float32)
            if vector < writable:
                store(sums, row, vector, rounded)
        total += rows.masked(vector < count, sum_of(values * values))
    for other in cutlass.range(first, end, row_threads, unroll=1):
        place = cutlass.min(other, count - 1)
        found = load_floats(inputs, row, place)
        if cutlass.const_expr(residual is not None):
            rounded = (found + load_floats(residuals, row, place)).to(dtype)
            found = rounded.to(cutlass.Float32)
            if other < writable:
                store(sums, row, other, rounded)
        total += rows.masked(other < count, sum_of(found * found))

    keep_packed(kept)
    total = sum_of_row(total, 0, design, shared)
    factor = cute.math.rsqrt(total / cutlass.Float32(x.shape[1]) + eps)

    together = 1 if scale is None or design.staged else min(steps, STEPS_TOGETHER)
    for step in cutlass.range_constexpr(0, steps, together):
        now = range(step, min(step + together, steps))
        values = _normalised_steps(kept, gains, now, factor, lane, count, design)
        _write(outputs, scale, row, step * row_threads + lane, row_threads, writable, values)
    for other in cutlass.range(first, end, row_threads, unroll=1):
        place = cutlass.min(other, count - 1)
        # What this thread wrote, where the residual may have been overwritten.
        source = inputs if residual is None else sums
        gain = load_floats(weights, 0, place)
        found = _normalised(load_floats(source, row, place), factor, gain)
        _write(outputs, scale, row, other, row_threads, writable, [found])


@cute.jit  # type: ignore[untyped-decorator]
def rms_norm(
    x: cute.Tensor,
    residual: cute.Tensor | None,
    weight: cute.Tensor,
    out: cute.Tensor,
    residual_out: cute.Tensor | None,
    scale: cute.Tensor | None,
    eps: cutlass.Float32,
    row: cutlass.Constexpr,
    staged: cutlass.Constexpr,
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
        row: threads of a row, and vectors of 8 elements that each of them keeps.
        staged: whether they are kept in shared memory.
        stream: CUDA stream.
    """
    design = rows.design_of(row, staged, x.element_type)
    kept = 1 if cutlass.const_expr(residual is None) else 2
    rms_norm_kernel(
        x, residual, as_row(weight), fp8.as_fp8(out), residual_out, scale, eps, design
    ).launch(
        **rows.launch_shape(x.shape[0], design, STAGED_REGISTERS, kept), stream=stream
    )  # fmt: skip


@cute.jit  # type: ignore[untyped-decorator]
def fused_rms_norm(
    x: cute.Tensor,
    residual: cute.Tensor | None,
    weight: cute.Tensor,
    out: cute.Tensor,
    residual_out: cute.Tensor | None,
    eps: cutlass.Float32,
    row: cutlass.Constexpr,
    staged: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Launch the kernel without scales; see :func:`rms_norm`."""
    rms_norm(x, residual, weight, out, residual_out, None, eps, row, staged, stream)


@cute.jit  # type: ignore[untyped-decorator]
def plain_rms_norm(
    x: cute.Tensor,
    weight: cute.Tensor,
    out: cute.Tensor,
    eps: cutlass.Float32,
    row: cutlass.Constexpr,
    staged: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Launch the kernel without scales and without a residual; see :func:`rms_norm`."""
    rms_norm(x, None, weight, out, None, None, eps, row, staged, stream)

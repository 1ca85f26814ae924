"""LayerNorm, in CuTe DSL. It imports the DSL.

    out[t] = (x[t] - mean(x[t])) / sqrt(variance(x[t]) + eps) * weight + bias

in f32, rounded once. The variance is the mean square of the differences from the mean, which are taken once
the mean is known: the row is in registers, and nothing cancels as in a difference of mean squares.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels import rows
from cutlass_aot.kernels.vectors import as_row, in_vectors, load, store, sum_of


@cute.kernel  # type: ignore[untyped-decorator]
def layer_norm_kernel(
    x: cute.Tensor,
    weight: cute.Tensor,
    bias: cute.Tensor | None,
    out: cute.Tensor,
    eps: cutlass.Float32,
    row_threads: cutlass.Constexpr,
    steps: cutlass.Constexpr,
) -> None:
    """Normalise a block's rows.

    Args:
        x: (T, n).
        weight: (1, n).
        bias: (1, n), or None.
        out: (T, n).
        eps: added to the variance.
        row_threads: threads of a row.
        steps: vectors that a thread keeps.
    """
    elements = rows.vector_elements(x.element_type)
    row, lane, count, writable = rows.own_row(x, elements, row_threads)
    inputs, outputs = in_vectors(x, elements), in_vectors(out, elements)
    weights = in_vectors(weight, elements)
    shared = rows.shared_numbers(row_threads, 2)
    first, end = rows.beyond(steps, row_threads, lane, count)
    columns = cutlass.Float32(x.shape[1])

    held = cute.make_rmem_tensor(((1, elements), steps), x.element_type)
    rows.load_row(inputs, row, lane, count, held, row_threads, True)
    # The weight, and the bias behind it.
    parameters = [weights] if bias is None else [weights, in_vectors(bias, elements)]
    gains = [cute.make_rmem_tensor(((1, elements), steps), weight.element_type) for _ in parameters]
    early = rows.fits_early(*gains)
    for source, gain in zip(parameters, gains, strict=True):
        if cutlass.const_expr(early):
            rows.load_row(source, 0, lane, count, gain, row_threads, False)
        else:
            rows.prefetch_weights(source, row, lane, count, steps, row_threads)
    total = cutlass.Float32(0.0)
    for step in cutlass.range_constexpr(steps):
        part = sum_of(held[None, step].load().to(cutlass.Float32))
        total += rows.kept(step * row_threads + lane < count, part)
    for vector in cutlass.range(first, end, row_threads, unroll=1):
        part = sum_of(load(inputs, row, cutlass.min(vector, count - 1)).to(cutlass.Float32))
        total += rows.kept(vector < count, part)
    rows.keep_packed(held)
    mean = rows.sum_of_row(total, 0, row_threads, shared) / columns

    squares = cutlass.Float32(0.0)
    for step in cutlass.range_constexpr(steps):
        difference = held[None, step].load().to(cutlass.Float32) - mean
        squares += rows.kept(step * row_threads + lane < count, sum_of(difference * difference))
    for vector in cutlass.range(first, end, row_threads, unroll=1):
        difference = load(inputs, row, cutlass.min(vector, count - 1)).to(cutlass.Float32) - mean
        squares += rows.kept(vector < count, sum_of(difference * difference))
    rows.keep_packed(held)
    factor = cute.math.rsqrt(rows.sum_of_row(squares, 1, row_threads, shared) / columns + eps)

    for step in cutlass.range_constexpr(steps):
        vector = step * row_threads + lane
        if vector < writable:
            values = (held[None, step].load().to(cutlass.Float32) - mean) * factor
            own = [
                gain[None, step].load() if early else load(source, 0, vector)
                for source, gain in zip(parameters, gains, strict=True)
            ]
            store(outputs, row, vector, _scaled(values, own))
    for vector in cutlass.range(first, writable, row_threads, unroll=1):
        values = (load(inputs, row, vector).to(cutlass.Float32) - mean) * factor
        own = [load(source, 0, vector) for source in parameters]
        store(outputs, row, vector, _scaled(values, own))


def _scaled(values: Any, parameters: list[Any]) -> Any:
    """Values times the first of the parameters, the weight, plus the second, the bias, if there is one."""
    found = values * parameters[0].to(cutlass.Float32)
    return found + parameters[1].to(cutlass.Float32) if len(parameters) > 1 else found


@cute.jit  # type: ignore[untyped-decorator]
def layer_norm(
    x: cute.Tensor,
    weight: cute.Tensor,
    bias: cute.Tensor | None,
    out: cute.Tensor,
    eps: cutlass.Float32,
    row_threads: cutlass.Constexpr,
    held: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Launch the kernel.

    Args:
        x: (T, n).
        weight: (n).
        bias: (n), or None.
        out: (T, n).
        eps: added to the variance.
        row_threads: threads of a row.
        held: vectors of 8 elements that a thread keeps.
        stream: CUDA stream.
    """
    offset = None if cutlass.const_expr(bias is None) else as_row(bias)
    layer_norm_kernel(
        x, as_row(weight), offset, out, eps, row_threads, rows.steps_of(held, x.element_type)
    ).launch(**rows.launch_shape(x.shape[0], row_threads), stream=stream)

"""LayerNorm, in CuTe DSL. It imports the DSL.

    out[t] = (x[t] - mean(x[t])) / sqrt(variance(x[t]) + eps) * weight + bias

in f32, rounded once. The variance is the mean square of the differences from the mean, which are taken once
the mean is known: the row is kept, and nothing cancels as in a difference of mean squares.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels import rows
from cutlass_aot.kernels.kept_rows import keep_packed, keep_row, wait_for
from cutlass_aot.kernels.row_reductions import shared_numbers, sum_of_row
from cutlass_aot.kernels.row_weights import begin_weights, weights_of
from cutlass_aot.kernels.vectors import as_row, floats, in_vectors, load_floats, store, sum_of

STAGED_REGISTERS = 48
"""Registers of a thread by which the blocks of an SM are computed for a staged design: with these, no kernel
for sm_90a spills."""


@cute.kernel  # type: ignore[untyped-decorator]
def layer_norm_kernel(
    x: cute.Tensor,
    weight: cute.Tensor,
    bias: cute.Tensor | None,
    out: cute.Tensor,
    eps: cutlass.Float32,
    design: cutlass.Constexpr,
) -> None:
    """Normalise a block's rows.

    Args:
        x: (T, n).
        weight: (1, n).
        bias: (1, n), or None.
        out: (T, n).
        eps: added to the variance.
        design: a :class:`~cutlass_aot.kernels.row_designs.RowDesign`.
    """
    row_threads, steps = design.threads, design.steps
    elements = rows.vector_elements(x.element_type)
    row, lane, count, writable = rows.own_row(x, elements, design)
    inputs, outputs = in_vectors(x, elements), in_vectors(out, elements)
    weights = in_vectors(weight, elements)
    shared = shared_numbers(design, 2)
    first, end = rows.beyond(design, lane, count)
    columns = cutlass.Float32(x.shape[1])

    kept = keep_row(inputs, row, lane, count, design)
    held = kept.vectors
    # The weight, and the bias behind it.
    parameters = [weights] if bias is None else [weights, in_vectors(bias, elements)]
    gains = begin_weights(parameters, row, lane, count, design)
    total = cutlass.Float32(0.0)
    for step in cutlass.range_constexpr(steps):
        wait_for(kept, step)
        part = sum_of(floats(held[None, step]))
        total += rows.masked(step * row_threads + lane < count, part)
    for vector in cutlass.range(first, end, row_threads, unroll=1):
        part = sum_of(load_floats(inputs, row, cutlass.min(vector, count - 1)))
        total += rows.masked(vector < count, part)
    keep_packed(kept)
    mean = sum_of_row(total, 0, design, shared) / columns

    squares = cutlass.Float32(0.0)
    for step in cutlass.range_constexpr(steps):
        difference = floats(held[None, step]) - mean
        squares += rows.masked(step * row_threads + lane < count, sum_of(difference * difference))
    for vector in cutlass.range(first, end, row_threads, unroll=1):
        difference = load_floats(inputs, row, cutlass.min(vector, count - 1)) - mean
        squares += rows.masked(vector < count, sum_of(difference * difference))
    keep_packed(kept)
    factor = cute.math.rsqrt(sum_of_row(squares, 1, design, shared) / columns + eps)

    for step in cutlass.range_constexpr(steps):
        vector = step * row_threads + lane
        own = weights_of(gains, step, lane, count, design)
        if vector < writable:
            values = (floats(held[None, step]) - mean) * factor
            store(outputs, row, vector, _scaled(values, own))
    for vector in cutlass.range(first, writable, row_threads, unroll=1):
        values = (load_floats(inputs, row, vector) - mean) * factor
        own = [load_floats(source, 0, vector) for source in parameters]
        store(outputs, row, vector, _scaled(values, own))


def _scaled(values: Any, parameters: list[Any]) -> Any:
    """Values times the first of the parameters, the weight, plus the second, the bias, if there is one."""
    found = values * parameters[0]
    return found + parameters[1] if len(parameters) > 1 else found


@cute.jit  # type: ignore[untyped-decorator]
def layer_norm(
    x: cute.Tensor,
    weight: cute.Tensor,
    bias: cute.Tensor | None,
    out: cute.Tensor,
    eps: cutlass.Float32,
    row: cutlass.Constexpr,
    staged: cutlass.Constexpr,
    stream: Any,
) -> None:
    """Launch the kernel.

    Args:
        x: (T, n).
        weight: (n).
        bias: (n), or None.
        out: (T, n).
        eps: added to the variance.
        row: threads of a row, and vectors of 8 elements that each of them keeps.
        staged: whether they are kept in shared memory.
        stream: CUDA stream.
    """
    offset = None if cutlass.const_expr(bias is None) else as_row(bias)
    design = rows.design_of(row, staged, x.element_type)
    layer_norm_kernel(x, as_row(weight), offset, out, eps, design).launch(
        **rows.launch_shape(x.shape[0], design, STAGED_REGISTERS), stream=stream
    )

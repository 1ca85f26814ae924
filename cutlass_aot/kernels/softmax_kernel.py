"""Softmax, in CuTe DSL. It imports the DSL.

    out[t] = exp(x[t] - max(x[t])) / sum(exp(x[t] - max(x[t])))

in f32, rounded once. Each warp adds up the exponentials below the largest element of its own; these sums are
scaled to the largest of the row, so that threads wait for each other once. What a thread does not keep of a
row is read twice: once for its largest and the sum of exponentials below it, which is scaled when a larger
one is met, and once for the result.
"""

from __future__ import annotations

import math
from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels import rows
from cutlass_aot.kernels.kept_rows import keep_packed, keep_row, wait_for
from cutlass_aot.kernels.row_designs import WARP, RowDesign
from cutlass_aot.kernels.row_reductions import share, shared_by_warps, shared_numbers
from cutlass_aot.kernels.vectors import floats, in_vectors, largest_of, load_floats, store, sum_of

LOWEST = -(2.0 - 2.0**-23) * 2.0**127
"""The lowest finite number of f32. A largest element starts from it and not from minus infinity, whose
difference from itself is NaN."""

STAGED_REGISTERS = 40
"""Registers of a thread by which the blocks of an SM are computed for a staged design: with these, no kernel
spills."""


def _exponentials(values: Any, largest: Any) -> Any:
    """``exp(values - largest)``, of f32 values."""
    return cute.math.exp2((values - largest) * math.log2(math.e), fastmath=True)


def _exponential(value: Any) -> Any:
    return cute.math.exp2(value * math.log2(math.e), fastmath=True)


def _of_row(largest: Any, total: Any, design: RowDesign, shared: Any) -> tuple[Any, Any]:
    """The largest of a row and the sum of exponentials below it, from those of each warp."""
    if design.threads <= WARP:
        return largest, total
    share([largest, total], 0, design, shared.numbers, shared.barriers)
    largests, group = shared_by_warps(0, design, shared)
    totals, _ = shared_by_warps(1, design, shared)
    largest = largests[0]
    for other in largests[1:]:
        largest = cute.arch.fmax(largest, other)
    largest = cute.arch.warp_reduction_max(largest, threads_in_group=group)
    total = cutlass.Float32(0.0)
    for own, part in zip(largests, totals, strict=True):
        total += part * _exponential(own - largest)
    return largest, cute.arch.warp_reduction_sum(total, threads_in_group=group)


@cute.kernel  # type: ignore[untyped-decorator]
def softmax_kernel(x: cute.Tensor, out: cute.Tensor, design: cutlass.Constexpr) -> None:
    """Compute a block's rows.

    Args:
        x: (T, n).
        out: (T, n).
        design: a :class:`~cutlass_aot.kernels.row_designs.RowDesign`.
    """
    row_threads, steps = design.threads, design.steps
    elements = rows.vector_elements(x.element_type)
    row, lane, count, writable = rows.own_row(x, elements, design)
    inputs, outputs = in_vectors(x, elements), in_vectors(out, elements)
    shared = shared_numbers(design, 2)
    first, end = rows.beyond(design, lane, count)

    kept = keep_row(inputs, row, lane, count, design)
    held = kept.vectors
    largest = cutlass.Float32(LOWEST)
    for step in cutlass.range_constexpr(steps):
        wait_for(kept, step)
        part = largest_of(floats(held[None, step]))
        known = step * row_threads + lane < count
        largest = cute.arch.fmax(largest, cutlass.select_(known, part, cutlass.Float32(LOWEST)))
    # Of what is not kept: the largest until now, and the sum of exponentials below it.
    ahead, below = cutlass.Float32(LOWEST), cutlass.Float32(0.0)
    for vector in cutlass.range(first, end, row_threads, unroll=1):
        values = load_floats(inputs, row, cutlass.min(vector, count - 1))
        larger = cute.arch.fmax(ahead, largest_of(values))
        part = rows.masked(vector < count, sum_of(_exponentials(values, larger)))
        below = below * _exponential(ahead - larger) + part
        ahead = larger
    keep_packed(kept)
    group = min(row_threads, WARP)
    largest = cute.arch.warp_reduction_max(cute.arch.fmax(largest, ahead), threads_in_group=group)

    total = below * _exponential(ahead - largest)
    for step in cutlass.range_constexpr(steps):
        part = sum_of(_exponentials(floats(held[None, step]), largest))
        total += rows.masked(step * row_threads + lane < count, part)
    keep_packed(kept)
    total = cute.arch.warp_reduction_sum(total, threads_in_group=group)
    largest, total = _of_row(largest, total, design, shared)
    factor = 1.0 / total

    for step in cutlass.range_constexpr(steps):
        vector = step * row_threads + lane
        if vector < writable:
            values = floats(held[None, step])
            store(outputs, row, vector, _exponentials(values, largest) * factor)
    for vector in cutlass.range(first, writable, row_threads, unroll=1):
        values = load_floats(inputs, row, vector)
        store(outputs, row, vector, _exponentials(values, largest) * factor)


@cute.jit  # type: ignore[untyped-decorator]
def softmax(
    x: cute.Tensor, out: cute.Tensor, row: cutlass.Constexpr, staged: cutlass.Constexpr, stream: Any
) -> None:
    """Launch the kernel.

    Args:
        x: (T, n).
        out: (T, n).
        row: threads of a row, and vectors of 8 elements that each of them keeps.
        staged: whether they are kept in shared memory.
        stream: CUDA stream.
    """
    design = rows.design_of(row, staged, x.element_type)
    softmax_kernel(x, out, design).launch(
        **rows.launch_shape(x.shape[0], design, STAGED_REGISTERS), stream=stream
    )

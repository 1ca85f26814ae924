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
from cutlass_aot.kernels.row_designs import WARP
from cutlass_aot.kernels.vectors import in_vectors, largest_of, load, store, sum_of

LOWEST = -(2.0 - 2.0**-23) * 2.0**127
"""The lowest finite number of f32. A largest element starts from it and not from minus infinity, whose
difference from itself is NaN."""


def _exponentials(values: Any, largest: Any) -> Any:
    """``exp(values - largest)``, of f32 values."""
    return cute.math.exp2((values - largest) * math.log2(math.e), fastmath=True)


def _exponential(value: Any) -> Any:
    return cute.math.exp2(value * math.log2(math.e), fastmath=True)


def _of_row(largest: Any, total: Any, row_threads: int, shared: Any) -> tuple[Any, Any]:
    """The largest of a row and the sum of exponentials below it, from those of each warp."""
    if row_threads <= WARP:
        return largest, total
    rows.share([largest, total], 0, row_threads, shared.numbers, shared.barriers)
    largests, group = rows.shared_by_warps(0, row_threads, shared)
    totals, _ = rows.shared_by_warps(1, row_threads, shared)
    largest = largests[0]
    for other in largests[1:]:
        largest = cute.arch.fmax(largest, other)
    largest = cute.arch.warp_reduction_max(largest, threads_in_group=group)
    total = cutlass.Float32(0.0)
    for own, part in zip(largests, totals, strict=True):
        total += part * _exponential(own - largest)
    return largest, cute.arch.warp_reduction_sum(total, threads_in_group=group)


@cute.kernel  # type: ignore[untyped-decorator]
def softmax_kernel(
    x: cute.Tensor, out: cute.Tensor, row_threads: cutlass.Constexpr, steps: cutlass.Constexpr
) -> None:
    """Compute a block's rows.

    Args:
        x: (T, n).
        out: (T, n).
        row_threads: threads of a row.
        steps: vectors that a thread keeps.
    """
    elements = rows.vector_elements(x.element_type)
    row, lane, count, writable = rows.own_row(x, elements, row_threads)
    inputs, outputs = in_vectors(x, elements), in_vectors(out, elements)
    shared = rows.shared_numbers(row_threads, 2)
    first, end = rows.beyond(steps, row_threads, lane, count)

    held = cute.make_rmem_tensor(((1, elements), steps), x.element_type)
    rows.load_row(inputs, row, lane, count, held, row_threads, True)
    # A vector that is there twice does not change the largest.
    largest = cutlass.Float32(LOWEST)
    for step in cutlass.range_constexpr(steps):
        largest = cute.arch.fmax(largest, largest_of(held[None, step].load().to(cutlass.Float32)))
    # Of what is not kept: the largest until now, and the sum of exponentials below it.
    ahead, below = cutlass.Float32(LOWEST), cutlass.Float32(0.0)
    for vector in cutlass.range(first, end, row_threads, unroll=1):
        values = load(inputs, row, cutlass.min(vector, count - 1)).to(cutlass.Float32)
        larger = cute.arch.fmax(ahead, largest_of(values))
        part = rows.kept(vector < count, sum_of(_exponentials(values, larger)))
        below = below * _exponential(ahead - larger) + part
        ahead = larger
    rows.keep_packed(held)
    group = min(row_threads, WARP)
    largest = cute.arch.warp_reduction_max(cute.arch.fmax(largest, ahead), threads_in_group=group)

    total = below * _exponential(ahead - largest)
    for step in cutlass.range_constexpr(steps):
        part = sum_of(_exponentials(held[None, step].load().to(cutlass.Float32), largest))
        total += rows.kept(step * row_threads + lane < count, part)
    rows.keep_packed(held)
    total = cute.arch.warp_reduction_sum(total, threads_in_group=group)
    largest, total = _of_row(largest, total, row_threads, shared)
    factor = 1.0 / total

    for step in cutlass.range_constexpr(steps):
        vector = step * row_threads + lane
        if vector < writable:
            values = held[None, step].load().to(cutlass.Float32)
            store(outputs, row, vector, _exponentials(values, largest) * factor)
    for vector in cutlass.range(first, writable, row_threads, unroll=1):
        values = load(inputs, row, vector).to(cutlass.Float32)
        store(outputs, row, vector, _exponentials(values, largest) * factor)


@cute.jit  # type: ignore[untyped-decorator]
def softmax(
    x: cute.Tensor, out: cute.Tensor, row_threads: cutlass.Constexpr, held: cutlass.Constexpr, stream: Any
) -> None:
    """Launch the kernel.

    Args:
        x: (T, n).
        out: (T, n).
        row_threads: threads of a row.
        held: vectors of 8 elements that a thread keeps.
        stream: CUDA stream.
    """
    softmax_kernel(x, out, row_threads, rows.steps_of(held, x.element_type)).launch(
        **rows.launch_shape(x.shape[0], row_threads), stream=stream
    )

"""Vectors that all rows of a matrix share, such as a weight and a bias. It imports the DSL."""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels.row_designs import RowDesign
from cutlass_aot.kernels.rows import load_row
from cutlass_aot.kernels.vectors import floats

WEIGHT_REGISTERS = 16
"""Registers of a thread for weights, which are loaded together."""

PREFETCHING_ROWS = 32
"""Rows whose threads fetch weights into the L2 cache: the first ones, for all that are reduced meanwhile."""


@cute.jit  # type: ignore[untyped-decorator]
def _prefetch(weights: Any, row: Any, lane: Any, count: Any, design: cutlass.Constexpr) -> None:
    """Fetch what is needed after the row is reduced into the L2 cache, where it takes no registers.

    Args:
        weights: a matrix of one row, by :func:`.vectors.in_vectors`.
        row: the row that this thread reduces.
        lane: this thread among the row's.
        count: vectors of the row.
        design: the design.
    """
    if row < PREFETCHING_ROWS:
        for step in cutlass.range_constexpr(design.steps):
            source = weights[(None, (0, cutlass.min(step * design.threads + lane, count - 1)))]
            cute.arch.inline_ptx("prefetch.global.L2 [{$r0}];", read_only_args=[source.iterator.toint()])


class Weights(NamedTuple):
    """Vectors that all rows share, such as a weight and a bias.

    Attributes:
        sources: each (vector) in global memory, by :func:`.vectors.in_vectors` of one row.
        held: of each, those of as many steps as are loaded together, in registers. If these are all, they are
            loaded before the row is reduced.
    """

    sources: list[Any]
    held: list[Any]


def begin_weights(sources: list[Any], row: Any, lane: Any, count: Any, design: RowDesign) -> Weights:
    """Load weights, of one element type, if there is room for all; else fetch them into the L2 cache."""
    dtype = sources[0].element_type
    elements = cute.size(sources[0].shape[0])
    registers = elements * dtype.width // 32 * len(sources)
    together = min(design.steps, max(1, WEIGHT_REGISTERS // registers))
    held = [cute.make_rmem_tensor(((1, elements), together), dtype) for _ in sources]
    for source, own in zip(sources, held, strict=True):
        if together == design.steps:
            load_row(source, 0, lane, count, own, design.threads, False)
        else:
            _prefetch(source, row, lane, count, design)
    return Weights(sources, held)


def weights_of(weights: Weights, step: int, lane: Any, count: Any, design: RowDesign) -> list[Any]:
    """The weights of a step, as f32."""
    together = weights.held[0].shape[1]
    if together < design.steps and step % together == 0:
        for source, own in zip(weights.sources, weights.held, strict=True):
            load_row(source, 0, step * design.threads + lane, count, own, design.threads, False)
    return [floats(own[None, step % together]) for own in weights.held]

"""Memory in vectors of 16 bytes, for kernels that read rows. It imports the DSL."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

VECTOR = 8
"""Elements of a vector: 16 bytes of a 16-bit type."""

MAX_GRID_Y = 65535
"""Blocks of a grid along y. Source: CUDA Programming Guide, "Compute Capabilities"."""


def in_vectors(tensor: Any) -> Any:
    """A matrix (rows, columns) as vectors: ((1, 8), (rows, columns / 8))."""
    return cute.zipped_divide(tensor, (1, VECTOR))


def load_floats(vectors: Any, row: Any, vector: Any) -> Any:
    """Load one vector of :func:`in_vectors` and convert it to f32."""
    return vectors[(None, (row, vector))].load().to(cutlass.Float32)


def store(vectors: Any, row: Any, vector: Any, values: Any) -> None:
    """Convert f32 values to the tensor's element type and store them as one vector."""
    target = vectors[(None, (row, vector))]
    target.store(values.to(target.element_type))

"""Memory in vectors of 16 bytes, for kernels that read rows. It imports the DSL."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir import ir

VECTOR = 8
"""Elements of a vector: 16 bytes of a 16-bit type."""

MAX_GRID_Y = 65535
"""Blocks of a grid along y. Source: CUDA Programming Guide, "Compute Capabilities"."""


def in_vectors(tensor: Any, elements: int = VECTOR) -> Any:
    """A matrix (rows, columns) as vectors: ((1, elements), (rows, columns / elements))."""
    return cute.zipped_divide(tensor, (1, elements))


def as_row(vector: Any) -> Any:
    """A vector (n) as a matrix (1, n)."""
    return cute.make_tensor(vector.iterator, cute.make_layout((1, vector.shape[0]), stride=(0, 1)))


def load(vectors: Any, row: Any, vector: Any, streamed: bool = False) -> Any:
    """Load one vector of :func:`in_vectors`; a streamed one, of 16 bytes, takes no room in the L1 cache."""
    source = vectors[(None, (row, vector))]
    if not streamed:
        return source.load()
    words = ir.VectorType.get([4], cutlass.Int32.mlir_type)
    loaded = cute.arch.load(source.iterator, words, level1_eviction_priority="evict_no_allocate")
    held = cute.make_rmem_tensor(source.shape, source.element_type)
    cute.recast_tensor(held, cutlass.Int32).store(cute.TensorSSA(loaded, ((1, 4),), cutlass.Int32))
    return held.load()


def floats(source: Any) -> Any:
    """A vector in registers or in memory as f32.

    bf16 is the upper half of f32. The DSL's conversion takes three instructions for two elements, this two.
    """
    if source.element_type is not cutlass.BFloat16:
        return source.load().to(cutlass.Float32)
    held = cute.make_rmem_tensor(source.shape, source.element_type)
    held.store(source.load())
    words = cute.recast_tensor(held, cutlass.Int32)
    bits = cute.make_rmem_tensor(source.shape, cutlass.Int32)
    for i in range(cute.size(words.shape)):
        bits[2 * i], bits[2 * i + 1] = words[i] << 16, words[i] & -(1 << 16)
    return cute.recast_tensor(bits, cutlass.Float32).load()


def load_floats(vectors: Any, row: Any, vector: Any) -> Any:
    """Load one vector of :func:`in_vectors` and convert it to f32."""
    return floats(vectors[(None, (row, vector))])


def store(vectors: Any, row: Any, vector: Any, values: Any) -> None:
    """Convert f32 values to the tensor's element type and store them as one vector."""
    target = vectors[(None, (row, vector))]
    target.store(values.to(target.element_type))


def store_streamed(vectors: Any, row: Any, vector: Any, held: Any) -> None:
    """Store a vector of 16 bytes in registers, which is the first to leave the caches."""
    words = cute.recast_tensor(held, cutlass.Int32).load()
    cute.arch.store(vectors[(None, (row, vector))].iterator, words.ir_value(), cop="cs")


def sum_of(values: Any) -> Any:
    """The sum of the elements of a vector in registers."""
    return values.reduce(cute.ReductionOp.ADD, cutlass.Float32(0.0), 0)


def largest_of(values: Any) -> Any:
    """The largest of the elements of a vector in registers; NaN is ignored."""
    largest = values[0]
    for i in range(1, cute.size(values.shape)):
        largest = cute.arch.fmax(largest, values[i])
    return largest


def keep_packed(held: Any) -> None:
    """Keep vectors in registers as they were loaded: code after this converts them to f32 anew.

    Otherwise the compiler holds them in f32, in twice the registers, from a reduction to what comes after it.
    """
    words = cute.recast_tensor(held, cutlass.Int32)
    for i in range(cute.size(words.shape)):
        words[i] = cute.arch.inline_ptx(
            "mov.b32 {$w0}, {$r0};", write_only_types=[cutlass.Int32], read_only_args=[words[i]]
        )

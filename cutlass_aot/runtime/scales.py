"""Convert scale factors of block-scaled operands to the layout that tensor cores read, and back.

A block-scaled operand of extents ``(rows, k)`` has one scale factor for each ``block`` elements along K.
Plain scale factors have shape ``(rows, ceil(k / block))``, or ``(batch, rows, ceil(k / block))``. Kernels
take them in tiles of 128 rows by 4 blocks: rows are padded to a multiple of 128 and blocks to a multiple of
4, and tiles are in order of K first, then of rows, then of the batch. Within a tile, the scale factor of row
``r`` and block ``c`` is at ``(r % 32) * 16 + (r // 32) * 4 + c``. For B, "rows" are its columns.

Source of the layout: cuBLAS documentation, "1D Block Scaling Factors Layout". It is ``32x4x4`` in records.
"""

from __future__ import annotations

import sys
from typing import Any

from cutlass_aot.errors import OperandError

__all__ = ["arrange", "count", "position", "restore"]

TILE_ROWS = 128
"""Rows of a tile."""

TILE_BLOCKS = 4
"""Blocks of a tile, each of one scale factor a row."""

_TILE = TILE_ROWS * TILE_BLOCKS


def count(rows: int, k: int, block: int, *, batch: int = 1) -> int:
    """Number of scale factors in the arranged form, including padding.

    Args:
        rows: M for operand A, N for operand B.
        k: extent that blocks lie along.
        block: elements that share a scale factor, 16 or 32.
        batch: number of operands in the batch.

    Raises:
        OperandError: if a number is less than 1.
    """
    for name, value in (("rows", rows), ("k", k), ("block", block), ("batch", batch)):
        if value < 1:
            raise OperandError(f"{name} = {value}: expected at least 1")
    return batch * _padded(rows, TILE_ROWS) * _padded(_blocks(k, block), TILE_BLOCKS)


def position(row: int, column: int, rows: int, k: int, block: int, *, batch: int = 0) -> int:
    """Position in the arranged form of the scale factor of one row and one block.

    ``column`` is the number of the block along K, and ``batch`` the number of the operand in the batch;
    ``rows``, ``k`` and ``block`` are as in :func:`count`.
    """
    tiles = _padded(_blocks(k, block), TILE_BLOCKS) // TILE_BLOCKS
    tile = row // TILE_ROWS * tiles + column // TILE_BLOCKS
    inside = row % 32 * 16 + row % TILE_ROWS // 32 * 4 + column % TILE_BLOCKS
    return batch * count(rows, k, block) + tile * _TILE + inside


def arrange(scales: Any, rows: int, k: int, block: int) -> Any:
    """Scale factors in the order that kernels take, as a new contiguous tensor of rank 1.

    Padding is zero bytes: it is multiplied by elements that are zero, and must not be NaN.

    Args:
        scales: plain scale factors, of an element type of one byte: a torch tensor on any device, or an array
            of the Python array API (NumPy from 2.1 on, CuPy, JAX). Any strides.
        rows: M for operand A, N for operand B.
        k: extent that blocks lie along.
        block: elements that share a scale factor, 16 or 32.

    Returns:
        :func:`count` elements of the same type, on the same device.

    Raises:
        OperandError: if the shape differs, or elements are not one byte wide.
    """
    blocks = _blocks(k, block)
    shape = tuple(int(extent) for extent in scales.shape)
    if len(shape) not in (2, 3) or shape[-2:] != (rows, blocks):
        raise OperandError(
            f"scale factors of shape {shape} for {rows} rows of {k} elements in blocks of {block}: "
            f"expected ({rows}, {blocks}), or a batch of them"
        )
    count(rows, k, block)  # it checks the numbers
    batch = shape[0] if len(shape) == 3 else 1
    library = _Library.of(scales)
    values = library.bytes(scales).reshape(batch, rows, blocks)
    padded_rows, padded_blocks = _padded(rows, TILE_ROWS), _padded(blocks, TILE_BLOCKS)
    values = library.padded(values, padded_rows - rows, padded_blocks - blocks)
    # (batch, row tile, group of 32 rows, row of 32, block tile, block); in a tile: (row of 32, group, block).
    values = values.reshape(batch, padded_rows // TILE_ROWS, 4, 32, padded_blocks // TILE_BLOCKS, TILE_BLOCKS)
    values = library.ordered(values, (0, 1, 4, 3, 2, 5))
    return library.typed(values.reshape(-1), scales)


def restore(arranged: Any, rows: int, k: int, block: int, *, batch: int | None = None) -> Any:
    """Plain scale factors from the arranged form, without the padding: the inverse of :func:`arrange`.

    Args:
        arranged: contiguous, of :func:`count` elements in any shape.
        rows: M for operand A, N for operand B.
        k: extent that blocks lie along.
        block: elements that share a scale factor, 16 or 32.
        batch: number of operands; None for a result of rank 2.

    Returns:
        A new tensor ``(rows, ceil(k / block))``, with the batch first if one was given.

    Raises:
        OperandError: if the number of elements differs.
    """
    expected = count(rows, k, block, batch=1 if batch is None else batch)
    shape = tuple(int(extent) for extent in arranged.shape)
    found = 1
    for extent in shape:
        found *= extent
    if found != expected:
        raise OperandError(
            f"arranged scale factors of shape {shape}: expected {expected} elements for {rows} rows of {k} "
            f"elements in blocks of {block}"
        )
    blocks = _blocks(k, block)
    batches = 1 if batch is None else batch
    row_tiles = _padded(rows, TILE_ROWS) // TILE_ROWS
    block_tiles = _padded(blocks, TILE_BLOCKS) // TILE_BLOCKS
    library = _Library.of(arranged)
    values = library.bytes(arranged).reshape(batches, row_tiles, block_tiles, 32, 4, TILE_BLOCKS)
    values = library.ordered(values, (0, 1, 4, 3, 2, 5))
    values = values.reshape(batches, row_tiles * TILE_ROWS, block_tiles * TILE_BLOCKS)
    values = library.ordered(values[:, :rows, :blocks], (0, 1, 2))
    return library.typed(values.reshape((rows, blocks) if batch is None else (batch, rows, blocks)), arranged)


def _blocks(k: int, block: int) -> int:
    return -(-k // max(block, 1))


def _padded(extent: int, multiple: int) -> int:
    return -(-extent // multiple) * multiple


class _Library:
    """The few operations needed, in one array library.

    Scale factors are passed as bytes, since few libraries can compute with their own element types.
    """

    def __init__(self, module: Any, torch: bool) -> None:
        self._module = module
        self._torch = torch

    @classmethod
    def of(cls, tensor: Any) -> _Library:
        """The library of a tensor. torch is not imported: if there is a tensor, it already was."""
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(tensor, torch.Tensor):
            return cls(torch, True)
        if not hasattr(tensor, "__array_namespace__"):
            raise OperandError(
                f"expected a torch tensor or an array of the Python array API, got "
                f"{type(tensor).__module__}.{type(tensor).__qualname__}"
            )
        return cls(tensor.__array_namespace__(), False)

    def bytes(self, tensor: Any) -> Any:
        width = tensor.dtype.itemsize
        if width != 1:
            raise OperandError(
                f"scale factors of element type {tensor.dtype}: expected one of one byte, such as f8e8m0"
            )
        return tensor.view(self._module.uint8)

    def typed(self, values: Any, like: Any) -> Any:
        return values.view(like.dtype)

    def padded(self, values: Any, rows: int, blocks: int) -> Any:
        batch, old_rows, old_blocks = values.shape
        module = self._module
        options = {"dtype": module.uint8, "device": values.device}
        join = module.cat if self._torch else module.concat
        axis = "dim" if self._torch else "axis"
        if rows:
            values = join([values, module.zeros((batch, rows, old_blocks), **options)], **{axis: 1})
        if blocks:
            values = join([values, module.zeros((batch, old_rows + rows, blocks), **options)], **{axis: 2})
        return values

    def ordered(self, values: Any, order: tuple[int, ...]) -> Any:
        """A new contiguous tensor with permuted modes."""
        if self._torch:
            return values.permute(order).clone(memory_format=self._module.contiguous_format)
        return self._module.asarray(self._module.permute_dims(values, order), copy=True)

"""The operands of a kernel in words: element types, extents, and what is demanded of their memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cutlass_aot.schema.kernels.constraints import OperandConstraint


def operand_lines(operands: Sequence[OperandConstraint]) -> list[tuple[str, str]]:
    """A line for each operand, with a title before the first."""
    names = max((len(operand.name) for operand in operands), default=0)
    dtypes = max((len(operand.dtype) for operand in operands), default=0)
    return [
        (
            "" if index else "operands",
            f"{operand.name:<{names}}  {operand.dtype:<{dtypes}}  {_in_words(operand)}",
        )
        for index, operand in enumerate(operands)
    ]


def _in_words(operand: OperandConstraint) -> str:
    """What a kernel demands of an operand besides its element type, in words."""
    if operand.is_none:
        return "None"
    if operand.is_number:
        return "a number"
    if operand.scale is not None:
        scale = operand.scale
        tiles = f", in tiles {scale.swizzle}" if scale.swizzle else ""
        return (
            f"scale factors of {scale.of}, one for {scale.block} elements along {scale.along}{tiles}, "
            f"compact, aligned to {operand.alignment} bytes"
        )
    shape = ", ".join(map(str, operand.extents))
    order = "row-major" if operand.contiguous == -1 else "column-major"
    return (
        f"[{shape}] "
        + (f"{order} ({operand.layout}), " if len(operand.extents) > 1 else "")
        + f"aligned to {operand.alignment} bytes"
        + (
            f", contiguous extent and strides divisible by {operand.divisibility}"
            if operand.divisibility > 1
            else ""
        )
        + (", compact" if operand.compact else "")
        + (", extents of 64 bits" if operand.extent_bits == 64 else "")
        + (f", multiples of {'x'.join(map(str, operand.multiples))}" if operand.multiples else "")
        + (", written" if operand.written else "")
    )

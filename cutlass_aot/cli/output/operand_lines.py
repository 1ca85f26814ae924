"""The operands of a kernel in words: element types, extents, and what is demanded of their memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from cutlass_aot.cli.output.render import prose

if TYPE_CHECKING:
    from cutlass_aot.schema.kernels.constraints import OperandConstraint
    from cutlass_aot.schema.kernels.kernel import Kernel


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


def group_lines(groups: Mapping[str, Kernel]) -> dict[str, list[str]]:
    """What the names of listed groups do not say: the formula of an epilogue, and operands that differ.

    ``groups`` has a kernel of each. Operands are shown where groups share a readable name, and of those what
    distinguishes the groups.
    """
    alike: dict[str, list[Kernel]] = {}
    for kernel in groups.values():
        alike.setdefault(kernel.group_name, []).append(kernel)
    lines = {}
    for name, kernel in groups.items():
        texts = [kernel.epilogue] if kernel.epilogue else []
        if operands := _distinguishing(kernel, alike[kernel.group_name]):
            texts.append(operands)
        lines[name] = [line for text in texts for line in prose(f"  {text}", 4)]
    return lines


def _distinguishing(kernel: Kernel, others: Sequence[Kernel]) -> str:
    """What is demanded of a kernel's operands and not of those of all others, which have as many."""
    found = []
    for operand, *alike in zip(kernel.operands, *(other.operands for other in others), strict=True):
        common = set.intersection(*(set(_demands(other)) for other in alike))
        own = [demand for demand in _demands(operand) if demand not in common]
        if own or len({other.name for other in alike}) > 1:
            found.append(" ".join([operand.name, ", ".join(own)]).rstrip())
    return "; ".join(found)


def _in_words(operand: OperandConstraint) -> str:
    """What a kernel demands of an operand besides its element type, in words."""
    first, *others = _demands(operand)
    # Extents are followed by how they lie in memory.
    return ", ".join([f"{first} {others[0]}", *others[1:]] if first.startswith("[") else [first, *others])


def _demands(operand: OperandConstraint) -> list[str]:
    """What a kernel demands of an operand besides its element type, each in words."""
    if operand.is_none:
        return ["None"]
    if operand.is_number:
        return ["a number"]
    aligned = f"aligned to {operand.alignment} bytes"
    if operand.scale is not None:
        scale = operand.scale
        tiles = [f"in tiles {scale.swizzle}"] if scale.swizzle else []
        of = f"scale factors of {scale.of}, one for {scale.block} elements along {scale.along}"
        return [of, *tiles, "compact", aligned]
    order = "row-major" if operand.contiguous == -1 else "column-major"
    multiples = "x".join(map(str, operand.multiples))
    demands = {
        f"[{', '.join(map(str, operand.extents))}]": True,
        f"{order} ({operand.layout})": len(operand.extents) > 1,
        aligned: True,
        f"contiguous extent and strides divisible by {operand.divisibility}": operand.divisibility > 1,
        "compact": operand.compact,
        "extents of 64 bits": operand.extent_bits == 64,
        f"multiples of {multiples}": bool(multiples),
        "written": operand.written,
    }
    return [demand for demand, holds in demands.items() if holds]

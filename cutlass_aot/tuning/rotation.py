"""Placement of a problem's operands: several sets in one piece of memory, used in turn.

A launch then finds its operands in memory and not in the L2 cache, as is the case for the weights of a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cutlass_aot.schema.kernels.constraints import OperandConstraint, extent_of
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.tuning.ranking import Extents

MOST_SETS = 64
"""More would take longer to capture than to run."""

ALIGNMENT = 512
"""Bytes; as allocators align, and enough for any operand."""

_EXTENTS = (("L", "M", "K"), ("L", "K", "N"), ("L", "M", "N"))

FACTORS_OF = {"a_scale": 0, "b_scale": 1}
"""Which operand those of these names have scale factors of."""


@dataclass(frozen=True, slots=True)
class Place:
    """One operand within a set, ``offset`` bytes from the set's beginning.

    ``memory`` has the extents in the order of memory, compact: batch, then the other mode, then the
    contiguous one. ``transposed`` tells whether the contiguous mode is the last but one (column-major).
    """

    dtype: str
    offset: int
    memory: tuple[int, int, int]
    transposed: bool

    @property
    def bytes(self) -> int:
        """Size of the operand."""
        return math.prod(self.memory) * DTYPES[self.dtype].bytes


@dataclass(frozen=True, slots=True)
class Rotation:
    """Sets of operands, ``set_bytes`` apart; ``places`` are those of a, b, out and scale factors.

    ``flush_bytes`` of memory are written over before each batch of launches; 0 if the sets together exceed
    twice the L2 cache, so that each launch evicts what a later one needs.
    """

    places: tuple[Place, ...]
    set_bytes: int
    sets: int
    flush_bytes: int

    @property
    def total_bytes(self) -> int:
        """Size of all sets."""
        return self.set_bytes * self.sets


def is_gemm(operands: Sequence[OperandConstraint]) -> bool:
    """Whether operands are those of a GEMM: a, b and out, each with a batch first, and factors of blocks.

    Factors are f32 and in matrices; those that lie as tensor cores of SM100 read them are not among these.
    """
    return tuple(operand.extents for operand in operands[:3]) == _EXTENTS and all(
        factors.name in FACTORS_OF
        and factors.dtype == "f32"
        and factors.scale is None
        and len(factors.extents) == len(_EXTENTS)
        for factors in operands[3:]
    )


def memory_shape(operand: OperandConstraint, extents: Extents) -> tuple[int, int, int]:
    """Extents of an operand in the order of memory."""
    batch, rows, columns = (_value(name, extents) for name in operand.extents)
    return (batch, columns, rows) if operand.contiguous == -2 else (batch, rows, columns)


def _value(name: str | int, extents: Extents) -> int:
    relation = extent_of(str(name))
    if relation is None:
        raise ValueError(f"{name!r} is not an extent of a GEMM")
    return relation.of(extents.by_name[relation.name])


def plan_rotation(operands: Sequence[OperandConstraint], extents: Extents, l2_bytes: int) -> Rotation:
    """Enough sets that together they exceed twice the L2 cache, up to :data:`MOST_SETS`."""
    places, offset = [], 0
    for operand in operands:
        place = Place(operand.dtype, offset, memory_shape(operand, extents), operand.contiguous == -2)
        places.append(place)
        offset = _rounded(offset + place.bytes)
    sets = min(2 * l2_bytes // offset + 1, MOST_SETS)
    return Rotation(tuple(places), offset, sets, 2 * l2_bytes if sets * offset <= 2 * l2_bytes else 0)


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT

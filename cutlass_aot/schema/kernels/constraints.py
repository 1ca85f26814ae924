"""Constraints of a kernel on its operands, and layouts of scale factors in memory."""

import re
from collections.abc import Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Annotated

from cutlass_aot.schema.codec import OMIT, Check, row
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.named_tuple import NamedTuple

LAYOUT_LETTERS = {-1: "t", -2: "n", 0: "s"}
"""Letters of ``cutlass.operators``: t is row-major (last mode contiguous), n column-major; s is a number."""

BATCH = "L"
"""Name of the batch of a GEMM, the one extent that a caller's tensor may lack; it is 1 then."""

ANY_SHAPE = ("*",)
"""Extents of a compact operand whose number of elements is constrained, not its shape."""

MAX_RANK = 8
"""Modes of an operand; ``MAX_RANK`` of ``builder/native/launcher.c``."""

CALL_NAMES = (
    "accumulation", "accumulator", "epilogue", "gpu", "operation", "parameters", "stream", "target",
    "workspace",
)  # fmt: skip
"""Arguments of a call that are not operands; no operand can have their names."""

MAX_OPERANDS = 16
"""Operands of a kernel; ``MAX_OPERANDS`` of ``builder/native/launcher.c``."""

MAX_RELATIONS = 16
"""Different extents of a kernel that follow from named ones; as in ``builder/native/launcher.c``."""

NONE = "none"
"""In place of the element type of an operand that is None at each call, and when the kernel is compiled."""

EXTENT_BITS = (32, 64)
"""Widths of the signed integers by which compiled code takes extents."""

_MOST_OF_A_RELATION = 2**31 - 1
# Text: compiling it takes long, and few kernels have relations.
_RELATION = r"\s*(?:([0-9]{1,10})\s*\*\s*)?(\w+)\s*(?:([+-])\s*([0-9]{1,10})\s*)?"
_QUOTIENT = r"\s*(\w+)\s*/\s*([0-9]{1,10})\s*"


class Extent(NamedTuple):
    """An extent that follows from a named one: ``factor * name + offset``, or ``ceil(name / divisor)``.

    In a record it is text, such as ``"4 * G"``, ``"B + 1"``, ``"2 * K - 1"`` or ``"K / 128"``; a name alone
    is the plain case. A quotient has no factor and no offset. It does not tell the named extent, since
    several give the same quotient.
    """

    factor: int
    name: str
    offset: int
    divisor: int = 1

    def __str__(self) -> str:
        if self.is_quotient:
            return f"{self.name} / {self.divisor}"
        text = self.name if self.factor == 1 else f"{self.factor} * {self.name}"
        return text if not self.offset else f"{text} {'-' if self.offset < 0 else '+'} {abs(self.offset)}"

    @property
    def is_plain(self) -> bool:
        """Whether it is the named extent itself."""
        return (self.factor, self.offset, self.divisor) == (1, 0, 1)

    @property
    def is_quotient(self) -> bool:
        """Whether it is a quotient, rounded up."""
        return self.divisor > 1

    def of(self, named: int) -> int:
        """Its value for one of the named extent."""
        return -(-named // self.divisor) if self.is_quotient else self.factor * named + self.offset

    def named(self, value: int) -> int | None:
        """The named extent for a value of this one, if any gives it (:meth:`is_possible`).

        None for a quotient, which several give.
        """
        return None if self.is_quotient else (value - self.offset) // self.factor

    def is_possible(self, value: int) -> bool:
        """Whether some value of the named extent gives this one."""
        return value >= self.offset and (value - self.offset) % self.factor == 0


@lru_cache(maxsize=1024)
def extent_of(text: str) -> Extent | None:
    """The extent that a text means; None if it is none."""
    if text.isidentifier():
        return Extent(1, text, 0)
    if "/" in text:
        match = re.fullmatch(_QUOTIENT, text)
        if match is None or not match[1].isidentifier() or not 1 <= int(match[2]) <= _MOST_OF_A_RELATION:
            return None
        return Extent(1, match[1], 0, int(match[2]))
    match = re.fullmatch(_RELATION, text)
    if match is None or not match[2].isidentifier():
        return None
    factor, offset = int(match[1] or 1), int((match[3] or "") + (match[4] or "0"))
    if not 1 <= factor <= _MOST_OF_A_RELATION or abs(offset) > _MOST_OF_A_RELATION:
        return None
    return Extent(factor, match[2], offset)


@row
class Scale(NamedTuple):
    """Says that an operand holds the scale factors of another one.

    Each factor scales ``block`` consecutive elements along one extent. With R rows (all extents but the batch
    and the scaled one) of F = ceil(extent / block) factors, ``swizzle`` is their layout in memory:

    - ``""``: R x F factors, row by row, batch after batch.
    - ``"32x4x4"``: what tensor cores of SM100 read: tiles of 128 rows x 4 factors, row-major over the matrix
      rounded up to whole tiles; the factor of row r and column c of a tile is at
      ``(r % 32) * 16 + (r // 32) * 4 + c``.
      Source: cuBLAS documentation, "1D Block Scaling Factors Layout".
    - ``"columns"``: F x R factors, those of all rows for the first block, then for the second, batch after
      batch. They are loaded 16 bytes at a time: R of them fill a multiple of 16 bytes, and the extent is
      a multiple of ``block``.

    Attributes:
        of: name of the operand that is scaled.
        block: elements that share a factor.
        along: name of the scaled extent.
    """

    of: str
    block: int
    along: str = "K"
    swizzle: str = ""

    def factors(self, batch: int, rows: int, extent: int) -> int:
        """Number of factors for ``batch`` matrices of ``rows`` x ``extent`` elements."""
        across = -(-extent // self.block)
        if self.swizzle == SWIZZLE_32X4X4:
            return batch * (-(-rows // 128) * 128) * (-(-across // 4) * 4)
        return batch * rows * across

    def multiples(self, extents: Sequence[str | int], dtype: str) -> dict[str, int]:
        """By name, what each of the scaled operand's ``extents`` is a multiple of.

        ``dtype`` is the element type of the factors.
        """
        if self.swizzle != SWIZZLE_COLUMNS:
            return {}
        rows = 16 * 8 // DTYPES[dtype].bits
        names = [extent for extent in extents if isinstance(extent, str) and extent != BATCH]
        return {name: self.block if name == self.along else rows for name in names}


SWIZZLE_32X4X4 = "32x4x4"
SWIZZLE_COLUMNS = "columns"
SWIZZLES = ("", SWIZZLE_32X4X4, SWIZZLE_COLUMNS)
"""Layouts of scale factors in memory, see :class:`Scale`."""


class OperandConstraint(NamedTuple):
    """The constraints of a kernel on one operand.

    Shapes count elements, also where several share a byte.

    Attributes:
        name: the caller's name for it, such as ``a``.
        dtype: element type (:data:`~cutlass_aot.schema.kernels.dtypes.DTYPES`), or :data:`NONE`.
        extents: a name, the text of an :class:`Extent` or a fixed number for each mode, outermost first, such
            as ``("L", "M", "K")``. Extents of one name are equal across operands. Where the first is
            :data:`BATCH`, a tensor without that mode counts as a batch of one. Empty for a number, which is
            passed by value, and for None; :data:`ANY_SHAPE` for scale factors.
        contiguous: the mode with stride 1, counted from the end (-1 is row-major, -2 column-major); 0 for a
            number.
        divisibility: elements; the contiguous extent and every other stride are multiples of it.
        alignment: bytes; the data pointer is a multiple of it.
        compact: whether there are no gaps: strides are those of
            :func:`~cutlass_aot.schema.kernels.operands.compact_strides`.
        scale: what it scales, if it holds scale factors.
        multiples: a number for each extent, which is a multiple of it, where the kernel moves whole tiles
            without checking the bounds of the operand; empty where it checks them.
        extent_bits: width of the integers that compiled code takes its extents by, of :data:`EXTENT_BITS`.
    """

    name: str
    dtype: str
    extents: tuple[str | int, ...]
    contiguous: int
    divisibility: int
    alignment: int
    written: bool = False
    compact: Annotated[bool, OMIT] = False
    scale: Annotated[Scale | None, OMIT] = None
    multiples: Annotated[tuple[int, ...], OMIT] = ()
    extent_bits: Annotated[int, OMIT] = 32

    @property
    def layout(self) -> str:
        """Its letter of :data:`LAYOUT_LETTERS`."""
        return LAYOUT_LETTERS[self.contiguous]

    @property
    def is_number(self) -> bool:
        """Whether it is passed by value. None counts as a number."""
        return not self.extents

    @property
    def is_none(self) -> bool:
        """Whether it is None at each call."""
        return self.dtype == NONE

    @property
    def max_extent(self) -> int:
        """The largest extent that compiled code can take."""
        return (1 << self.extent_bits - 1) - 1

    @property
    def has_batch(self) -> bool:
        """Whether its first mode is the batch, which may be missing."""
        return self.extents[:1] == (BATCH,)

    def validate(self) -> None:
        """Refuse an impossible constraint."""
        if problem := self.problem():
            raise ValueError(f"operand {self.name!r} has {problem}")

    def problem(self) -> str:
        """What is impossible about the constraint, as text; ``""`` if nothing is."""
        rank = len(self.extents)
        if not self.name.isprintable():
            return "a name with control characters"
        if self.dtype not in DTYPES and (not self.is_none or self.extents or self.written):
            return f"an unknown element type {self.dtype!r}"
        if (
            self.contiguous not in LAYOUT_LETTERS
            or -self.contiguous > rank
            or (rank > 0) != (self.contiguous < 0)
        ):
            return f"an impossible layout: mode {self.contiguous} of {rank}"
        if self.divisibility < 1 or self.alignment < 1 or rank > MAX_RANK:
            return "impossible constraints"
        if self.extents != ANY_SHAPE and not all(map(_is_extent, self.extents)):
            return f"impossible extents {self.extents}"
        if self.extent_bits not in EXTENT_BITS:
            return f"extents of {self.extent_bits} bits"
        if self.multiples and (len(self.multiples) != rank or min(self.multiples) < 1):
            return f"impossible multiples {self.multiples}"
        if self.scale is not None and (
            self.scale.block < 1 or self.scale.swizzle not in SWIZZLES or self.extents != ANY_SHAPE
        ):
            return f"impossible scale factors {self.scale}"
        return ""


def _is_extent(extent: str | int) -> bool:
    """Whether it is a number or the canonical text of an extent."""
    if isinstance(extent, int):
        return extent >= 1
    return extent.isidentifier() or str(extent_of(extent)) == extent


_extents_and_bits = attrgetter("extents", "extent_bits")


@lru_cache(maxsize=256)
def _check_extents(operands: tuple[tuple[tuple[str | int, ...], int], ...]) -> None:
    """Refuse too many relations, an extent of two widths, and a quotient of an extent that none tells.

    Given are the extents and bits of operands.
    """
    widths: dict[str, int] = {}
    for extents, bits in operands:
        for extent in extents if extents != ANY_SHAPE else ():
            if isinstance(extent, str) and widths.setdefault(extent, bits) != bits:
                raise ValueError(f"extent {extent} has 32 bits in one operand and 64 in another")
    if (count := sum(not extent.isidentifier() for extent in widths)) > MAX_RELATIONS:
        raise ValueError(f"expected at most {MAX_RELATIONS} relations between extents, got {count}")
    relations = {text: relation for text in widths if (relation := extent_of(text)) is not None}
    told = {relation.name for relation in relations.values() if not relation.is_quotient}
    for text, relation in relations.items():
        if relation.name not in told:
            raise ValueError(
                f"extent {text} does not tell {relation.name}: expected an operand whose extent is "
                f"{relation.name} or an exact relation to it, such as 2 * {relation.name}"
            )


def check_operands(operands: tuple[OperandConstraint, ...]) -> None:
    """Refuse operands that do not go together, or too many.

    Names are different, an extent has one width, that of a quotient is told by another, and what scale
    factors scale is there.
    """
    names = {operand.name for operand in operands}
    # No operands at all are allowed: a program's kernel has none, as its compiled code checks the arguments.
    if len(operands) > MAX_OPERANDS or len(names) != len(operands):
        raise ValueError(f"expected at most {MAX_OPERANDS} operands of different names, got {len(operands)}")
    _check_extents(tuple(map(_extents_and_bits, operands)))
    for operand in operands:
        scale = operand.scale
        if scale is not None:
            scaled = next((other.extents for other in operands if other.name == scale.of), ())
            if scale.along not in scaled or scaled == ANY_SHAPE:
                raise ValueError(
                    f"operand {operand.name!r} scales {scale.of!r} along {scale.along}: there is none"
                )


_PLAIN_GEMM = [(BATCH, "M", "K"), (BATCH, "K", "N"), (BATCH, "M", "N")]


def are_plain_gemm(operands: Sequence[OperandConstraint]) -> bool:
    """Whether operands have the extents of A, B and the output of a GEMM, and there are no others."""
    return [operand.extents for operand in operands] == _PLAIN_GEMM


Operands = Annotated[tuple[OperandConstraint, ...], Check(check_operands)]
"""The operands of a kernel, in the order of the call."""

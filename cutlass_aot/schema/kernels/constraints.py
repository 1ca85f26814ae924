"""Constraints of a kernel on its operands, and layouts of scale factors in memory."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from cutlass_aot.schema.codec import OMIT, Check, row
from cutlass_aot.schema.kernels.dtypes import DTYPES

LAYOUT_LETTERS = {-1: "t", -2: "n", 0: "s"}
"""Letters of ``cutlass.operators``: t is row-major (last mode contiguous), n column-major; s is a number."""

BATCH = "L"
"""Name of the batch of a GEMM, the one extent that a caller's tensor may lack; it is 1 then."""

ANY_SHAPE = ("*",)
"""Extents of a compact operand whose number of elements is constrained, not its shape."""

MAX_RANK = 8
"""Modes of an operand; ``MAX_RANK`` of ``builder/native/launcher.c``."""

CALL_NAMES = ("accumulator", "epilogue", "gpu", "operation", "parameters", "stream", "target", "workspace")
"""Arguments of a call that are not operands; no operand can have their names."""

MAX_OPERANDS = 16
"""Operands of a kernel; ``MAX_OPERANDS`` of ``builder/native/launcher.c``."""


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
        dtype: element type (:data:`~cutlass_aot.schema.kernels.dtypes.DTYPES`).
        extents: a name or a fixed number for each mode, outermost first, such as ``("L", "M", "K")``.
            Extents of one name are equal across operands. Where the first is :data:`BATCH`, a tensor without
            that mode counts as a batch of one. Empty for a number, which is passed by value;
            :data:`ANY_SHAPE` for scale factors.
        contiguous: the mode with stride 1, counted from the end (-1 is row-major, -2 column-major); 0 for a
            number.
        divisibility: elements; the contiguous extent and every other stride are multiples of it.
        alignment: bytes; the data pointer is a multiple of it.
        compact: whether there are no gaps: strides are those of
            :func:`~cutlass_aot.schema.kernels.operands.compact_strides`.
        scale: what it scales, if it holds scale factors.
        multiples: a number for each extent, which is a multiple of it, where the kernel moves whole tiles
            without checking the bounds of the operand; empty where it checks them.
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

    @property
    def layout(self) -> str:
        """Its letter of :data:`LAYOUT_LETTERS`."""
        return LAYOUT_LETTERS[self.contiguous]

    @property
    def is_number(self) -> bool:
        """Whether it is passed by value."""
        return not self.extents

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
        if self.dtype not in DTYPES:
            return f"an unknown element type {self.dtype!r}"
        if (
            self.contiguous not in LAYOUT_LETTERS
            or -self.contiguous > rank
            or (rank > 0) != (self.contiguous < 0)
        ):
            return f"an impossible layout: mode {self.contiguous} of {rank}"
        if self.divisibility < 1 or self.alignment < 1 or rank > MAX_RANK:
            return "impossible constraints"
        if any(isinstance(extent, int) and extent < 1 for extent in self.extents):
            return f"impossible extents {self.extents}"
        if self.multiples and (len(self.multiples) != rank or min(self.multiples) < 1):
            return f"impossible multiples {self.multiples}"
        if self.scale is not None and (
            self.scale.block < 1 or self.scale.swizzle not in SWIZZLES or self.extents != ANY_SHAPE
        ):
            return f"impossible scale factors {self.scale}"
        return ""


def _check_operands(operands: tuple[OperandConstraint, ...]) -> None:
    """Refuse too many operands, equal names, or scale factors of an operand or extent that does not exist."""
    extents = {operand.name: operand.extents for operand in operands}
    # No operands at all are allowed: a program's kernel has none, as its compiled code checks the arguments.
    if len(operands) > MAX_OPERANDS or len(extents) != len(operands):
        raise ValueError(f"expected at most {MAX_OPERANDS} operands of different names, got {len(operands)}")
    for operand in operands:
        scale = operand.scale
        scaled = extents.get(scale.of, ()) if scale is not None else ()
        if scale is not None and (scale.along not in scaled or scaled == ANY_SHAPE):
            raise ValueError(
                f"operand {operand.name!r} scales {scale.of!r} along {scale.along}: there is none"
            )


Operands = Annotated[tuple[OperandConstraint, ...], Check(_check_operands)]
"""The operands of a kernel, in the order of the call."""

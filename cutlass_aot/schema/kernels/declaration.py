"""Operands of a kernel that a user declares, and the constraints that follow."""

from collections.abc import Sequence
from dataclasses import dataclass

from cutlass_aot.errors import GeneratorError
from cutlass_aot.schema.kernels.constraints import (
    CALL_NAMES,
    EXTENT_BITS,
    NONE,
    OperandConstraint,
    extent_of,
)
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.words import did_you_mean

VALUE_DTYPES = ("f64", "f32", "i64", "i32")
"""Element types of numbers that are passed by value."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One parameter of a kernel that a user declares: a tensor, a number that is passed by value, or None.

    Attributes:
        name: the caller's name for it.
        dtype: element type, such as ``"bf16"``. None for a parameter that is None in this kernel, when it is
            compiled and at each call; the other attributes say nothing then.
        extents: outermost first: a number for an extent that is compiled in, or a name for one that is known
            at run time; extents of one name are equal. ``"4 * G"`` is four times the extent named G, and
            ``"B + 1"`` one more than B; ``"K / 128"`` is the quotient, rounded up, where K stands in some
            operand too. ``()`` is a number by value: f64, f32, i64 or i32.
        written: whether the kernel writes it.
        alignment: bytes; the data pointer is a multiple of it. 0 is the size of an element.
        divisibility: elements; the contiguous extent and every other stride are multiples of it. 16 bytes of
            elements allow loads of 16 bytes.
        contiguous: the mode with stride 1: -1 is the last (row-major), -2 the last but one (column-major).
        compact: whether the tensor has no gaps; else rows may be padded.
        extent_bits: 32, or 64 where an extent may be 2**31 or more: compiled code then takes them as 64-bit
            integers.
    """

    name: str
    dtype: str | None
    extents: Sequence[str | int]
    written: bool = False
    alignment: int = 0
    divisibility: int = 1
    contiguous: int = -1
    compact: bool = False
    extent_bits: int = 32

    def constraint(self) -> OperandConstraint:
        """The constraint of the kernel's record.

        Raises:
            GeneratorError: if no kernel can have it.
        """
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise GeneratorError(f"operand {self.name!r}: expected a name such as `x`")
        if self.name in CALL_NAMES:
            raise self._refusal(
                f"a call has this name for something else: expected none of {', '.join(CALL_NAMES)}"
            )
        if self.dtype is None:
            return OperandConstraint(
                name=self.name, dtype=NONE, extents=(), contiguous=0, divisibility=1, alignment=1
            )
        dtype = DTYPES.get(self.dtype) if isinstance(self.dtype, str) else None
        if dtype is None:
            raise self._refusal(
                f"unknown element type {self.dtype!r}: expected one of {', '.join(DTYPES)}, or None"
                + did_you_mean(self.dtype, DTYPES)
            )
        if isinstance(self.extents, str) or not isinstance(self.extents, Sequence):
            raise self._refusal(f"extents {self.extents!r}: expected a tuple such as ('T', 128)")
        if not self.extents:
            return self._value(dtype.name)
        extents = tuple(map(self._extent, self.extents))
        for what in ("alignment", "divisibility", "contiguous"):
            if type(getattr(self, what)) is not int:
                raise self._refusal(f"{what} {getattr(self, what)!r}: expected a whole number")
        if self.extent_bits not in EXTENT_BITS:
            raise self._refusal(f"extents of {self.extent_bits!r} bits: expected 32 or 64")
        if self.contiguous not in (-1, -2) or len(extents) < -self.contiguous:
            raise self._refusal(f"contiguous mode {self.contiguous}: expected -1, or -2 of two modes or more")
        # Elements smaller than a byte are aligned to one byte.
        size = max(dtype.bits // 8, 1)
        alignment = self.alignment or size
        if alignment < 1 or alignment & (alignment - 1) or alignment % size:
            raise self._refusal(
                f"alignment of {alignment} bytes: expected a power of two, at least the {size} of an element"
            )
        if self.divisibility < 1:
            raise self._refusal(f"divisibility {self.divisibility}: expected 1 or more")
        fixed = extents[self.contiguous]
        if isinstance(fixed, int) and fixed % self.divisibility:
            raise self._refusal(f"extent {fixed} is not a multiple of its divisibility {self.divisibility}")
        return OperandConstraint(
            name=self.name,
            dtype=dtype.name,
            extents=extents,
            contiguous=self.contiguous,
            divisibility=self.divisibility,
            alignment=alignment,
            written=self.written,
            compact=self.compact,
            extent_bits=self.extent_bits,
        )

    def _extent(self, extent: object) -> str | int:
        """An extent as a record has it."""
        if isinstance(extent, str):
            known = extent_of(extent)
            if known is not None:
                return str(known)
        elif isinstance(extent, int) and not isinstance(extent, bool) and extent >= 1:
            return extent
        raise self._refusal(
            f"extent {extent!r}: expected a name such as 'T', a relation such as '4 * G', 'B + 1' or "
            "'K / 128', or a number above 0"
        )

    def _value(self, dtype: str) -> OperandConstraint:
        if dtype not in VALUE_DTYPES:
            raise self._refusal(f"a number by value is one of {', '.join(VALUE_DTYPES)}, got {dtype}")
        if self.written:
            raise self._refusal("a number by value cannot be written")
        return OperandConstraint(
            name=self.name,
            dtype=dtype,
            extents=(),
            contiguous=0,
            divisibility=1,
            alignment=DTYPES[dtype].bytes,
        )

    def _refusal(self, problem: str) -> GeneratorError:
        return GeneratorError(f"operand `{self.name}`: {problem}")

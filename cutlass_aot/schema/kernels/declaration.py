"""Operands of a kernel that a user declares, and the constraints that follow."""

from collections.abc import Sequence
from dataclasses import dataclass

from cutlass_aot.errors import GeneratorError
from cutlass_aot.schema.kernels.constraints import CALL_NAMES, OperandConstraint
from cutlass_aot.schema.kernels.dtypes import DTYPES

VALUE_DTYPES = ("f32", "i32")
"""Element types of numbers that are passed by value."""


@dataclass(frozen=True, slots=True)
class Operand:
    """One parameter of a kernel that a user declares: a tensor, or a number that is passed by value.

    Attributes:
        name: the caller's name for it.
        dtype: element type, such as ``"bf16"``.
        extents: outermost first: a number for an extent that is compiled in, or a name for one that is known
            at run time; extents of one name are equal. ``()`` is a number by value, f32 or i32.
        written: whether the kernel writes it.
        alignment: bytes; the data pointer is a multiple of it. 0 is the size of an element.
        divisibility: elements; the contiguous extent and every other stride are multiples of it. 16 bytes of
            elements allow loads of 16 bytes.
        contiguous: the mode with stride 1: -1 is the last (row-major), -2 the last but one (column-major).
        compact: whether the tensor has no gaps; else rows may be padded.
    """

    name: str
    dtype: str
    extents: Sequence[str | int]
    written: bool = False
    alignment: int = 0
    divisibility: int = 1
    contiguous: int = -1
    compact: bool = False

    def constraint(self) -> OperandConstraint:
        """The constraint of the kernel's record.

        Raises:
            GeneratorError: if no kernel can have it.
        """
        dtype = DTYPES.get(self.dtype)
        if not isinstance(self.name, str) or not self.name.isidentifier():
            raise GeneratorError(f"operand {self.name!r}: expected a name such as `x`")
        if self.name in CALL_NAMES:
            raise self._refusal(
                f"a call has this name for something else: expected none of {', '.join(CALL_NAMES)}"
            )
        if dtype is None:
            raise self._refusal(f"unknown element type {self.dtype!r}: expected one of {', '.join(DTYPES)}")
        extents = tuple(self.extents)
        if not extents:
            return self._value()
        for extent in extents:
            is_name = isinstance(extent, str) and extent.isidentifier()
            is_number = isinstance(extent, int) and not isinstance(extent, bool) and extent >= 1
            if not is_name and not is_number:
                raise self._refusal(f"extent {extent!r}: expected a name such as 'T', or a number above 0")
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
            dtype=self.dtype,
            extents=extents,
            contiguous=self.contiguous,
            divisibility=self.divisibility,
            alignment=alignment,
            written=self.written,
            compact=self.compact,
        )

    def _value(self) -> OperandConstraint:
        if self.dtype not in VALUE_DTYPES:
            raise self._refusal(f"a number by value is one of {', '.join(VALUE_DTYPES)}, got {self.dtype}")
        if self.written:
            raise self._refusal("a number by value cannot be written")
        return OperandConstraint(
            name=self.name,
            dtype=self.dtype,
            extents=(),
            contiguous=0,
            divisibility=1,
            alignment=DTYPES[self.dtype].bytes,
        )

    def _refusal(self, problem: str) -> GeneratorError:
        return GeneratorError(f"operand `{self.name}`: {problem}")

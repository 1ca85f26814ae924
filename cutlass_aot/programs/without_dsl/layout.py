"""The layout of a framework tensor, which the DSL makes dynamic and writes as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cutlass_aot.programs.without_dsl.placeholders import refuse


class _Extent(NamedTuple):
    """An extent or a stride, static or dynamic; a dynamic one is a multiple of its divisibility."""

    value: int
    dynamic: bool = False
    divisibility: int = 1

    def text(self, width: int = 32) -> str:
        if not self.dynamic:
            return str(self.value)
        said = [f"i{width}"] * (width != 32) + [f"div={self.divisibility}"] * (self.divisibility != 1)
        return f"?{{{' '.join(said)}}}" if said else "?"


class Layout:
    """The layout of a framework tensor, at first all static."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int], space: str, stride_bits: int) -> None:
        self._sizes, self._steps = tuple(shape), tuple(strides)
        self._shape = [_Extent(size) for size in shape]
        self._strides = [_Extent(step) for step in strides]
        self._space, self._bits = space, stride_bits
        self._is_compact = False

    def __str__(self) -> str:
        shape = ",".join(extent.text() for extent in self._shape)
        strides = ",".join(extent.text(self._bits) for extent in self._strides)
        return f"{self._space} o ({shape}):({strides})"

    def all_dynamic(self, leading: int | None) -> None:
        """Make all extents dynamic, and all strides but the leading dimension's, which is 1."""
        if self._is_compact or (0 in self._sizes and self._bits == 32):
            refuse(f"mark_layout_dynamic of {self}")
        if leading is None:
            leading = self._leading()
        elif not -len(self._steps) <= leading < len(self._steps):
            raise RuntimeError(f"there is no dimension {leading} of {len(self._steps)}")
        elif self._steps[leading] != 1:
            raise RuntimeError(f"Expected strides[leading_dim] == 1, but got {self._steps[leading]}.")
        elif leading < 0:
            refuse(f"mark_layout_dynamic(leading_dim={leading})")
        self._shape = [_Extent(size, True) for size in self._sizes]
        self._strides = [
            _Extent(1) if index == leading else _Extent(0) if step == 0 else _Extent(step, True)
            for index, step in enumerate(self._steps)
        ]

    def _leading(self) -> int | None:
        ones = [index for index, step in enumerate(self._steps) if step == 1]
        if len(ones) > 1:
            ones = [index for index in ones if self._sizes[index] > 1]
            if len(ones) != 1:
                raise RuntimeError("The leading dimension could not be deduced: several strides are 1")
        return ones[0] if ones else None

    def compact_dynamic(self, mode: int, order: Sequence[int] | None, divisibility: int) -> None:
        """Make the extent of dimension ``mode`` dynamic; the strides follow from the extents.

        ``order`` has the dimensions, the outermost first; None to take it from the strides.
        """
        if not 0 <= mode < len(self._sizes):
            raise RuntimeError(f"there is no mode {mode} of {len(self._sizes)}")
        if self._sizes[mode] % divisibility:
            raise RuntimeError(
                f"The shape({self._sizes[mode]}) of mode({mode}) is not divisible by the divisibility"
                f"({divisibility})."
            )
        order = self._order(mode) if order is None else self._checked(order)
        self._is_compact = True
        self._shape[mode] = _Extent(self._sizes[mode], True, divisibility)
        step = _Extent(1)
        for index in reversed(order):
            extent = self._shape[index]
            alone = not extent.dynamic and extent.value == 1
            self._strides[index] = _Extent(0) if alone else step
            # A static extent's own value divides the stride, a dynamic one's given divisibility.
            known = extent.divisibility if extent.dynamic else extent.value
            before = step.divisibility if step.dynamic else step.value
            dynamic = step.dynamic or extent.dynamic
            step = _Extent(step.value * extent.value, dynamic, before * known if dynamic else 1)

    def _order(self, mode: int) -> Sequence[int]:
        """Dimensions in the order of their strides, which must be those of a compact layout.

        Static extents of 1 are ignored. The DSL finds no order if one of them has stride 1, or if there are
        two of them and any equal strides.
        """
        ones = [index for index, size in enumerate(self._sizes) if size == 1]
        order = sorted(
            (index for index in range(len(self._sizes)) if index not in ones),
            key=lambda index: -self._steps[index],
        )
        steps = [self._steps[index] for index in ones]
        taken = mode in ones or any(self._shape[index].dynamic for index in ones)
        is_known = not taken and 1 not in steps
        is_known = is_known and (len(ones) < 2 or len({*self._steps}) == len(self._steps))
        step = 1
        for index in reversed(order):
            is_known = is_known and self._steps[index] == step and self._sizes[index] > 1
            step *= self._sizes[index]
        if not is_known:
            refuse(
                f"mark_compact_shape_dynamic without stride_order, of shape {self._sizes} and "
                f"strides {self._steps}"
            )
        return [*ones, *order]

    def _checked(self, order: Sequence[int]) -> Sequence[int]:
        if sorted(order) != list(range(len(self._sizes))):
            raise RuntimeError(f"stride_order {tuple(order)} is not an order of {len(self._sizes)} modes")
        step = 1
        for index in reversed(order):
            if self._sizes[index] > 1 and self._steps[index] != step:
                raise RuntimeError("The stride_order is not consistent with the layout")
            if self._steps[index] != step:
                # The DSL's stride for an extent of 1 depends on the other dimensions.
                refuse(f"mark_compact_shape_dynamic of shape {self._sizes} and strides {self._steps}")
            step *= self._sizes[index]
        if any(size < 1 for size in self._sizes):
            refuse(f"mark_compact_shape_dynamic of shape {self._sizes}")
        return order

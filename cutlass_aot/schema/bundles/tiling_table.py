"""The tilings of a group's kernels as one array, which native code reads as it is.

A row has unsigned integers of 32 bits, little-endian: a kernel's position in the group's index, then its
tiling, in the order of the fields of :class:`.Tiling`, the last as its position among ``kinds``. Rows are in
the order in which kernels of equal time are preferred: by :attr:`.Tiling.preference`, then by position.
"""

import sys
from array import array
from collections.abc import Sequence

from cutlass_aot.schema.kernels.tiling import Tiling

_COLUMNS = ("position", *Tiling._fields)
_WIDTH = len(_COLUMNS)
_PLACES = {name: place for place, name in enumerate(_COLUMNS)}
_POSITIVE = range(_PLACES["cluster_m"], _PLACES["blocks_per_sm"] + 1)
_MOST = (1 << 32) - 1


class TilingTable:
    """A table of tilings.

    Args:
        rows: its bytes.
        kinds: each :attr:`.Tiling.kind` once.

    Raises:
        ValueError: if they cannot be those of :meth:`of`.
    """

    def __init__(self, rows: bytes, kinds: Sequence[str]) -> None:
        if not isinstance(rows, bytes):
            raise TypeError("expected bytes")
        self.rows = rows
        self.kinds = tuple(kinds)
        self._numbers = array("I", rows)
        if sys.byteorder == "big":
            self._numbers.byteswap()
        positions = self.column("position")
        # Rows of another width come out here, too.
        if len(self._numbers) % _WIDTH or set(positions) != set(range(len(positions))):
            raise ValueError(f"the tilings of {len(positions)} kernels are not one row of each")
        if rows and (
            not all(map(all, (self._numbers[place::_WIDTH] for place in _POSITIVE)))
            or max(self.column("kind")) >= len(self.kinds)
        ):
            raise ValueError("an impossible tiling")

    @classmethod
    def of(cls, tilings: Sequence[Tiling]) -> "TilingTable":
        """The table of kernels, whose tilings are in the order of the group's index."""
        kinds = sorted({tiling.kind for tiling in tilings})
        numbers = array("I")
        for position, tiling in sorted(enumerate(tilings), key=lambda item: item[1].preference):
            *extents, kind = tiling
            # Larger numbers occur only in designs that no GPU can run.
            numbers.extend((position, *(min(extent, _MOST) for extent in extents), kinds.index(kind)))
        if sys.byteorder == "big":
            numbers.byteswap()
        return cls(numbers.tobytes(), kinds)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TilingTable):
            return NotImplemented
        return (self.rows, self.kinds) == (other.rows, other.kinds)

    def __hash__(self) -> int:
        return hash((self.rows, self.kinds))

    def column(self, name: str) -> Sequence[int]:
        """``position``, or a number of the tilings, of each row."""
        return self._numbers[_PLACES[name] :: _WIDTH]

    def position(self, row: int) -> int:
        """The kernel's position in the group's index, of one row."""
        return self._numbers[row * _WIDTH]

    def tilings(self) -> tuple[Tiling, ...]:
        """The tiling of each row."""
        columns = [self.column(name) for name in Tiling._fields]
        columns[-2:] = [map(bool, columns[-2]), map(self.kinds.__getitem__, columns[-1])]  # type: ignore[list-item]
        return tuple(map(Tiling._make, zip(*columns, strict=True)))

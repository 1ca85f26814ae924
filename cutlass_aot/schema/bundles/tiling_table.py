"""The tilings of a group's kernels as one array, which native code reads as it is.

A row has unsigned integers of 32 bits, little-endian: a kernel's position in the group's index, then its
tiling, in the order of the fields of :class:`.Tiling`, the last as its position among ``kinds``. Rows are in
the order in which kernels of equal time are preferred: by :attr:`.Tiling.preference`, then by position.
"""

import sys
from array import array
from collections.abc import Sequence

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.kernels.tiling import Tiling

_COLUMNS = ("position", *Tiling._fields)
_WIDTH = len(_COLUMNS)
_PLACES = {name: place for place, name in enumerate(_COLUMNS)}
_POSITIVE = range(_PLACES["cluster_m"], _PLACES["blocks_per_sm"] + 1)
_MOST = (1 << 32) - 1


class TilingTable:
    """A table of tilings, checked when Python first reads it: native code checks what it reads itself.

    Args:
        rows: its bytes.
        kinds: each :attr:`.Tiling.kind` once.
        what: names the table in errors.

    Raises:
        ValueError: if there are not whole rows; CorruptFile, when they are read, if they cannot be those of
            :meth:`of`.
    """

    def __init__(self, rows: bytes, kinds: Sequence[str], what: str = "a table of tilings") -> None:
        if not isinstance(rows, bytes):
            raise TypeError("expected bytes")
        self.rows = rows
        self.kinds = tuple(kinds)
        self._what = what
        self._checked = False
        self._numbers = array("I", rows)
        if sys.byteorder == "big":
            self._numbers.byteswap()
        if len(self._numbers) % _WIDTH:
            raise ValueError(f"{len(self._numbers)} numbers of tilings are not whole rows")

    def __len__(self) -> int:
        return len(self._numbers) // _WIDTH

    def _check(self) -> None:
        """Refuse rows that are not one of each kernel, and impossible ones."""
        if self._checked:
            return
        if sorted(self._column("position")) != list(range(len(self))):
            raise self._malformed(f"the tilings of {len(self)} kernels are not one row of each")
        possible = all(map(all, (self._numbers[place::_WIDTH] for place in _POSITIVE)))
        if not possible or max(self._column("kind"), default=-1) >= len(self.kinds):
            raise self._malformed("an impossible tiling")
        self._checked = True

    def _malformed(self, problem: str) -> CorruptFile:
        return CorruptFile(f"{self._what} is malformed: {problem}")

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
        self._check()
        return self._column(name)

    def _column(self, name: str) -> Sequence[int]:
        return self._numbers[_PLACES[name] :: _WIDTH]

    def position(self, row: int) -> int:
        """The kernel's position in the group's index, of one row; no others are checked."""
        position = self._numbers[row * _WIDTH]
        if position >= len(self):
            raise self._malformed(f"a tiling of kernel {position} of {len(self)}")
        return position

    def clusters(self) -> frozenset[tuple[int, int]]:
        """Sizes of clusters, in blocks, each with a number of them that kernels have compiled in, or 0."""
        found = frozenset(zip(self._column("blocks"), self._column("active_clusters"), strict=True))
        if not all(blocks for blocks, _ in found):
            raise self._malformed("an impossible tiling")
        return found

    def tilings(self) -> tuple[Tiling, ...]:
        """The tiling of each row."""
        self._check()
        columns = [self._column(name) for name in Tiling._fields]
        columns[-2:] = [map(bool, columns[-2]), map(self.kinds.__getitem__, columns[-1])]  # type: ignore[list-item]
        return tuple(map(Tiling._make, zip(*columns, strict=True)))

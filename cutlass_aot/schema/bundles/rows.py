"""Rows of an index, each of which begins with a digest and is decoded when it is first asked for."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, TypeVar

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.encoding import MALFORMED

_DIGEST_BYTES = 32
T = TypeVar("T")


class Rows(Sequence[T]):
    """Records of a file, by position and by digest.

    Args:
        rows: a list for each record, with the record's digest first.
        columns: the length of each.
        what: how to call the file in an error.

    Raises:
        CorruptFile: if a row is of another length or has no digest; one that is malformed otherwise raises
            when it is asked for.
    """

    def __init__(self, rows: Any, columns: int, what: str) -> None:
        self._what = what
        try:
            self._rows: list[Any] = list(rows)
            for row in self._rows:
                if len(row) != columns or not isinstance(row[0], bytes) or len(row[0]) != _DIGEST_BYTES:
                    raise ValueError("a row of another length, or without a digest")
        except MALFORMED as error:
            raise CorruptFile(f"{what} is malformed: {error!r}") from None
        self._decoded: dict[int, T] = {}
        self._positions: dict[bytes, int] | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        found = self._decoded.get(position)
        if found is None:
            found = self._decoded[position] = self._decode(position)
        return found

    @abstractmethod
    def _decode(self, position: int) -> T:
        """The record at a position; raises CorruptFile if its row is malformed."""

    def digest(self, position: int) -> str:
        """Digest of a record, without decoding it."""
        value: bytes = self._rows[position][0]
        return value.hex()

    def position(self, digest: str) -> int | None:
        """Where the record with this digest stands; None if there is none."""
        if self._positions is None:
            self._positions = {row[0]: position for position, row in enumerate(self._rows)}
        return self._positions.get(bytes.fromhex(digest))

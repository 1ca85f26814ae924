"""Rows of an index: each begins with a digest and is decoded when it is first needed."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Generic, TypeVar, get_args

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.codec import Codec, Form, from_plain
from cutlass_aot.schema.encoding import MALFORMED

_DIGEST_BYTES = 32
R = TypeVar("R")
T = TypeVar("T")


def _digest_text(data: Any, _what: str) -> str:
    if not isinstance(data, bytes) or len(data) != _DIGEST_BYTES:
        raise ValueError(f"expected a digest of {_DIGEST_BYTES} bytes")
    return data.hex()


BinaryDigest = Annotated[str, Form(lambda _: Codec(_digest_text, bytes.fromhex))]
"""A SHA-256 in hexadecimal, stored as its 32 bytes."""


class Rows(Sequence[T], Generic[R, T]):
    """Records of a file, by position and by digest.

    Each of ``rows`` is a list of type ``kind`` (a ``tuple[...]``) that begins with the record's digest. A row
    of another length or without a digest is a CorruptFile at once, any other malformed row when it is needed.
    """

    def __init__(self, rows: Any, kind: Any, what: str) -> None:
        self._kind = kind
        self._what = what
        columns = len(get_args(kind))
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
            row = self._row(position)
            try:
                found = self._decoded[position] = self._record(position, row)
            except MALFORMED as error:
                raise CorruptFile(f"{self._what} is malformed: {error!r}") from None
        return found

    def _row(self, position: int) -> R:
        """A row, whose values are of the types that they should be."""
        row: R = from_plain(self._kind, self._rows[position], self._what)
        return row

    @abstractmethod
    def _record(self, position: int, row: R) -> T:
        """The record of a row; raises an error of :data:`.MALFORMED` if the row is impossible."""

    def digest(self, position: int) -> str:
        """Digest of a record, without decoding it."""
        value: bytes = self._rows[position][0]
        return value.hex()

    def position(self, digest: str) -> int | None:
        """Position of the record with this digest; None if there is none."""
        if self._positions is None:
            self._positions = {row[0]: position for position, row in enumerate(self._rows)}
        return self._positions.get(bytes.fromhex(digest))

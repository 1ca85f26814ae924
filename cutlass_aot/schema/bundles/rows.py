"""Rows of an index: found by a digest, and decoded when they are first needed."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, Generic, TypeVar

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.codec import Codec, Form, codec_of, from_plain
from cutlass_aot.schema.encoding import MALFORMED, decode, encode

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

    Args:
        body: has ``digests``, those of all records one after the other, and ``rows``, each encoded.
        kind: of a decoded row, a ``tuple[...]``.
        what: names the file in errors.

    Raises:
        CorruptFile: if ``body`` is not so; for a malformed row, when it is needed.
    """

    def __init__(self, body: Any, kind: Any, what: str) -> None:
        self._kind = kind
        self._what = what
        try:
            self._digests: bytes = body["digests"]
            self._rows: list[bytes] = body["rows"]
            if not isinstance(self._digests, bytes) or not isinstance(self._rows, list):
                raise TypeError("expected bytes and a list")
        except MALFORMED as error:
            raise CorruptFile(f"{what} is malformed: {error!r}") from None
        if len(self._digests) != _DIGEST_BYTES * len(self._rows):
            found = f"{len(self._digests)} bytes of digests for {len(self)} rows"
            raise CorruptFile(f"{what} is malformed: {found}")
        self._decoded: dict[int, T] = {}

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
        row: R = from_plain(self._kind, self._plain(position), self._what)
        return row

    def _plain(self, position: int) -> Any:
        """A row as it was decoded, whatever it is."""
        data = self._rows[position]
        if not isinstance(data, bytes):
            raise CorruptFile(f"{self._what} is malformed: row {position} is not bytes")
        return decode(data, f"{self._what}: row {position}")

    @abstractmethod
    def _record(self, position: int, row: R) -> T:
        """The record of a row; raises an error of :data:`.MALFORMED` if the row is impossible."""

    def digest(self, position: int) -> str:
        """Digest of a record, without decoding it."""
        return self._digests[_DIGEST_BYTES * position : _DIGEST_BYTES * (position + 1)].hex()

    def position(self, digest: str) -> int | None:
        """Position of the record with this digest; None if there is none."""
        sought = bytes.fromhex(digest)
        # Bytes of two digests, one after the other, may look like a third.
        place = self._digests.find(sought)
        while place % _DIGEST_BYTES and place >= 0:
            place = self._digests.find(sought, place + 1)
        return place // _DIGEST_BYTES if sought and place >= 0 else None


def rows_to_plain(kind: Any, digests: Sequence[str], rows: Sequence[Any]) -> dict[str, Any]:
    """What :class:`Rows` reads, of the records' digests and their rows of type ``kind``."""
    codec = codec_of(kind)
    return {
        "digests": b"".join(map(bytes.fromhex, digests)),
        "rows": [encode(codec.to_plain(row)) for row in rows],
    }

"""A record as it is kept: what a key stands for, and which blobs it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.encoding import seal, unseal
from cutlass_aot.store.layout import DIGEST, MAX_BLOB_BYTES, SCHEMA


@dataclass(frozen=True, slots=True)
class Record:
    """One record.

    Attributes:
        kind: ``kernel``, ``library``, ``plan`` and so on.
        key: is in the file too, so that a file that was renamed or copied is not taken for another record.
        body: plain data.
        blobs: blobs without which it is useless: digest to size in bytes, uncompressed.
    """

    kind: str
    key: str
    body: Any
    blobs: Mapping[str, int] = field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The record's file."""
        content = {"key": self.key, "blobs": self.blobs, "body": self.body}
        return seal(f"cutlass-aot {self.kind} record", SCHEMA, content)

    @classmethod
    def from_bytes(cls, data: bytes, kind: str, key: str, what: str) -> Record:
        """Read a record's file."""
        content = unseal(data, f"cutlass-aot {kind} record", SCHEMA, what)
        if not isinstance(content, dict) or content.get("key") != key:
            raise CorruptFile(f"{what} is not the record of this key")
        blobs = content.get("blobs")
        if not isinstance(blobs, dict) or not all(_is_blob(*item) for item in blobs.items()):
            raise CorruptFile(f"{what} does not say which blobs it needs")
        return cls(kind, key, content.get("body"), blobs)


def _is_blob(sha256: object, size: object) -> bool:
    return (
        isinstance(sha256, str)
        and DIGEST.fullmatch(sha256) is not None
        and type(size) is int
        and 0 <= size <= MAX_BLOB_BYTES
    )

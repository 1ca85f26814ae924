"""Blobs as they are kept: one zstd frame each, opened within bounds and verified."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from typing import BinaryIO

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.compression import compress, decompress
from cutlass_aot.store.layout import MAX_BLOB_BYTES

OBJECT_LEVEL = 15
"""For objects of some 60 KB: 5 ms each. ``tools/bench/size.py --part levels`` prints what each comes to."""
PACKED_LEVEL = 1
"""For what is compressed already: code and libraries as bundles have them."""


def packed(data: bytes, level: int) -> bytes:
    """Compress a blob."""
    return compress(data, level)


def packed_bound(size: int) -> int:
    """Most bytes that a blob of ``size`` bytes has when compressed."""
    return size + size // 128 + 1024


def unpacked(source: BinaryIO, limit: int = MAX_BLOB_BYTES) -> Iterator[bytes]:
    """Open a blob, piece by piece.

    Args:
        source: exactly one frame.
        limit: most bytes it may hold.

    Raises:
        CorruptFile: if it is not a frame, cut short, followed by something, or holds more.
    """
    return decompress(source, limit)


def opened(data: bytes, sha256: str, size: int | None = None) -> bytes:
    """The verified bytes of a blob.

    Args:
        data: its file.
        sha256: its digest.
        size: how many bytes it has to hold, where that is known: no more are opened.

    Raises:
        CorruptFile: if what it holds has another digest, or another size.
    """
    content = b"".join(unpacked(io.BytesIO(data), MAX_BLOB_BYTES if size is None else size))
    if size is not None and len(content) != size:
        raise CorruptFile(f"it holds {len(content)} bytes instead of {size}")
    check_digest(hashlib.sha256(content).hexdigest(), sha256)
    return content


def check_digest(found: str, sha256: str) -> None:
    """Hold the digest of what a blob holds against its name.

    Raises:
        CorruptFile: if they differ.
    """
    if found != sha256:
        raise CorruptFile(f"bytes of digest {found}")

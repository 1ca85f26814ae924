"""Files of blobs: one zstd frame each, decompressed within bounds and verified."""

from __future__ import annotations

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.compression import decompressed
from cutlass_aot.schema.encoding import digest
from cutlass_aot.store.layout import MAX_BLOB_BYTES

LEVEL = 15
"""For objects of some 60 KB: 5 ms each. ``tools/bench/size.py --part levels`` prints what each comes to."""

# A frame's magic number, its descriptor (the content's size has 8 bytes), and a window of 131 KB, the most
# that a block may have.
_RAW_FRAME = bytes.fromhex("28b52ffd c0 38")
_BLOCK = 1 << 17


def raw_frame(data: bytes) -> bytes:
    """A frame of uncompressed blocks, for data that are compressed already.

    Format: raw blocks, RFC 8878, sections 3.1.1.1 and 3.1.1.2.
    """
    pieces = [_RAW_FRAME, len(data).to_bytes(8, "little")]
    for start in range(0, max(len(data), 1), _BLOCK):
        block = data[start : start + _BLOCK]
        last = start + _BLOCK >= len(data)
        pieces += [(len(block) << 3 | last).to_bytes(3, "little"), block]
    return b"".join(pieces)


def frame_bound(size: int) -> int:
    """Most bytes of the frame of a blob of ``size`` bytes."""
    return size + size // 128 + 1024


def opened(data: bytes, sha256: str, size: int | None = None) -> bytes:
    """The verified bytes of a blob whose file is ``data``; no more than a known ``size`` is decompressed."""
    content = decompressed(data, MAX_BLOB_BYTES if size is None else size)
    if size is not None and len(content) != size:
        raise CorruptFile(f"it holds {len(content)} bytes instead of {size}")
    check_digest(digest(content), sha256)
    return content


def check_digest(found: str, sha256: str) -> None:
    """Check the digest of a blob's contents against its name."""
    if found != sha256:
        raise CorruptFile(f"bytes of digest {found}")

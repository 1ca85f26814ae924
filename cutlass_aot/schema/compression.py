"""zstd frames: written so that equal contents give equal bytes, opened within bounds.

Format: RFC 8878. A frame is opened in small steps, so that a small one that claims to hold much costs little
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

from cutlass_aot.errors import CorruptFile

MAX_WINDOW_LOG = 27
"""Bytes, as a power of two, that a frame may refer back to: all of what large groups come to."""

_STEP = 1 << 10  # A block has at least three bytes and gives at most 128 KiB: 43 MB a step at the very worst.


def compress(data: bytes, level: int, *, whole: bool = False) -> bytes:
    """One frame.

    Args:
        data: what it holds.
        level: how hard to try, 1 to 22.
        whole: let each part refer to any other, however far; whoever opens it needs that much memory.
    """
    import zstandard

    if not whole:
        return zstandard.ZstdCompressor(level=level).compress(data)
    window = min(max(len(data).bit_length(), 10), MAX_WINDOW_LOG)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, window_log=window, source_size=len(data), write_content_size=1
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(data)


def decompress(source: BinaryIO, limit: int, *, window_log: int = MAX_WINDOW_LOG) -> Iterator[bytes]:
    """Open a frame, piece by piece.

    Args:
        source: exactly one frame.
        limit: most bytes it may hold.
        window_log: most that it may refer back to, as a power of two of bytes: memory that this takes.

    Raises:
        CorruptFile: if it is no frame, cut short, followed by something, or holds more.
    """
    import zstandard

    frame = zstandard.ZstdDecompressor(max_window_size=1 << window_log).decompressobj()
    count = 0
    try:
        while not frame.eof:
            step = source.read(_STEP)
            if not step:
                raise CorruptFile("it is cut short")
            piece = frame.decompress(step)
            count += len(piece)
            if count > limit:
                raise CorruptFile(f"it holds more than {limit} bytes")
            if piece:
                yield piece
    except zstandard.ZstdError as error:
        raise CorruptFile(f"it is no zstd frame ({error})") from None
    if frame.unused_data or source.read(1):
        raise CorruptFile("something follows its end")


def decompressed(data: bytes, limit: int) -> bytes:
    """What a frame holds, at once: for what is small enough to be had whole.

    Args:
        data: exactly one frame, which says how much it holds.
        limit: most bytes it may hold: memory that this takes, whatever the frame says.

    Raises:
        CorruptFile: if it is no frame, cut short, followed by something, or holds more.
    """
    import zstandard

    try:
        size = zstandard.frame_content_size(data)
        if size > limit:
            raise CorruptFile(f"it holds more than {limit} bytes")
        if size < 0:
            raise CorruptFile("it is a zstd frame that does not say how much it holds")
        whole: bytes = zstandard.ZstdDecompressor(max_window_size=1 << MAX_WINDOW_LOG).decompress(
            data, max_output_size=size, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise CorruptFile(f"it is no whole zstd frame ({error})") from None
    if len(whole) != size:
        raise CorruptFile(f"it holds {len(whole)} bytes, and says {size}")
    return whole

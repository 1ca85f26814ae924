"""zstd frames: written so that equal contents give equal bytes, opened within bounds.

Format: RFC 8878. A frame is opened in small steps, so that a small one that claims to hold much costs little
memory.
"""

from collections.abc import Iterator
from typing import BinaryIO

from cutlass_aot.errors import CorruptFile

MAX_WINDOW_LOG = 22
"""Bytes, as a power of two, that a frame may refer back to: about 80 kernels. Whoever opens one needs that
much memory, and time to touch it: ``tools/bench/size.py --part units`` prints what other numbers come to."""

# A block has at least three bytes and gives at most 128 KiB: 43 MB a step at the very worst.
_STEP = 1 << 10
# Memory of this size is used again; the package's 128 KiB are taken from the system each time.
_OUTPUT_STEP = 1 << 15


def compress(data: bytes, level: int, *, window_log: int = MAX_WINDOW_LOG) -> bytes:
    """One frame, which says how much it holds.

    Args:
        data: what it holds.
        level: how hard to try, 1 to 22.
        window_log: most that it refers back to, as a power of two of bytes.
    """
    import zstandard

    window = min(max(len(data).bit_length(), 10), window_log)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, window_log=window, source_size=len(data), write_content_size=1
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(data)


def decompress(source: BinaryIO, limit: int) -> Iterator[bytes]:
    """Open a frame, piece by piece.

    Args:
        source: exactly one frame.
        limit: most bytes it may hold.

    Raises:
        CorruptFile: if it is not a frame, cut short, followed by something, or holds more.
    """
    import zstandard

    opener = zstandard.ZstdDecompressor(max_window_size=1 << MAX_WINDOW_LOG)
    frame = opener.decompressobj(write_size=_OUTPUT_STEP)
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
        raise CorruptFile(f"it is not a zstd frame ({error})") from None
    if frame.unused_data or source.read(1):
        raise CorruptFile("something follows its end")


def decompressed(data: bytes, limit: int) -> bytes:
    """What a frame holds, at once: for what is small enough to be had whole.

    Args:
        data: exactly one frame, which says how much it holds.
        limit: most bytes it may hold: memory that this takes, whatever the frame says.

    Raises:
        CorruptFile: if it is not a frame, cut short, followed by something, or holds more.
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
        raise CorruptFile(f"it is not a whole zstd frame ({error})") from None
    if len(whole) != size:
        raise CorruptFile(f"it holds {len(whole)} bytes, and says {size}")
    return whole

"""zstd frames: equal contents give equal bytes, and opening one takes bounded memory.

Format: RFC 8878. A frame is opened in small steps, so that a small one with large contents costs little
memory.
"""

from collections.abc import Iterator
from typing import BinaryIO

from cutlass_aot.errors import CorruptFile

MAX_WINDOW_LOG = 22
"""Log2 of the bytes that a frame may refer back to: about 80 kernels. Opening a frame needs that much memory,
and time to touch it: ``tools/bench/size.py --part units`` prints the figures of other values."""

MOST_SMALL = 1 << 24
MOST_TIMES = 1 << 8
"""What frames may unpack to together: this many bytes, and this many times their own size. Code of kernels
unpacks to 5 to 30 times its size; a frame made for it, to 30,000 times."""

# A block has at least three bytes and gives at most 131 KB: at most 43 MB a step.
_STEP = 1 << 10
# The allocator reuses memory of this size; zstandard's default of 131 KB is taken from the system each time.
_OUTPUT_STEP = 1 << 15


class Unpacking:
    """Bounds what all frames of one origin unpack to together, by the bytes that they have themselves."""

    def __init__(self, packed: int) -> None:
        self._most = self._left = MOST_SMALL + MOST_TIMES * packed

    def bound(self, most: int) -> int:
        """The bytes that the next frame may unpack to, at most ``most``."""
        return min(most, self._left)

    def take(self, size: int) -> None:
        """Count bytes that were unpacked, or will be; a CorruptFile if they are too many."""
        if size > self._left:
            raise CorruptFile(f"it and what was unpacked before it hold more than {self._most} bytes")
        self._left -= size


def compress(data: bytes, level: int, *, window_log: int = MAX_WINDOW_LOG) -> bytes:
    """One frame, which declares the size of its contents; ``level`` is from 1 to 22.

    ``window_log`` is the log2 of the bytes that it may refer back to.
    """
    import zstandard

    window = min(max(len(data).bit_length(), 10), window_log)
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, window_log=window, source_size=len(data), write_content_size=1
    )
    return zstandard.ZstdCompressor(compression_params=parameters).compress(data)


def decompress(source: BinaryIO, limit: int) -> Iterator[bytes]:
    """Open a frame of at most ``limit`` bytes, piece by piece.

    Data that is not one whole frame, or holds more, is a CorruptFile.
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
    """The contents of a frame that declares their size, all at once.

    It takes at most ``limit`` bytes of memory, whatever the frame declares. Data that is not one whole frame,
    or holds more, is a CorruptFile.
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

"""GPU code of a bundle: unpacked when the first of it is needed, each kernel's verified when it is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cutlass_aot.errors import CorruptFile
from cutlass_aot.runtime import cache
from cutlass_aot.runtime.files import read_file
from cutlass_aot.schema.catalog import MAX_FILE_BYTES, FileReference
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.group_index import CodeSpan


class Code:
    """The GPU code of one group or several, which share a file.

    It is unpacked into a file that processes share (:mod:`~cutlass_aot.runtime.cache`), or else into memory
    of this one.

    Args:
        root: the bundle.
        reference: the packed file.
    """

    def __init__(self, root: Path, reference: FileReference) -> None:
        self._root = root
        self._reference = reference
        # Made without a lock, which a forked child could inherit held: what two threads make at once is
        # equal.
        self._cached: cache.Cached | None = None
        self._unpacked: bytes | None = None

    @property
    def kept(self) -> Path | None:
        """The file it is unpacked in; None if that is memory, or nothing was needed yet."""
        return None if self._cached is None else self._cached.path

    def read(self, span: CodeSpan) -> bytes:
        """The code of one kernel.

        Raises:
            CorruptFile: if the packed file is not what its digest says, or does not hold this.
            BundleError: if it cannot be read.
        """
        if self._cached is None and self._unpacked is None:
            self._cached = self._shared(span)
        if self._cached is not None:
            data = os.pread(self._cached.descriptor, span.size, span.offset)
            if digest(data) == span.sha256:
                return data
            # Somebody has altered it: the bundle still has what is right.
            cache.forget(self._cached.path)
            os.close(self._cached.descriptor)
            self._cached = None
        if self._unpacked is None:
            self._unpacked = b"".join(self._pieces())
        data = self._unpacked[span.offset : span.offset + span.size]
        found = digest(data)
        if found != span.sha256:
            raise CorruptFile(
                f"{self._root / self._reference.path}: GPU code at byte {span.offset} has SHA-256 {found}, "
                f"expected {span.sha256}: code and index do not belong together, build the bundle again"
            )
        return data

    def fill(self, folder: Path) -> Path:
        """Unpack it into a directory, whatever is there under its name.

        Args:
            folder: to become what processes share.

        Returns:
            The file.

        Raises:
            CorruptFile: if the packed file is not what its digest says.
            BundleError: if it cannot be read, or the directory cannot be written.
        """
        return cache.fill(folder, self._reference.sha256, self._pieces)

    def _shared(self, span: CodeSpan) -> cache.Cached | None:
        return cache.cached(self._reference.sha256, span.offset + span.size, self._pieces)

    def _pieces(self) -> Iterator[bytes]:
        """What the packed file holds, from bytes that were verified."""
        # Here, and not above: what is in the shared directory needs no zstandard.
        import io

        from cutlass_aot.schema.compression import decompress

        data = read_file(self._root, self._reference)
        try:
            yield from decompress(io.BytesIO(data), MAX_FILE_BYTES)
        except CorruptFile as error:
            raise CorruptFile(
                f"{self._root / self._reference.path}: {error}: build or fetch the bundle again"
            ) from None

    def __del__(self) -> None:
        if self._cached is not None:
            with suppress(OSError):
                os.close(self._cached.descriptor)

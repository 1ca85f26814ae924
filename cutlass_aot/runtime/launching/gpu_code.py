"""GPU code of a bundle: unpacked as a whole at the first use, and verified kernel by kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from cutlass_aot.errors import CorruptFile
from cutlass_aot.runtime.files.verified_read import read_file
from cutlass_aot.runtime.launching import code_cache
from cutlass_aot.schema.bundles.catalog import MAX_FILE_BYTES, FileReference
from cutlass_aot.schema.bundles.group_index import CodeSpan
from cutlass_aot.schema.encoding import digest


class Code:
    """The GPU code of one or more groups that share a file.

    It is unpacked into a file that processes share (:mod:`~.code_cache`), or else into the memory of this
    process. May be used from several threads, which may do the same work twice.
    """

    def __init__(self, root: Path, reference: FileReference) -> None:
        self._root = root
        self._reference = reference
        # Without a lock, which a forked child could inherit held. The shared file is opened for each kernel:
        # one thread could close a kept descriptor while another reads, and in a program that closes all
        # descriptors its number could become another file's.
        self._kept: Path | None = None
        self._unpacked: bytes | None = None

    @property
    def kept(self) -> Path | None:
        """The unpacked file; None if the code was unpacked into memory, or not yet needed."""
        return None if self._unpacked is not None else self._kept

    def read(self, span: CodeSpan) -> bytes:
        """The code of one kernel."""
        unpacked = self._unpacked
        if unpacked is None:
            found = code_cache.read(self._reference.sha256, span.offset, span.size)
            if found is None:
                # Imported here: a file that is there is read without it.
                from cutlass_aot.runtime.launching import unpacking

                found = unpacking.read(self._reference.sha256, span.offset, span.size, self._pieces)
            if found is not None:
                data, path = found
                if digest(data) == span.sha256:
                    self._kept = path
                    return data
                # The shared file was altered; the bundle still has the right code.
                code_cache.forget(path)
            unpacked = self._unpacked = b"".join(self._pieces())
        data = unpacked[span.offset : span.offset + span.size]
        found_digest = digest(data)
        if found_digest != span.sha256:
            raise CorruptFile(
                f"{self._root / self._reference.path}: GPU code at byte {span.offset} has SHA-256 "
                f"{found_digest}, expected {span.sha256}: code and index do not belong together, build the "
                "bundle again"
            )
        return data

    def fill(self, folder: Path, spans: Iterable[CodeSpan], limit: int | None) -> Path:
        """Unpack it into a directory, unless the file there is complete, and return the file.

        ``spans`` are those of all its kernels; ``limit`` is the most bytes that the directory may hold, None
        for no limit.
        """
        from cutlass_aot.runtime.launching import unpacking

        parts = [(span.offset, span.size, span.sha256) for span in spans]
        whole = max((offset + size for offset, size, _ in parts), default=0)
        return unpacking.fill(folder, self._reference.sha256, parts, lambda: self._pieces(whole), limit)

    def _pieces(self, most: int = MAX_FILE_BYTES) -> Iterator[bytes]:
        """Verify the packed file and yield its contents, of ``most`` bytes."""
        # Imported here: code in the shared directory needs no zstandard.
        import io

        from cutlass_aot.schema.compression import decompress

        data = read_file(self._root, self._reference)
        try:
            yield from decompress(io.BytesIO(data), most)
        except CorruptFile as error:
            raise CorruptFile(
                f"{self._root / self._reference.path}: {error}: build or fetch the bundle again"
            ) from None

"""Count the contents of a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.errors import CorruptFile, SchemaTooNew, StoreError
from cutlass_aot.store.files import entries, read, tree
from cutlass_aot.store.layout import DAMAGED, LOGS, MAX_RECORD_BYTES, ROOTS
from cutlass_aot.store.record import Record
from cutlass_aot.store.store import Store


@dataclass(frozen=True, slots=True)
class KindStats:
    """Records of one kind.

    Attributes:
        record_bytes: size of their files.
        blobs: how many different blobs they need.
        blob_bytes: size of the files of those blobs that are here.
        content_bytes: size of the same blobs, uncompressed.
    """

    count: int
    record_bytes: int
    blobs: int
    blob_bytes: int
    content_bytes: int

    @property
    def ratio(self) -> float | None:
        """Bytes in the store, records included, per byte of content; None without content."""
        return (self.record_bytes + self.blob_bytes) / self.content_bytes if self.content_bytes else None


@dataclass(frozen=True, slots=True)
class Stats:
    """A store in numbers.

    Attributes:
        kinds: by kind of record.
        blobs: number of all blobs, needed or not.
        blob_bytes: size of their files.
        unneeded_blobs: number of blobs that no record names.
        logs: number of logs of failed kernels.
        damaged: number of files that were set aside.
        oldest_use: last use of the record that has been unused for the longest, in seconds since the epoch by
            the file system's clock, to within an hour; None without records.
        newest_use: last use of any record.
    """

    kinds: dict[str, KindStats]
    blobs: int
    blob_bytes: int
    unneeded_blobs: int
    roots: tuple[str, ...]
    logs: int
    damaged: int
    oldest_use: float | None
    newest_use: float | None


def measure(store: Store) -> Stats:
    """Count a store. Records are read, blobs are not; a damaged record is not counted."""
    sizes: dict[str, int] = {}
    for sha256, path in store.blobs():
        size = _size(path)
        if size is not None:
            sizes[sha256] = size
    counts: dict[str, int] = {}
    bytes_: dict[str, int] = {}
    named: dict[str, dict[str, int]] = {}
    uses: list[float] = []
    for kind, key, path in store.records():
        try:
            data = read(path, MAX_RECORD_BYTES)
            if data is None:
                continue
            used = path.stat().st_mtime
            blobs = Record.from_bytes(data, kind, key, str(path)).blobs
        except (CorruptFile, SchemaTooNew, StoreError, FileNotFoundError):
            continue
        counts[kind] = counts.get(kind, 0) + 1
        bytes_[kind] = bytes_.get(kind, 0) + len(data)
        named.setdefault(kind, {}).update(blobs)
        uses = [min([used, *uses]), max([used, *uses])]
    kinds = {}
    for kind, count in sorted(counts.items()):
        here = {sha256: size for sha256, size in named[kind].items() if sha256 in sizes}
        kinds[kind] = KindStats(
            count=count,
            record_bytes=bytes_[kind],
            blobs=len(named[kind]),
            blob_bytes=sum(sizes[sha256] for sha256 in here),
            content_bytes=sum(here.values()),
        )
    needed = {sha256 for blobs in named.values() for sha256 in blobs}
    return Stats(
        kinds=kinds,
        blobs=len(sizes),
        blob_bytes=sum(sizes.values()),
        unneeded_blobs=len(sizes.keys() - needed),
        roots=tuple(entry.name for entry in entries(store.root / ROOTS) if not entry.name.startswith(".")),
        logs=sum(not entry.name.startswith(".") for entry in tree(store.root / LOGS)),
        damaged=len(entries(store.root / DAMAGED)),
        oldest_use=uses[0] if uses else None,
        newest_use=uses[1] if uses else None,
    )


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None

"""Take away what nobody needs: neither a root, nor anybody in the last days, nor a build that is at work.

The one danger is a builder that begins to rely on a file at this very moment. It notes its use first (by a
touch, or a new file), and then relies on it; here a file is first moved out of its place, and then looked at
once more. So either the builder finds it gone, and makes it again, or the note is seen here, and the file is
put back.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.errors import CorruptFile
from cutlass_aot.store.files import entries, read, reported, tree
from cutlass_aot.store.layout import (
    BLOBS,
    DAMAGED,
    LOCKS,
    LOGS,
    MAX_RECORD_BYTES,
    NEW,
    RECORDS,
    ROOTS,
    WORKSPACES,
)
from cutlass_aot.store.locks import Lock
from cutlass_aot.store.notes import NOTES
from cutlass_aot.store.records import Record
from cutlass_aot.store.roots import Reference, roots
from cutlass_aot.store.store import TOUCH_AFTER, Store
from cutlass_aot.store.workspaces import running, workspace

DAYS = 30.0
GRACE = 7200.0
"""Seconds; longer than :data:`~cutlass_aot.store.store.TOUCH_AFTER`, so that every use of late is seen."""

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Freed:
    """Something that was taken away, or would be.

    Attributes:
        what: ``record``, ``blob``, ``log``, ``note``, ``damaged`` or ``temporary``.
        path: where it was, below the store.
        bytes: its size.
    """

    what: str
    path: str
    bytes: int


def collect(store: Store, *, days: float = DAYS, grace: float = GRACE, dry_run: bool = False) -> list[Freed]:
    """Take away what no root keeps and nobody has used for long.

    Time is the file system's own: what the clock of this machine says does not matter, and a file from the
    future counts as new.

    Args:
        store: the store; the levels behind it are left alone.
        days: how long ago something may have been used last and is still kept.
        grace: seconds within which nothing is taken, whatever ``days`` says.
        dry_run: only say what would be taken.

    Raises:
        StoreError: if something cannot be removed, or a root cannot be read: what it keeps is not known.
        SchemaTooNew: if a newer release wrote a root or a record.
    """
    with workspace(store.root / WORKSPACES) as own:
        builders = [item for item in running(own.path.parent, own.began) if item.path != own.path]
        horizon = own.began - max(days * _DAY, grace)
        # What a build reads is touched only if its last touch is so long ago.
        horizon = min([horizon, *(builder.began - TOUCH_AFTER for builder in builders)])
        collection = _Collection(store, own.path, horizon, own.began - grace, dry_run)
        return list(collection.run())


class _Collection:
    """One run: records first, then blobs that no record that is left names, then what lies about."""

    def __init__(self, store: Store, workspace: Path, horizon: float, grace: float, dry_run: bool) -> None:
        self._store = store
        self._workspace = workspace
        self._horizon = horizon
        self._grace = grace
        self._dry_run = dry_run
        self._named: set[str] = set()
        self._count = 0

    def run(self) -> Iterator[Freed]:
        kept = {reference for references in roots(self._store).values() for reference in references}
        with reported("collect", self._store.root):
            yield from self._records(kept)
            yield from self._blobs()
            yield from self._logs()
            yield from self._leavings()

    def _records(self, kept: set[Reference]) -> Iterator[Freed]:
        condemned = []
        for kind, key, path in self._store.records():
            if (kind, key) in kept or self._is_recent(path):
                self._name_blobs(kind, key, path)
            else:
                condemned.append((kind, key, path))
        for kind, key, path in condemned:
            freed = self._take("record", path)
            if freed:
                yield freed
            else:
                self._name_blobs(kind, key, path)

    def _blobs(self) -> Iterator[Freed]:
        for sha256, path in self._store.blobs():
            if sha256 not in self._named and not self._is_recent(path):
                freed = self._take("blob", path)
                if freed:
                    yield freed

    def _logs(self) -> Iterator[Freed]:
        """Logs of kernels that are not known to fail: nobody finds them any more."""
        for entry in tree(self._store.root / LOGS):
            key = entry.name.removesuffix(".txt")
            path = Path(entry.path)
            known = self._store.record_path("failure", key).is_file()
            if not entry.name.startswith(".") and not known and not self._is_recent(path):
                yield from self._remove("log", path)

    def _leavings(self) -> Iterator[Freed]:
        root = self._store.root
        for entry in entries(root / DAMAGED):
            yield from self._remove("damaged", Path(entry.path))
        for entry in entries(root / NOTES):
            path = Path(entry.path)
            if not entry.name.startswith(".") and not self._is_recent(path):
                yield from self._remove("note", path)
        kinds = [Path(kind.path) for kind in entries(root / RECORDS)]
        found = [*entries(root), *entries(root / ROOTS), *entries(root / NOTES)]
        found += [entry for folder in (root / BLOBS, root / LOGS, *kinds) for entry in tree(folder)]
        for entry in found:
            path = Path(entry.path)
            if entry.name.startswith(NEW) and entry.is_file() and _modified(path) < self._grace:
                yield from self._remove("temporary", path)
        for entry in entries(root / LOCKS):
            path = Path(entry.path)
            if _modified(path) < self._grace and not self._dry_run:
                lock = Lock(path)
                with contextlib.suppress(FileNotFoundError):
                    if lock.try_acquire(create=False):
                        lock.release()

    def _is_recent(self, path: Path) -> bool:
        return _modified(path) >= self._horizon

    def _name_blobs(self, kind: str, key: str, path: Path) -> None:
        """Note which blobs a record that is left needs."""
        try:
            data = read(path, MAX_RECORD_BYTES)
            if data is not None:
                self._named.update(Record.from_bytes(data, kind, key, str(path)).blobs)
        except CorruptFile:
            # It counts as absent: a check sets it aside.
            return

    def _take(self, what: str, path: Path) -> Freed | None:
        """Remove a file unless somebody has begun to use it."""
        freed = self._freed(what, path)
        if self._dry_run or freed is None:
            return freed
        self._count += 1
        aside = self._workspace / f"taken-{self._count}"
        try:
            path.rename(aside)
        except FileNotFoundError:
            return None
        # Opened, so that a network file system asks its server.
        with aside.open("rb") as file:
            touched = os.fstat(file.fileno()).st_mtime >= self._horizon
        if touched:
            aside.replace(path)
            return None
        aside.unlink()
        return freed

    def _remove(self, what: str, path: Path) -> Iterator[Freed]:
        freed = self._freed(what, path)
        if freed is not None:
            if not self._dry_run:
                path.unlink(missing_ok=True)
            yield freed

    def _freed(self, what: str, path: Path) -> Freed | None:
        try:
            return Freed(what, str(path.relative_to(self._store.root)), path.stat().st_size)
        except FileNotFoundError:
            return None


def _modified(path: Path) -> float:
    """When a file was last changed or used; one that is gone by now counts as new."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return float("inf")

"""Remove what no root keeps, nobody has used in the last days, and no running build may need.

A builder may begin to rely on a file at the moment when it is removed. So the builder first marks the file as
used, by a touch or a new file; the collection first moves the file away, and then checks the mark once more.
Either the builder finds the file gone and makes it again, or the collection sees the mark and puts it back.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.errors import CorruptFile, StoreError
from cutlass_aot.runtime.files.file_lock import Lock
from cutlass_aot.runtime.files.regular_file import kind_of, open_regular
from cutlass_aot.store.build_state import BUILD_STATE
from cutlass_aot.store.files import entries, is_there, make_folder, obstacle, read, reported, tree
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
from cutlass_aot.store.record import Record
from cutlass_aot.store.roots import Reference, roots
from cutlass_aot.store.store import TOUCH_AFTER, Store
from cutlass_aot.store.workspaces import Workspace, abandoned, running, workspace

DAYS = 30.0
GRACE = 7200.0
"""Seconds; longer than :data:`~cutlass_aot.store.store.TOUCH_AFTER`, so that every recent use is seen."""

FLOOR = TOUCH_AFTER + 600.0
"""Seconds within which nothing is removed, whatever is requested: a use within the last hour need not be
marked, what looks unused may be relied on a moment later, and a file that is being written does not have its
name yet."""

_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Removed:
    """Something that was removed, or would be; the path is relative to the store.

    ``what`` is ``record``, ``blob``, ``log``, ``build state``, ``damaged`` or ``temporary``.
    """

    what: str
    path: str
    bytes: int


def collect(
    store: Store, *, days: float = DAYS, grace: float = GRACE, dry_run: bool = False
) -> list[Removed]:
    """Remove what no root keeps and nobody has used for ``days``; upstream stores are left alone.

    Nothing used within ``grace`` seconds is removed, whatever ``days`` says; ``grace`` is at least
    :data:`FLOOR`. Times are the file system's, not those of this machine's clock; a file from the future
    counts as new. A dry run writes nothing, so that the store may be read-only.

    Raises:
        ValueError: if a time is negative or not finite.
    """
    if not (math.isfinite(days) and math.isfinite(grace) and days >= 0 and grace >= 0):
        raise ValueError(f"{days} days and {grace} s of grace: expected finite times of at least 0")
    parent = store.root / WORKSPACES
    grace = max(grace, FLOOR)
    if dry_run:
        with reported("collect", store.root):
            now = _time(store.root)
            return list(_Collection(store, None, now, days * _DAY, grace).run())
    with reported("write", store.root):
        make_folder(store.root, parent)
    with workspace(parent, tidy=False) as own:
        return list(_Collection(store, own, own.began, days * _DAY, grace).run())


def _time(folder: Path) -> float:
    """The file system's time, from a file without a name; where none can be made, this machine's."""
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return time.time()
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)


class _Collection:
    """One run: records first, then blobs that no remaining record names, then logs and leftovers.

    Without a workspace (``own``) it is a dry run. ``now`` is the file system's time. Something is kept for
    ``keep`` seconds after its last use, and anything for ``grace`` seconds.
    """

    def __init__(self, store: Store, own: Workspace | None, now: float, keep: float, grace: float) -> None:
        self._store = store
        self._own = own
        self._now = now
        builders = running(store.root / WORKSPACES, now)
        # A build marks a record that it reads only if the last mark is old: see FLOOR.
        began = [item.began - FLOOR for item in builders if own is None or item.path != own.path]
        self._horizon = min([now - max(keep, grace), *began])
        self._grace = now - grace
        self._named: set[str] = set()
        self._condemned: set[Path] = set()
        self._count = 0

    def run(self) -> Iterator[Removed]:
        kept = {reference for references in roots(self._store).values() for reference in references}
        with reported("collect", self._store.root):
            self._require_records()
            yield from self._records(kept)
            yield from self._blobs()
            yield from self._logs()
            yield from self._leftovers()

    def _require_records(self) -> None:
        """Stop where something else stands for a directory of records: a link to a disk that is away, say."""
        root = self._store.root
        kinds = [Path(kind.path) for kind in entries(root / RECORDS) if not kind.name.startswith(".")]
        inner = [Path(entry.path) for kind in kinds for entry in entries(kind)]
        for folder in (root / RECORDS, *kinds, *(path for path in inner if not path.name.startswith("."))):
            found = obstacle(root, folder / "any")
            if found is not None:
                raise StoreError(
                    f"{found[0]} is {kind_of(found[1].st_mode)}, expected a directory of records: what blobs "
                    "they need is not known; `cutlass-aot store check` sets it aside"
                )

    def _records(self, kept: set[Reference]) -> Iterator[Removed]:
        condemned = []
        for kind, key, path in self._store.records():
            if (kind, key) in kept or self._is_recent(path):
                self._name_blobs(kind, key, path)
            else:
                condemned.append((kind, key, path))
        for kind, key, path in condemned:
            removed = self._take("record", path)
            if removed:
                self._condemned.add(path)
                yield removed
            else:
                self._name_blobs(kind, key, path)

    def _blobs(self) -> Iterator[Removed]:
        for sha256, path in self._store.blobs():
            if sha256 not in self._named and not self._is_recent(path):
                removed = self._take("blob", path)
                if removed:
                    yield removed

    def _logs(self) -> Iterator[Removed]:
        """Remove logs of kernels without a record of failure: nothing refers to them any more."""
        for entry in tree(self._store.root / LOGS):
            record = self._store.record_path("failure", entry.name.removesuffix(".txt"))
            path = Path(entry.path)
            known = record not in self._condemned and is_there(record)
            if not entry.name.startswith(".") and not known and not self._is_recent(path):
                yield from self._remove("log", path)

    def _leftovers(self) -> Iterator[Removed]:
        root = self._store.root
        for path in abandoned(root / WORKSPACES, self._now):
            yield from self._remove("temporary", path)
        for entry in entries(root / DAMAGED):
            yield from self._remove("damaged", Path(entry.path))
        for entry in entries(root / BUILD_STATE):
            path = Path(entry.path)
            if not entry.name.startswith(".") and is_there(path) and not self._is_recent(path):
                yield from self._remove("build state", path)
        for path in self._unfinished():
            if _modified(path) < self._grace:
                yield from self._remove("temporary", path)
        for entry in entries(root / LOCKS):
            path = Path(entry.path)
            if _modified(path) >= self._grace:
                continue
            if not is_there(path):
                # Not a lock: whoever wants its name sets it aside, but nobody may want it again.
                yield from self._remove("temporary", path)
            elif self._own is not None:
                lock = Lock(path)
                with contextlib.suppress(FileNotFoundError):
                    if lock.try_acquire(create=False):
                        lock.release()

    def _unfinished(self) -> list[Path]:
        """What has the name of a file that is not whole, whatever it is: nobody sets that aside."""
        root = self._store.root
        folders = [root, root / ROOTS, root / BUILD_STATE]
        for parent in (root / BLOBS, root / LOGS, *(Path(kind.path) for kind in entries(root / RECORDS))):
            inner = [entry for entry in entries(parent) if entry.is_dir(follow_symlinks=False)]
            folders += [parent, *(Path(entry.path) for entry in inner if not entry.name.startswith(NEW))]
        found = [entry for folder in folders for entry in entries(folder)]
        return [Path(entry.path) for entry in found if entry.name.startswith(NEW)]

    def _is_recent(self, path: Path) -> bool:
        return _modified(path) >= self._horizon

    def _name_blobs(self, kind: str, key: str, path: Path) -> None:
        """Note the blobs that a remaining record needs, so that they are kept."""
        try:
            data = read(path, MAX_RECORD_BYTES)
            if data is not None:
                self._named.update(Record.from_bytes(data, kind, key, str(path)).blobs)
        except CorruptFile:
            # A damaged record counts as absent; a check sets it aside.
            return

    def _take(self, what: str, path: Path) -> Removed | None:
        """Remove a file unless somebody has begun to use it; None if it was not removed."""
        removed = self._removed(what, path)
        if self._own is None or removed is None:
            return removed
        self._count += 1
        aside = self._own.path / f"taken-{self._count}"
        try:
            path.rename(aside)
        except FileNotFoundError:
            return None
        # Opened, so that a network file system asks its server.
        with os.fdopen(open_regular(aside), "rb") as file:
            touched = os.fstat(file.fileno()).st_mtime >= self._horizon
        if touched:
            aside.replace(path)
            return None
        aside.unlink()
        return removed

    def _remove(self, what: str, path: Path) -> Iterator[Removed]:
        removed = self._removed(what, path)
        if removed is not None:
            if self._own is not None:
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            yield removed

    def _removed(self, what: str, path: Path) -> Removed | None:
        try:
            status = path.lstat()
        except FileNotFoundError:
            return None
        size = status.st_size
        if stat.S_ISDIR(status.st_mode):
            size = 0
            for folder, _, names in os.walk(path):
                for name in names:
                    with contextlib.suppress(OSError):
                        size += os.lstat(f"{folder}/{name}").st_size
        return Removed(what, str(path.relative_to(self._store.root)), size)


def _modified(path: Path) -> float:
    """When a file was last changed or used; one that is gone counts as new."""
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return float("inf")

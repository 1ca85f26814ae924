"""A store: blobs by digest, records by key. Files appear by an atomic rename, and are verified when read.

Readers take no lock. Two builders that race for one key write the same bytes, so losing the race is harmless.
No file is synced: after a power cut a torn file does not match its digest, and counts as absent.
:mod:`cutlass_aot.store.layout` says which file is where.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cutlass_aot.errors import CorruptFile, SchemaTooNew, StoreError
from cutlass_aot.runtime.files.file_lock import Lock
from cutlass_aot.runtime.files.regular_file import open_regular
from cutlass_aot.schema.compression import compress
from cutlass_aot.schema.encoding import digest
from cutlass_aot.store.blobs import LEVEL, frame_bound, opened, raw_frame
from cutlass_aot.store.files import (
    clear,
    entries,
    identity,
    is_there,
    make_folder,
    obstacle,
    publish,
    read,
    read_found,
    reported,
    set_aside,
    touch,
    tree,
)
from cutlass_aot.store.layout import (
    BLOB_SUFFIX,
    BLOBS,
    FORMAT_NAME,
    LOCKS,
    LOGS,
    MAX_BLOB_BYTES,
    MAX_RECORD_BYTES,
    NEW,
    RECORDS,
    SHARED_KINDS,
    WORKSPACES,
    blob_name,
    check_format,
    format_text,
    record_limit,
    record_name,
)
from cutlass_aot.store.record import Record
from cutlass_aot.store.upstream.stores import UpstreamStore

TOUCH_AFTER = 3600.0
"""Seconds since the last mark of use after which a record that is read is marked again."""


class Store:
    """A store in a directory, which must exist unless ``create`` is true.

    What it lacks is looked for in the ``upstream`` stores, in this order.
    """

    def __init__(self, root: Path, *, create: bool = True, upstream: Sequence[UpstreamStore] = ()) -> None:
        self.root = root
        self.upstream = tuple(upstream)
        self._locks: dict[str, Lock] = {}
        self._clock: float | None = None
        marker = root / FORMAT_NAME
        with reported("open the store", root):
            if not is_there(marker):
                if not create:
                    raise StoreError(
                        f"{root} is not a cutlass-aot store: it has no FORMAT file; "
                        "name the directory of one that a build has made"
                    )
                root.mkdir(parents=True, exist_ok=True)
                foreign = [path for path in root.iterdir() if not path.name.startswith(NEW)]
                # Another builder may have made the same store meanwhile: then the marker is there by now.
                if foreign and not is_there(marker):
                    raise StoreError(
                        f"{root} holds something that is not a cutlass-aot store: expected one, or an empty "
                        "directory; name another one"
                    )
                if not foreign:
                    publish(format_text(), marker, sync=True)
        check_format(read(marker, MAX_RECORD_BYTES) or b"", str(root))

    def close(self) -> None:
        """Give back all locks, and let the upstream stores finish what is under way."""
        self.unlock_all()
        for upstream in self.upstream:
            upstream.close()

    def abandon(self) -> None:
        """Give back all locks and stop the upstream stores, without waiting for anything."""
        self.unlock_all()
        for upstream in self.upstream:
            upstream.abandon()

    # --- blobs

    def blob_path(self, sha256: str) -> Path:
        """Where a blob with this digest is kept, compressed, if it is here."""
        return self.root / blob_name(sha256)

    def put_blob(self, data: bytes, *, compressed: bool = False) -> str:
        """Keep bytes and return their digest; a damaged blob with this digest is replaced.

        ``compressed`` data are not compressed again.
        """
        if len(data) > MAX_BLOB_BYTES:
            raise StoreError(
                f"a blob of {len(data)} bytes cannot be kept: at most {MAX_BLOB_BYTES} can; split the bundle"
            )
        sha256 = digest(data)
        # Marked as used before it is looked at: from then on no collection takes it.
        if not touch(self.blob_path(sha256)) or self._own_blob(sha256) is None:
            frame = raw_frame(data) if compressed else compress(data, LEVEL)
            self._publish(frame, self.blob_path(sha256))
        return sha256

    def adopt_blob(self, file: Path, sha256: str) -> None:
        """Move a finished file, which must still have this digest, into the blobs."""
        with reported("read", file), os.fdopen(open_regular(file), "rb") as source:
            data = source.read()
        if digest(data) != sha256:
            raise CorruptFile(f"{file} changed between being written and being stored")
        self._publish(compress(data, LEVEL), self.blob_path(sha256))
        with reported("remove", file):
            file.unlink()

    def get_blob(self, sha256: str) -> bytes | None:
        """A blob's verified bytes, or None if it is absent or damaged; a damaged one is set aside."""
        try:
            name = blob_name(sha256)
        except ValueError:
            return None
        data = self._own_blob(sha256)
        for upstream in self.upstream:
            if data is not None:
                break
            for _, found in upstream.fetch([(name, frame_bound(MAX_BLOB_BYTES))]):
                data = self._from_upstream(upstream, sha256, found)
        return data

    def extract_blob(self, sha256: str, path: Path) -> bool:
        """Write a blob's verified bytes to a file; False, and no file, if the blob is absent."""
        data = self.get_blob(sha256)
        if data is None:
            return False
        with reported("write", path):
            path.write_bytes(data)
        return True

    # --- records

    def record_path(self, kind: str, key: str) -> Path:
        """Where the record of a key is, if it is here."""
        return self.root / record_name(kind, key)

    def put_record(self, kind: str, key: str, body: Any, blobs: Mapping[str, int] | None = None) -> None:
        """Commit a record with a body of plain data.

        The ``blobs`` it needs, digest to size in bytes, must be here already.
        """
        data = Record(kind, key, body, dict(blobs or {})).to_bytes()
        self._publish(data, self.record_path(kind, key))
        if kind in SHARED_KINDS:
            names = [blob_name(sha256) for sha256 in blobs or {}]
            for upstream in self.upstream:
                upstream.offer(record_name(kind, key), data, names, self._file)

    def get_record(self, kind: str, key: str) -> Any | None:
        """A record's body, or None if it is absent or damaged; a damaged one is set aside."""
        record = self._own_record(kind, key)
        if record is None and kind in SHARED_KINDS:
            for upstream in self.upstream:
                record = self._record_of_upstream(upstream, kind, key)
                if record is not None:
                    break
        return None if record is None else record.body

    def has_record(self, kind: str, key: str) -> bool:
        """Whether this store itself has a file for a record, which is not read."""
        return is_there(self.record_path(kind, key))

    def drop_record(self, kind: str, key: str) -> None:
        """Remove a record of this store; its blobs are left to the next collection."""
        self._drop(self.record_path(kind, key))

    def prefetch(self, kind: str, keys: Collection[str], *, anew: bool = False) -> None:
        """Copy records that this store lacks, all at once, from upstream stores whose contents are copied.

        What cannot be had is left out. ``anew`` asks again for what was absent before, since somebody else
        may have put it there.
        """
        if kind not in SHARED_KINDS:
            return
        missing = list(keys)
        for upstream in self.upstream:
            missing = [key for key in missing if not self.has_record(kind, key)]
            if upstream.copies:
                if anew:
                    upstream.forget([record_name(kind, key) for key in missing])
                self._copy(upstream, kind, missing)
            else:
                # These are read from there when they are needed.
                missing = [key for key in missing if not upstream.has(record_name(kind, key))]

    # --- logs, locks, room to work

    def log_path(self, key: str) -> Path:
        """Where the log of a failed kernel is kept."""
        return self.root / LOGS / key[:2] / f"{key}.txt"

    def put_log(self, key: str, text: str) -> Path:
        """Keep a failed kernel's log."""
        path = self.log_path(key)
        self._publish(text.encode("utf-8", "replace"), path)
        return path

    def drop_log(self, key: str) -> None:
        """Forget the log of a kernel that compiles now."""
        self._drop(self.log_path(key))

    def try_lock(self, key: str) -> bool:
        """Take the lock of a key without waiting; False while this builder or another holds it.

        The lock only saves work: a builder that does not get it may go on without. Where the file system has
        no locks, everybody gets it. :meth:`unlock` gives it back.
        """
        path = self.root / LOCKS / f"{key}.lock"
        with reported("lock", path):
            if key in self._locks:
                return False
            make_folder(self.root, path.parent)
            # Noted before it is taken, so that unlock_all finds it if an interrupt comes between the two.
            lock = self._locks[key] = Lock(path)
            try:
                if lock.try_acquire():
                    return True
            except OSError:
                clear(self.root, path)
                try:
                    if lock.try_acquire():
                        return True
                except OSError:
                    del self._locks[key]
                    raise
            del self._locks[key]
            return False

    def unlock(self, key: str) -> None:
        """Give back a lock and remove its file; one that is not held is left alone."""
        lock = self._locks.get(key)
        if lock is not None:
            lock.release()
            del self._locks[key]

    def unlock_all(self) -> None:
        """Give back every lock that this store object holds."""
        for key in list(self._locks):
            self.unlock(key)

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """A private directory on the store's file system, removed at the end.

        The directory of a builder that was killed is removed by the next one. While a directory exists, no
        collection takes what was published or used since it was made.
        """
        from cutlass_aot.store.workspaces import workspace

        with reported("write", self.root):
            make_folder(self.root, self.root / WORKSPACES)
        with workspace(self.root / WORKSPACES) as own:
            yield own.path

    # --- everything

    def blobs(self) -> Iterator[tuple[str, Path]]:
        """Every blob's digest and file, by digest; other files there are left out."""
        for entry in tree(self.root / BLOBS):
            sha256 = entry.name.removesuffix(BLOB_SUFFIX)
            path = Path(entry.path)
            with contextlib.suppress(ValueError):
                if self.blob_path(sha256) == path:
                    yield sha256, path

    def records(self) -> Iterator[tuple[str, str, Path]]:
        """Every record's kind, key and file, by kind and key; unfinished files are left out."""
        for kind in entries(self.root / RECORDS):
            for entry in tree(Path(kind.path)):
                path = Path(entry.path)
                if not entry.name.startswith(".") and self.record_path(kind.name, entry.name) == path:
                    yield kind.name, entry.name, path

    def _own_blob(self, sha256: str) -> bytes | None:
        path = self.blob_path(sha256)
        found = self._found(path, frame_bound(MAX_BLOB_BYTES))
        if found is None:
            return None
        try:
            return opened(found[0], sha256)
        except CorruptFile:
            self._set_aside(path, found[1])
            return None

    def _own_record(self, kind: str, key: str) -> Record | None:
        path = self.record_path(kind, key)
        found = self._found(path, record_limit(kind))
        if found is None:
            return None
        data, status = found
        if len(data) > record_limit(kind):
            self._set_aside(path, status)
            return None
        # Marked as used before it is relied on: a collection that took the file before is seen here, and one
        # that comes later sees the mark.
        if not self._mark_used(path, status.st_mtime):
            return None
        try:
            return Record.from_bytes(data, kind, key, str(path))
        except CorruptFile:
            self._set_aside(path, status)
            return None

    def _found(self, path: Path, limit: int) -> tuple[bytes, os.stat_result] | None:
        """As :func:`read_found`; what is in the way of a store's file is set aside, and the file absent."""
        try:
            return read_found(path, limit)
        except StoreError:
            with reported("read", path):
                found = obstacle(self.root, path)
            if found is None:
                raise
            self._set_aside(*found)
            return None

    def _publish(self, data: bytes, path: Path) -> None:
        publish(data, path, store=self.root)

    def _drop(self, path: Path) -> None:
        """Remove one of this store's files, or what stands in its place."""
        with reported("remove", path):
            try:
                path.unlink(missing_ok=True)
            except OSError:
                if not clear(self.root, path):
                    path.unlink(missing_ok=True)

    def _mark_used(self, path: Path, modified: float) -> bool:
        """Touch a file whose mark of use is long ago, or far in the future; False if it is gone."""
        if abs(self._now() - modified) <= TOUCH_AFTER:
            return True
        return touch(path)

    def _now(self) -> float:
        """The file system's time, asked for once: this machine's clock may be wrong, and may be changed."""
        if self._clock is None:
            marker = self.root / FORMAT_NAME
            touch(marker)
            with reported("read", marker):
                self._clock = marker.stat().st_mtime - time.monotonic()
        return self._clock + time.monotonic()

    def _file(self, name: str) -> bytes | None:
        """The bytes of one of this store's files."""
        return read(self.root / name, frame_bound(MAX_BLOB_BYTES))

    def _set_aside(self, path: Path, seen: os.stat_result) -> None:
        """Set aside a damaged file; where nothing can be written, it only counts as absent."""
        with contextlib.suppress(StoreError):
            set_aside(self.root, path, identity(seen))

    # --- upstream stores

    def _record_of_upstream(self, upstream: UpstreamStore, kind: str, key: str) -> Record | None:
        if upstream.copies:
            self._copy(upstream, kind, [key])
            return self._own_record(kind, key)
        for _, data in upstream.fetch([(record_name(kind, key), record_limit(kind))]):
            record = self._opened(upstream, kind, key, data)
            if record is not None and all(self._reaches(upstream, sha256) for sha256 in record.blobs):
                return record
        return None

    def _reaches(self, upstream: UpstreamStore, sha256: str) -> bool:
        return is_there(self.blob_path(sha256)) or upstream.has(blob_name(sha256))

    def _opened(self, upstream: UpstreamStore, kind: str, key: str, data: bytes | None) -> Record | None:
        if data is None:
            return None
        try:
            return Record.from_bytes(data, kind, key, "it")
        except (CorruptFile, SchemaTooNew):
            upstream.reject(record_name(kind, key))
            return None

    def _from_upstream(
        self, upstream: UpstreamStore, sha256: str, data: bytes | None, size: int | None = None
    ) -> bytes | None:
        """A blob's verified bytes from an upstream store's ``data``; kept here if that store is copied."""
        if data is None:
            return None
        try:
            content = opened(data, sha256, size)
        except CorruptFile:
            upstream.reject(blob_name(sha256))
            return None
        if upstream.copies:
            self._publish(data, self.blob_path(sha256))
        return content

    def _copy(self, upstream: UpstreamStore, kind: str, keys: Collection[str]) -> None:
        """Copy records with their blobs, blobs first; damaged and incomplete ones are left out."""
        by_name = {record_name(kind, key): key for key in keys}
        found: dict[str, tuple[Record, bytes]] = {}
        for name, data in upstream.fetch([(name, record_limit(kind)) for name in by_name]):
            record = self._opened(upstream, kind, by_name[name], data)
            if record is not None and data is not None:
                found[name] = record, data
        sizes = {sha256: size for record, _ in found.values() for sha256, size in record.blobs.items()}
        here = {sha256 for sha256 in sizes if touch(self.blob_path(sha256))}
        missing = {blob_name(sha256): sha256 for sha256 in sizes if sha256 not in here}
        for name, data in upstream.fetch([(name, frame_bound(sizes[missing[name]])) for name in missing]):
            if self._from_upstream(upstream, missing[name], data, sizes[missing[name]]) is not None:
                here.add(missing[name])
        for name, (record, data) in found.items():
            if here.issuperset(record.blobs):
                self._publish(data, self.root / name)

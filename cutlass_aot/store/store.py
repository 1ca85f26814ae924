"""Blobs by digest, records by key; everything appears by an atomic rename, and is verified when read.

Layout::

    FORMAT                         schema version of the store
    blobs/sha256/<2>/<digest>      object code and libraries, named by what they hold
    records/<kind>/<2>/<key>       sealed msgpack; written after the blobs it names: it is the commit
    logs/<2>/<key>.txt             the compiler's own words about a kernel that failed
    damaged/                       what a reader found altered, set aside
    locks/                         one a key while it is being compiled
    tmp/                           files on their way, a directory for each builder
    .workspaces.lock               held while one of those is made or removed

A reader takes no lock. Two builders that race for one key write the same bytes, and losing is harmless.
No file is synced: after a power cut a torn file does not match its digest, and counts as absent.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import filelock

from cutlass_aot.errors import CorruptFile, SchemaTooNew, StoreError
from cutlass_aot.schema.encoding import digest, seal, unseal

SCHEMA = 1
KINDS = ("kernel", "library", "plan", "inputs", "bundle", "shard")
_NEW = ".new-"
_MAX_RECORD_BYTES = 1 << 28
_MAX_BLOB_BYTES = 1 << 30


@contextmanager
def _reported(action: str, path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot {action} {path}: {error.strerror or error}; "
            "check permissions and free space, or choose another --store"
        ) from None


@dataclass(frozen=True, slots=True)
class Damage:
    """Something in a store that is not what its name says."""

    path: str
    problem: str


class Store:
    """A store in a directory.

    Args:
        root: the directory; made if it is not there, unless ``create`` is false.
        create: whether this store will be written to.

    Raises:
        StoreError: if it cannot be used, or ``root`` is something else.
        SchemaTooNew: if a newer release made it.
    """

    def __init__(self, root: Path, *, create: bool = True) -> None:
        self.root = root
        self._locks: dict[str, filelock.BaseFileLock] = {}
        marker = root / "FORMAT"
        with _reported("open the store", root):
            if marker.is_file():
                text = marker.read_text(encoding="ascii", errors="replace")[:64].strip()
                kind, _, version = text.rpartition(" ")
                if kind != "cutlass-aot store" or not version.isdigit():
                    raise StoreError(f"{root} is not a cutlass-aot store (FORMAT says {text!r})")
                if int(version) > SCHEMA:
                    raise SchemaTooNew(
                        f"{root} has store version {version}, this cutlass-aot reads up to {SCHEMA}: "
                        "upgrade cutlass-aot or choose another --store"
                    )
                return
            if not create:
                raise StoreError(f"{root} is not a cutlass-aot store: it has no FORMAT file")
            root.mkdir(parents=True, exist_ok=True)
            foreign = [path for path in root.iterdir() if not path.name.startswith(_NEW)]
            # Another builder may make the same store at this moment: then the marker is there by now.
            if foreign and not marker.is_file():
                raise StoreError(f"{root} holds something that is no cutlass-aot store")
            self._publish(f"cutlass-aot store {SCHEMA}\n".encode(), marker)

    # --- blobs

    def blob_path(self, sha256: str) -> Path:
        """Where a blob of this digest is, if it is here."""
        return self.root / "blobs" / "sha256" / sha256[:2] / sha256

    def put_blob(self, data: bytes) -> str:
        """Keep bytes; returns their digest. A damaged blob of this name is replaced."""
        sha256 = digest(data)
        if self.get_blob(sha256) is None:
            self._publish(data, self.blob_path(sha256))
        return sha256

    def adopt_blob(self, file: Path, sha256: str) -> None:
        """Take a finished file of :meth:`workspace` into the blobs by renaming it.

        Raises:
            CorruptFile: if its bytes do not have this digest.
        """
        with _reported("read", file):
            data = file.read_bytes()
        if digest(data) != sha256:
            raise CorruptFile(f"{file} changed between being written and being stored")
        path = self.blob_path(sha256)
        with _reported("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file.replace(path)

    def get_blob(self, sha256: str) -> bytes | None:
        """A blob's verified bytes, or None if it is absent. A damaged one is set aside and absent."""
        path = self.blob_path(sha256)
        data = self._read(path, _MAX_BLOB_BYTES)
        if data is None:
            return None
        if digest(data) != sha256:
            self._set_aside(path)
            return None
        return data

    # --- records

    def record_path(self, kind: str, key: str) -> Path:
        """Where the record of a key is, if it is here."""
        return self.root / "records" / kind / key[:2] / key

    def put_record(self, kind: str, key: str, body: Any) -> None:
        """Commit a record. The blobs it names have to be here already."""
        record = {"key": key, "body": body}
        self._publish(seal(f"cutlass-aot {kind} record", SCHEMA, record), self.record_path(kind, key))

    def get_record(self, kind: str, key: str) -> Any | None:
        """A record's body, or None if it is absent. A damaged one is set aside and absent.

        Raises:
            SchemaTooNew: if a newer release wrote it.
        """
        path = self.record_path(kind, key)
        data = self._read(path, _MAX_RECORD_BYTES)
        if data is None:
            return None
        try:
            return _record_body(data, kind, key, str(path))
        except CorruptFile:
            self._set_aside(path)
            return None

    # --- logs, locks, room to work

    def log_path(self, key: str) -> Path:
        """Where the log of a failed kernel is kept."""
        return self.root / "logs" / key[:2] / f"{key}.txt"

    def put_log(self, key: str, text: str) -> Path:
        """Keep a failed kernel's log."""
        path = self.log_path(key)
        self._publish(text.encode("utf-8", "replace"), path)
        return path

    def drop_log(self, key: str) -> None:
        """Forget the log of a kernel that compiles now."""
        with _reported("remove", self.log_path(key)):
            self.log_path(key).unlink(missing_ok=True)

    def try_lock(self, key: str) -> bool:
        """Take the lock of a key; False while another builder holds it. Give it back with :meth:`unlock`."""
        path = self.root / "locks" / f"{key}.lock"
        with _reported("lock", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # Noted before it is taken: an interrupt between the two leaves nothing that unlock_all misses.
            lock = self._locks[key] = filelock.FileLock(path)
            try:
                lock.acquire(blocking=False)
            except filelock.Timeout:
                del self._locks[key]
                return False
        return True

    def unlock(self, key: str) -> None:
        """Give back a lock and remove its file; a builder that raced for it compiles the same bytes twice."""
        lock = self._locks[key]
        if lock.is_locked:
            with contextlib.suppress(OSError):
                Path(lock.lock_file).unlink(missing_ok=True)
            lock.release()
        del self._locks[key]

    def unlock_all(self) -> None:
        """Give back every lock that this store object holds."""
        for key in list(self._locks):
            self.unlock(key)

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """A private directory on the store's file system, removed at the end whatever happens.

        What a builder that was killed has left is removed by the next one: each directory is locked as long
        as its owner lives.
        """
        parent = self.root / "tmp"
        with _reported("write", parent):
            parent.mkdir(parents=True, exist_ok=True)
            with filelock.FileLock(self.root / ".workspaces.lock"):
                for left in parent.iterdir():
                    if left.is_dir():
                        _remove_abandoned(left)
                path = Path(tempfile.mkdtemp(dir=parent))
                owner = filelock.FileLock(path / ".owner")
                owner.acquire()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            owner.release()

    # --- check

    def check(self) -> list[Damage]:
        """Read everything and name what is damaged or incomplete; nothing is changed."""
        found: list[Damage] = []
        with _reported("read", self.root):
            for path in sorted((self.root / "blobs" / "sha256").glob("*/[0-9a-f]*")):
                with path.open("rb") as file:
                    actual = _file_digest(file)
                if actual != path.name:
                    found.append(Damage(str(path.relative_to(self.root)), f"bytes of digest {actual}"))
        for kind in KINDS:
            for path in sorted((self.root / "records" / kind).glob("*/[0-9a-f]*")):
                name = str(path.relative_to(self.root))
                try:
                    data = self._read(path, _MAX_RECORD_BYTES) or b""
                    body = _record_body(data, kind, path.name, "it")
                except (CorruptFile, SchemaTooNew) as error:
                    found.append(Damage(name, f"an unreadable record ({error})"))
                    continue
                blob = body.get("sha256") if isinstance(body, dict) else None
                if blob is not None and not self.blob_path(str(blob)).is_file():
                    found.append(Damage(name, f"a record that names blob {blob}, which is not there"))
        return found

    def _read(self, path: Path, limit: int) -> bytes | None:
        try:
            with path.open("rb") as file:
                data = file.read(limit + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}") from None
        if len(data) > limit:
            raise StoreError(f"{path} is larger than {limit} bytes: it is not ours")
        return data

    def _publish(self, data: bytes, path: Path) -> None:
        with _reported("write", path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=_NEW)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                Path(name).replace(path)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise

    def _set_aside(self, path: Path) -> None:
        damaged = self.root / "damaged"
        with _reported("set aside", path):
            damaged.mkdir(parents=True, exist_ok=True)
            # Another reader may have been quicker.
            with contextlib.suppress(FileNotFoundError):
                path.replace(damaged / path.name)


def _remove_abandoned(directory: Path) -> None:
    """Remove a workspace unless its owner still holds it."""
    owner = filelock.FileLock(directory / ".owner")
    with contextlib.suppress(filelock.Timeout, OSError), owner.acquire(blocking=False):
        shutil.rmtree(directory, ignore_errors=True)


def _record_body(data: bytes, kind: str, key: str, what: str) -> Any:
    """Open a record. It names its key, so that a file that was renamed or copied serves nobody."""
    record = unseal(data, f"cutlass-aot {kind} record", SCHEMA, what)
    if not isinstance(record, dict) or record.get("key") != key:
        raise CorruptFile(f"{what} is not the record of this key")
    return record.get("body")


def _file_digest(file: Any) -> str:
    hasher = hashlib.sha256()
    while chunk := file.read(1 << 20):
        hasher.update(chunk)
    return hasher.hexdigest()

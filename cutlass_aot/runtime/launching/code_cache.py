"""Unpacked files in a directory that processes share: one of them unpacks, the others read.

A file is named by the digest of the packed file, written under another name and renamed when it is complete.
Readers check each part against its own digest, so damage to the directory can cost time but nothing else. If
no directory can be used, every process unpacks for itself.

The directory is ``$CUTLASS_AOT_CACHE`` (empty: none), else ``cutlass-aot`` in ``$XDG_CACHE_HOME``, else in
``~/.cache``. It holds at most ``$CUTLASS_AOT_CACHE_BYTES`` (4 GiB), or one file that is larger: the least
recently used files are removed first.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.files.file_lock import Lock
from cutlass_aot.schema.encoding import digest

DIRECTORY_VARIABLE = "CUTLASS_AOT_CACHE"
LIMIT_VARIABLE = "CUTLASS_AOT_CACHE_BYTES"
DEFAULT_LIMIT = 4 << 30

_SUFFIX = ".code"
_NAME = re.compile(r"[0-9a-f]{64}\.code")
_NUMBER = re.compile(r"[0-9]{1,18}")
_LOCK_SECONDS = 60.0
"""How long to wait for another process to unpack, which takes milliseconds."""
_LOCK_POLL_SECONDS = 0.002
_TOUCH_SECONDS = 3600.0
_STALE_SECONDS = 3600.0
_told: set[str] = set()


class CachedPart(NamedTuple):
    """A part of an unpacked file, not verified yet; shorter than requested if the file was truncated."""

    data: bytes
    path: Path


def directory() -> Path | None:
    """The shared directory, which may not exist yet; None if there is to be none."""
    named = os.environ.get(DIRECTORY_VARIABLE)
    if named is not None:
        return Path(named) if named else None
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():
        try:
            home = Path.home()
        except RuntimeError:
            return None
        # System users without a home directory have the root.
        if not home.is_absolute() or home == Path("/"):
            return None
        base = home / ".cache"
    return base / "cutlass-aot"


def limit() -> int:
    """Maximum size of the directory in bytes."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    if not text:
        return DEFAULT_LIMIT
    if not _NUMBER.fullmatch(text):
        _tell(f"{LIMIT_VARIABLE} is {text[:80]!r}: expected a number of bytes; {DEFAULT_LIMIT} are used")
        return DEFAULT_LIMIT
    return int(text)


class State(NamedTuple):
    """The state of the shared directory; ``directory`` is None if there is to be none.

    ``held`` and ``limit`` are bytes of unpacked files. ``problem`` says why nothing can be stored there;
    ``""`` if it can.
    """

    directory: Path | None
    held: int
    limit: int
    problem: str


def state() -> State:
    """The state of the shared directory; nothing is created."""
    folder = directory()
    if folder is None:
        variable = os.environ.get(DIRECTORY_VARIABLE)
        return State(
            None, 0, limit(), f"{DIRECTORY_VARIABLE} is empty" if variable == "" else "there is no home"
        )
    existing = folder
    while (status := _status(existing)) is None and existing != existing.parent:
        existing = existing.parent
    problem = ""
    if status is None or not stat.S_ISDIR(status.st_mode):
        problem = f"{existing} is not a directory"
    elif not os.access(existing, os.W_OK | os.X_OK):
        problem = f"{existing} can only be read" if existing == folder else f"{existing} cannot be written"
    return State(folder, sum(size for _, size, _ in _files(folder)), limit(), problem)


def read(name: str, offset: int, size: int, unpack: Callable[[], Iterable[bytes]]) -> CachedPart | None:
    """Read a part of an unpacked file, unpacking it first if needed; None where it cannot be stored.

    The reason is logged once a process.

    Args:
        name: digest of the packed file.
        offset: bytes before the part.
        size: bytes of the part.
        unpack: gives the whole file; called at most once, and by one process at a time. What it raises is
            passed on.
    """
    folder = directory()
    if folder is None:
        return None
    path = _path(folder, name)
    try:
        data = _read(path, offset, size)
        if data is None:
            _make_directory(folder)
            with _locked(_lock_of(path)):
                # Another process may have unpacked it meanwhile.
                data = _read(path, offset, size)
                if data is None:
                    _write(path, unpack, limit())
                    data = _read(path, offset, size)
    except _Disk as error:
        _tell(
            f"unpacked GPU code cannot be kept in {folder} ({error.reason}): each process unpacks its own, "
            f"in memory; {DIRECTORY_VARIABLE} names another directory, or none if it is empty"
        )
        return None
    return None if data is None else CachedPart(data, path)


def fill(
    folder: Path,
    name: str,
    parts: Iterable[tuple[int, int, str]],
    unpack: Callable[[], Iterable[bytes]],
    most: int | None,
) -> Path:
    """Unpack a file into a directory, unless the file there has all its parts.

    Args:
        folder: will be used as the shared directory.
        name: as for :func:`read`.
        parts: offset, size and SHA-256 of each.
        unpack: as for :func:`read`.
        most: bytes that the directory may hold, for which other files are removed; None for no limit.
    """
    path = _path(folder, name)
    try:
        _make_directory(folder)
        with _locked(_lock_of(path)):
            if not all(digest(_read(path, offset, size) or b"") == found for offset, size, found in parts):
                _write(path, unpack, most)
    except _Disk as error:
        raise BundleError(
            f"cannot unpack into {folder}: {error.reason}: name a directory with room"
        ) from None
    return path


def forget(path: Path) -> None:
    """Remove a file that was found damaged."""
    with suppress(OSError):
        path.unlink()


class _Disk(Exception):
    """The directory cannot be used; callers never see this error."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.reason = f"{error.strerror or error}"


def _status(path: Path) -> os.stat_result | None:
    """The status of a file; None if there is no file, or it cannot be looked at."""
    try:
        return path.stat()
    except OSError:
        return None


def _path(folder: Path, name: str) -> Path:
    path = folder / f"{name}{_SUFFIX}"
    if not _NAME.fullmatch(path.name):
        raise ValueError(f"{name!r} is not a digest")
    return path


def _read(path: Path, offset: int, size: int) -> bytes | None:
    """A part of a file; None if there is no file, or a shorter one, which is removed."""
    try:
        # Non-blocking, or opening a FIFO would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            forget(path)
            return None
        raise _Disk(error) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size < offset + size:
            forget(path)
            return None
        if time.time() - status.st_mtime > _TOUCH_SECONDS:
            # Marks it as used; in a read-only directory that is not possible, and no error.
            with suppress(OSError):
                os.utime(descriptor)
        return os.pread(descriptor, size, offset)
    except OSError as error:
        raise _Disk(error) from None
    finally:
        os.close(descriptor)


def _make_directory(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise _Disk(error) from None


def _lock_of(path: Path) -> Path:
    return path.parent / f".{path.name[:16]}.lock"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that only saves work: a process that does not get it goes on, and unpacks too."""
    lock = Lock(path, shared=False)
    deadline = time.monotonic() + _LOCK_SECONDS
    try:
        try:
            # Polled: with a blocking lock, a process that is stopped would block all others for ever.
            while not lock.try_acquire() and time.monotonic() <= deadline:
                time.sleep(_LOCK_POLL_SECONDS)
        except OSError as error:
            raise _Disk(error) from None
        yield
    finally:
        # By now the file is in place, for waiting processes and for later ones.
        lock.release()


def _write(path: Path, unpack: Callable[[], Iterable[bytes]], most: int | None) -> None:
    pieces = unpack()
    # Without tempfile: importing it would delay the first use of a kernel.
    beside = path.parent / f".new-{os.urandom(16).hex()}"
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _Disk(error) from None
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                try:
                    rest = rest[os.write(descriptor, rest) :]
                except OSError as error:
                    raise _Disk(error) from None
        _make_room(path, os.fstat(descriptor).st_size, most)
        try:
            beside.replace(path)
        except OSError as error:
            raise _Disk(error) from None
    finally:
        os.close(descriptor)
        with suppress(OSError):
            beside.unlink()


def _make_room(path: Path, size: int, most: int | None) -> None:
    """Remove leftovers of killed processes, then the least recently used files, until ``size`` bytes fit."""
    now = time.time()
    for left in path.parent.glob(".new-*"):
        with suppress(OSError):
            if now - left.lstat().st_mtime > _STALE_SECONDS:
                left.unlink()
    if most is None:
        return
    # The file that it replaces needs no room.
    others = [item for item in _files(path.parent) if item[2] != str(path)]
    excess = sum(item[1] for item in others) + size - most
    for _, taken, name in sorted(others):
        if excess <= 0:
            break
        # A process that has it open can still read it.
        with suppress(OSError):
            Path(name).unlink()
            excess -= taken


def _files(folder: Path) -> list[tuple[float, int, str]]:
    """Time of last use, size and path of every unpacked file."""
    files = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if _NAME.fullmatch(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    files.append((status.st_mtime, status.st_size, entry.path))
    return files


def _tell(text: str) -> None:
    if text not in _told:
        # Imported here: it takes longer than reading the code.
        import logging

        _told.add(text)
        logging.getLogger("cutlass_aot").warning(text)

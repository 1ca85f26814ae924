"""What is written into the directory of unpacked files, under a lock; :mod:`~.code_cache` reads it.

The directory holds at most ``$CUTLASS_AOT_CACHE_BYTES`` (4 GB), or one file that is larger: the least
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

from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.files.file_lock import Lock
from cutlass_aot.runtime.launching.code_cache import (
    DIRECTORY_VARIABLE,
    DirectoryUnusable,
    directory,
    is_unpacked,
    path_of,
    read_part,
)
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.named_tuple import NamedTuple

LIMIT_VARIABLE = "CUTLASS_AOT_CACHE_BYTES"
DEFAULT_LIMIT = 4_000_000_000

LOCK_SECONDS = 60.0
"""How long to wait for another process to unpack, which takes milliseconds. A process waits in vain once."""

_POLL_SECONDS = 0.002
_STALE_SECONDS = 3600.0
_MOST_DIGITS = 18
_NEW = re.compile(r"\.new-[0-9a-f]{32}")
_told: set[str] = set()
_held_up: set[Path] = set()
"""Directories whose locks were not given back in time: this process keeps nothing there any more."""


def limit() -> int:
    """Maximum size of the directory in bytes."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    if not text:
        return DEFAULT_LIMIT
    found = limit_of(text)
    if found is None:
        _tell(f"{LIMIT_VARIABLE} is {text[:80]!r}: expected a number of bytes; {DEFAULT_LIMIT} are used")
        return DEFAULT_LIMIT
    return found


def limit_of(text: str) -> int | None:
    """The number of bytes that a text says; None if it says none."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    return int(text) if is_number else None


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
    return State(folder, sum(item.size for item in _files(folder)), limit(), problem)


def read(
    name: str, offset: int, size: int, unpack: Callable[[], Iterable[bytes]]
) -> tuple[bytes, Path] | None:
    """As :func:`~.code_cache.read`, but unpack the file first if needed; None where it cannot be stored.

    The reason is logged once a process.

    Args:
        name: digest of the packed file.
        offset: bytes before the part.
        size: bytes of the part.
        unpack: gives the whole file; called at most once, and by one process at a time. What it raises is
            passed on.
    """
    folder = directory()
    if folder is None or folder in _held_up:
        return None
    path = path_of(folder, name)
    try:
        with _locked(path):
            # Another process may have unpacked it meanwhile.
            data = read_part(path, offset, size)
            if data is None:
                _write(path, unpack, limit())
                data = read_part(path, offset, size)
    except DirectoryUnusable as error:
        _tell(
            f"unpacked GPU code cannot be kept in {folder} ({error.reason}): each process unpacks its own, "
            f"in memory; {DIRECTORY_VARIABLE} names another directory, or none if it is empty"
        )
        return None
    return None if data is None else (data, path)


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
    path = path_of(folder, name)
    try:
        with _locked(path):
            if not all(
                digest(read_part(path, offset, size) or b"") == found for offset, size, found in parts
            ):
                _write(path, unpack, most)
    except DirectoryUnusable as error:
        raise BundleError(
            f"cannot unpack into {folder}: {error.reason}: name a directory with room"
        ) from None
    return path


def _status(path: Path) -> os.stat_result | None:
    """The status of a file; None if there is no file, or it cannot be looked at."""
    try:
        return path.stat()
    except OSError:
        return None


def _make_directory(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise DirectoryUnusable(error) from None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock of an unpacked file, whose directory is created if it has to be.

    The lock only saves work. Whoever holds it for long may be another user, who does so for every file: then
    the directory cannot be used.
    """
    folder = path.parent
    _make_directory(folder)
    lock = Lock(folder / f".{path.name[:16]}.lock", shared=False)
    deadline = time.monotonic() + LOCK_SECONDS
    try:
        try:
            # Polled: with a blocking lock, a process that is stopped would block all others for ever.
            while not lock.try_acquire():
                if time.monotonic() > deadline:
                    _held_up.add(folder)
                if folder in _held_up:
                    held = f"another process has held {lock.path.name} for {LOCK_SECONDS:g} s"
                    raise OSError(errno.ETIMEDOUT, held)
                time.sleep(_POLL_SECONDS)
        except OSError as error:
            raise DirectoryUnusable(error) from None
        yield
    finally:
        # By now the file is in place, for waiting processes and for later ones.
        lock.release()


def _write(path: Path, unpack: Callable[[], Iterable[bytes]], most: int | None) -> None:
    """Write an unpacked file under another name and rename it; others are removed to keep ``most`` bytes."""
    pieces = unpack()
    # Without tempfile: importing it would delay the first use of a kernel.
    beside = path.parent / f".new-{os.urandom(16).hex()}"
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DirectoryUnusable(error) from None
    try:
        for piece in pieces:
            rest = memoryview(piece)
            while rest:
                try:
                    rest = rest[os.write(descriptor, rest) :]
                except OSError as error:
                    raise DirectoryUnusable(error) from None
        _make_room(path, os.fstat(descriptor).st_size, most)
        try:
            beside.replace(path)
        except OSError as error:
            raise DirectoryUnusable(error) from None
    finally:
        os.close(descriptor)
        with suppress(OSError):
            beside.unlink()


def _make_room(path: Path, size: int, most: int | None) -> None:
    """Remove leftovers of killed processes, then the least recently used files, until ``size`` bytes fit.

    Only files of this user are removed, in a directory of this user; where they do not suffice, the directory
    cannot be used.
    """
    folder, user = path.parent, os.geteuid()
    status = _status(folder)
    is_own = status is not None and status.st_uid == user
    now = time.time()
    for left in folder.glob(".new-*") if is_own else ():
        with suppress(OSError):
            status = left.lstat()
            made = _NEW.fullmatch(left.name) and stat.S_ISREG(status.st_mode) and status.st_uid == user
            if made and now - status.st_mtime > _STALE_SECONDS:
                left.unlink()
    if most is None:
        return
    # The file that it replaces needs no room.
    others = [item for item in _files(folder) if item.path != str(path)]
    excess = sum(item.size for item in others) + size - most
    kept = 0
    for item in sorted(others):
        if excess <= 0:
            return
        try:
            if not is_own or item.user != user:
                raise PermissionError
            # A process that has it open can still read it.
            Path(item.path).unlink()
            excess -= item.size
        except OSError:
            kept += item.size
    if excess > 0 and kept:
        raise DirectoryUnusable(
            OSError(errno.EDQUOT, f"it holds {kept} bytes that are not this process's to remove")
        )


class _File(NamedTuple):
    """An unpacked file: when it was last used, its size in bytes, and whose it is."""

    used: float
    size: int
    path: str
    user: int


def _files(folder: Path) -> list[_File]:
    """Every unpacked file."""
    files = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):
                if is_unpacked(entry.name) and entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    files.append(_File(status.st_mtime, status.st_size, entry.path, status.st_uid))
    return files


def _tell(text: str) -> None:
    """Log a warning, once a process."""
    if text not in _told:
        # Imported here: it takes longer than reading the code.
        import logging

        _told.add(text)
        logging.getLogger("cutlass_aot").warning(text)

"""What is written into the directory of unpacked files, under a lock; :mod:`~.code_cache` reads it.

The directory holds at most ``$CUTLASS_AOT_CACHE_BYTES`` (4 GiB), or one file that is larger: the least
recently used files are removed first.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

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

LIMIT_VARIABLE = "CUTLASS_AOT_CACHE_BYTES"
DEFAULT_LIMIT = 4 << 30

LOCK_SECONDS = 60.0
"""How long to wait for another process to unpack, which takes milliseconds."""

_POLL_SECONDS = 0.002
_STALE_SECONDS = 3600.0
_MOST_DIGITS = 18
_told: set[str] = set()


def limit() -> int:
    """Maximum size of the directory in bytes."""
    text = os.environ.get(LIMIT_VARIABLE, "")
    if not text:
        return DEFAULT_LIMIT
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
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
    if folder is None:
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

    The lock only saves work: a process that does not get it goes on, and unpacks too.
    """
    _make_directory(path.parent)
    lock = Lock(path.parent / f".{path.name[:16]}.lock", shared=False)
    deadline = time.monotonic() + LOCK_SECONDS
    try:
        try:
            # Polled: with a blocking lock, a process that is stopped would block all others for ever.
            while not lock.try_acquire() and time.monotonic() <= deadline:
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
                if is_unpacked(entry.name):
                    status = entry.stat(follow_symlinks=False)
                    files.append((status.st_mtime, status.st_size, entry.path))
    return files


def _tell(text: str) -> None:
    """Log a warning, once a process."""
    if text not in _told:
        # Imported here: it takes longer than reading the code.
        import logging

        _told.add(text)
        logging.getLogger("cutlass_aot").warning(text)

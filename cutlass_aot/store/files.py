"""Files of a store: they appear whole, by an atomic rename, and reads are bounded."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cutlass_aot.errors import StoreError
from cutlass_aot.store.layout import NEW

Identity = tuple[int, int]
"""Device and inode: which file has, or had, a name."""


@contextmanager
def reported(action: str, path: Path) -> Iterator[None]:
    """Turn an ``OSError`` into a :class:`StoreError` that says what failed and what to do about it."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot {action} {path}: {error.strerror or error}; "
            "check permissions and free space, or choose another --store"
        ) from None


def new_path(folder: Path) -> Path:
    """An unpredictable name in a directory, marked as that of an unfinished file."""
    return folder / f"{NEW}{os.urandom(8).hex()}"


def create(path: Path) -> int:
    """Create a file that must not exist, with the umask's permissions, and open it for writing.

    Files of ``tempfile`` are private, but several people may share a store.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o666)


def publish(data: bytes, path: Path, *, sync: bool = False) -> None:
    """Write a file so that it appears whole, in place of any other; after an error nothing of it is left.

    ``sync`` keeps it whole after a power cut, too. A file with a digest does not need that.
    """
    with reported("write", path):
        new = new_path(path.parent)
        try:
            with os.fdopen(create(new), "wb") as file:
                file.write(data)
                if sync:
                    file.flush()
                    os.fsync(file.fileno())
            new.replace(path)
        except BaseException:
            new.unlink(missing_ok=True)
            raise


def read(path: Path, limit: int) -> bytes | None:
    """A file's bytes, at most ``limit``; None if it is not there."""
    found = read_found(path, limit)
    if found is None:
        return None
    if len(found[0]) > limit:
        raise StoreError(f"{path} is larger than {limit} bytes: it is not ours; remove it")
    return found[0]


def read_found(path: Path, limit: int) -> tuple[bytes, os.stat_result] | None:
    """A file's bytes and the status of the file they were read from; None if it is not there.

    Of a file that is larger than ``limit`` bytes, ``limit`` + 1 bytes. A :class:`StoreError` has the
    ``OSError`` as its cause.
    """
    for _ in range(2):
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                # read allocates all that is requested, which for a small file should not be the limit.
                return file.read(min(limit, status.st_size) + 1), status
        except FileNotFoundError:
            return None
        except OSError as error:
            # Another client of a network file system has replaced or removed the file: open it again.
            if error.errno == errno.ESTALE:
                continue
            raise StoreError(
                f"cannot read {path}: {error.strerror or error}; check permissions and the disk, "
                "or choose another --store"
            ) from error
    return None


def identity(status: os.stat_result) -> Identity:
    """Which file this status is of."""
    return status.st_dev, status.st_ino


def is_there(path: Path) -> bool:
    """Whether a file is there; False also if that cannot be told."""
    try:
        return path.is_file()
    except OSError:
        return False


def touch(path: Path) -> bool:
    """Mark a file as used at the file system's time; False if it is gone.

    Where nothing may be written, nothing is marked.
    """
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a directory, sorted by name; none if it is not there."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def tree(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Files ``<folder>/<2>/<name>``, sorted by name."""
    for prefix in entries(folder):
        if prefix.is_dir(follow_symlinks=False):
            for entry in entries(Path(prefix.path)):
                if not entry.is_dir(follow_symlinks=False):
                    yield entry

"""Files of a store: they appear whole, by an atomic rename, and are read within bounds."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cutlass_aot.errors import StoreError
from cutlass_aot.store.layout import NEW

Identity = tuple[int, int]
"""Which file it is that stands, or stood, under a name: device and inode."""


@contextmanager
def reported(action: str, path: Path) -> Iterator[None]:
    """Have errors of the operating system say what was being done, and what can be done about it."""
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"cannot {action} {path}: {error.strerror or error}; "
            "check permissions and free space, or choose another --store"
        ) from None


def new_path(folder: Path) -> Path:
    """A name in a directory that nobody can foresee, marked as not yet whole."""
    return folder / f"{NEW}{os.urandom(8).hex()}"


def create(path: Path) -> int:
    """Create a file that must not exist, readable by whom the umask lets, and open it to be written.

    Not by ``tempfile``: what it makes is private, and a store may be several people's.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, flags, 0o666)


def publish(data: bytes, path: Path, *, sync: bool = False) -> None:
    """Have a file appear, whole, in place of whatever was there.

    Args:
        data: its bytes.
        path: where.
        sync: whether it is to be whole also after a power cut. What has a digest can do without.

    Raises:
        StoreError: if it cannot be written; then nothing of it is left.
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
    """A file's bytes, or None if it is not there.

    Raises:
        StoreError: if it cannot be read, or has more than ``limit`` bytes.
    """
    found = read_found(path, limit)
    if found is None:
        return None
    if len(found[0]) > limit:
        raise StoreError(f"{path} is larger than {limit} bytes: it is not ours; remove it")
    return found[0]


def read_found(path: Path, limit: int) -> tuple[bytes, os.stat_result] | None:
    """A file's bytes, and what the operating system says of the file they are of; None if it is not there.

    Of one that is larger than ``limit`` bytes, one byte more.

    Raises:
        StoreError: if it cannot be read. Its cause is the ``OSError``.
    """
    for _ in range(2):
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                # Room for all that is requested is taken at once: a small file must not cost the limit.
                return file.read(min(limit, status.st_size) + 1), status
        except FileNotFoundError:
            return None
        except OSError as error:
            # Another client of a network file system has replaced or removed it: it is opened once more.
            if error.errno == errno.ESTALE:
                continue
            raise StoreError(
                f"cannot read {path}: {error.strerror or error}; check permissions and the disk, "
                "or choose another --store"
            ) from error
    return None


def identity(status: os.stat_result) -> Identity:
    """Which file this is."""
    return status.st_dev, status.st_ino


def is_there(path: Path) -> bool:
    """Whether a file is there, and can be seen."""
    try:
        return path.is_file()
    except OSError:
        return False


def touch(path: Path) -> bool:
    """Mark a file as used; False if it is gone. Where nothing may be written, nothing is marked.

    The time is the file system's own: what it is on this machine does not matter.
    """
    try:
        os.utime(path)
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a directory, by name; nothing if it is not there."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []


def tree(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Files of the directories in a directory (``<folder>/<2>/<name>``), by name."""
    for prefix in entries(folder):
        if prefix.is_dir(follow_symlinks=False):
            for entry in entries(Path(prefix.path)):
                if not entry.is_dir(follow_symlinks=False):
                    yield entry

"""Files of a store: they appear whole, by an atomic rename, and reads are bounded."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cutlass_aot.errors import StoreError
from cutlass_aot.runtime.files.regular_file import open_regular
from cutlass_aot.store.layout import DAMAGED, NEW

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


def publish(data: bytes, path: Path, *, store: Path | None = None, sync: bool = False) -> None:
    """Write a file so that it appears whole, in place of any other; after an error nothing of it is left.

    ``sync`` keeps it whole after a power cut, too. A file with a digest does not need that. What else than a
    file or a directory of the ``store`` stands in the way is set aside.
    """
    with reported("write", path):
        try:
            _publish(data, path, sync)
        except OSError:
            if store is None:
                raise
            # Again even if nothing is in the way now: another builder may have set it aside.
            clear(store, path)
            _publish(data, path, sync)


def _publish(data: bytes, path: Path, sync: bool) -> None:
    new = new_path(path.parent)
    try:
        with os.fdopen(create(new), "wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        new.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def make_folder(store: Path, path: Path) -> None:
    """Make a directory of a store; what else stands there, or on the way, is set aside."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError:
        clear(store, path / NEW)
        path.mkdir(parents=True, exist_ok=True)


def obstacle(store: Path, path: Path) -> tuple[Path, os.stat_result] | None:
    """What stands where a store has the file ``path``, or a directory above it, and is something else.

    A symbolic link to a directory counts as one, a symbolic link to a file does not.
    """
    at = store
    for part in path.relative_to(store).parts:
        at /= part
        try:
            status = at.lstat()
        except FileNotFoundError:
            return None
        if not (stat.S_ISREG(status.st_mode) if at == path else _is_directory(at, status)):
            return at, status
    return None


def _is_directory(path: Path, status: os.stat_result) -> bool:
    if stat.S_ISLNK(status.st_mode):
        try:
            status = path.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                return False
            raise
    return stat.S_ISDIR(status.st_mode)


def clear(store: Path, path: Path) -> bool:
    """Set aside what is in the way of a file of a store; False if nothing is."""
    found = obstacle(store, path)
    return found is not None and set_aside(store, found[0], identity(found[1]))


def set_aside(store: Path, path: Path, seen: Identity | None = None) -> bool:
    """Move something of a store into ``damaged/``, where a person can look at it; False if it is gone.

    If ``seen`` is given, a file of another identity, which has replaced the damaged one, stays.
    """
    with reported("set aside", path):
        damaged = _damaged_folder(store)
        # The kind of a record is in its path alone.
        kind = path.relative_to(store).parts[1:-2]
        target = damaged / "-".join((*kind, path.name))
        try:
            # Another builder may have put a good one there since.
            status = path.lstat()
            if seen is not None and identity(status) != seen:
                return False
            if stat.S_ISDIR(status.st_mode) or target.is_dir():
                # A rename cannot replace a directory that is not empty.
                target = target.with_name(f"{target.name}-{os.urandom(4).hex()}")
            path.replace(target)
        except FileNotFoundError:
            # Another reader was quicker.
            return False
        return True


def _damaged_folder(store: Path) -> Path:
    damaged = store / DAMAGED
    try:
        damaged.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        # Something else has its name: it becomes the first in it.
        beside = new_path(store)
        damaged.replace(beside)
        damaged.mkdir(exist_ok=True)
        beside.replace(damaged / f"{DAMAGED}-{os.urandom(4).hex()}")
    return damaged


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
    ``OSError`` as its cause, and is raised too for what is not a regular file.
    """
    for _ in range(2):
        try:
            with os.fdopen(open_regular(path), "rb") as file:
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
    """Whether a regular file is there; False also if that cannot be told."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def touch(path: Path) -> bool:
    """Mark a file as used at the file system's time; False if it is gone, or is not a regular file.

    Where nothing may be written, nothing is marked.
    """
    try:
        os.utime(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return is_there(path)


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """The entries of a directory, sorted by name; none if it is not there."""
    try:
        with os.scandir(folder) as found:
            return sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if error.errno == errno.ELOOP:
            return []
        raise


def tree(folder: Path, *, strange: bool = False) -> Iterator[os.DirEntry[str]]:
    """Files ``<folder>/<2>/<name>``, sorted by name.

    With ``strange`` whatever has such a name, and what stands in the place of a directory ``<2>``.
    """
    for prefix in entries(folder):
        if prefix.is_dir(follow_symlinks=False):
            found = entries(Path(prefix.path))
            yield from (entry for entry in found if strange or entry.is_file(follow_symlinks=False))
        elif strange:
            with contextlib.suppress(FileNotFoundError):
                if not _is_directory(Path(prefix.path), prefix.stat(follow_symlinks=False)):
                    yield prefix

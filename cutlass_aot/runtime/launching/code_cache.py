"""Unpacked files in a directory that processes share: one of them unpacks, the others read.

A file is named by the digest of the packed file, written under another name and renamed when it is complete.
Readers check each part against its own digest, so damage to the directory can cost time but nothing else. If
no directory can be used, every process unpacks for itself.

The directory is ``$CUTLASS_AOT_CACHE`` (empty: none), else ``cutlass-aot`` in ``$XDG_CACHE_HOME``, else in
``~/.cache``. What is written there, and how much of it, is in :mod:`~.unpacking`.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

from cutlass_aot.schema.encoding import is_digest

DIRECTORY_VARIABLE = "CUTLASS_AOT_CACHE"

_SUFFIX = ".code"
_TOUCH_SECONDS = 3600.0


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


def read(name: str, offset: int, size: int) -> tuple[bytes, Path] | None:
    """Read a part of an unpacked file, and say which; None if it is not there, or cannot be read.

    The part is not verified, and shorter if the file was truncated.

    Args:
        name: digest of the packed file.
        offset: bytes before the part.
        size: bytes of the part.
    """
    folder = directory()
    if folder is None:
        return None
    path = path_of(folder, name)
    try:
        data = read_part(path, offset, size)
    except DirectoryUnusable:
        return None
    return None if data is None else (data, path)


def forget(path: Path) -> None:
    """Remove a file that was found damaged."""
    with suppress(OSError):
        path.unlink()


class DirectoryUnusable(Exception):
    """The directory cannot be used; callers never see this error."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.reason = f"{error.strerror or error}"


def path_of(folder: Path, name: str) -> Path:
    """The unpacked file of a packed one, which is named by its digest."""
    if not is_digest(name):
        raise ValueError(f"{name!r} is not a digest")
    return folder / f"{name}{_SUFFIX}"


def is_unpacked(name: str) -> bool:
    """Whether a file's name is that of an unpacked file."""
    return name.endswith(_SUFFIX) and is_digest(name.removesuffix(_SUFFIX))


def read_part(path: Path, offset: int, size: int) -> bytes | None:
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
        raise DirectoryUnusable(error) from None
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
        raise DirectoryUnusable(error) from None
    finally:
        os.close(descriptor)

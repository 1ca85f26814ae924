"""Open a file that anybody may have put there: without waiting for it, and only if it is a regular one."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegularFile(OSError):
    """Something else than a regular file has the name; ``strerror`` says what."""


def open_regular(path: str | Path, *, folder: int | None = None, follow: bool = False) -> int:
    """Open a regular file for reading, and return its descriptor.

    Args:
        path: relative to the directory with the descriptor ``folder``, if one is given.
        follow: whether a symbolic link is followed to the file; otherwise it is not one.

    Raises:
        NotRegularFile: for anything else that has this name.
        OSError: if it cannot be opened.
    """
    # Non-blocking, or opening a FIFO would wait for a writer.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags, dir_fd=folder)
    except OSError as error:
        # What ELOOP and ENXIO are of: a link, a socket or a device; or a link among the directories above.
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.ENODEV):
            mode = os.lstat(path, dir_fd=folder).st_mode
            if not stat.S_ISREG(mode):
                raise _not_regular(mode, path) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise _not_regular(mode, path)
    return descriptor


def kind_of(mode: int) -> str:
    """What a file of this mode is, in words."""
    return _KINDS.get(stat.S_IFMT(mode), "a regular file")


def _not_regular(mode: int, path: str | Path) -> NotRegularFile:
    return NotRegularFile(errno.EINVAL, f"it is {kind_of(mode)}, expected a regular file", os.fspath(path))

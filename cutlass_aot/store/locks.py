"""Locks that a process holds as long as it lives. They save work; nothing relies on them.

``flock``, and nothing in its place where a file system has none: a lock that is only a file stays behind when
its owner is killed, and would stop everybody for ever.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL})
_HELD = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES})


class Lock:
    """One lock: a file, removed when it is given back.

    Attributes:
        path: the file.
        supported: False once the file system turned out to have no locks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.supported = True
        self._descriptor: int | None = None

    def try_acquire(self, *, create: bool = True) -> bool:
        """Take it without waiting; False while another holds it. True, too, where there are no locks.

        A file that may not be opened is another user's, and counts as held.

        Args:
            create: whether to make the file; else it has to be there.

        Raises:
            OSError: if the file cannot be opened.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        while True:
            # Not inherited by programs that are started; kept in the object before it is locked, so that an
            # interrupt between the two leaves nothing that release() misses.
            try:
                self._descriptor = os.open(self.path, flags, 0o666)
            except PermissionError:
                if not self.path.exists():
                    raise
                return False
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self._close()
                if error.errno in _NO_LOCKS:
                    self.supported = False
                    return True
                if error.errno in _HELD:
                    return False
                raise
            if self._is_current(self._descriptor):
                return True
            self._close()

    def release(self, *, remove: bool = True) -> None:
        """Give it back and remove its file. One that is not held is left alone.

        Args:
            remove: whether to remove the file; not one that is somebody else's.
        """
        if self._descriptor is not None:
            # While it is held: whoever opened the file before finds that it is gone, and opens the new one.
            if remove:
                with contextlib.suppress(OSError):
                    self.path.unlink()
            self._close()

    def _is_current(self, descriptor: int) -> bool:
        """Whether the file that was locked is still the one of this name: its last owner removes it."""
        mine = os.fstat(descriptor)
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

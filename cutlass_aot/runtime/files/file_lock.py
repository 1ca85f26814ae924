"""Locks that a process holds as long as it lives. They save work; nothing relies on them.

The package ``filelock`` does not fit here. Where a file system has no ``flock``, it makes a lock that is only
a file, which stays behind when its owner is killed and would stop everybody for ever; here nothing is locked
then. Its import also takes longer than the first use of a kernel or of a store may wait.
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

    Args:
        path: the file; a symbolic link is refused.
        shared: whether several users lock it. Then anybody may open the file, and one that may not be opened
            counts as held by another user.

    Attributes:
        supported: False once the file system turned out to have no locks.
    """

    def __init__(self, path: Path, *, shared: bool = True) -> None:
        self.path = path
        self.supported = True
        self._shared = shared
        self._descriptor: int | None = None

    def try_acquire(self, *, create: bool = True) -> bool:
        """Take it without waiting; False while another holds it. True, too, where there are no locks.

        Args:
            create: whether to make the file; else it has to be there.

        Raises:
            OSError: if the file cannot be opened.
        """
        # Non-blocking, or opening a FIFO would wait.
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if create else 0)
        while True:
            # Not inherited by programs that are started; kept in the object before it is locked, so that an
            # interrupt between the two leaves nothing that release() misses.
            try:
                self._descriptor = os.open(self.path, flags, 0o666 if self._shared else 0o600)
            except PermissionError:
                if not self._shared or not self.path.exists():
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
            # Not by closing alone: a child forked meanwhile has the same lock, and may live long.
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None

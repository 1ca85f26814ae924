"""Locks held at most as long as a process lives. They save work, and correctness does not depend on them.

Where a file system has no ``flock``, nothing is locked. A lock that is just a file, to which the package
``filelock`` falls back, stays behind when its owner is killed, and would block everybody for ever.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from pathlib import Path

_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL})
# Network file systems lock only what can be written.
_HELD = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EBADF})


class Lock:
    """One lock: a file, removed when it is released.

    Args:
        path: the file; a symbolic link is refused.
        shared: whether several users lock it. Then the umask says who may open the file, one that can only be
            read will do, and one that cannot be opened counts as held by another user.

    Attributes:
        supported: False once the file system turned out to have no locks.
    """

    def __init__(self, path: Path, *, shared: bool = True) -> None:
        self.path = path
        self.supported = True
        self._shared = shared
        self._descriptor: int | None = None

    def try_acquire(self, *, create: bool = True) -> bool:
        """Take it without waiting; False while another process holds it. True also if there are no locks.

        Without ``create`` the file has to exist. OSError is raised if it cannot be opened.
        """
        # Non-blocking, or opening a FIFO would wait.
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | (os.O_CREAT if create else 0)
        while True:
            # Not inherited by child programs. Stored before it is locked, so that release() finds it even if
            # an interrupt comes between.
            try:
                self._descriptor = os.open(self.path, flags, 0o666 if self._shared else 0o600)
            except PermissionError:
                if not self._shared or not self.path.exists():
                    raise
                try:
                    # What a killed process of another user left can be locked all the same.
                    self._descriptor = os.open(self.path, flags & ~(os.O_RDWR | os.O_CREAT) | os.O_RDONLY)
                except OSError:
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
        """Release it and remove its file, unless ``remove`` is False. Does nothing if it is not held."""
        if self._descriptor is not None:
            # Removed while held: a process that opened the file before sees that it is gone, and opens a new
            # one.
            if remove:
                with contextlib.suppress(OSError):
                    self.path.unlink()
            self._close()

    def _is_current(self, descriptor: int) -> bool:
        """Whether the locked file still has this name: its last owner may have removed it."""
        mine = os.fstat(descriptor)
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False
        return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)

    def _close(self) -> None:
        if self._descriptor is not None:
            # Closing alone is not enough: a child forked meanwhile shares the lock, and may live long.
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
            os.close(self._descriptor)
            self._descriptor = None

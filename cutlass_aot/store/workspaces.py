"""Room to work: a private directory for each builder, which tells that it lives."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.store.files import create, entries, new_path, reported
from cutlass_aot.store.layout import NEW
from cutlass_aot.store.locks import Lock

ABANDONED_AFTER = 86_400.0
"""Seconds without a new file after which a builder counts as dead where locks cannot tell."""

_OWNER = ".owner"


@dataclass(frozen=True, slots=True)
class Workspace:
    """A builder's directory.

    Attributes:
        path: the directory.
        began: when it was made, in seconds since the epoch by the file system's clock.
    """

    path: Path
    began: float


@contextmanager
def workspace(parent: Path) -> Iterator[Workspace]:
    """A directory of one's own in ``parent``, removed at the end whatever happens.

    What builders that were killed have left is removed first: each directory is locked as long as its owner
    lives.

    Raises:
        StoreError: if it cannot be made.
    """
    with reported("write", parent):
        parent.mkdir(parents=True, exist_ok=True)
        # Locked before it has its name: nobody ever sees one that is neither locked nor abandoned.
        unnamed = new_path(parent)
        path = parent / unnamed.name.removeprefix(NEW)
        owner = Lock(unnamed / _OWNER)
        try:
            unnamed.mkdir()
            os.close(create(owner.path))
            owner.try_acquire()
            began = owner.path.stat().st_mtime
            unnamed.rename(path)
            remove_abandoned(parent, began)
        except BaseException:
            owner.release()
            for left in (unnamed, path):
                shutil.rmtree(left, ignore_errors=True)
            raise
    try:
        yield Workspace(path, began)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        owner.release()


def remove_abandoned(parent: Path, now: float) -> None:
    """Remove the directories of builders that are dead; ``now`` is the file system's time."""
    for entry in entries(parent):
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False) and not _is_alive(path, now):
            shutil.rmtree(path, ignore_errors=True)


def running(parent: Path, now: float) -> list[Workspace]:
    """Directories of builders that are at work; ``now`` is the file system's time."""
    found = []
    for entry in entries(parent):
        path = Path(entry.path)
        if entry.is_dir(follow_symlinks=False) and _is_alive(path, now):
            began = now
            for file in (path, path / _OWNER):
                with contextlib.suppress(OSError):
                    began = min(began, file.stat().st_mtime)
            found.append(Workspace(path, began))
    return found


def _is_alive(path: Path, now: float) -> bool:
    try:
        youngest = path.stat().st_mtime
        if not path.name.startswith(NEW):
            owner = Lock(path / _OWNER)
            if not owner.try_acquire(create=False):
                return True
            if owner.supported:
                owner.release()
                return False
    except FileNotFoundError:
        # It has its name only with the owner's file in it: somebody was removing it, and what a process that
        # outlived its builder wrote meanwhile is left.
        return False
    except OSError:
        # Somebody else's, and closed to us: not ours to judge.
        return True
    return now - youngest < ABANDONED_AFTER

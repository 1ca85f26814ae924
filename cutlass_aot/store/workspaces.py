"""Workspaces: a private directory for each builder, which shows whether the builder lives."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.runtime.files.file_lock import Lock
from cutlass_aot.runtime.files.regular_file import open_regular
from cutlass_aot.runtime.machine.identity import identity, is_this_machine
from cutlass_aot.store.files import create, entries, new_path, reported
from cutlass_aot.store.layout import NEW

ABANDONED_AFTER = 86_400.0
"""Seconds without a new file after which a builder counts as dead, if locks cannot tell."""

_OWNER = ".owner"
_MAX_OWNER_BYTES = 1 << 10


@dataclass(frozen=True, slots=True)
class Workspace:
    """A builder's directory, made at ``began``, in seconds since the epoch by the file system's clock."""

    path: Path
    began: float


@contextmanager
def workspace(parent: Path, *, tidy: bool = True) -> Iterator[Workspace]:
    """A private directory in ``parent``, removed at the end.

    Each names its owner's machine, and is locked as long as the owner lives. ``tidy`` removes the directories
    of killed builders first.
    """
    with reported("write", parent):
        parent.mkdir(parents=True, exist_ok=True)
        # Locked before it is renamed, so that a directory with a final name is either locked or abandoned.
        unnamed = new_path(parent)
        path = parent / unnamed.name.removeprefix(NEW)
        owner = Lock(unnamed / _OWNER)
        try:
            unnamed.mkdir()
            with os.fdopen(create(owner.path), "wb") as file:
                file.write(identity().encode())
            owner.try_acquire()
            began = owner.path.stat().st_mtime
            unnamed.rename(path)
            if tidy:
                for left in abandoned(parent, began):
                    shutil.rmtree(left, ignore_errors=True)
        except BaseException:
            owner.release()
            for mine in (unnamed, path):
                shutil.rmtree(mine, ignore_errors=True)
            raise
    try:
        yield Workspace(path, began)
    finally:
        shutil.rmtree(path, ignore_errors=True)
        owner.release()


def abandoned(parent: Path, now: float) -> list[Path]:
    """Directories of builders that are dead; ``now`` is the file system's time."""
    found = [Path(entry.path) for entry in entries(parent) if entry.is_dir(follow_symlinks=False)]
    return [path for path in found if not _is_alive(path, now)]


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
    """Whether a directory's owner lives.

    If its lock is held, the owner lives. If it is free, the owner is dead only if it was on this machine: on
    some file systems a machine does not see the locks of others.
    """
    try:
        # Not a regular file is nobody's: a builder makes one.
        if not path.name.startswith(NEW) and not _is_strange(path / _OWNER):
            owner = Lock(path / _OWNER)
            with os.fdopen(open_regular(owner.path), "rb") as file:
                words = file.read(_MAX_OWNER_BYTES).decode("utf-8", "replace")
            if not owner.try_acquire(create=False):
                return True
            owner.release(remove=False)
            if owner.supported and is_this_machine(words):
                return False
        youngest = _youngest(path)
    except FileNotFoundError:
        # A directory gets its final name only with the owner's file in it. So this one was being removed, and
        # has only files that a process that outlived its builder wrote meanwhile.
        return False
    except OSError:
        # Another user's, which this one may not read: it counts as alive.
        return True
    return now - youngest < ABANDONED_AFTER


def _is_strange(path: Path) -> bool:
    return not stat.S_ISREG(path.lstat().st_mode)


def _youngest(path: Path) -> float:
    """When anything in a directory was last written."""
    youngest = path.stat().st_mtime
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):
                youngest = max(youngest, os.lstat(f"{folder}/{name}").st_mtime)
    return youngest

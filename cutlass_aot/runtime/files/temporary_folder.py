"""Private directories. What a killed process left is removed by the next that makes one of this name."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cutlass_aot.runtime.files.file_lock import Lock
from cutlass_aot.runtime.files.regular_file import open_regular
from cutlass_aot.runtime.machine.identity import identity, is_this_machine

PREFIX = "cutlass-aot-"
SETTLED_SECONDS = 60.0
"""A younger directory may not be locked yet: it is left alone."""

_OWNER = ".owner"
_MAX_OWNER_BYTES = 1 << 10


@contextmanager
def temporary_folder(what: str = "", *, beside: Path | None = None) -> Iterator[Path]:
    """An empty directory that only this user can look into, removed at the end.

    Beside it is a file that names this machine, and is locked as long as this process lives.

    Args:
        what: becomes a part of its path.
        beside: an output that it is on one file system with; it is in ``$TMPDIR`` if left out.
    """
    parent = Path(tempfile.gettempdir()) if beside is None else beside.parent
    prefix = PREFIX if beside is None else f".{beside.name}-"
    _remove_abandoned(parent, re.compile(re.escape(prefix) + "[A-Za-z0-9_-]+"))
    outer = Path(tempfile.mkdtemp(prefix=f"{prefix}{what}-" if what else prefix, dir=parent))
    owner = Lock(outer / _OWNER, shared=False)
    try:
        # Where there are no locks the directory is of use all the same.
        with contextlib.suppress(OSError):
            owner.path.write_text(identity(), encoding="utf-8")
            owner.try_acquire()
        folder = outer / "files"
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(outer, ignore_errors=True)
        owner.release()


def _remove_abandoned(parent: Path, names: re.Pattern[str]) -> None:
    """Remove directories of this user whose owners are dead, by their locks."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if names.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    _remove_if_abandoned(Path(entry.path))


def _remove_if_abandoned(folder: Path) -> None:
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return
    if time.time() - status.st_mtime < SETTLED_SECONDS:
        return
    owner = Lock(folder / _OWNER, shared=False)
    # One without the file is of a process that was killed in the middle of making it, or is not ours.
    with os.fdopen(open_regular(owner.path), "rb") as file:
        words = file.read(_MAX_OWNER_BYTES).decode("utf-8", "replace")
    # On some file systems a machine does not see the locks of others.
    if not is_this_machine(words):
        return
    if owner.try_acquire(create=False) and owner.supported:
        shutil.rmtree(folder, ignore_errors=True)
    owner.release(remove=False)

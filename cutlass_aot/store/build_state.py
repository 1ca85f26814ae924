"""What a builder notes for itself, on one machine: it saves time, and losing it costs nothing else.

A note holds paths and inode numbers, which mean nothing elsewhere. It is named by a digest of what it is
about, stands under ``notes/`` of the store, and is no record: nothing is reachable from it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Any

from cutlass_aot.errors import CorruptFile, SchemaTooNew, StoreError
from cutlass_aot.schema.encoding import seal, unseal

NOTES = "notes"
SCHEMA = 1
_KIND = "cutlass-aot note"
_MAX_BYTES = 64 << 20
_USE_NOTED_AFTER = 86_400.0


def read_note(store: Path, name: str) -> Any | None:
    """A note's body, or None if there is none that can be read.

    Args:
        store: directory of the store, which need not exist.
        name: a digest.
    """
    try:
        return _read(store / NOTES / name)
    except (OSError, CorruptFile, SchemaTooNew):
        return None


def note_use(store: Path, name: str) -> None:
    """Note that a note was of use, once a day: a collection takes those that were not for long."""
    path = store / NOTES / name
    with contextlib.suppress(OSError):
        if abs(time.time() - path.stat().st_mtime) > _USE_NOTED_AFTER:
            os.utime(path)


def note_problem(store: Path, name: str) -> str | None:
    """What is wrong with a note's file, if anything."""
    try:
        _read(store / NOTES / name)
    except (FileNotFoundError, SchemaTooNew):
        return None
    except CorruptFile as error:
        return str(error)
    except OSError as error:
        # What cannot be read from here and now need not be damaged.
        if error.errno in (errno.EIO, errno.EISDIR):
            return str(error.strerror)
        raise
    return None


def _read(path: Path) -> Any:
    with path.open("rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise CorruptFile(f"it has more than {_MAX_BYTES} bytes")
    return unseal(data, _KIND, SCHEMA, "it")


def write_note(store: Path, name: str, body: Any) -> None:
    """Keep a note. A store that is not there, or cannot be written to, is left without."""
    # A build with nothing to do reads notes, and needs nothing else of the store.
    from cutlass_aot.store.files import publish

    with contextlib.suppress(StoreError):
        if store.is_dir():
            publish(seal(_KIND, SCHEMA, body), store / NOTES / name)

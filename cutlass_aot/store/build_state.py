"""Build state: what a builder remembers from one build to the next, on one machine.

It only saves time. It has paths and inode numbers, which mean nothing on another machine. A file of build
state is named by a digest of its subject, and is in the store's folder ``build_state``. It is not a record: a
collection keeps nothing because of it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Any

from cutlass_aot.errors import CorruptFile, SchemaTooNew, StoreError
from cutlass_aot.runtime.files.regular_file import open_regular
from cutlass_aot.schema.encoding import seal, unseal

BUILD_STATE = "build_state"
SCHEMA = 2
_KIND = "cutlass-aot build state"
_MAX_BYTES = 64 << 20
_MARKED_AFTER = 86_400.0


def read_state(store: Path, name: str) -> Any | None:
    """The state under a name, a digest; None if it cannot be read, or the store does not exist."""
    try:
        return _read(store / BUILD_STATE / name)
    except (OSError, CorruptFile, SchemaTooNew):
        return None


def mark_used(store: Path, name: str) -> None:
    """Mark state as used, at most once a day: a collection removes what was not used for long."""
    path = store / BUILD_STATE / name
    with contextlib.suppress(OSError):
        if abs(time.time() - path.stat().st_mtime) > _MARKED_AFTER:
            os.utime(path)


def state_problem(store: Path, name: str) -> str | None:
    """What is wrong with a file of build state; None if nothing is, or it is gone or of a newer release."""
    try:
        _read(store / BUILD_STATE / name)
    except (FileNotFoundError, SchemaTooNew):
        return None
    except CorruptFile as error:
        return str(error)
    except OSError as error:
        # Other errors do not say that the file is damaged.
        if error.errno == errno.EIO:
            return str(error.strerror)
        raise
    return None


def _read(path: Path) -> Any:
    with os.fdopen(open_regular(path), "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise CorruptFile(f"it has more than {_MAX_BYTES} bytes")
    return unseal(data, _KIND, SCHEMA, "it")


def write_state(store: Path, name: str, body: Any) -> None:
    """Write state under a name; nothing happens if the store is not there or cannot be written to."""
    # Imported here: a build with nothing to do only reads build state, and needs no other part of the store.
    from cutlass_aot.store.files import publish

    with contextlib.suppress(StoreError):
        if store.is_dir():
            publish(seal(_KIND, SCHEMA, body), store / BUILD_STATE / name, store=store)

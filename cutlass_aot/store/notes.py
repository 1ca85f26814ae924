"""What a builder notes for itself, on one machine: it saves time, and losing it costs nothing else.

A note holds paths and inode numbers, which mean nothing elsewhere. It is named by a digest of what it is
about, stands under ``notes/`` of the store, and is no record: nothing is reachable from it.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

from cutlass_aot.errors import CorruptFile, SchemaTooNew
from cutlass_aot.schema.encoding import seal, unseal

SCHEMA = 1
_KIND = "cutlass-aot note"
_MAX_BYTES = 64 << 20


def read_note(store: Path, name: str) -> Any | None:
    """A note's body, or None if there is none that can be read.

    Args:
        store: directory of the store, which need not exist.
        name: a digest.
    """
    try:
        with (store / "notes" / name).open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        return unseal(data, _KIND, SCHEMA, "a note") if len(data) <= _MAX_BYTES else None
    except (OSError, CorruptFile, SchemaTooNew):
        return None


def write_note(store: Path, name: str, body: Any) -> None:
    """Keep a note. A store that cannot be written to is left without."""
    folder = store / "notes"
    with contextlib.suppress(OSError):
        folder.mkdir(exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".new-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(seal(_KIND, SCHEMA, body))
            Path(temporary).replace(folder / name)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise

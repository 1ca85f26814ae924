"""A directory that this process must not look into, even where tests run as the superuser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NOBODY = 65534


@contextmanager
def unreadable(parent: Path) -> Iterator[Path]:
    """Make such a directory; what may be read is as before when the block ends."""
    folder = parent / "unreadable"
    folder.mkdir()
    before = os.geteuid()
    folder.chmod(0)
    if before == 0:
        # Permissions do not keep it out.
        os.seteuid(_NOBODY)
    try:
        yield folder
    finally:
        os.seteuid(before)
        folder.chmod(0o700)

"""Watch a program from within its process, from its start to its end; ``capture/site`` begins it."""

from __future__ import annotations

import os
from pathlib import Path

from cutlass_aot.capture.found import Found
from cutlass_aot.capture.watch import Watch

FOLDER_VARIABLE = "CUTLASS_AOT_CAPTURE"
"""Names the private folder that every process of the program writes what it found into."""

SUFFIX = ".found"


def begin() -> None:
    """Watch this process; what is found is written at once, so that nothing is lost however it ends."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        Watch(lambda found: _write(found, Path(folder))).begin()


def _write(found: Found, folder: Path) -> None:
    # By process: one that is forked has its own file, with what was found before.
    path = folder / f"{os.getpid()}{SUFFIX}"
    new = path.with_suffix(".new")
    new.write_bytes(found.to_bytes())
    new.replace(path)

"""What one process of a session makes for all of them: pytest-xdist's workers share a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that the first who asks has filled; nobody else may change what is in it."""
    root = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent
    folder = root / name
    with FileLock(root / f"{name}.lock"):
        if not (root / f"{name}.made").exists():
            folder.mkdir(exist_ok=True)
            make(folder)
            (root / f"{name}.made").touch()
    return folder

"""A bundle of programs that several files of tests use, built once a session."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import FIXTURES
from tests.support.session import made_once

MANIFEST = """\
[bundle]
name = "three"
version = "0.1.0"
targets = ["sm_90a", "sm_100a"]
device = { sm_90a = "h200", sm_100a = "b200" }

[[programs]]
run = ["python", "three_packages.py"]
"""


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program of three packages, its manifest, and what was built of it."""
    return made_once(tmp_path_factory, "three", _build)


def _build(folder: Path) -> None:
    shutil.copy(FIXTURES / "programs" / "three_packages.py", folder)
    (folder / "three.toml").write_text(MANIFEST)
    command = ("-m", "cutlass_aot", "build", "three.toml", "--store", "store", "--out", "bundles")
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr

"""The smoke bundle as a build in a place of its own makes it, once a session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.session import made_once


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``store``, ``out``, the build's ``events`` and its ``page.html``."""
    return made_once(tmp_path_factory, "built", _build)


def _build(root: Path) -> None:
    places = ("--store", root / "store", "--out", root / "out")
    arguments = ("build", "manifests/smoke.toml", *places, "-j", 2, "--json", "--report", root / "page.html")
    done = subprocess.run(
        [sys.executable, "-m", "cutlass_aot", *map(str, arguments)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (root / "events").write_text(done.stdout, encoding="utf-8")

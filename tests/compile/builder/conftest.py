"""Bundles as builds in places of their own make them, once a session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import REPOSITORY
from tests.support.session import made_once

LAYOUTS = ("ttt", "ttn", "tnt", "tnn", "ntt", "ntn", "nnt", "nnn")
HEAD = """
[bundle]
name = "many"
targets = ["sm_90a"]
device = "h200"
"""
TABLE = """
[[kernels]]
generator = "simt_f64_gemm"
ab = "f64"
layouts = ["{}"]
tile = "16x16"
"""
MANIFEST = HEAD + "".join(TABLE.format(layouts) for layouts in LAYOUTS[:5])
"""Five kernels in five tables, which need the DSL and no torch: a build goes as others do, in a third of
their time."""


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the smoke manifest: ``store``, ``out``, the build's ``events`` and its ``page.html``."""
    return made_once(tmp_path_factory, "built", _build)


@pytest.fixture(scope="session")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of :data:`MANIFEST`, which is in it as ``m.toml``."""
    return made_once(tmp_path_factory, "many", _build_many)


def _build_many(root: Path) -> None:
    (root / "m.toml").write_text(MANIFEST)
    _build(root, root / "m.toml")


def _build(root: Path, manifest: str | Path = "manifests/smoke.toml") -> None:
    places = ("--store", root / "store", "--out", root / "out")
    arguments = ("build", manifest, *places, "-j", 2, "--json", "--report", root / "page.html")
    done = subprocess.run(
        [sys.executable, "-m", "cutlass_aot", *map(str, arguments)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (root / "events").write_text(done.stdout, encoding="utf-8")

"""Machine code against what the operators package compiles just in time."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.compile

LAYOUTS_WITH_A_SHORTER_LOOP = {"ttt", "tnt", "tnn"}
"""On every target; that of ``ttn`` is the same on some."""


def test_no_loop_is_longer_and_block_scaled_code_is_the_same(tmp_path):
    """Other kernels than those of the page: another seed draws them."""
    done = subprocess.run(
        [
            sys.executable, "-m", "tools.check.against_jit", "--scaled", "8", "--sm80", "4", "--seed", "18",
            "-o", str(tmp_path / "lengths.json"),
        ],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    tables = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in done.stdout.splitlines()
        if line.startswith("| ")
    ]
    kinds = ("MXFP8", "MXFP4", "FP8, MXFP4", "NVFP4")
    assert tables[1:5] == [[kind, "2", "", "0", "2", "0"] for kind in kinds]
    shorter = {row[2] for row in tables if len(row) == 12 and row[0] == "SM80" and int(row[9]) > int(row[11])}
    assert shorter >= LAYOUTS_WITH_A_SHORTER_LOOP
    assert len(json.loads((tmp_path / "lengths.json").read_text())) == 12

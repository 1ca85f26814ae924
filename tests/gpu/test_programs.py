"""On a GPU: a program that was recorded without one is answered, and computes what it should.

Build ``tests/fixtures/programs/direct_calls.toml`` before.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.gpu.conftest import REPOSITORY, opened

pytestmark = pytest.mark.gpu
PROGRAM = REPOSITORY / "tests" / "fixtures" / "programs" / "direct_calls.py"


def test_direct_calls_are_answered_without_the_dsl(capability):
    """The program says what becomes of its numbers: the first 128, and all of them."""
    pytest.importorskip("torch")
    bundle = opened("direct-calls", capability)
    words = ("run", "--without-dsl", "--bundle", bundle.path, "--policy", "required", "--", sys.executable)
    done = subprocess.run(
        [sys.executable, "-m", "cutlass_aot", *map(str, words), str(PROGRAM), "--check"],
        capture_output=True, text=True, check=False, cwd=REPOSITORY,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[253.0, 502.0] [253.0]\n"
    assert "8 requests answered" in done.stderr
    assert "missed" not in done.stderr

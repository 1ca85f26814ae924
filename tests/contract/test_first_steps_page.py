"""What docs/guides/first-steps.md shows is run: its commands, then its Python."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.support.commands import blocks_of, run_commands
from tests.support.paths import REPOSITORY

TEXT = (REPOSITORY / "docs" / "guides" / "first-steps.md").read_text(encoding="utf-8")
BLOCKS = blocks_of(TEXT)


@pytest.mark.compile
def test_the_page_runs_as_it_is_written() -> None:
    commands = [line for block in BLOCKS if block.language == "bash" for line in block.text.splitlines()]
    assert any(line.startswith("cutlass-aot build") for line in commands)
    run_commands(commands)
    python = "\n".join(block.text for block in BLOCKS if block.language == "python")
    result = subprocess.run(
        [sys.executable, "-c", python], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    # What the comment behind the last line promises.
    promised = re.search(r"verdict\.reason\)\n# (.*)", python)
    assert promised is not None
    assert result.stdout.splitlines()[-1] == promised.group(1)

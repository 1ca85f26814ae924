"""docs/guides/programs.md: its files, its commands one after the other, its tables against the code."""

from __future__ import annotations

import re

import pytest

from cutlass_aot.programs.start.environment import SERVE_VARIABLE
from cutlass_aot.runtime.policy import POLICIES
from tests.support.commands import REPOSITORY, blocks_of, run_commands
from tests.support.packages import installed

TEXT = (REPOSITORY / "docs" / "guides" / "programs.md").read_text(encoding="utf-8")
BLOCKS = blocks_of(TEXT)


def table(heading: str) -> list[str]:
    """First cells of the table whose head has this cell, without the marks of code."""
    rows = TEXT.split(f"| {heading} |", 1)[1].split("\n\n", 1)[0].splitlines()[2:]
    return [re.findall(r"`([^`]*)`", row.split("|")[1])[0] for row in rows]


def test_the_policies_are_those_of_the_code():
    assert table("policy") == list(POLICIES)
    assert SERVE_VARIABLE in TEXT


@pytest.mark.compile
@installed("flash-attn-4")
def test_the_commands_run_as_they_are_written(tmp_path):
    for block in BLOCKS:
        if block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    commands = [line for block in BLOCKS if block.language == "bash" for line in block.text.splitlines()]
    assert [line.split()[1] for line in commands] == ["plan", "build", "ls", "wheel"]
    printed = run_commands(commands, tmp_path)
    assert "programs[0] (python warm.py) for sm_90a would be run" in printed[0]
    assert "2 kernels, 2 compiled, written" in printed[1]
    assert "FlashAttentionForwardSm90" in printed[2]
    code = next(
        block.text for block in BLOCKS if "cutlass_aot.serve" in block.text and block.language == "python"
    )
    (tmp_path / "served.py").write_text(code, encoding="utf-8")
    (unused,) = run_commands(["python served.py"], tmp_path)
    assert len(unused.split(",")) == 2

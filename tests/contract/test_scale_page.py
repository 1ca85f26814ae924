"""docs/guides/scale.md: commands that run, options that exist."""

from __future__ import annotations

import re

import pytest

from cutlass_aot.cli.build import command as build_command
from cutlass_aot.cli.build import plan as plan_command
from tests.support.commands import run_commands
from tests.support.paths import REPOSITORY

TEXT = (REPOSITORY / "docs" / "guides" / "scale.md").read_text(encoding="utf-8")
COMMANDS = "".join(re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)).splitlines()
DASK_OPTIONS = {"--nthreads", "--nworkers"}


def test_every_option_that_is_named_exists():
    known = {option for command in (build_command, plan_command) for item in command.params
             for option in item.opts}  # fmt: skip
    assert set(re.findall(r"(?<=[ `\n])--[a-z-]+", TEXT)) - DASK_OPTIONS <= known


@pytest.mark.compile
def test_the_commands_run_as_they_are_written():
    said = run_commands(COMMANDS)
    assert "the plan of the last build holds" in said[1]
    # Byte for byte what a single build had written there.
    assert said[-1].strip().endswith("5 kernels, 2 shards, up to date")

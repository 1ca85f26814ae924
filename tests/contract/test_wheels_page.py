"""docs/guides/wheels.md: its commands run, its options exist, its figures are those of the code."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.bundle.glibc import OLDEST
from cutlass_aot.bundle.sbom import BILL_FOLDER, BILL_NAME, SPECIFICATION
from cutlass_aot.cli.ls import installed as installed_command
from cutlass_aot.cli.verify import command as verify_command
from cutlass_aot.cli.wheel import command as wheel_command
from cutlass_aot.runtime.search_path import ENVIRONMENT_VARIABLE
from tests.support.commands import blocks_of, own_environment, run_commands
from tests.support.paths import REPOSITORY
from tests.support.stand_ins import write_smoke

TEXT = (REPOSITORY / "docs" / "guides" / "wheels.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in blocks_of(TEXT)
    if block.language in ("bash", "bash install")
    for line in block.text.splitlines()
]
(PROGRAM,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86_64")
def test_the_commands_run(tmp_path: Path) -> None:
    write_smoke(tmp_path)
    assert len(COMMANDS) == 6
    printed = dict(
        zip(COMMANDS, run_commands(COMMANDS, tmp_path, own_environment(tmp_path / "venv")), strict=True)
    )
    assert all(printed.values())
    wheels = {folder: sorted(path.name for path in (tmp_path / "build" / "wheels" / folder).glob("*.whl"))
              for folder in ("", "targets")}  # fmt: skip
    (shown,) = re.findall(r"^    (\S+\.whl)$", TEXT, re.MULTILINE)
    assert wheels[""] == [shown]
    packages = [name.split("-")[0].removeprefix("cutlass_aot_bundle_") for name in wheels["targets"]]
    assert packages == ["smoke_sm100a", "smoke_sm90a"]
    # The wheel that was installed, and the bundle of the search path, which has more targets.
    assert printed["cutlass-aot installed"].count("site-packages/cutlass_aot_bundle_smoke_sm90a") == 1
    (line,) = (line for line in COMMANDS if "--path" in line)
    assert "smoke 0.1.0: 12 kernels for sm_100a, sm_90a" in printed[line]


def test_the_program_runs(tmp_path: Path) -> None:
    write_smoke(tmp_path)
    path = tmp_path / "build" / "bundles"
    # Libraries of another host are a look at what is there; a test has no GPU to load them for.
    program = PROGRAM.replace('open_installed("smoke")', 'open_installed("smoke", check=False)')
    program += "print(bundle)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), ENVIRONMENT_VARIABLE: str(path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "<Bundle smoke 0.1.0: 12 kernels, sm_100a, sm_90a>\n"


def test_what_is_named_exists() -> None:
    commands = [wheel_command, installed_command, verify_command]
    known = {option for command in commands for item in command.params for option in item.opts}
    assert set(re.findall(r"(?<=`)--[a-z][a-z-]+", TEXT)) <= known
    assert ENVIRONMENT_VARIABLE in TEXT
    assert f"{BILL_FOLDER}/{BILL_NAME}" in TEXT
    assert f"CycloneDX {SPECIFICATION}" in TEXT
    assert f"{OLDEST[0]}.{OLDEST[1]}, the oldest" in TEXT

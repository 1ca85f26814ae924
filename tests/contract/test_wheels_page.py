"""What docs/wheels.md shows: its commands run, its options exist, its figures are those of the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from cutlass_aot.bundle.platform_tags import OLDEST
from cutlass_aot.bundle.sbom import BILL_FOLDER, BILL_NAME, SPECIFICATION
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.cli.installed import command as installed_command
from cutlass_aot.cli.verify import command as verify_command
from cutlass_aot.cli.wheel import command as wheel_command
from cutlass_aot.runtime.installed import ENVIRONMENT_VARIABLE
from tests.unit.synthetic import group, kernels, plan

REPOSITORY = Path(__file__).resolve().parents[2]
TEXT = (REPOSITORY / "docs" / "wheels.md").read_text(encoding="utf-8")
COMMANDS = "".join(re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)).splitlines()
(PROGRAM,) = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def small(folder: Path) -> None:
    """The bundle of the page, for two targets."""
    linked = folder / "linked"
    linked.mkdir(parents=True)
    targets = ("sm_100a", "sm_90a")
    groups = tuple(group(linked, kernels(target=target)) for target in targets)
    needs = plan(folder / "plan").needs._replace(glibc="2.17")
    made = plan(folder / "plan", groups=groups, targets=targets, rankings=(), needs=needs)
    write_bundle(made, folder / "build" / "bundles" / "small")


def test_the_commands_run(tmp_path: Path) -> None:
    small(tmp_path)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    assert len(COMMANDS) == 8
    for line in COMMANDS:
        program, *arguments = line.split()
        assert program == "cutlass-aot"
        done = subprocess.run(
            [sys.executable, "-m", "cutlass_aot", *arguments],
            capture_output=True, text=True, cwd=tmp_path, check=False, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stderr)
        assert done.stdout
        if "--path" in arguments:
            assert done.stdout.startswith("small 0.1.0: 6 kernels in 2 groups")
    wheels = {wheel.name for wheel in (tmp_path / "build" / "wheels").iterdir()}
    (shown,) = re.findall(r"^    (\S+\.whl)$", TEXT, re.MULTILINE)
    assert shown in wheels
    for part in ("sm90a", "sm9x"):
        assert any(f"_small_{part}-" in name for name in wheels)


def test_the_program_runs(tmp_path: Path) -> None:
    small(tmp_path)
    path = tmp_path / "build" / "bundles"
    # Libraries of another host are a look at what is there; a test has no GPU to load them for.
    program = PROGRAM.replace('open_installed("small")', 'open_installed("small", check=False)')
    program = program.replace("open_installed()", "open_installed(check=False)")
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), ENVIRONMENT_VARIABLE: str(path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "small 0.1.0: 6 kernels in 2 groups for sm_100a, sm_90a" in done.stdout


def test_what_is_named_exists() -> None:
    commands = [wheel_command, installed_command, verify_command]
    known = {option for command in commands for item in command.params for option in item.opts}
    assert set(re.findall(r"(?<=`)--[a-z][a-z-]+", TEXT)) <= known
    assert ENVIRONMENT_VARIABLE in TEXT
    assert f"{BILL_FOLDER}/{BILL_NAME}" in TEXT
    assert f"CycloneDX {SPECIFICATION}" in TEXT
    assert f"{OLDEST[0]}.{OLDEST[1]}, the oldest" in TEXT

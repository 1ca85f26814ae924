"""What docs/trust.md shows: its commands and its Python run, its options and its figures are right."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.bundle.sign import COMMAND_SECONDS
from cutlass_aot.bundle.verify import verify_path
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.cli import _COMMANDS
from cutlass_aot.cli.key import ENVIRONMENT_VARIABLE as PASSPHRASE
from cutlass_aot.cli.key import command as key_command
from cutlass_aot.cli.sign import command as sign_command
from cutlass_aot.cli.tune import command as tune_command
from cutlass_aot.cli.verify import command as verify_command
from cutlass_aot.errors import UntrustedBundle
from cutlass_aot.runtime.trust import ENVIRONMENT_VARIABLE
from cutlass_aot.schema.signature import MAX_SIGNATURE_FILE, MAX_SIGNATURES
from tests.unit.synthetic import plan

pytest.importorskip("cryptography")

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "trust.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^(?:`([^`\n]+)`\n)?```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def environment() -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name not in (PASSPHRASE, ENVIRONMENT_VARIABLE)
    }
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH", "")]
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86_64")
def test_what_the_page_shows_works_from_top_to_bottom(tmp_path: Path) -> None:
    bundle = tmp_path / "build" / "bundles" / "smoke"
    write_bundle(plan(tmp_path / "linked", name="smoke"), bundle)
    seen = []
    for name, language, text in BLOCKS:
        if name:
            (tmp_path / name).write_text(text)
            continue
        if language == "python":
            seen.append(run([sys.executable, "-c", text], tmp_path))
            continue
        for line in text.splitlines():
            # As installed: this interpreter's command line.
            program = line.replace("cutlass-aot ", f"{sys.executable} -m cutlass_aot ", 1)
            seen.append(run(["bash", "-euo", "pipefail", "-c", program], tmp_path))
    assert len(seen) == 11
    first, second = (path.stem for path in sorted((bundle / "signatures").iterdir()))
    assert {first, second} <= set(re.findall(r"[0-9a-f]{16}", "".join(seen)))
    assert "good, signed by" in seen[2]
    assert verify_path(bundle) == []
    assert list((tmp_path / "build" / "wheels").glob("*.whl"))


def test_every_option_that_is_named_exists() -> None:
    commands = [*key_command.commands.values(), sign_command, verify_command, tune_command]
    known = {option for command in commands for item in command.params for option in item.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= known
    assert set(re.findall(r"^cutlass-aot (\w+)", PAGE, re.MULTILINE)) <= set(_COMMANDS)


def test_names_and_figures_are_those_of_the_code() -> None:
    assert set(re.findall(r"CUTLASS_AOT_\w+", PAGE)) == {PASSPHRASE, ENVIRONMENT_VARIABLE}
    assert (COMMAND_SECONDS, MAX_SIGNATURE_FILE, MAX_SIGNATURES) == (60, 64 << 10, 64)
    assert "60 seconds" in PAGE
    assert "64 KiB are read of a file, 64 files" in PAGE
    assert UntrustedBundle.exit_code == 3
    assert "exits with 3" in PAGE


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (REPOSITORY / "docs" / target).exists(), target

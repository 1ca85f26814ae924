"""docs/guides/trust.md: its commands and its Python run, its options and its figures are right."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.bundle.sign import COMMAND_SECONDS, new_key
from cutlass_aot.cli import COMMANDS
from cutlass_aot.cli.bundle import command as bundle_command
from cutlass_aot.cli.sign import ENVIRONMENT_VARIABLE as PASSPHRASE
from cutlass_aot.cli.sign import command as sign_command
from cutlass_aot.cli.sign import key as key_command
from cutlass_aot.cli.tune import command as tune_command
from cutlass_aot.cli.verify import command as verify_command
from cutlass_aot.cli.wheel import command as wheel_command
from cutlass_aot.errors import UntrustedBundle
from cutlass_aot.runtime.files.trust import ENVIRONMENT_VARIABLE
from cutlass_aot.schema.bundles.signature import MAX_SIGNATURE_FILE, MAX_SIGNATURES
from tests.support.paths import REPOSITORY
from tests.support.stand_ins import write_smoke
from tests.support.synthetic import entry, kernels
from tests.support.tunings import tuned_group, tuning
from tests.support.verifying import verify_path

pytest.importorskip("cryptography")

PAGE = (REPOSITORY / "docs" / "guides" / "trust.md").read_text(encoding="utf-8")
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
    bundle = write_smoke(tmp_path)
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
    assert len(seen) == 17
    first, second = (path.stem for path in sorted((bundle / "signatures").iterdir()))
    assert {first, second} <= set(re.findall(r"[0-9a-f]{16}", "".join(seen)))
    assert "good, signed by" in seen[3]
    assert [len(re.findall("good, signed by", text)) for text in seen[5:8]] == [1, 0, 2]
    assert verify_path(bundle) == []
    assert len(list((tmp_path / "build" / "wheels").rglob("*.whl"))) == 1 + 2
    ignored = (REPOSITORY / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {f"/{path.relative_to(tmp_path).parts[0]}/" for path in tmp_path.rglob("*.pub")} <= set(ignored)


ARGUMENTS = {
    "ls": "smoke",
    "show": "smoke gemm",
    "choose": "smoke --m 16 --n 16 --k 16",
    "diff": "smoke smoke",
    "tune --shapes": "smoke --shapes shapes.toml",
    "bundle unpack": "smoke unpacked",
    "bundle prefill": "smoke cache",
    "bundle pull": "",
    "installed": "--path smoke",
    "build": "",
    "bundle merge": "",
    "bundle push": "smoke localhost:1/kernels/smoke:1 --plain-http",
    "doctor": "smoke",
    "sign": "smoke --key mine",
    "tune --from": "smoke --from tuning.json --apply tuned",
    "verify": "smoke",
    "wheel": "smoke",
}
"""What a command is tried with; those that need a registry or the DSL are tried elsewhere."""


@pytest.fixture
def refused(tmp_path: Path) -> Path:
    """A folder with a bundle that its key has not signed, and what commands take beside it."""
    write_smoke(tmp_path).rename(tmp_path / "smoke")
    new_key(tmp_path / "theirs", None)
    new_key(tmp_path / "mine", None)
    (tmp_path / "shapes.toml").write_text("m = [16]\n[layers]\nnk = [[16, 16]]\n")
    measured = tuning([tuned_group([entry(item) for item in kernels(target="sm_90a")])])
    (tmp_path / "tuning.json").write_bytes(measured.to_bytes())
    return tmp_path


def rows() -> list[tuple[list[str], str]]:
    """Of the table of commands: which they are, and what they do."""
    table = PAGE.split("| | with `CUTLASS_AOT_TRUSTED_KEYS` |\n")[1].split("\n\n")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()[1:]]
    return [(re.findall("`([^`]+)`", commands), does) for commands, does in cells]


@pytest.mark.parametrize("command", [command for command, arguments in ARGUMENTS.items() if arguments])
def test_a_command_does_with_required_keys_what_the_page_says(command: str, refused: Path) -> None:
    words = [*command.split(" --")[0].split(), *ARGUMENTS[command].split()]
    done = subprocess.run(
        [sys.executable, "-m", "cutlass_aot", *words],
        cwd=refused,
        env={**environment(), ENVIRONMENT_VARIABLE: "theirs.pub"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    (promised,) = (does for commands, does in rows() if command in commands)
    assert (done.returncode == 3) is ("exit status 3" in promised), done.stderr
    said = " ".join(done.stdout.split())
    assert ("not signed by a key that is trusted" in said) is ("unusable" in promised)
    if "do not look" in promised and command != "bundle push":
        assert done.returncode == 0, done.stderr


def test_every_command_of_the_table_is_tried_or_known() -> None:
    assert sorted(name for commands, _ in rows() for name in commands) == sorted(ARGUMENTS)


def test_every_option_that_is_named_exists() -> None:
    commands = [
        *(*key_command.commands.values(), *bundle_command.commands.values()),
        *(sign_command, verify_command, tune_command, wheel_command),
    ]
    known = {option for command in commands for item in command.params for option in item.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= known
    assert set(re.findall(r"^cutlass-aot (\w+)", PAGE, re.MULTILINE)) <= set(COMMANDS)


def test_names_and_figures_are_those_of_the_code() -> None:
    assert set(re.findall(r"CUTLASS_AOT_\w+", PAGE)) == {PASSPHRASE, ENVIRONMENT_VARIABLE}
    assert (COMMAND_SECONDS, MAX_SIGNATURE_FILE, MAX_SIGNATURES) == (60, 64 << 10, 64)
    assert "60 seconds" in PAGE
    assert "65.5 KB are read of a file, 64 files" in PAGE
    assert UntrustedBundle.exit_code == 3
    assert "exits with 3" in PAGE


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", PAGE):
        assert (REPOSITORY / "docs" / "guides" / target).exists(), target

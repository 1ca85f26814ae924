"""docs/guides/oci.md: its commands run, its options exist, its tables and figures are the code's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("oras")

from cutlass_aot.bundle.oci import TIMEOUT, artifact, registry
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.cli.bundle import command
from tests.support.paths import REPOSITORY
from tests.support.registries import fake_registry
from tests.support.synthetic import plan

TEXT = (REPOSITORY / "docs" / "guides" / "oci.md").read_text(encoding="utf-8")
COMMANDS = "".join(re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)).splitlines()


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)
    write_bundle(plan(tmp_path / "linked"), tmp_path / "build" / "bundles" / "smoke")
    assert len(COMMANDS) == 3
    with fake_registry() as server:
        for line in COMMANDS:
            program, *arguments = line.replace("localhost:5000", server.name).split()
            assert program == "cutlass-aot"
            done = subprocess.run(
                [sys.executable, "-m", "cutlass_aot", *arguments],
                capture_output=True, text=True, cwd=tmp_path, check=False,
            )  # fmt: skip
            assert done.returncode == 0, (line, done.stderr)
            assert done.stdout


def test_every_option_is_named() -> None:
    known = {
        option
        for name in ("push", "pull")
        for item in command.commands[name].params
        if item.param_type_name == "option"
        for option in item.opts
    }
    named = set(re.findall(r"^\| `(-[a-z-]+)", TEXT, re.MULTILINE))
    assert named == known - {"--output"}


def test_the_media_types_are_those_of_the_code() -> None:
    rows = dict(re.findall(r"^\| `?([^`|]+?)`? \| `(application/[^`]+)` \|$", TEXT, re.MULTILINE))
    assert rows.pop("artifact") == artifact.ARTIFACT_TYPE
    assert rows.pop("config") == artifact.CONFIG_TYPE
    assert rows.pop("anything else") == artifact.OTHER_TYPE
    assert {name.rstrip("/"): kind for name, kind in rows.items()} == artifact.MEDIA_TYPES


def test_the_figures_are_those_of_the_code() -> None:
    assert (artifact.MAX_OCI_MANIFEST_BYTES, TIMEOUT, registry.SLOWEST) == (4 << 20, 30, 16 << 10)
    for words in ("4.2 MB at most", "30 if left out", "one second more for each 16.4 KB"):
        assert words in TEXT

"""docs/guides/aarch64.md: its manifest is built, its commands run, the files that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cutlass_aot.manifest.model import load_manifest
from cutlass_aot.schema.targets import HOSTS
from tests.support.commands import REPOSITORY, blocks_of, run_commands

PAGE = REPOSITORY / "docs" / "guides" / "aarch64.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_its_manifest_is_for_every_host(tmp_path: Path) -> None:
    (manifest,) = (block.text for block in blocks_of(TEXT) if block.file == "both.toml")
    (tmp_path / "both.toml").write_text(manifest, encoding="utf-8")
    assert sorted(load_manifest(tmp_path / "both.toml").hosts) == sorted(HOSTS)


@pytest.mark.compile
def test_its_commands_lead_to_a_wheel_that_will_run(tmp_path: Path) -> None:
    commands: list[str] = []
    for block in blocks_of(TEXT):
        if block.file:
            (tmp_path / block.file).write_text(block.text, encoding="utf-8")
        commands += block.text.splitlines() if block.language == "bash" else ()
    other = (REPOSITORY / "docs" / "guides" / "compatibility.md").read_text(encoding="utf-8")
    (facts,) = (block.text for block in blocks_of(other) if block.file == "gb300.toml")
    (tmp_path / "gb300.toml").write_text(facts, encoding="utf-8")
    assert len(commands) == 3
    *_, answer = run_commands(commands, tmp_path)
    assert "hosts aarch64\n" in answer
    assert "GPUs 0 to 1: sm_103a" in answer


def test_what_it_names_is_there() -> None:
    for path in re.findall(r"\b(?:tools|tests)/[\w/]+\.py", TEXT):
        assert (REPOSITORY / path).is_file(), path
    for target in re.findall(r"`make (\w+)`", TEXT):
        assert re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

"""What docs/aarch64.md shows: its manifest is one, and the files and commands that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

from cutlass_aot.manifest.model import load_manifest
from cutlass_aot.schema.targets import HOSTS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "aarch64.md"
TEXT = PAGE.read_text(encoding="utf-8")


def test_its_manifest_is_for_every_host(tmp_path: Path) -> None:
    (manifest,) = re.findall(r"^```toml\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    (tmp_path / "both.toml").write_text(manifest, encoding="utf-8")
    assert sorted(load_manifest(tmp_path / "both.toml").hosts) == sorted(HOSTS)


def test_what_it_names_is_there() -> None:
    for path in re.findall(r"\b(?:tools|tests)/[\w/]+\.py", TEXT):
        assert (REPOSITORY / path).is_file(), path
    for target in re.findall(r"`make (\w+)`", TEXT):
        assert re.search(rf"^{target}:", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)

"""What docs/guides/select.md says of ``[select]`` is what is read."""

from __future__ import annotations

import re

from cutlass_aot.generators.cutlass_operators import CutlassOperators
from cutlass_aot.manifest.model import parse_manifest
from cutlass_aot.manifest.select import MAX_SHAPES
from cutlass_aot.schema.tuning.shapes import parse_shapes
from tests.support.paths import REPOSITORY

TEXT = (REPOSITORY / "docs" / "guides" / "select.md").read_text(encoding="utf-8")


def block(kind: str) -> bytes:
    (text,) = re.findall(rf"^```{kind}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    return text.encode()


def test_the_manifest_parses():
    manifest = parse_manifest(block("toml"), REPOSITORY / "docs" / "m.toml")
    assert (manifest.select.keep, len(manifest.select.shapes.extents)) == (2, 6)


def test_the_shapes_file_parses():
    assert len(parse_shapes(block("toml shapes"), "shapes").extents) == 12


def test_every_model_and_bound_is_documented():
    reference = (REPOSITORY / "docs" / "reference" / "manifest.md").read_text(encoding="utf-8")
    for name, heuristic in CutlassOperators.heuristics.items():
        assert f"`{name}`" in reference
        assert heuristic.package in reference
        assert all(f"`{gpu}`" in reference for gpu in heuristic.gpus)
    assert f"at most {MAX_SHAPES} problems" in TEXT


def test_the_pinned_version_is_the_one_that_the_generator_was_written_for():
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    constraints = (REPOSITORY / "constraints.txt").read_text(encoding="utf-8")
    for heuristic in CutlassOperators.heuristics.values():
        pin = f"{heuristic.package}=={heuristic.version}"
        assert f'"{pin}",' in project
        assert f"\n{pin}\n" in constraints

"""What the README says is run: its commands in order, its Python, its manifest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.bundle.replace import TOP_LEVEL
from cutlass_aot.cli import _COMMANDS
from cutlass_aot.generators.cutlass_operators import FAMILIES
from cutlass_aot.generators.device_profiles import builtin_profiles
from cutlass_aot.manifest.model import _BUNDLE_KEYS, _COMMON_KEYS, _OPERAND_KEYS, parse_manifest
from cutlass_aot.schema.kernels.design import SHORT_NAMES
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.targets import KNOWN_TARGETS
from tests.support.commands import run_commands
from tests.support.paths import REPOSITORY

TEXT = (REPOSITORY / "README.md").read_text(encoding="utf-8")
# Blocks under a line that names a file are files of the tutorial's package: test_tutorial.py holds them.
TOUR = re.sub(r"^`[\w./]+`\n```\w+\n.*?^```$", "", TEXT, flags=re.MULTILINE | re.DOTALL)
BLOCKS = re.findall(r"^```([^\n]*)\n(.*?)^```$", TOUR, re.MULTILINE | re.DOTALL)


def blocks(kind):
    return [text for name, text in BLOCKS if name == kind]


def test_the_first_two_commands_make_a_bundle_and_test_it():
    commands = [line.split("#")[0].strip() for line in blocks("bash")[0].splitlines()]
    assert commands[:2] == ["make bundle", "make test"]
    makefile = (REPOSITORY / "Makefile").read_text()
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text()
    assert re.search(r"^bundle:.*\n\t.*build manifests/sm100.toml", makefile, re.MULTILINE)
    assert re.search(r"^test: bundle\n(?:\t.*\n)*\t.*pytest", makefile, re.MULTILINE)


@pytest.mark.compile
def test_the_tour_runs_as_it_is_written():
    # The first block is what makes this environment and runs this test; `source` enters it.
    commands = [
        line
        for block in blocks("bash")[1:]
        for line in block.splitlines()
        if line and not line.startswith("source ")
    ]
    assert any(line.startswith("cutlass-aot build") for line in commands)
    run_commands(commands)
    python = "\n".join(blocks("python"))
    result = subprocess.run(
        [sys.executable, "-c", python], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    # What the comment behind the last line promises.
    promised = re.search(r"verdict\.reason\)\n# (.*)", python)
    assert promised is not None
    assert result.stdout.splitlines()[-1] == promised.group(1)


def test_the_manifest_is_one():
    (text,) = blocks("toml")
    assert parse_manifest(text.encode(), Path("README.md")).name == "my-kernels"


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(sorted(_COMMANDS), id="commands"),
        pytest.param([*_BUNDLE_KEYS, *_COMMON_KEYS, *_OPERAND_KEYS], id="keys"),
        pytest.param([*SHORT_NAMES, *SHORT_NAMES.values(), "use_2cta_mma", "use_tma_store"], id="filters"),
        pytest.param([*DTYPES], id="dtypes"),
        pytest.param([*KNOWN_TARGETS], id="targets"),
        pytest.param([*FAMILIES], id="families"),
        pytest.param([*builtin_profiles()], id="profiles"),
    ],
)
def test_every_name_is_documented(names):
    for name in names:
        assert re.search(rf"`(?:cutlass-aot )?{re.escape(name)}\b", TEXT), name


def test_the_files_of_a_bundle_are_those_it_has():
    section = TEXT.split("## What is in a bundle")[1].split("\n## ")[0]
    assert set(re.findall(r"^    ([\w.]+)\S* {2,}\S", section, re.MULTILINE)) == TOP_LEVEL


def test_every_environment_variable_is_documented():
    sources = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "cutlass_aot").rglob("*.py")]
    read = {name for text in sources for name in re.findall(r'= "(CUTLASS_AOT_[A-Z_]+)"', text)}
    listed = set(re.findall(r"^\| `([A-Z_]+)` \|", TEXT, re.MULTILINE))
    assert listed == {*read, "SOURCE_DATE_EPOCH"}


def test_links_lead_somewhere():
    for page in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"

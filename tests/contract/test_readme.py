"""What the README says is run: its commands in order, its manifest; its declaration is a package's."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from cutlass_aot.manifest.model import load_manifest
from tests.support.commands import blocks_of, run_commands
from tests.support.paths import REPOSITORY, TEMPLATES

TEXT = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = blocks_of(TEXT)


def blocks(language: str) -> list[str]:
    return [block.text for block in BLOCKS if block.language == language]


def test_it_is_short() -> None:
    assert len(TEXT.splitlines()) <= 150


def test_the_first_commands_make_a_bundle_test_it_and_enter_the_environment() -> None:
    commands = [line.split("#")[0].strip() for line in blocks("bash")[0].splitlines()]
    assert commands == ["make bundle", "make test", "source .venv/bin/activate"]
    makefile = (REPOSITORY / "Makefile").read_text()
    assert "make test" in (REPOSITORY / ".ci" / "run").read_text()
    assert re.search(r"^bundle:.*\n\t.*build manifests/sm100.toml", makefile, re.MULTILINE)
    assert re.search(r"^test: bundle\n(?:\t.*\n)*\t.*pytest", makefile, re.MULTILINE)


def test_no_command_comes_before_the_environment_that_has_it() -> None:
    shown = [block.text for block in BLOCKS if block.language.startswith("bash")]
    (entered,) = (number for number, text in enumerate(shown) if "source .venv/bin/activate" in text)
    before = [line for text in shown[: entered + 1] for line in text.splitlines()]
    assert [line.split()[0] for line in before] == ["make", "make", "source"]
    assert not re.search(r"`cutlass-aot [a-z]", TEXT[: TEXT.index("source .venv/bin/activate")])


@pytest.mark.compile
def test_the_commands_run_as_they_are_written() -> None:
    # The first block is what makes and enters this environment and runs this test, the second has its own.
    commands = [line for block in blocks("bash")[2:] for line in block.splitlines()]
    assert [line.split()[1] for line in commands] == ["build", "ls", "verify", "wheel"]
    run_commands(commands)


@pytest.mark.compile
def test_the_manifest_is_built(tmp_path: Path) -> None:
    (block,) = (block for block in BLOCKS if block.language == "toml")
    (tmp_path / block.file).write_text(block.text, encoding="utf-8")
    assert len(block.text.splitlines()) <= 6
    manifest = load_manifest(tmp_path / block.file)
    assert blocks("bash")[1] == f"cutlass-aot build {block.file}\n"
    (said,) = run_commands(blocks("bash")[1].splitlines(), tmp_path)
    assert f"{manifest.name}: 5 kernels" in said
    assert "makes five kernels of it" in TEXT
    assert f'"build/bundles/{manifest.name}"' in blocks("python gpu")[0]


def test_the_declaration_is_that_of_the_package() -> None:
    (shown,) = blocks("python declared")
    assert shown in (TEMPLATES / "kernel" / "axpy_kernels" / "declared.py").read_text(encoding="utf-8")


def test_the_program_s_manifest_is_there() -> None:
    (text,) = blocks("bash program")
    build, run = text.splitlines()
    manifest = load_manifest(REPOSITORY / build.split()[-1])
    assert f" --bundle build/bundles/{manifest.name} -- " in run


def test_a_figure_is_that_of_the_benchmarks() -> None:
    page = (REPOSITORY / "docs" / "results" / "benchmarks.md").read_text(encoding="utf-8")
    ((least, most, dsl),) = re.findall(r"\| (\d+) to (\d+) ms \| (\d+) ms \|", TEXT)
    assert f" ms against {dsl} ms: " in page
    # In a table of hosts, of which this is the last column, and in one of what was measured.
    cells = re.findall(r"^\| H[12]00 \|.* \|([^|]*)\|$|to its first result \| ([\d.]+ ms) \|", page, re.M)
    assert len(cells) == 26
    found = [float(figure) for cell in cells for figure in re.findall(r"\d+\.\d+", "".join(cell))]
    assert (int(least), int(most)) == (math.floor(min(found)), math.ceil(max(found)))

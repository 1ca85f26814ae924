"""docs/guides/write-a-generator.md is followed to the letter: its files, its commands."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cutlass_aot.cli.new import write_package
from tests.support.commands import Block, blocks_of, own_environment, run_commands
from tests.support.paths import REPOSITORY, TEMPLATES

TUTORIAL = REPOSITORY / "docs" / "guides" / "write-a-generator.md"
PACKAGE = TEMPLATES / "generator"


def blocks() -> list[Block]:
    return blocks_of(TUTORIAL.read_text(encoding="utf-8"))


def shown() -> list[str]:
    return [block.file for block in blocks() if block.file]


@pytest.mark.parametrize("name", shown())
def test_a_block_equals_its_file(name: str) -> None:
    (block,) = (block for block in blocks() if block.file == name)
    assert block.language == {".py": "python", ".toml": "toml"}[Path(name).suffix]
    assert block.text == (PACKAGE / name).read_text(encoding="utf-8")


def test_the_files_that_it_lists_are_those_that_are_written() -> None:
    text = TUTORIAL.read_text(encoding="utf-8")
    listed = re.findall(r"^    ([\w/]+\.(?:py|toml))(?:  |$)", text, re.MULTILINE)
    assert sorted(listed) == sorted(
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.suffix in (".py", ".toml")
    )


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One that the package can be installed into, and that this one does not see."""
    return own_environment(tmp_path_factory.mktemp("environment") / "venv")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """The package that the first command writes, where the others have been run."""
    place = tmp_path_factory.mktemp("package")
    new, *commands = [
        line for block in blocks() if block.language == "bash" for line in block.text.splitlines()
    ]
    assert any(line.startswith("cutlass-aot build ") for line in commands)
    run_commands([new], place, environment)
    (made,) = place.iterdir()
    run_commands(commands, made, environment)
    return made


def run(command: str, folder: Path, environment: Mapping[str, str]) -> str:
    (printed,) = run_commands([command], folder, environment)
    return printed


@pytest.mark.compile
def test_its_commands_run_and_an_edit_rebuilds(folder: Path, environment: dict[str, str]) -> None:
    listed = json.loads(run("cutlass-aot plan scale_add.toml --json", folder, environment))
    assert [item["build"] for item in listed["kernels"]] == [False] * 6
    kernel = folder / "scale_add_kernels" / "kernel.py"
    shown = kernel.read_text()
    kernel.write_text(shown.replace("cutlass.Float32(2.0)", "cutlass.Float32(3.0)"))
    listed = json.loads(run("cutlass-aot plan scale_add.toml --json", folder, environment))
    kernel.write_text(shown)
    assert [item["build"] for item in listed["kernels"]] == [True] * 6


@pytest.mark.compile
def test_the_module_can_be_a_plugin_instead(tmp_path: Path) -> None:
    write_package("generator", "scale_add", tmp_path / "made")
    (plugins,) = (block.text for block in blocks() if block.language == "toml" and not block.file)
    manifest = tmp_path / "made" / "scale_add.toml"
    manifest.write_text(plugins + manifest.read_text())
    environment = {**own_environment(tmp_path / "venv"), "PYTHONPATH": str(manifest.parent)}
    said = run("cutlass-aot plan scale_add.toml", manifest.parent, environment)
    assert "6 kernels: 6 to build, 0 present" in said


@pytest.mark.compile
def test_a_refusal_reads_as_the_tutorial_says(folder: Path, tmp_path: Path) -> None:
    # Without the package that it was built from: a bundle stands alone.
    bundle = shutil.copytree(folder / "build" / "bundles" / "scale-add", tmp_path / "scale-add")
    script = (
        "import cutlass_aot\n"
        f"bundle = cutlass_aot.open({str(bundle)!r})\n"
        "a, out = (cutlass_aot.describe((8, 1000, 300), 'f32') for _ in range(2))\n"
        "b = cutlass_aot.describe((8, 999, 300), 'f32', strides=(300000, 300, 1))\n"
        "assert len(bundle.find(a, a, out, operation='scale_add', target='sm_90a')) == 2\n"
        "try: bundle.find(a, b, out, operation='scale_add')\n"
        "except cutlass_aot.errors.KernelNotFound as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )  # fmt: skip
    promised = re.search(r'answers "([^"]+)"', TUTORIAL.read_text(encoding="utf-8"))
    assert promised is not None
    assert promised.group(1) in done.stdout, done.stderr

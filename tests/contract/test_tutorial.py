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

from tests.support.commands import Block, blocks_of, own_environment, run_commands
from tests.support.paths import REPOSITORY

TUTORIAL = REPOSITORY / "docs" / "guides" / "write-a-generator.md"
PACKAGE = REPOSITORY / "tests" / "fixtures" / "scale_add_package"


def blocks() -> list[Block]:
    return blocks_of(TUTORIAL.read_text(encoding="utf-8"))


def files_of_the_package() -> set[str]:
    return {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*") if path.suffix in (".py", ".toml")
    }


def test_every_file_of_the_package_is_shown_and_no_other() -> None:
    shown = [block.file for block in blocks() if block.file]
    assert len(shown) == len(set(shown))
    assert set(shown) == files_of_the_package()


@pytest.mark.parametrize("name", sorted(files_of_the_package()))
def test_a_block_equals_its_file(name: str) -> None:
    (block,) = (block for block in blocks() if block.file == name)
    assert block.language == {".py": "python", ".toml": "toml"}[Path(name).suffix]
    assert block.text == (PACKAGE / name).read_text(encoding="utf-8")


def copy_files(folder: Path, shown: list[Block]) -> None:
    """Write the files as they are shown."""
    for block in shown:
        if block.file:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One that the package can be installed into, and that this one does not see."""
    return own_environment(tmp_path_factory.mktemp("environment") / "venv")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """The package as it is shown, where the commands have been run."""
    made = tmp_path_factory.mktemp("package")
    copy_files(made, blocks())
    commands = [line for block in blocks() if block.language == "bash" for line in block.text.splitlines()]
    assert any(line.startswith("cutlass-aot build ") for line in commands)
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
    copy_files(tmp_path, blocks())
    (plugins,) = (block.text for block in blocks() if block.language == "toml" and not block.file)
    manifest = tmp_path / "scale_add.toml"
    manifest.write_text(plugins + manifest.read_text())
    environment = {**own_environment(tmp_path / "venv"), "PYTHONPATH": str(tmp_path)}
    said = run("cutlass-aot plan scale_add.toml", tmp_path, environment)
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

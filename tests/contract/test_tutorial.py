"""The tutorial shows the files of a package that the tests build: each block is the file it names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from cutlass_aot.manifest.toml import load_toml

REPOSITORY = Path(__file__).resolve().parents[2]
TUTORIAL = REPOSITORY / "docs" / "bring-your-own-kernel.md"
PACKAGE = REPOSITORY / "tests" / "fixtures" / "scale_add_package"
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that the line above names (or none), and its text."""

    language: str
    file: str
    text: str


def blocks(page: Path = TUTORIAL) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        above = text[: match.start()].rstrip("\n").rsplit("\n", 1)[-1]
        named = re.fullmatch(r"`([\w./]+\.(?:py|toml))`", above)
        found.append(Block(match.group(1), named.group(1) if named else "", match.group(2)))
    return found


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


def test_the_readme_shows_the_same_files_and_commands() -> None:
    readme = blocks(REPOSITORY / "README.md")
    files = {block.file: block.text for block in readme if block.file}
    assert files.keys() == files_of_the_package() - {"scale_add_kernels/__init__.py"}
    for name, text in files.items():
        assert text == (PACKAGE / name).read_text(encoding="utf-8"), name
    executed = {line for block in blocks() if block.language == "bash" for line in block.text.splitlines()}
    (commands,) = (block.text for block in readme if block.language == "bash package")
    assert set(commands.splitlines()) <= executed


def install(folder: Path) -> dict[str, str]:
    """What `pip install` comes to, without an index: the package on the path, with its entry points."""
    project = load_toml(PACKAGE / "pyproject.toml")["project"]
    metadata = folder / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return searching(folder)


def searching(folder: Path) -> dict[str, str]:
    """An environment in which commands and packages of this interpreter, and those of a folder, are found."""
    commands = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, "PATH": commands, "PYTHONPATH": str(folder)}


def copy_files(folder: Path) -> None:
    """Write the files as the tutorial shows them."""
    for block in blocks():
        if block.file:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")


def run(command: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.compile
def test_its_commands_run_and_an_edit_rebuilds(tmp_path: Path) -> None:
    copy_files(tmp_path)
    environment = install(tmp_path)
    commands = [
        line
        for block in blocks()
        if block.language == "bash"
        for line in block.text.splitlines()
        if not line.startswith("python -m pip install ")
    ]
    assert any(line.startswith("cutlass-aot build ") for line in commands)
    for line in commands:
        done = run(line, tmp_path, environment)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"

    listed = json.loads(run("cutlass-aot plan scale_add.toml --json", tmp_path, environment).stdout)
    assert [item["build"] for item in listed["kernels"]] == [False] * 6
    kernel = tmp_path / "scale_add_kernels" / "kernel.py"
    kernel.write_text(kernel.read_text().replace("cutlass.Float32(2.0)", "cutlass.Float32(3.0)"))
    listed = json.loads(run("cutlass-aot plan scale_add.toml --json", tmp_path, environment).stdout)
    assert [item["build"] for item in listed["kernels"]] == [True] * 6


@pytest.mark.compile
def test_the_module_can_be_a_plugin_instead(tmp_path: Path) -> None:
    copy_files(tmp_path)
    (plugins,) = (block.text for block in blocks() if block.language == "toml" and not block.file)
    manifest = tmp_path / "scale_add.toml"
    manifest.write_text(plugins + manifest.read_text())
    done = run("cutlass-aot plan scale_add.toml", tmp_path, searching(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "6 kernels: 6 to build, 0 present" in done.stdout


@pytest.mark.compile
def test_a_refusal_reads_as_the_tutorial_says(tmp_path: Path) -> None:
    copy_files(tmp_path)
    run("cutlass-aot build scale_add.toml", tmp_path, install(tmp_path))
    script = (
        "import cutlass_aot\n"
        "bundle = cutlass_aot.open('build/bundles/scale-add')\n"
        "a, out = (cutlass_aot.describe((8, 1000, 300), 'f32') for _ in range(2))\n"
        "b = cutlass_aot.describe((8, 999, 300), 'f32', strides=(300000, 300, 1))\n"
        "assert len(bundle.find(a, a, out, operation='scale_add', target='sm_90a')) == 2\n"
        "try: bundle.find(a, b, out, operation='scale_add')\n"
        "except cutlass_aot.errors.KernelNotFound as error: print(error)\n"
    )
    # Without the package that it was built from: a bundle stands alone.
    shutil.rmtree(tmp_path / "scale_add_kernels")
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    promised = re.search(r'answers "([^"]+)"', TUTORIAL.read_text(encoding="utf-8"))
    assert promised is not None
    assert promised.group(1) in done.stdout, done.stderr

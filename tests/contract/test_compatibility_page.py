"""What docs/compatibility.md shows: its commands run and print that, its tables are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cutlass_aot.bundle.platform_tags import promised_glibc
from cutlass_aot.cli.doctor import command
from cutlass_aot.runtime.compatibility import ANYTHING, MINIMUM_PYTHON
from cutlass_aot.runtime.facts import DRIVER_KEYS, GPU_KEYS, MAX_BYTES, TEXTS
from cutlass_aot.runtime.remarks import NATIVE_TORCH
from cutlass_aot.schema.drivers import FIRST_DRIVERS
from cutlass_aot.schema.targets import KNOWN_TARGETS, Target, minimum_cuda
from tests.unit.bundles import NEEDS, designs, write_bundle

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def table(header: str) -> list[list[str]]:
    body = PAGE[PAGE.index(header) :].split("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in body.splitlines()[2:]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the page's commands are given: a bundle, its wheel, and the two files of facts."""
    root = write_bundle(
        tmp_path / "build" / "bundles" / "sm100",
        [*designs(target="sm_100a"), *designs(target="sm_103a")],
        needs=NEEDS._replace(glibc=promised_glibc([])),
        hosts=("aarch64", "x86_64"),
        name="sm100",
    )
    wheel = tmp_path / "build" / "wheels" / "sm100.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file():
                archive.write(file, f"package/bundle/{file.relative_to(root)}")
    (tmp_path / "gb300.toml").write_text(blocks("toml")[0])
    (tmp_path / "old-node.json").write_text(blocks("json")[0])
    return tmp_path


def test_the_commands_print_what_is_shown(folder: Path) -> None:
    commands = "".join(blocks("bash")).splitlines()
    assert len(commands) == 6
    printed = {}
    for line in commands:
        assert line.startswith("cutlass-aot doctor")
        program = line.replace("cutlass-aot", f"{sys.executable} -m cutlass_aot")
        done = subprocess.run(
            ["bash", "-c", program], capture_output=True, text=True, cwd=folder, check=False
        )  # fmt: skip
        assert done.stderr == ""
        printed[line] = done.returncode, done.stdout
    here, gb300, old, written, *read = commands
    assert blocks("text") == [printed[gb300][1], printed[old][1]]
    assert (printed[gb300][0], printed[old][0], printed[written][0]) == (0, 1, 0)
    # The machine at hand answers for itself as its facts do.
    assert all(printed[line] == printed[here] for line in read)


def test_every_key_of_the_facts_is_explained() -> None:
    named = {row[0] for row in table("| key | | left out |")}
    assert named == {
        *(f"`{key}`" for key in TEXTS),
        *(f"`driver.{key}`" for key in DRIVER_KEYS),
        *(f"`gpus.{key}`" for key in GPU_KEYS),
    }


def test_the_table_of_drivers_is_the_code_s() -> None:
    rows = table("| CUDA | first Linux driver | first to run |")
    assert [(cuda, release) for cuda, release, _ in rows] == [
        (f"{major}.{minor}", release) for (major, minor), release in FIRST_DRIVERS.items()
    ]
    for cuda, _, runs in rows:
        version = tuple(map(int, cuda.split(".")))
        targets = [name for name in KNOWN_TARGETS if minimum_cuda(Target.parse(name)) == version]
        own = ["the bundles' host code"] if cuda == ANYTHING.needs.cuda_driver else []
        assert runs == ", ".join([*targets, *own])


def test_the_figures_are_those_of_the_code() -> None:
    assert f"| Python | {MINIMUM_PYTHON} or newer |" in PAGE
    assert f"older than {NATIVE_TORCH}," in PAGE
    assert MAX_BYTES == 1 << 20
    assert "more than 1 MiB" in PAGE


def test_every_option_that_is_named_exists() -> None:
    options = {name for parameter in command.params for name in parameter.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= options

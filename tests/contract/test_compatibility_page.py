"""docs/guides/compatibility.md: its commands run and print that, its tables are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.cli.doctor import command
from cutlass_aot.doctor.facts import DRIVER_KEYS, GPU_KEYS, MAX_BYTES, TEXTS, parse_facts
from cutlass_aot.doctor.warnings import NATIVE_TORCH
from cutlass_aot.errors import FactsError
from cutlass_aot.manifest.model import load_manifest
from cutlass_aot.runtime.machine.compatibility import ANYTHING, MINIMUM_PYTHON
from cutlass_aot.schema.drivers import FIRST_DRIVERS
from cutlass_aot.schema.targets import KNOWN_TARGETS, Target, minimum_cuda
from tests.support.commands import REPOSITORY, blocks_of
from tests.support.stand_ins import write_stand_in

PAGE = (REPOSITORY / "docs" / "guides" / "compatibility.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def table(header: str) -> list[list[str]]:
    body = PAGE[PAGE.index(header) :].split("\n\n")[0]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in body.splitlines()[2:]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the page's commands are given: with the bundle that `make bundle` builds."""
    write_stand_in(tmp_path, "sm100-dense", ("sm_100a", "sm_103a"), ("aarch64", "x86_64"))
    return tmp_path


def test_the_commands_print_what_is_shown(folder: Path) -> None:
    shown = []
    printed = {}
    for block in blocks_of(PAGE):
        if block.file:
            (folder / block.file).write_text(block.text)
        elif block.language == "text":
            # By the last command above it.
            shown.append((list(printed)[-1], block.text))
        for line in block.text.splitlines() if block.language == "bash" else ():
            program = line.replace("cutlass-aot", f"{sys.executable} -m cutlass_aot")
            done = subprocess.run(
                ["bash", "-c", program], capture_output=True, text=True, cwd=folder, check=False
            )  # fmt: skip
            assert done.stderr == ""
            printed[line] = done.returncode, done.stdout
    here, written, *read, gb300, packed, old = printed
    assert shown == [(gb300, printed[gb300][1]), (old, printed[old][1])]
    assert [printed[line][0] for line in (gb300, old, written, packed)] == [0, 1, 0, 0]
    # The machine at hand answers for itself as its facts do.
    assert len(read) == 2
    assert all(printed[line] == printed[here] for line in read)


def test_the_bundle_is_the_one_that_the_first_command_of_the_readme_builds() -> None:
    manifest = load_manifest(REPOSITORY / "manifests" / "sm100.toml")
    assert set(re.findall(r"build/bundles/([\w.-]+)", PAGE)) == {manifest.name}
    assert manifest.targets == ("sm_100a", "sm_103a")
    assert set(manifest.hosts) == {"aarch64", "x86_64"}


def test_the_version_of_a_gpu_is_text() -> None:
    (value,) = re.findall(r'in quotes, such as `("[0-9.]+")`', PAGE)
    text = '[[gpus]]\nname = "NVIDIA GB300"\ncompute_capability = '
    first = blocks("toml")[0].split("[[gpus]]")[0]
    (gpu,) = parse_facts(f"{first}{text}{value}\n".encode(), "node.toml").gpus
    assert gpu.capability == (10, 3)
    with pytest.raises(FactsError):
        parse_facts(f"{first}{text}{value[1:-1]}\n".encode(), "node.toml")


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
        own = ["the bundles' host code"] if cuda == ANYTHING.versions.cuda_driver else []
        assert runs == ", ".join([*targets, *own])


def test_the_figures_are_those_of_the_code() -> None:
    assert f"| Python | {MINIMUM_PYTHON} or newer |" in PAGE
    assert f"older than {NATIVE_TORCH}," in PAGE
    assert MAX_BYTES == 1 << 20
    assert "more than 1.05 MB" in PAGE


def test_every_option_that_is_named_exists() -> None:
    options = {name for parameter in command.params for name in parameter.opts}
    assert set(re.findall(r"--[a-z][a-z-]+", PAGE)) <= options

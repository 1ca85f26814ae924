"""The pages about declared kernels and TF32 show files and manifests that tests build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cutlass_aot.generators.registry import GeneratorReference
from cutlass_aot.manifest.toml import load_toml
from tests.support.commands import REPOSITORY, Block, blocks_of, own_environment, run_commands
from tests.support.paths import TEMPLATES

PACKAGE = TEMPLATES / "kernel"
OWN = REPOSITORY / "docs" / "guides" / "declared-kernels.md"
MANIFESTS = {
    "reference/convolution.md": "convolution.toml",
    "reference/kernels.md": "kernels.toml",
    "reference/tf32.md": "tf32.toml",
}


def blocks(page: Path) -> list[Block]:
    return blocks_of(page.read_text(encoding="utf-8"))


def of(page: str, language: str) -> list[Block]:
    return [block for block in blocks(REPOSITORY / "docs" / page) if block.language == language]


def test_the_declaration_is_that_of_the_package() -> None:
    shown = {block.file: block.text for block in blocks(OWN) if block.file}
    assert shown == {"axpy_kernels/declared.py": (PACKAGE / "axpy_kernels" / "declared.py").read_text()}


def test_its_manifest_is_a_part_of_the_packages() -> None:
    (block,) = of("guides/declared-kernels.md", "toml")
    assert block.text in (PACKAGE / "axpy.toml").read_text()


@pytest.mark.compile
def test_its_commands_and_its_choice_run(tmp_path: Path) -> None:
    new, *commands = [
        line for block in of("guides/declared-kernels.md", "bash") for line in block.text.splitlines()
    ]
    environment = own_environment(tmp_path / "venv")
    run_commands([new], tmp_path, environment)
    tried = run_commands(commands, tmp_path / "axpy", environment)[1]
    # Numbers depend on the machine; titles and operands do not.
    shown = re.search(r"^    kernel {9}.*?^    run [^\n]*$", OWN.read_text(), re.MULTILINE | re.DOTALL)
    assert shown is not None
    page = [line[4:] for line in shown[0].splitlines()]
    printed = tried.splitlines()
    assert [line[:15] for line in page] == [line[:15] for line in printed]
    assert page[1:5] == printed[1:5]
    (choice,) = (
        block.text for block in blocks(OWN) if block.language == "python" and "describe" in block.text
    )
    (chosen,) = run_commands(
        [
            f"python - <<'END'\nimport cutlass_aot\nbundle = cutlass_aot.open('build/bundles/axpy')\n"
            f"{choice.splitlines()[0]}\nprint({choice.splitlines()[1]})\nEND\n"
        ],
        tmp_path / "axpy",
        environment,
    )
    assert "threads256" in chosen
    assert "(declared: the least by its cost formula, 9600)" in chosen


@pytest.mark.parametrize("page", sorted(MANIFESTS))
def test_each_table_of_a_page_stands_in_its_manifest(page: str) -> None:
    manifest = (REPOSITORY / "manifests" / MANIFESTS[page]).read_text()
    found = of(page, "toml")
    assert found
    for block in found:
        assert block.text in manifest
    (command,) = of(page, "bash")
    assert command.text == f"cutlass-aot build manifests/{MANIFESTS[page]}\n"


def test_every_kernel_of_the_package_has_its_section() -> None:
    entries = load_toml(REPOSITORY / "pyproject.toml")["project"]["entry-points"]["cutlass_aot.generators"]
    declared = {name for name, location in entries.items() if location.startswith("cutlass_aot.kernels.")}
    shown = set()
    for name in ("convolution", "kernels"):
        tables = load_toml(REPOSITORY / "manifests" / f"{name}.toml")["kernels"]
        page = (REPOSITORY / "docs" / "reference" / f"{name}.md").read_text()
        for operation in {table["operation"] for table in tables}:
            shown.add(operation)
            assert f'operation = "{operation}"' in page
            generator = GeneratorReference(operation, entries[operation]).load()
            for parameter in generator.design:
                assert re.search(rf"^Parameters: .*`{parameter}`", page, re.MULTILINE), (operation, parameter)
    assert shown == declared

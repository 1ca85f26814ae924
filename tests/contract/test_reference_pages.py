"""docs/reference has every manifest key, command, option and environment variable; the files of a bundle."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from cutlass_aot.builder.plan.known_bad import TABLE
from cutlass_aot.bundle.replace import TOP_LEVEL
from cutlass_aot.cli import group
from cutlass_aot.generators.cutlass_operators import FAMILIES
from cutlass_aot.generators.device_profiles import builtin_profiles
from cutlass_aot.manifest import known_bad, programs, select
from cutlass_aot.manifest.kernels import TABLE_KEYS
from cutlass_aot.manifest.model import BUNDLE_KEYS, load_manifest, parse_manifest
from cutlass_aot.schema.bundles.catalog import SCHEMA
from cutlass_aot.schema.kernels.design import SHORT_NAMES
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.targets import FEATURES, HARDWARE, KNOWN_TARGETS
from tests.support.commands import blocks_of
from tests.support.paths import REPOSITORY

REFERENCE = REPOSITORY / "docs" / "reference"
MANIFEST = (REFERENCE / "manifest.md").read_text(encoding="utf-8")
COMMANDS = (REFERENCE / "commands.md").read_text(encoding="utf-8")


def section(text: str, heading: str) -> str:
    """What stands under a heading of the second level."""
    return text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def rows(text: str) -> list[str]:
    """The names in code of the first cells of a section's tables."""
    cells = re.findall(r"^\| (`[^|]*) \|", text.replace("\\|", "/"), re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]*)`", cell) if not name.startswith("[")]


@pytest.mark.parametrize(
    ("heading", "keys"),
    [
        ("`[bundle]`", BUNDLE_KEYS),
        ("`[[programs]]`", programs.KEYS),
        ("`[select]`", select.SELECT_KEYS),
    ],
)
def test_the_keys_of_a_table_are_those_that_are_read(heading: str, keys: tuple[str, ...]) -> None:
    assert sorted(rows(section(MANIFEST, heading))) == sorted(keys)


def test_the_keys_and_filters_of_kernels_are_those_that_are_read() -> None:
    filters = {*SHORT_NAMES, *SHORT_NAMES.values(), "family", "use_2cta_mma", "use_tma_store"}
    assert sorted(rows(section(MANIFEST, "`[[kernels]]`"))) == sorted({*TABLE_KEYS, *filters})


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([*DTYPES], id="dtypes"),
        pytest.param([*KNOWN_TARGETS], id="targets"),
        pytest.param([*FAMILIES], id="families"),
        pytest.param([*builtin_profiles()], id="profiles"),
    ],
)
def test_every_value_is_documented(names: list[str]) -> None:
    assert [name for name in names if f"`{name}`" not in MANIFEST] == []


def test_every_manifest_of_the_repository_is_named() -> None:
    table = MANIFEST.split("| file | |\n", 1)[1].split("\n\n", 1)[0]
    assert sorted(rows(table)) == sorted(path.stem for path in (REPOSITORY / "manifests").glob("*.toml"))


def test_the_manifest_is_one() -> None:
    (text,) = (block.text for block in blocks_of(MANIFEST) if block.language == "toml")
    assert parse_manifest(text.encode(), Path("manifest.md")).name == "my-kernels"


def test_the_table_of_bad_kernels_is_read_and_has_every_key(tmp_path: Path) -> None:
    (table,) = (block.text for block in blocks_of(MANIFEST) if block.language == "toml known_bad")
    smoke = (REPOSITORY / "manifests" / "smoke.toml").read_text()
    (tmp_path / "m.toml").write_text(smoke + table)
    (row,) = load_manifest(tmp_path / "m.toml").known_bad
    assert (row.targets, row.dtypes, row.until) == (("sm_103a",), (("f8e4m3", "f8e4m3", "*"),), "4.9")
    assert all(re.search(rf"^{key} = ", table, re.MULTILINE) for key in known_bad.KEYS)


def test_the_default_timeout_of_a_program_is_that_of_the_code() -> None:
    assert f"; {programs.DEFAULT_TIMEOUT} if left out" in section(MANIFEST, "`[[programs]]`")


def commands() -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its full name."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            for inner in command.commands:
                yield f"{name} {inner}", command.commands[inner]
        else:
            yield name, command


def test_every_command_has_its_section() -> None:
    assert re.findall(r"^## `cutlass-aot (.*)`$", COMMANDS, re.MULTILINE) == sorted(
        name for name, _ in commands()
    )


@pytest.mark.parametrize(("name", "command"), [*commands()], ids=[name for name, _ in commands()])
def test_every_option_is_documented(name: str, command: click.Command) -> None:
    text = section(COMMANDS, f"`cutlass-aot {name}`")
    assert re.search(rf"^    cutlass-aot {name}\b", text, re.MULTILINE)
    listed = {option for row in rows(text) for option in [row.split()[0]] if option.startswith("-")}
    options = {
        spelling for item in command.params if isinstance(item, click.Option) for spelling in item.opts
    }
    assert listed == options


def test_every_environment_variable_is_documented() -> None:
    sources = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "cutlass_aot").rglob("*.py")]
    read = {name for text in sources for name in re.findall(r'= "(CUTLASS_AOT_[A-Z_]+)"', text)}
    page = (REFERENCE / "environment.md").read_text(encoding="utf-8")
    assert set(rows(page)) == {*read, "SOURCE_DATE_EPOCH"}


def test_the_files_of_a_bundle_are_those_it_has() -> None:
    text = (REPOSITORY / "docs" / "internals" / "bundle-format.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^    ([\w.]+)\S* {2,}\S", text, re.MULTILINE)) == TOP_LEVEL
    assert f"Its schema is {SCHEMA};" in text


def test_the_table_of_targets_is_the_code_s() -> None:
    page = (REFERENCE / "operations.md").read_text(encoding="utf-8")
    for name, hardware in HARDWARE.items():
        features = ", ".join(f"`{feature}`" for feature in FEATURES if feature in hardware.features)
        sm = hardware.sm
        row = (
            f"`{name}`",
            "{}.{}".format(*hardware.cuda),
            sm.threads,
            sm.blocks,
            f"{sm.shared_bytes >> 10} KB",
        )
        assert f"| {' | '.join(map(str, row))} | {features} |\n" in page
    for feature, text in FEATURES.items():
        assert f"| `{feature}` | {text} |\n" in page


def test_the_page_says_what_was_seen_of_kernels_known_to_be_bad() -> None:
    assert all(row.evidence and f"| {row.evidence} |\n" in MANIFEST for row in TABLE)

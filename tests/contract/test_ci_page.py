"""docs/guides/ci.md: the commands of its workflow run, and write the files that it keeps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.commands import blocks_of, run_commands
from tests.support.paths import REPOSITORY

TEXT = (REPOSITORY / "docs" / "guides" / "ci.md").read_text(encoding="utf-8")
(WORKFLOW,) = (block.text for block in blocks_of(TEXT) if block.language == "yaml")
(STEP,) = (block.text for block in blocks_of(TEXT) if block.language == "yaml step")


def commands(text: str) -> list[str]:
    """The lines of the steps that call cutlass-aot."""
    return [line.strip().removeprefix("run: ") for line in text.splitlines() if "cutlass-aot " in line]


def test_its_requirements_are_there() -> None:
    (install,) = re.findall(
        r"run: pip install --constraint cutlass-aot/(\S+) './cutlass-aot\[(.*)\]'", WORKFLOW
    )
    assert (REPOSITORY / install[0]).is_file()
    project = (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
    assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in install[1].split(","))


@pytest.mark.compile
def test_the_commands_run(tmp_path: Path) -> None:
    smoke = (REPOSITORY / "manifests" / "smoke.toml").read_text(encoding="utf-8")
    (tmp_path / "kernels.toml").write_text(smoke.replace('name = "smoke"', 'name = "kernels"'))
    lines = [line for line in commands(WORKFLOW) if not line.startswith("pip")]
    assert [re.findall(r"cutlass-aot (\w+)", line)[0] for line in lines] == [
        "plan", "build", "verify", "wheel", "verify", "store",
    ]  # fmt: skip
    run_commands(lines, tmp_path)
    assert (tmp_path / "build" / "report.html").is_file()
    assert list((tmp_path / "build" / "wheels").glob("*.whl"))
    assert (tmp_path / "build" / "store").is_dir()
    sign = [line.replace("$RUNNER_TEMP/release", "key") for line in commands(STEP)]
    run_commands(
        ["cutlass-aot key new key", *sign, "cutlass-aot verify build/bundles/kernels --key key.pub"], tmp_path
    )

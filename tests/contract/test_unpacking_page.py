"""docs/guides/unpacking.md: its commands run, what they make serves, its figures are right."""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path

import pytest

from cutlass_aot.cli import COMMANDS
from cutlass_aot.runtime.files import trust
from cutlass_aot.runtime.files.verified_read import read_catalog, read_file
from cutlass_aot.runtime.launching import code_cache, unpacking
from cutlass_aot.runtime.launching.gpu_code import Code
from cutlass_aot.schema.bundles.group_index import group_from_bytes
from tests.support.commands import blocks_of, own_environment, run_commands
from tests.support.paths import REPOSITORY
from tests.support.stand_ins import write_smoke

PAGE = (REPOSITORY / "docs" / "guides" / "unpacking.md").read_text(encoding="utf-8")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86_64")
def test_a_directory_that_was_filled_as_the_page_says_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = write_smoke(tmp_path)
    said = ""
    for block in blocks_of(PAGE):
        if block.language == "bash":
            (said,) = run_commands([block.text], tmp_path)
    # By the last command, doctor's.
    assert f"in {tmp_path}/build/cache: " in said
    monkeypatch.setenv(code_cache.DIRECTORY_VARIABLE, str(tmp_path / "build" / "cache"))
    groups = read_catalog(bundle).groups
    for entry in groups:
        # Gone, so that nothing but the directory can serve.
        (bundle / entry.code.path).unlink(missing_ok=True)
        code = Code(bundle, entry.code)
        for kernel in group_from_bytes(read_file(bundle, entry.child), entry, entry.name):
            assert code.read(kernel.code)
        assert code.kept is not None
    kept = list((tmp_path / "build" / "cache").glob("*.code"))
    assert len(kept) == len({entry.code for entry in groups})
    assert all(path.stat().st_mode & 0o444 == 0o444 for path in kept)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86_64")
def test_what_was_installed_is_found_as_the_page_says(tmp_path: Path) -> None:
    (block,) = (block for block in blocks_of(PAGE) if block.language == "bash installed")
    (shown,) = re.findall(r"/\S+/site-packages", block.text)
    variables = own_environment(tmp_path / "venv")
    (packages,) = (tmp_path / "venv").glob(f"lib/python{sys.version_info[0]}.*/site-packages")
    write_smoke(tmp_path)
    commands = [
        "cutlass-aot wheel build/bundles/smoke",
        "pip install --no-index --find-links build/wheels cutlass-aot-bundle-smoke",
        *block.text.replace(shown, str(packages)).splitlines(),
    ]
    *_, installed, filled = run_commands(commands, tmp_path, variables)
    assert f"({packages}/cutlass_aot_bundle_smoke/bundle)" in installed
    assert filled.startswith("build/cache: 4 files")


def test_names_and_figures_are_those_of_the_code() -> None:
    known = {code_cache.DIRECTORY_VARIABLE, unpacking.LIMIT_VARIABLE, trust.ENVIRONMENT_VARIABLE}
    assert set(re.findall(r"CUTLASS_AOT_\w+", PAGE)) == known
    assert f"4 GB ({unpacking.DEFAULT_LIMIT})" in " ".join(PAGE.split())
    assert (unpacking.LOCK_SECONDS, code_cache._TOUCH_SECONDS) == (60, 3600)
    assert "at most a minute" in PAGE
    assert "once an hour" in PAGE
    assert set(re.findall(r"cutlass-aot (\w+)", PAGE)) <= {*COMMANDS, "in"}

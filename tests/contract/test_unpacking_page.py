"""What docs/unpacking.md shows: its commands run, what they make serves, its figures are right."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.cli import _COMMANDS
from cutlass_aot.runtime import cache
from cutlass_aot.runtime.code import Code
from cutlass_aot.runtime.files import read_catalog, read_file
from cutlass_aot.schema.group_index import group_from_bytes
from tests.unit.synthetic import plan

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = (REPOSITORY / "docs" / "unpacking.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^(?:`([^`\n]+)`\n)?```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the bundle is for x86_64")
def test_a_directory_that_was_filled_as_the_page_says_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = tmp_path / "build" / "bundles" / "smoke"
    write_bundle(plan(tmp_path / "linked", name="smoke"), bundle)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
    }
    for name, _, text in BLOCKS:
        if name:
            (tmp_path / name).write_text(text)
            continue
        for line in text.splitlines():
            # As installed: this interpreter's command line.
            program = line.replace("cutlass-aot ", f"{sys.executable} -m cutlass_aot ", 1)
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", program], cwd=tmp_path, env=environment,
                capture_output=True, text=True, check=False, timeout=300,
            )  # fmt: skip
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    monkeypatch.setenv(cache.DIRECTORY_VARIABLE, str(tmp_path / "build" / "cache"))
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


def test_names_and_figures_are_those_of_the_code() -> None:
    assert set(re.findall(r"CUTLASS_AOT_\w+", PAGE)) == {cache.DIRECTORY_VARIABLE, cache.LIMIT_VARIABLE}
    assert f"4 GiB\n({cache.DEFAULT_LIMIT})" in PAGE
    assert (cache._LOCK_SECONDS, cache._TOUCH_SECONDS) == (60, 3600)
    assert "at most a minute" in PAGE
    assert "once an hour" in PAGE
    assert set(re.findall(r"cutlass-aot (\w+)", PAGE)) <= {*_COMMANDS, "in"}

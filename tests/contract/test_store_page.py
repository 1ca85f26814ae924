"""docs/reference/store.md: its commands run, its options exist, its figures are those of the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from cutlass_aot.cli.build import command as build_command
from cutlass_aot.cli.store import command as store_command
from cutlass_aot.store import layout
from cutlass_aot.store.build_state import write_state
from cutlass_aot.store.durations import remember_durations
from cutlass_aot.store.files import set_aside
from cutlass_aot.store.maintenance.collect import DAYS, GRACE
from cutlass_aot.store.roots import set_root
from cutlass_aot.store.store import TOUCH_AFTER, Store
from cutlass_aot.store.upstream.remote import CLOSE_SECONDS, TIMEOUT
from tests.support.paths import REPOSITORY

TEXT = (REPOSITORY / "docs" / "reference" / "store.md").read_text(encoding="utf-8")
COMMANDS = "".join(re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)).splitlines()
KEY = "ab" * 32


def full_store(root: Path) -> Store:
    """A store with one of everything."""
    store = Store(root)
    sha256 = store.put_blob(b"object")
    store.put_record("kernel", KEY, {}, blobs={sha256: 6})
    set_root(store, "nightly", [("kernel", KEY)])
    remember_durations(store, {KEY: 1.0})
    write_state(root, KEY, {})
    store.put_log(KEY, "words")
    set_aside(root, store.blob_path(store.put_blob(b"other")))
    assert store.try_lock(KEY)
    return store


def test_the_commands_run(tmp_path: Path) -> None:
    full_store(tmp_path / "build" / "store").close()
    assert len(COMMANDS) == 6
    for line in COMMANDS:
        program, *arguments = line.split()
        assert program == "cutlass-aot"
        done = subprocess.run(
            [sys.executable, "-m", "cutlass_aot", *arguments],
            capture_output=True, text=True, cwd=tmp_path, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (line, done.stderr)
        assert done.stdout


def test_every_command_is_listed() -> None:
    listed = set(re.findall(r"^\| `store (\w+)", TEXT, re.MULTILINE))
    assert listed == set(store_command.commands)


def test_every_option_that_is_named_exists() -> None:
    commands = [build_command, *store_command.commands.values()]
    known = {option for command in commands for item in command.params for option in item.opts}
    named = set(re.findall(r"--[a-z][a-z-]+", TEXT))
    assert named <= known


def test_the_layout_is_what_a_store_holds(tmp_path: Path) -> None:
    store = full_store(tmp_path)
    with store.workspace():
        there = {path.name for path in tmp_path.iterdir()}
    store.close()
    lines = re.findall(r"^    ([A-Za-z_]+)\S* {2,}\S", TEXT, re.MULTILINE)
    assert set(lines) == there
    assert layout.__doc__ is not None
    for line in re.findall(r"^    ([A-Za-z_]+\S*) {2,}", TEXT, re.MULTILINE):
        assert f"    {line} " in layout.__doc__


def test_the_figures_are_those_of_the_code() -> None:
    assert (DAYS, GRACE, TOUCH_AFTER, TIMEOUT, CLOSE_SECONDS) == (30, 2 * 3600, 3600, 10, 300)
    for words in ("30 days", "two hours", "once an hour", "ten seconds", "five minutes"):
        assert words in TEXT

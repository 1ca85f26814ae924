"""Temporary directories: private, removed at the end; what a killed process left goes with the next."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from cutlass_aot.runtime.files.temporary_folder import SETTLED_SECONDS, temporary_folder
from cutlass_aot.runtime.machine.identity import identity

CODE = """
import sys
from cutlass_aot.runtime.files.temporary_folder import temporary_folder
from cutlass_aot.runtime.machine.identity import identity
with temporary_folder("test") as folder:
    (folder / "inside").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def parent(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def start():
    process = subprocess.Popen(
        [sys.executable, "-c", CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline()
    return process


def settle(parent):
    """Have everything look as if it had been made a while ago."""
    for path in parent.iterdir():
        os.utime(path, (1, time.time() - SETTLED_SECONDS - 1), follow_symlinks=False)


def names(parent):
    return sorted(path.name for path in parent.iterdir())


def test_it_is_empty_private_and_removed(parent):
    with temporary_folder("run") as folder:
        assert list(folder.iterdir()) == []
        (outer,) = parent.iterdir()
        assert outer.name.startswith("cutlass-aot-run-")
        assert outer.stat().st_mode & 0o777 == 0o700
        (folder / "inside").write_text("x")
    assert names(parent) == []


def test_what_another_machine_left_is_not_removed(parent):
    """Its locks may not be seen here, so that it may be in use."""
    killed = start()
    killed.kill()
    killed.communicate()
    (outer,) = parent.iterdir()
    (outer / ".owner").write_text("elsewhere 01234567-89ab-cdef-0123-456789abcdef\n")
    settle(parent)
    with temporary_folder():
        assert len(names(parent)) == 2
    assert names(parent) == [outer.name]


def test_what_a_killed_process_left_is_removed_by_the_next(parent):
    alive, killed = start(), start()
    try:
        killed.kill()
        killed.communicate()
        with temporary_folder():
            # It may be one that is about to be locked.
            assert len(names(parent)) == 3
        settle(parent)
        with temporary_folder():
            assert len(names(parent)) == 2
        settle(parent)
        with temporary_folder():
            assert len(names(parent)) == 2
    finally:
        alive.communicate("")
    assert names(parent) == []


def test_beside_an_output_what_was_left_there_is_removed(tmp_path, parent):
    (tmp_path / "outputs").mkdir()
    output = tmp_path / "outputs" / "small"
    for name in (".small-abcd", ".other-abcd"):
        (tmp_path / "outputs" / name).mkdir()
        (tmp_path / "outputs" / name / ".owner").write_text(identity())
    settle(tmp_path / "outputs")
    with temporary_folder(beside=output) as folder:
        (folder / "new").mkdir()
        (folder / "new").rename(output)
        assert len(names(tmp_path / "outputs")) == 3
    assert names(tmp_path / "outputs") == [".other-abcd", "small"]


def test_what_is_not_ours_stays(parent, monkeypatch):
    for name in ("cutlass-aot-other", "cutlass-aot-file", "cutlass-aot.d", "else"):
        (parent / name).mkdir()
        (parent / name / ".owner").write_text(identity())
    (parent / "cutlass-aot-other" / ".owner").rename(parent / "cutlass-aot-other" / "file")
    outside = parent / "else"
    (parent / "cutlass-aot-link").symlink_to(outside)
    (parent / "cutlass-aot-pipe").mkdir()
    os.mkfifo(parent / "cutlass-aot-pipe" / "pipe")
    (parent / "cutlass-aot-loop").mkdir()
    (parent / "cutlass-aot-loop" / ".owner").symlink_to(".owner")
    settle(parent)
    before = names(parent)
    with temporary_folder():
        pass
    # The one that has the file of an owner, who is dead.
    assert names(parent) == [name for name in before if name != "cutlass-aot-file"]
    (parent / "cutlass-aot-file").mkdir()
    (parent / "cutlass-aot-file" / ".owner").write_text(identity())
    settle(parent)
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)
    with temporary_folder():
        pass
    assert names(parent) == before

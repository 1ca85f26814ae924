"""Stores on disks that are full or read-only, real ones: a clear error, and on it goes afterwards."""

from __future__ import annotations

import subprocess

import pytest

from tests.compile.builder.conftest import MANIFEST
from tests.compile.builder.test_build import command, contents

pytestmark = pytest.mark.compile


def mount(*arguments):
    return subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)


@pytest.fixture
def disk(tmp_path):
    """A small file system of its own, if this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    done = mount("-t", "tmpfs", "-o", "size=200k", "tmpfs", folder)
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_and_a_read_only_one(disk, tmp_path):
    (tmp_path / "m.toml").write_text(MANIFEST)
    arguments = ("build", tmp_path / "m.toml", "--store", disk / "store", "--out", tmp_path / "out")
    full = command(*arguments)
    assert full.returncode == 1
    assert "No space left on device" in full.stderr
    assert "Traceback" not in full.stderr
    assert not (tmp_path / "out").exists()

    assert mount("-o", "remount,size=64m", disk).returncode == 0
    kept = len(list((disk / "store" / "records").glob("kernel/*/*")))
    done = command(*arguments)
    assert done.returncode == 0, done.stderr
    assert f"{5 - kept} compiled, written" in done.stdout
    assert command("verify", disk / "store").returncode == 0

    assert mount("-o", "remount,ro", disk).returncode == 0
    before = contents(disk)
    # What is complete is answered from a store that cannot be written; what is not says why it fails.
    assert command(*arguments).returncode == 0
    elsewhere = command(*arguments[:-1], tmp_path / "elsewhere")
    assert elsewhere.returncode == 1
    assert "Read-only file system" in elsewhere.stderr
    assert "Traceback" not in elsewhere.stderr
    assert contents(disk) == before

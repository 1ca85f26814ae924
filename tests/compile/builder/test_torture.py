"""tools/torture/torture.py in its short form, and that it notices what it is there to notice."""

from __future__ import annotations

import random
import re
import stat
import subprocess
import sys

import pytest

from tools.torture import damage
from tools.torture.other_files import remove


@pytest.mark.compile
def test_builders_that_are_killed_lose_nothing():
    result = subprocess.run(
        [sys.executable, "-m", "tools.torture.torture", "--kills", "2", "--builders", "2", "--minutes", "4"],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    rows = dict(line.strip("| ").split(" | ", 1) for line in result.stdout.splitlines()[2:])
    assert rows["wrong"] == "0"
    phases = [int(number) for number in re.findall(r" (\d+)", rows["kills by phase"])]
    assert sum(phases) >= 2
    assert int(re.search(r"(\d+) killed", rows["builds"]).group(1)) == sum(phases)


BLOB, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def store(tmp_path):
    for name in (f"blobs/sha256/aa/{BLOB}.zst", f"blobs/sha256/bb/{OTHER}.zst", "records/kernel/cc/ccc"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(range(100)))
    (tmp_path / "FORMAT").write_bytes(b"store")
    return tmp_path


def found(path, problem):
    return {"path": path, "problem": problem, "set_aside": True}


def test_damage_that_nobody_did_is_not_explained(store):
    damager = damage.Damager(store, random.Random(0))
    blob, record = f"blobs/sha256/aa/{BLOB}.zst", "records/kernel/cc/ccc"
    names_blob = f"a record that names blob {BLOB}, which is not there"
    assert damager.unexplained([found(blob, "x")], []) == [f"{blob}: x"]
    assert damager.unexplained([found(record, names_blob)], []) == [f"{record}: {names_blob}"]
    assert damager.unexplained([], ["kernel-ccc"]) == ["damaged/kernel-ccc"]

    damager.remove([store / blob], 1.0)
    assert not (store / blob).exists()
    assert damager.unexplained([found(record, names_blob)], ["kernel-ccc"]) == []
    other = names_blob.replace(BLOB, OTHER)
    assert damager.unexplained([found(record, other)], []) == [f"{record}: {other}"]
    damager.forget()
    assert damager.unexplained([], ["kernel-ccc"]) == ["damaged/kernel-ccc"]


def test_whatever_is_damaged_is_remembered_and_the_same_seed_does_the_same(store):
    def look():
        """What stands in the places of the store's files; of regular ones, what is in them."""
        modes = {path: path.lstat().st_mode for path in before}
        return {path: path.read_bytes() if stat.S_ISREG(mode) else mode for path, mode in modes.items()}

    def restore():
        for path, data in before.items():
            remove(path)
            path.write_bytes(data)

    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    kinds = set()
    for seed in range(80):
        damager = damage.Damager(store, random.Random(seed))
        damager.damage(damager.files(), 2)
        for path in before:
            if not path.exists() and not path.is_symlink():
                path.write_bytes(b"removed")
        now = look()
        changed = {path for path in before if now[path] != before[path]}
        assert changed <= {store / name for name in damager.touched}
        assert changed
        kinds |= set(damager.counts)
        restore()
        again = damage.Damager(store, random.Random(seed))
        again.damage(again.files(), 2)
        for path in before:
            if not path.exists() and not path.is_symlink():
                path.write_bytes(b"removed")
        assert look() == now
        restore()
    assert kinds == set(damage.KINDS)


def test_dates_are_no_damage(store):
    damager = damage.Damager(store, random.Random(1))
    files = damager.files()
    assert store / "FORMAT" not in files
    times = {path: path.stat().st_mtime for path in files}
    damager.date(files)
    assert any(path.stat().st_mtime != times[path] for path in files)
    assert damager.touched == set()

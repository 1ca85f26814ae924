"""Locks and workspaces: they save work, tell who lives, and stop nobody."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from cutlass_aot.errors import StoreError
from cutlass_aot.runtime.machine.identity import identity
from cutlass_aot.store.maintenance.collect import collect
from cutlass_aot.store.store import Store
from cutlass_aot.store.workspaces import ABANDONED_AFTER
from tests.support.stores import KEY, age, together


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def test_one_builder_holds_a_key(store):
    other = Store(store.root)
    assert store.try_lock(KEY)
    assert not store.try_lock(KEY)
    assert not other.try_lock(KEY)
    other.unlock(KEY)
    store.unlock(KEY)
    store.unlock(KEY)
    assert other.try_lock(KEY)
    other.close()
    assert list((store.root / "locks").iterdir()) == []


def test_an_interrupt_while_a_key_is_taken_leaves_no_lock(store, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("cutlass_aot.runtime.files.file_lock.Lock._is_current", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.try_lock(KEY)
    assert not Store(store.root).try_lock(KEY)
    store.unlock_all()
    assert store.try_lock(KEY)
    store.unlock(KEY)


def test_a_killed_builder_holds_nothing(store):
    code = (
        "import sys, pathlib, time\nfrom cutlass_aot.store.store import Store\n"
        "store = Store(pathlib.Path(sys.argv[1]))\nassert store.try_lock(sys.argv[2])\n"
        "workspace = store.workspace()\nprint(workspace.__enter__(), flush=True)\ntime.sleep(100)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(store.root), KEY], stdout=subprocess.PIPE, text=True
    )
    left = process.stdout.readline().strip()
    assert not store.try_lock(KEY)
    with store.workspace():
        assert os.path.isdir(left)  # noqa: PTH112
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (store.root / "locks" / f"{KEY}.lock").is_file()
    assert store.try_lock(KEY)
    with store.workspace() as mine:
        assert list((store.root / "tmp").iterdir()) == [mine]
    store.unlock_all()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_a_build_goes_on(store, monkeypatch, number):
    def missing(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", missing)
    other = Store(store.root)
    assert store.try_lock(KEY)
    assert other.try_lock(KEY)
    store.unlock_all()
    other.unlock_all()
    with store.workspace() as mine, other.workspace() as theirs:
        assert mine.is_dir()
        assert theirs.is_dir()
        left = store.root / "tmp" / "left"
        left.mkdir()
        (left / ".owner").write_bytes((mine / ".owner").read_bytes())
        with store.workspace():
            assert left.is_dir()
        age(left / ".owner", hours=ABANDONED_AFTER / 3600 + 1)
        age(left, hours=ABANDONED_AFTER / 3600 + 1)
        with store.workspace():
            assert not left.exists()
        store.put_blob(b"x")
        assert collect(store, days=0, grace=0) == []


def test_an_error_of_locking_is_told(store, monkeypatch):
    def broken(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("fcntl.flock", broken)
    with pytest.raises(StoreError, match="Input/output error"):
        store.try_lock(KEY)


def test_a_key_is_held_by_one_at_a_time(tmp_path):
    """Files of locks are removed and made again all the time; still no two processes ever hold one."""
    code = """
import os
store = Store(root)
held = 0
deadline = time.monotonic() + 1
while time.monotonic() < deadline:
    if store.try_lock("ab" * 32):
        mark = os.open(root / "mark", os.O_CREAT | os.O_EXCL)
        os.close(mark)
        held += 1
        os.unlink(root / "mark")
        store.unlock("ab" * 32)
assert held
"""
    together(code, tmp_path / "store", 4)


def test_what_a_killed_builder_left_is_removed_and_no_other(store):
    left = store.root / "tmp" / "left"
    left.mkdir(parents=True)
    (left / ".owner").write_text(identity())
    begun = store.root / "tmp" / ".new-begun"
    begun.mkdir()
    with store.workspace() as mine, Store(store.root).workspace() as other:
        assert not left.exists()
        assert mine.is_dir()
        assert other.is_dir()
        assert begun.is_dir()
    age(begun, hours=ABANDONED_AFTER / 3600 + 1)
    with store.workspace() as mine:
        assert list((store.root / "tmp").iterdir()) == [mine]


def test_a_builder_elsewhere_whose_lock_is_not_seen_is_judged_by_what_it_writes(store):
    """Some network file systems keep locks to each machine: there a free lock says nothing."""
    left = store.root / "tmp" / "left"
    (left / "worker").mkdir(parents=True)
    (left / ".owner").write_text("elsewhere 01234567-89ab-cdef-0123-456789abcdef\n")
    (left / "worker" / "x.o").touch()
    for path in (left / ".owner", left / "worker", left):
        age(path, hours=ABANDONED_AFTER / 3600 + 1)
    with store.workspace():
        assert (left / ".owner").is_file()
    keep = store.put_blob(b"x")
    age(store.blob_path(keep), hours=ABANDONED_AFTER / 3600)
    assert collect(store, days=0) == []
    age(left / "worker" / "x.o", hours=ABANDONED_AFTER / 3600 + 1)
    with store.workspace():
        assert not left.exists()


@pytest.mark.parametrize("same", ["name", "start"])
def test_a_free_lock_of_this_machine_says_that_its_owner_is_dead(store, same):
    """Also before the last start, and in a container that is called otherwise."""
    name, start = identity().split()
    left = store.root / "tmp" / "left"
    left.mkdir(parents=True)
    (left / ".owner").write_text(f"{name} another" if same == "name" else f"another {start}")
    with store.workspace() as mine:
        assert list((store.root / "tmp").iterdir()) == [mine]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_a_lock_that_may_not_be_opened_is_held(store, monkeypatch, number):
    (store.root / "locks").mkdir()
    (store.root / "locks" / f"{KEY}.lock").touch()
    original = os.open

    def closed(path, *arguments, **options):
        if str(path).endswith(".lock"):
            raise OSError(number, os.strerror(number))
        return original(path, *arguments, **options)

    monkeypatch.setattr("os.open", closed)
    assert not store.try_lock(KEY)
    (store.root / "locks" / f"{KEY}.lock").unlink()
    with pytest.raises(StoreError, match=os.strerror(number)):
        store.try_lock(KEY)


def test_a_lock_that_another_user_has_left_is_taken_if_it_may_be_read(store, monkeypatch):
    path = store.root / "locks" / f"{KEY}.lock"
    path.parent.mkdir()
    path.touch()
    original = os.open

    def closed_to_writing(path, flags, *arguments, **options):
        if str(path).endswith(".lock") and flags & os.O_RDWR and os.path.exists(path):  # noqa: PTH110
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return original(path, flags, *arguments, **options)

    monkeypatch.setattr("os.open", closed_to_writing)
    assert store.try_lock(KEY)
    assert not Store(store.root).try_lock(KEY)
    store.unlock(KEY)
    assert not path.exists()


def test_a_workspace_goes_whatever_happens(store):
    def interrupted():
        with store.workspace() as path:
            (path / "half").write_bytes(b"x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list((store.root / "tmp").iterdir()) == []


def test_a_workspace_that_cannot_be_made_leaves_nothing(store, monkeypatch):
    def fails(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("cutlass_aot.store.workspaces.create", fails)
    with pytest.raises(StoreError, match="No space left"), store.workspace():
        raise AssertionError("it was made")
    assert list((store.root / "tmp").iterdir()) == []


def test_many_workspaces_at_once_leave_each_other_alone(tmp_path):
    code = """
store = Store(root)
for _ in range(50):
    with store.workspace() as path:
        (path / "x").write_bytes(b"x")
        assert (path / "x").read_bytes() == b"x"
"""
    began = time.monotonic()
    together(code, tmp_path / "store", 4)
    assert time.monotonic() - began < 30
    assert list((tmp_path / "store" / "tmp").iterdir()) == []


def test_using_a_store_imports_neither_zstandard_nor_filelock(tmp_path):
    code = (
        "import sys, pathlib\nfrom cutlass_aot.store.store import Store\n"
        "store = Store(pathlib.Path(sys.argv[1]))\nstore.put_record('plan', 'ab' * 32, {})\n"
        "assert store.get_record('plan', 'ab' * 32) == {}\n"
        "heavy = {'zstandard', 'filelock', 'fsspec', 'tempfile', 'shutil', 'concurrent.futures'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run(
        [sys.executable, "-S", "-c", code, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (result.returncode, result.stdout) == (0, "[]\n"), result.stderr

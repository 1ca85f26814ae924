"""The store: atomic, verified, and never lying."""

from __future__ import annotations

import multiprocessing
import os
import threading

import pytest

from cutlass_aot.errors import SchemaTooNew, StoreError
from cutlass_aot.schema.artifact import Artifact, Facts
from cutlass_aot.schema.encoding import digest, seal
from cutlass_aot.store.artifacts import keep_artifact, read_artifact
from cutlass_aot.store.store import SCHEMA, Store
from tests.unit.kernels import gemm

KEY = "ab" * 32


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def test_a_blob_comes_back(store):
    sha256 = store.put_blob(b"object code")
    assert sha256 == digest(b"object code")
    assert store.get_blob(sha256) == b"object code"
    assert store.put_blob(b"object code") == sha256


def test_an_absent_blob_and_record_are_none(store):
    assert store.get_blob(KEY) is None
    assert store.get_record("kernel", KEY) is None


@pytest.mark.parametrize("damage", [b"", b"obj", b"OBJECT CODE", b"object code and more"])
def test_a_damaged_blob_is_set_aside_and_absent(store, damage):
    sha256 = store.put_blob(b"object code")
    store.blob_path(sha256).write_bytes(damage)
    assert [item.path for item in store.check()] == [f"blobs/sha256/{sha256[:2]}/{sha256}"]
    assert store.get_blob(sha256) is None
    assert (store.root / "damaged" / sha256).read_bytes() == damage
    assert store.put_blob(b"object code") == sha256
    assert store.get_blob(sha256) == b"object code"


def test_a_damaged_record_is_set_aside_and_absent(store):
    store.put_record("kernel", KEY, {"x": 1})
    path = store.record_path("kernel", KEY)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert len(store.check()) == 1
    assert store.get_record("kernel", KEY) is None
    assert store.check() == []


def test_a_record_of_another_kind_is_absent(store):
    store.put_record("plan", KEY, {"x": 1})
    store.record_path("kernel", KEY).parent.mkdir(parents=True)
    store.record_path("plan", KEY).rename(store.record_path("kernel", KEY))
    assert store.get_record("kernel", KEY) is None


def test_a_record_under_another_key_is_absent(store):
    other = "cd" * 32
    store.put_record("kernel", KEY, {"x": 1})
    store.record_path("kernel", other).parent.mkdir(parents=True)
    store.record_path("kernel", KEY).rename(store.record_path("kernel", other))
    assert [damage.path for damage in store.check()] == [f"records/kernel/cd/{other}"]
    assert store.get_record("kernel", other) is None


def test_a_newer_record_is_refused_and_kept(store):
    path = store.record_path("kernel", KEY)
    path.parent.mkdir(parents=True)
    path.write_bytes(seal("cutlass-aot kernel record", SCHEMA + 1, {}))
    with pytest.raises(SchemaTooNew, match="upgrade"):
        store.get_record("kernel", KEY)
    assert path.is_file()


def test_a_record_whose_blob_is_gone_is_found_by_check(store):
    sha256 = store.put_blob(b"x")
    store.put_record("kernel", KEY, {"sha256": sha256})
    assert store.check() == []
    store.blob_path(sha256).unlink()
    (damage,) = store.check()
    assert "which is not there" in damage.problem


def test_a_newer_store_is_refused(tmp_path):
    (tmp_path / "FORMAT").write_text("cutlass-aot store 9\n")
    with pytest.raises(SchemaTooNew, match="store version 9"):
        Store(tmp_path)


def test_something_else_is_no_store(tmp_path):
    (tmp_path / "precious").write_text("x")
    with pytest.raises(StoreError, match="no cutlass-aot store"):
        Store(tmp_path)
    assert (tmp_path / "precious").read_text() == "x"
    with pytest.raises(StoreError, match="is not a cutlass-aot store"):
        Store(tmp_path / "missing", create=False)


def test_a_failed_write_leaves_nothing_behind(store, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(StoreError, match="No space left on device"):
        store.put_blob(b"data")
    monkeypatch.undo()
    assert [path for path in store.root.rglob("*") if path.is_file()] == [store.root / "FORMAT"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_read_only_store_says_so(store):
    store.root.chmod(0o555)
    try:
        with pytest.raises(StoreError, match="Permission denied"):
            store.put_blob(b"x")
    finally:
        store.root.chmod(0o755)


def test_one_builder_holds_a_key(store):
    other = Store(store.root)
    assert store.try_lock(KEY)
    assert not other.try_lock(KEY)
    store.unlock(KEY)
    assert other.try_lock(KEY)
    other.unlock_all()
    assert list((store.root / "locks").iterdir()) == []


def test_an_interrupt_while_a_key_is_taken_leaves_no_lock(store, monkeypatch):
    def interrupted(self, **_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("filelock.FileLock.acquire", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.try_lock(KEY)
    store.unlock_all()
    assert store.try_lock(KEY)
    store.unlock(KEY)


def test_many_writers_of_one_blob_agree(store):
    data = os.urandom(1 << 16)
    threads = [threading.Thread(target=store.put_blob, args=(data,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get_blob(digest(data)) == data
    assert store.check() == []


def test_a_damaged_blob_is_replaced_by_the_next_writer(store):
    sha256 = store.put_blob(b"object code")
    store.blob_path(sha256).write_bytes(b"")
    assert store.put_blob(b"object code") == sha256
    assert store.get_blob(sha256) == b"object code"


def _make_store(root, barrier):
    barrier.wait()
    Store(root).put_blob(b"x")


def test_many_builders_make_one_store(tmp_path):
    context = multiprocessing.get_context("fork")
    for number in range(20):
        barrier = context.Barrier(4)
        root = tmp_path / str(number) / "store"
        makers = [context.Process(target=_make_store, args=(root, barrier)) for _ in range(4)]
        for maker in makers:
            maker.start()
        for maker in makers:
            maker.join()
        assert [maker.exitcode for maker in makers] == [0, 0, 0, 0]


def test_what_a_killed_builder_left_is_removed_and_no_other(store):
    left = store.root / "tmp" / "left"
    left.mkdir(parents=True)
    (left / ".owner").touch()
    with store.workspace() as mine, Store(store.root).workspace() as other:
        assert not left.exists()
        assert mine.is_dir()
        assert other.is_dir()


def test_an_artifact_of_another_kernel_does_not_count(store, tmp_path):
    kernel, other = gemm(), gemm(target="sm_100a")
    file = tmp_path / "x.o"
    file.write_bytes(b"object code")
    artifact = Artifact(digest(b"object code"), 11, Facts("sm_90a", "12.9", 1, 0, 0, 1), 0.5)
    keep_artifact(store, KEY, kernel, artifact, file)
    assert read_artifact(store, KEY, kernel) == (artifact, "present")
    assert read_artifact(store, KEY, other) == (None, "its record is another kernel's")


def test_a_workspace_goes_whatever_happens(store):
    def interrupted():
        with store.workspace() as path:
            (path / "half").write_bytes(b"x")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert list((store.root / "tmp").iterdir()) == []

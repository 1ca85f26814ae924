"""Other things than files and directories in a store: nothing waits for them, and nothing breaks for good."""

from __future__ import annotations

import os
import re
import signal

import pytest

import cutlass_aot.store.files as store_files
from cutlass_aot.errors import StoreError
from cutlass_aot.schema.encoding import digest
from cutlass_aot.store.build_state import read_state, write_state
from cutlass_aot.store.durations import durations, remember_durations
from cutlass_aot.store.maintenance.check import check
from cutlass_aot.store.maintenance.collect import collect
from cutlass_aot.store.maintenance.stats import measure
from cutlass_aot.store.roots import roots, set_root
from cutlass_aot.store.store import Store
from cutlass_aot.store.upstream.stores import UpstreamDirectory
from tests.support.stores import KEY, OTHER_KEY, age_all
from tools.torture.other_files import KINDS, put

DATA = b"object code" * 100
STATE = "ef" * 32
BLOB = f"blobs/sha256/{digest(DATA)[:2]}/{digest(DATA)}.zst"
FILES = (
    BLOB, f"records/kernel/ab/{KEY}", f"records/failure/cd/{OTHER_KEY}", f"logs/cd/{OTHER_KEY}.txt",
    "durations", f"build_state/{STATE}",
)  # fmt: skip
FOLDERS = (
    "blobs", "blobs/sha256", f"blobs/sha256/{digest(DATA)[:2]}", "records", "records/kernel",
    "records/kernel/ab", "logs", "logs/cd", "build_state", "locks", "tmp", "damaged",
)  # fmt: skip
PLACES = [
    *((path, kind) for path in FILES for kind in KINDS),
    *((path, kind) for path in FOLDERS for kind in ("file", *KINDS) if kind != "directory"),
]


@pytest.fixture(autouse=True)
def soon():
    """What waits for a named pipe waits for ever."""

    def too_late(*_):
        raise AssertionError("something waits")

    before = signal.signal(signal.SIGALRM, too_late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def store(tmp_path):
    """A store with one of everything."""
    store = Store(tmp_path / "store")
    fill(store)
    set_root(store, "nightly", [("kernel", KEY)])
    for name in ("locks", "tmp", "damaged"):
        (store.root / name).mkdir(exist_ok=True)
    return store


def fill(store):
    """Do what a build does."""
    store.get_record("kernel", KEY)
    store.get_record("failure", OTHER_KEY)
    store.put_record("kernel", KEY, {"x": 1}, blobs={store.put_blob(DATA): len(DATA)})
    store.put_record("failure", OTHER_KEY, {"reason": "none"})
    store.put_log(OTHER_KEY, "words")
    assert store.try_lock(KEY)
    store.unlock(KEY)
    with store.workspace() as folder:
        assert folder.is_dir()
    remember_durations(store, {KEY: 1.0})
    write_state(store.root, STATE, {})


def is_whole(store):
    return (
        store.get_blob(digest(DATA)) == DATA
        and store.get_record("kernel", KEY) == {"x": 1}
        and store.get_record("failure", OTHER_KEY) == {"reason": "none"}
        and durations(store) == {KEY: 1.0}
        and read_state(store.root, STATE) == {}
    )


@pytest.mark.parametrize(("path", "kind"), PLACES)
def test_a_build_makes_again_what_something_else_stands_for(store, path, kind):
    put(kind, store.root / path)
    store = Store(store.root)
    fill(store)
    assert is_whole(store)
    assert list(check(store)) == []


@pytest.mark.parametrize(("path", "kind"), [item for item in PLACES if item[0] != "damaged"])
def test_a_check_names_it_and_sets_it_aside(store, path, kind):
    put(kind, store.root / path)
    assert path in [damage.path for damage in check(Store(store.root))]
    named = {damage.path: damage for damage in check(Store(store.root), repair=True)}
    assert re.search("expected a|not a blob|wrong place", named[path].problem)
    assert named[path].set_aside
    assert [damage for damage in check(store) if "is not there" not in damage.problem] == []
    fill(store)
    assert is_whole(store)


@pytest.mark.parametrize(("path", "kind"), PLACES)
def test_statistics_and_a_collection_do_not_stop_at_it(store, path, kind):
    """But where records may be that are not seen, a collection removes none of their blobs."""
    age_all(store, hours=100_000)
    put(kind, store.root / path)
    measure(store)
    if path.startswith("records") and path in FOLDERS:
        for dry_run in (True, False):
            with pytest.raises(StoreError, match=r"expected a directory of records.*store check"):
                collect(store, dry_run=dry_run)
        assert (store.root / BLOB).exists()
        list(check(store, repair=True))
    collect(store, dry_run=True)
    collect(store)


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_for_a_root_stops_a_collection_until_the_bundle_is_built_again(store, kind):
    put(kind, store.root / "roots" / "nightly")
    with pytest.raises(StoreError, match="root 'nightly'"):
        collect(store)
    assert [(item.path, item.set_aside) for item in check(store, repair=True)] == [("roots/nightly", False)]
    set_root(store, "nightly", [("kernel", KEY)])
    assert roots(store) == {"nightly": {("kernel", KEY)}}
    collect(store)


@pytest.mark.parametrize("kind", ["file", "named pipe", "link loop", "dangling link"])
def test_no_root_is_lost_where_something_else_stands_for_their_directory(store, kind):
    age_all(store, hours=100_000)
    put(kind, store.root / "roots")
    with pytest.raises(StoreError, match=r"roots is .*expected a directory"):
        collect(store)
    assert store.get_record("kernel", KEY) == {"x": 1}
    set_root(store, "nightly", [("kernel", KEY)])
    assert list(roots(store)) == ["nightly"]


@pytest.mark.parametrize("kind", ["file", "named pipe", "link loop", "dangling link"])
def test_damage_is_set_aside_where_something_else_stands_for_its_directory(store, kind):
    put(kind, store.root / "damaged")
    store.blob_path(digest(DATA)).write_bytes(b"bad")
    assert store.get_blob(digest(DATA)) is None
    names = sorted(path.name for path in (store.root / "damaged").iterdir())
    assert names[1] == f"sha256-{digest(DATA)}.zst"
    assert names[0].startswith("damaged-")


@pytest.mark.parametrize("kind", KINDS)
def test_a_lock_is_taken_where_something_else_has_its_name(store, kind):
    put(kind, store.root / "locks" / f"{KEY}.lock")
    assert store.try_lock(KEY)
    assert not Store(store.root).try_lock(KEY)


@pytest.mark.parametrize("kind", KINDS)
def test_a_workspace_whose_owner_s_name_is_no_file_is_left_for_a_day(store, kind):
    folder = store.root / "tmp" / "0123"
    folder.mkdir()
    put(kind, folder / ".owner")
    with store.workspace():
        assert folder.is_dir()
    for path in (folder / ".owner", folder):
        os.utime(path, (1, 1), follow_symlinks=False)
    for path in folder.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    with store.workspace():
        assert not folder.exists()


@pytest.mark.parametrize("kind", KINDS)
def test_an_upstream_store_is_read_around_it(store, tmp_path, kind):
    put(kind, store.root / BLOB)
    own = Store(tmp_path / "own", upstream=[UpstreamDirectory(store.root)])
    assert own.get_blob(digest(DATA)) is None
    assert own.get_record("kernel", KEY) is None
    put(kind, store.root / f"records/kernel/ab/{KEY}")
    assert own.get_record("kernel", KEY) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_s_marker_is_a_file(store, kind):
    put(kind, store.root / "FORMAT")
    for create in (True, False):
        with pytest.raises(StoreError, match="not a cutlass-aot store"):
            Store(store.root, create=create)
    with pytest.raises(StoreError):
        UpstreamDirectory(store.root)


@pytest.mark.parametrize("path", ["blobs", "records/kernel/ab", "locks"])
def test_what_another_builder_sets_aside_first_is_no_obstacle(store, monkeypatch, path):
    put("file", store.root / path)
    found = store_files.set_aside

    def too_late(*arguments):
        assert found(*arguments)
        return found(*arguments)

    monkeypatch.setattr(store_files, "set_aside", too_late)
    fill(store)
    assert is_whole(store)

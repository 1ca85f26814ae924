"""Collection: what is needed stays, whoever requires it; everything else goes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlass_aot.errors import SchemaTooNew, StoreError
from cutlass_aot.schema.encoding import digest, seal
from cutlass_aot.store.build_state import write_state
from cutlass_aot.store.layout import SCHEMA
from cutlass_aot.store.maintenance import collect as collecting
from cutlass_aot.store.maintenance.check import check
from cutlass_aot.store.maintenance.collect import GRACE, collect
from cutlass_aot.store.roots import drop_root, roots, set_root
from cutlass_aot.store.store import TOUCH_AFTER, Store
from tests.support.stores import KEY, age, age_all, files, together
from tools.torture.other_files import KINDS, put


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def keep(store, text, *shared):
    """A record with a blob of its own, and others; returns its key."""
    blobs = {store.put_blob(part): len(part) for part in (text, *shared)}
    key = digest(b"key of " + text)
    store.put_record("kernel", key, {}, blobs=blobs)
    return key


def kernels(store):
    return {key for kind, key, _ in store.records() if kind == "kernel"}


def contents(store):
    return {store.get_blob(sha256) for sha256, _ in store.blobs()}


def test_what_is_used_or_rooted_stays_and_the_rest_goes(store):
    old, rooted, used = (keep(store, text, b"shared") for text in (b"old", b"rooted", b"used"))
    store.put_blob(b"nobody's")
    set_root(store, "nightly", [("kernel", rooted), ("bundle", KEY)])
    age_all(store, hours=31 * 24)
    assert store.get_record("kernel", used) == {}
    planned = collect(store, dry_run=True)
    assert kernels(store) == {old, rooted, used}
    removed = collect(store)
    assert removed == planned
    assert [item.what for item in removed] == ["record", "blob", "blob"]
    assert sum(item.bytes for item in removed) > 0
    assert kernels(store) == {rooted, used}
    assert contents(store) == {b"rooted", b"used", b"shared"}
    assert list(check(store)) == []
    assert collect(store) == []
    assert drop_root(store, "nightly")
    assert [item.what for item in collect(store)] == ["record", "blob"]
    assert contents(store) == {b"used", b"shared"}


def test_days_say_how_old_is_old(store):
    key = keep(store, b"x")
    age_all(store, hours=24 * 3 - 1)
    assert collect(store, days=3) == []
    assert kernels(store) == {key}
    age_all(store, hours=24 * 3 + 1)
    assert len(collect(store, days=3)) == 2


def test_nothing_goes_within_the_grace_period_or_from_the_future(store):
    keep(store, b"new")
    future = keep(store, b"from the future")
    store.put_blob(b"not yet named")
    (store.root / "blobs" / ".new-1").write_bytes(b"half")
    age(store.record_path("kernel", future), hours=-1000)
    age(store.blob_path(digest(b"from the future")), hours=-1000)
    assert collect(store, days=0) == []
    age_all(store, hours=GRACE / 3600 + 1)
    age(store.record_path("kernel", future), hours=-1000)
    collect(store, days=0)
    assert kernels(store) == {future}
    assert contents(store) == {b"from the future"}
    assert GRACE > TOUCH_AFTER


def test_a_running_build_keeps_what_it_published_or_used(store):
    published, forgotten = keep(store, b"published"), keep(store, b"forgotten")
    with store.workspace() as mine:
        age_all(store, hours=200)
        for path in (store.record_path("kernel", published), store.blob_path(digest(b"published"))):
            age(path, hours=100.5)
        age(mine / ".owner", hours=100)
        collect(store, days=0, grace=0)
        assert kernels(store) == {published}
        assert contents(store) == {b"published"}
    collect(store, days=0, grace=0)
    assert kernels(store) == set()
    assert forgotten not in kernels(store)


def test_what_a_build_that_begins_meanwhile_relies_on_is_kept_without_any_grace(store, monkeypatch):
    """A use within the hour is not marked: what was used then may be relied on at any moment."""
    key = keep(store, b"x")
    age_all(store, hours=0.9)
    (store.root / "blobs" / "sha256" / ".new-half").write_bytes(b"half")
    late = Store(store.root)
    original = collecting.roots

    def begins(of):
        assert late.get_record("kernel", key) == {}
        return original(of)

    monkeypatch.setattr(collecting, "roots", begins)
    assert collect(store, days=0, grace=0) == []
    assert late.get_blob(digest(b"x")) == b"x"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0])
def test_a_time_that_is_none_is_refused(store, value):
    keep(store, b"x")
    age_all(store, hours=1000)
    for options in ({"days": value}, {"grace": value}):
        with pytest.raises(ValueError, match="expected finite times"):
            collect(store, **options)
    assert len(kernels(store)) == 1


def test_a_dry_run_says_all_and_changes_nothing(store, monkeypatch):
    failure = "cd" * 32
    keep(store, b"x")
    store.put_log(failure, "words")
    store.put_record("failure", failure, {})
    left = store.root / "tmp" / "left"
    left.mkdir(parents=True)
    (left / "half.o").write_bytes(b"half")
    age_all(store, hours=1000)

    def snapshot():
        return {path: path.lstat() for path in store.root.rglob("*")}

    def fails(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    before = snapshot()
    with monkeypatch.context() as patch:
        for name in ("os.utime", "os.mkdir", "os.unlink", "os.rmdir", "os.rename", "os.replace"):
            patch.setattr(name, fails)
        planned = collect(store, dry_run=True)
    assert [item.what for item in planned] == ["record", "record", "blob", "log", "temporary"]
    assert {path: s.st_mtime_ns for path, s in snapshot().items()} == {
        path: s.st_mtime_ns for path, s in before.items()
    }
    assert collect(store) == planned
    assert files(store) == ["FORMAT"]
    assert planned[-1].bytes == 4


def test_this_machines_clock_does_not_matter(store, monkeypatch):
    key = keep(store, b"x")
    for wrong in (0.0, time.time() + 1e9):
        monkeypatch.setattr("time.time", lambda wrong=wrong: wrong)
        assert collect(store, days=1) == []
        assert kernels(store) == {key}


def test_what_lies_about_goes(store):
    store.put_log(KEY, "nobody knows this failure")
    failure = "cd" * 32
    store.put_log(failure, "known")
    store.put_record("failure", failure, {})
    blob = store.put_blob(b"damaged")
    store.blob_path(blob).write_bytes(b"x")
    assert store.get_blob(blob) is None
    for folder in ("", "blobs/sha256/ab", "records/kernel/ab", "roots", "logs/ab", "build_state"):
        path = store.root / folder / ".new-half"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    write_state(store.root, "old", {})
    write_state(store.root, "new", {})
    locks = store.root / "locks"
    locks.mkdir()
    (locks / "dead.lock").touch()
    assert store.try_lock(failure)
    age_all(store, hours=1000)
    for path in (store.record_path("failure", failure), store.root / "build_state" / "new"):
        age(path, hours=1)
    removed = collect(store)
    assert sorted(item.what for item in removed) == ["build state", "damaged", "log", *["temporary"] * 6]
    assert files(store) == [
        "FORMAT",
        "build_state/new",
        f"locks/{failure}.lock",
        f"logs/cd/{failure}.txt",
        f"records/failure/cd/{failure}",
    ]
    store.unlock(failure)


@pytest.mark.parametrize("kind", KINDS)
def test_unfinished_files_and_locks_go_whatever_they_have_become(store, kind):
    folders = ("", "blobs/sha256", "blobs/sha256/ab", "records/kernel/ab", "roots", "logs/ab", "build_state")
    paths = [store.root / folder / ".new-half" for folder in folders]
    paths.append(store.root / "locks" / f"{KEY}.lock")
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        put(kind, path)
    assert collect(store) == []
    for path in paths:
        age(path, hours=1000)
    assert sorted(item.path for item in collect(store)) == sorted(
        str(path.relative_to(store.root)) for path in paths
    )
    assert not any(path.is_symlink() or path.exists() for path in paths)


def test_a_damaged_root_stops_the_collection(store):
    keep(store, b"x")
    set_root(store, "nightly", [("kernel", KEY)])
    age_all(store, hours=1000)
    (store.root / "roots" / "nightly").write_bytes(b"x")
    with pytest.raises(StoreError, match=r"root 'nightly'.*store forget"):
        collect(store)
    assert len(kernels(store)) == 1
    drop_root(store, "nightly")
    collect(store)
    assert kernels(store) == set()


def test_what_a_newer_release_wrote_stops_the_collection(store):
    path = store.record_path("kernel", KEY)
    path.parent.mkdir(parents=True)
    path.write_bytes(seal("cutlass-aot kernel record", SCHEMA + 1, {}))
    with pytest.raises(SchemaTooNew):
        collect(store)
    assert path.is_file()


def test_a_kind_that_is_not_known_here_keeps_its_blobs(store):
    sha256 = store.put_blob(b"x")
    store.put_record("profile", KEY, {}, blobs={sha256: 1})
    age(store.blob_path(sha256), hours=1000)
    assert collect(store) == []


@pytest.mark.parametrize("what", ["record", "blob"])
def test_what_is_used_at_the_last_moment_is_put_back(store, monkeypatch, what):
    """A builder marks its use after the file was found old, and before it is moved."""
    key = keep(store, b"x")
    age_all(store, hours=1000)
    original = collecting._Collection._take

    def take(self, found, path):
        if found == what:
            if what == "record":
                assert Store(store.root).get_record("kernel", key) == {}
            else:
                store.put_blob(b"x")
        return original(self, found, path)

    monkeypatch.setattr(collecting._Collection, "_take", take)
    removed = collect(store)
    assert [item.what for item in removed] == ([] if what == "record" else ["record"])
    assert contents(store) == {b"x"}


def test_a_record_that_is_taken_at_the_very_moment_is_a_miss(store, monkeypatch):
    """The other order: the file is moved between being read and being marked as used."""
    key = keep(store, b"x")
    age_all(store, hours=1000)
    original = Store._mark_used

    def mark(self, path, modified):
        collect(store)
        return original(self, path, modified)

    monkeypatch.setattr(Store, "_mark_used", mark)
    assert Store(store.root).get_record("kernel", key) is None


def test_collections_and_builders_at_once_lose_nothing(tmp_path):
    code = """
from cutlass_aot.store.maintenance import collect as collecting
from cutlass_aot.store.maintenance.collect import collect
# What has not been used for a moment is taken here, after an hour otherwise. A busy machine may let a process
# stand still for a tenth of a second between making a file and naming it.
collecting.FLOOR = 0.6
store = Store(root)
def keep(number):
    blobs = {store.put_blob(b"blob %d %d" % (number % 7, part)): 8 for part in range(3)}
    store.put_record("kernel", "%064x" % number, {}, blobs=blobs)
    return blobs
deadline = time.monotonic() + 4
count = 0
if me < 2:
    while count < 4 or time.monotonic() < deadline:
        collect(store, days=0, grace=0)
        count += 1
else:
    while count < 4 or time.monotonic() < deadline:
        with store.workspace():
            for number in range(10):
                blobs = keep(number)
                # Whatever a build has published since it began is there until it ends.
                assert store.get_record("kernel", "%064x" % number) is not None
                assert all(store.get_blob(name) is not None for name in blobs)
        time.sleep(0.7)
        count += 1
"""
    root = tmp_path / "store"
    together(code, root, 4)
    assert list(check(Store(root))) == []


def test_a_killed_collection_leaves_a_store_that_a_check_finds_good(tmp_path):
    store = Store(tmp_path / "store")
    for number in range(300):
        keep(store, b"%d" % number, b"shared %d" % (number % 10))
    age_all(store, hours=1000)
    code = (
        "import sys, pathlib\nfrom cutlass_aot.store.store import Store\n"
        "from cutlass_aot.store.maintenance.collect import collect\nprint('go', flush=True)\n"
        "collect(Store(pathlib.Path(sys.argv[1])))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(store.root)], stdout=subprocess.PIPE)
    process.stdout.readline()
    while len(kernels(store)) == 300 and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    process.communicate()
    assert list(check(store)) == []
    collect(store)
    assert kernels(store) == set()
    assert files(store) == ["FORMAT"]


NAMES = st.integers(0, 5)


@given(
    st.dictionaries(NAMES, st.tuples(st.sets(NAMES, max_size=3), st.booleans(), st.booleans()), max_size=6),
    st.sets(NAMES, max_size=3),
)
@settings(max_examples=40, deadline=None)
def test_exactly_what_is_reachable_is_left(tmp_path_factory, records, loose):
    """Records by number: the blobs they need, whether a root keeps them, whether they are old."""
    store = Store(tmp_path_factory.mktemp("gc") / "store")
    data = {number: b"%d" % number for number in range(6)}
    for number in set(loose).union(*(blobs for blobs, *_ in records.values())):
        store.put_blob(data[number])
    for number, (blobs, _, _) in records.items():
        store.put_record("kernel", f"{number:064x}", {}, blobs={digest(data[b]): len(data[b]) for b in blobs})
    set_root(store, "all", [("kernel", f"{n:064x}") for n, (_, rooted, _) in records.items() if rooted])
    age_all(store, hours=1000)
    for number, (_, _, old) in records.items():
        if not old:
            os.utime(store.record_path("kernel", f"{number:064x}"))
    collect(store)
    left = {number: blobs for number, (blobs, rooted, old) in records.items() if rooted or not old}
    assert kernels(store) == {f"{number:064x}" for number in left}
    assert contents(store) == {data[number] for blobs in left.values() for number in blobs}
    assert list(check(store)) == []


# --- roots


def test_roots_are_listed_replaced_and_forgotten(store):
    set_root(store, "nightly", [("kernel", KEY), ("bundle", KEY), ("kernel", KEY)])
    assert roots(store) == {"nightly": frozenset({("kernel", KEY), ("bundle", KEY)})}
    first = (store.root / "roots" / "nightly").read_bytes()
    set_root(store, "nightly", [("bundle", KEY), ("kernel", KEY)])
    assert (store.root / "roots" / "nightly").read_bytes() == first
    set_root(store, "release-1.0", [])
    assert list(roots(store)) == ["nightly", "release-1.0"]
    assert drop_root(store, "nightly")
    assert not drop_root(store, "nightly")
    assert roots(store) == {"release-1.0": frozenset()}


@pytest.mark.parametrize("name", ["", ".hidden", "../FORMAT", "a/b", "x" * 129, "a b", "a\n"])
def test_a_bad_name_is_no_root(store, name):
    with pytest.raises(StoreError, match="cannot name a root"):
        set_root(store, name, [])
    assert not drop_root(store, name)


@pytest.mark.parametrize(
    "body",
    [None, {}, {"name": "other", "records": []}, {"name": "r", "records": [["kernel"]]},
     {"name": "r", "records": [[1, 2]]}, {"name": "r", "records": {}}],
)  # fmt: skip
def test_a_malformed_root_is_damaged(store, body):
    path = store.root / "roots" / "r"
    path.parent.mkdir()
    path.write_bytes(seal("cutlass-aot root", SCHEMA, body))
    with pytest.raises(StoreError, match="root 'r'"):
        roots(store)
    assert [(item.path, item.set_aside) for item in check(store, repair=True)] == [("roots/r", False)]
    assert drop_root(store, "r")
    assert roots(store) == {}

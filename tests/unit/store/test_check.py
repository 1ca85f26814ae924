"""Check and statistics: they find everything, and nothing that is good."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlass_aot import cli
from cutlass_aot.errors import StoreError
from cutlass_aot.schema.compression import compress
from cutlass_aot.schema.encoding import digest, seal
from cutlass_aot.store.build_state import read_state, write_state
from cutlass_aot.store.durations import MOST, durations, remember_durations
from cutlass_aot.store.layout import SCHEMA
from cutlass_aot.store.maintenance import check as checking
from cutlass_aot.store.maintenance.check import check
from cutlass_aot.store.maintenance.collect import collect
from cutlass_aot.store.maintenance.stats import measure
from cutlass_aot.store.roots import drop_root, set_root
from cutlass_aot.store.store import Store
from tests.support.stores import KEY, OTHER_KEY, age_all, files, together

DATA = b"object code" * 100


@pytest.fixture
def store(tmp_path):
    """A store with one record of two blobs, a root and durations."""
    store = Store(tmp_path / "store")
    blobs = {store.put_blob(data): len(data) for data in (DATA, b"more")}
    store.put_record("kernel", KEY, {"x": 1}, blobs=blobs)
    set_root(store, "nightly", [("kernel", KEY)])
    remember_durations(store, {KEY: 1.5})
    store.put_log(OTHER_KEY, "a log")
    write_state(store.root, "state", {"files": []})
    return store


def found(store, **options):
    return {damage.path: damage.problem for damage in check(store, **options)}


def test_a_good_store_is_good(store):
    assert found(store) == {}
    assert found(store, repair=True) == {}


def test_a_damaged_blob_and_its_record_are_found_and_set_aside(store):
    sha256 = digest(DATA)
    store.blob_path(sha256).write_bytes(compress(b"another", 3))
    expected = {
        f"blobs/sha256/{sha256[:2]}/{sha256}.zst": f"bytes of digest {digest(b'another')}",
        f"records/kernel/ab/{KEY}": f"a record that names blob {sha256}, which is damaged",
    }
    before = files(store)
    assert found(store) == expected
    assert files(store) == before
    assert all(damage.set_aside for damage in check(store, repair=True))
    assert found(store) == {}
    assert store.get_record("kernel", KEY) is None
    assert sorted(path.name for path in (store.root / "damaged").iterdir()) == [
        f"kernel-{KEY}",
        f"sha256-{sha256}.zst",
    ]


def test_a_record_whose_blob_is_gone_is_found(store):
    store.blob_path(digest(b"more")).unlink()
    ((path, problem),) = found(store, repair=True).items()
    assert path == f"records/kernel/ab/{KEY}"
    assert "which is not there" in problem
    assert found(store) == {}


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (f"blobs/sha256/cd/{OTHER_KEY}.zst", b""),
        (f"blobs/sha256/cd/{OTHER_KEY}.zst", b"foreign"),
        (f"blobs/sha256/cd/{digest(DATA)}.zst", compress(DATA, 3)),
        (f"blobs/sha256/cd/{OTHER_KEY}", b"not compressed"),
        ("blobs/sha256/cd/README", b"foreign"),
        (f"records/kernel/cd/{OTHER_KEY}", b""),
        (f"records/kernel/cd/{KEY}", b""),
        (f"records/unknown/cd/{OTHER_KEY}", b"foreign"),
        ("durations", b"foreign"),
        ("build_state/other", b"foreign"),
    ],
)
def test_whatever_is_not_ours_is_found(store, path, data):
    (store.root / path).parent.mkdir(parents=True, exist_ok=True)
    (store.root / path).write_bytes(data)
    assert list(found(store, repair=True)) == [path]
    assert found(store) == {}
    assert store.get_record("kernel", KEY) == {"x": 1}


def test_a_damaged_root_is_named_and_left_so_that_a_collection_keeps_what_it_kept(store):
    root = store.root / "roots" / "nightly"
    root.write_bytes(b"x")
    age_all(store, hours=1000)
    (damage,) = check(store, repair=True)
    assert (damage.path, damage.set_aside) == ("roots/nightly", False)
    assert "`cutlass-aot store forget nightly`" in damage.problem
    with pytest.raises(StoreError, match="root 'nightly'"):
        collect(store)
    assert store.get_record("kernel", KEY) == {"x": 1}
    set_root(store, "nightly", [("kernel", KEY)])
    assert found(store) == {}


@pytest.mark.parametrize("name", ["foo", ".odd", "a b", "x" * 200])
def test_whatever_stands_among_the_roots_is_forgotten(store, name):
    (store.root / "roots" / name).write_bytes(b"x")
    assert drop_root(store, name)
    assert not drop_root(store, name)
    assert found(store) == {}


def test_stray_directories_stop_nothing(store):
    for name in ("build_state/foo", "roots/foo", "damaged/foo"):
        (store.root / name / "bar").mkdir(parents=True)
        (store.root / name / "bar" / "file").touch()
    assert list(found(store, repair=True)) == ["roots/foo", "build_state/foo"]
    with pytest.raises(StoreError, match=r"root 'foo'.*store forget"):
        collect(store)
    assert drop_root(store, "foo")
    assert [item.what for item in collect(store)] == ["damaged"] * 3
    assert list((store.root / "damaged").iterdir()) == []
    (store.root / "build_state" / "foo").mkdir()
    assert collect(store) == []


@pytest.mark.parametrize("folder", ["records", "build_state", "durations"])
@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE])
def test_what_cannot_be_read_from_here_is_no_damage(store, monkeypatch, folder, number):
    original = os.open

    def fails(path, *arguments, **options):
        if Path(path).is_relative_to(store.root / folder):
            raise OSError(number, os.strerror(number))
        return original(path, *arguments, **options)

    before = files(store)
    with monkeypatch.context() as patch:
        patch.setattr("os.open", fails)
        with pytest.raises(StoreError, match=os.strerror(number)):
            found(store, repair=True)
    assert files(store) == before


def test_what_another_builder_has_mended_meanwhile_is_left(store, monkeypatch):
    sha256 = digest(DATA)
    store.blob_path(sha256).write_bytes(b"bad")
    original = checking._blob_problem

    def mended(store, path):
        problem = original(store, path)
        if problem:
            assert Store(store.root).put_blob(DATA) == sha256
            # As a builder that renames its own copy over it does.
            store.adopt_blob(write(store.root.parent / "x.o"), sha256)
        return problem

    def write(path):
        path.write_bytes(DATA)
        return path

    monkeypatch.setattr(checking, "_blob_problem", mended)
    list(check(store, repair=True))
    assert Store(store.root).get_blob(sha256) == DATA


def test_what_is_not_finished_is_no_damage(store):
    for name in (
        "blobs/sha256/ab/.new-1",
        "records/kernel/ab/.new-2",
        "roots/.new-3",
        ".new-4",
        "tmp/x/half.o",
    ):
        (store.root / name).parent.mkdir(parents=True, exist_ok=True)
        (store.root / name).write_bytes(b"half")
    assert found(store, repair=True) == {}


def test_what_a_collection_takes_meanwhile_is_no_damage(store, monkeypatch):
    original = checking._is_there

    def taken(store, sha256, bad_blobs):
        store.record_path("kernel", KEY).unlink(missing_ok=True)
        store.blob_path(sha256).unlink(missing_ok=True)
        return original(store, sha256, bad_blobs)

    monkeypatch.setattr(checking, "_is_there", taken)
    assert found(store) == {}
    assert not store.blob_path(min(digest(DATA), digest(b"more"))).exists()


def test_what_a_newer_release_wrote_is_named_and_kept(store):
    path = store.record_path("kernel", OTHER_KEY)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(seal("cutlass-aot kernel record", SCHEMA + 1, {}))
    (damage,) = check(store, repair=True)
    assert "upgrade" in damage.problem
    assert not damage.set_aside
    assert path.is_file()


def test_a_blob_that_the_disk_does_not_give_is_damaged(store, monkeypatch):
    victim = store.blob_path(digest(DATA))
    original = os.open

    def fails(path, *arguments, **options):
        if path == victim:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return original(path, *arguments, **options)

    monkeypatch.setattr("os.open", fails)
    problems = found(store, repair=True)
    assert problems[str(victim.relative_to(store.root))] == "it cannot be read (Input/output error)"
    assert not victim.exists()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_altered_file_is_found_or_does_no_harm(tmp_path_factory, data):
    """One file is flipped, cut or emptied: what is read afterwards is what was written, or nothing."""
    store = Store(tmp_path_factory.mktemp("check") / "store")
    sha256 = store.put_blob(DATA)
    store.put_record("kernel", KEY, {"x": 1}, blobs={sha256: len(DATA)})
    set_root(store, "nightly", [("kernel", KEY)])
    left = ("FORMAT", "roots/nightly")
    path = store.root / data.draw(st.sampled_from([name for name in files(store) if name not in left]))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    problems = found(store, repair=True)
    assert store.get_record("kernel", KEY) in ({"x": 1}, None)
    assert store.get_blob(sha256) in (DATA, None)
    if not problems:
        assert store.get_blob(sha256) == DATA
        assert store.get_record("kernel", KEY) == {"x": 1}
    assert found(store) == {}


def test_builders_may_publish_meanwhile(tmp_path):
    code = """
from cutlass_aot.store.maintenance.check import check
store = Store(root)
deadline = time.monotonic() + 1
number = 0
while time.monotonic() < deadline:
    if me == 0:
        assert list(check(store, repair=True)) == []
    else:
        data = b"%d" % (number % 50)
        store.put_record("kernel", "%064x" % (number % 50), {}, blobs={store.put_blob(data): len(data)})
        store.adopt_blob(write(data), __import__("hashlib").sha256(data).hexdigest())
    number += 1
"""
    write = "def write(data):\n    p = root.parent / f'{me}.o'\n    p.write_bytes(data)\n    return p\n"
    together(write + code, tmp_path / "store", 3)


def test_a_note_is_read_again_or_none(store):
    assert read_state(store.root, "state") == {"files": []}
    assert read_state(store.root, "none") is None
    (store.root / "build_state" / "state").write_bytes(b"x")
    assert read_state(store.root, "state") is None
    write_state(store.root.parent / "nowhere", "state", {})
    assert not (store.root.parent / "nowhere").exists()


# --- statistics


def test_a_store_in_numbers(store):
    unneeded = store.put_blob(b"unneeded")
    stats = measure(store)
    kernel = stats.kinds["kernel"]
    assert (kernel.count, kernel.blobs, kernel.content_bytes) == (1, 2, len(DATA) + 4)
    assert kernel.record_bytes == store.record_path("kernel", KEY).stat().st_size
    assert kernel.blob_bytes + store.blob_path(unneeded).stat().st_size == stats.blob_bytes
    assert kernel.ratio == (kernel.record_bytes + kernel.blob_bytes) / kernel.content_bytes
    assert (stats.blobs, stats.unneeded_blobs, stats.roots, stats.logs, stats.damaged) == (
        3, 1, ("nightly",), 1, 0,
    )  # fmt: skip
    assert stats.oldest_use == stats.newest_use == store.record_path("kernel", KEY).stat().st_mtime
    empty = measure(Store(store.root.parent / "empty"))
    assert (empty.kinds, empty.blobs, empty.oldest_use) == ({}, 0, None)


# --- durations


def test_durations_are_remembered_and_merged(store):
    remember_durations(store, {OTHER_KEY: 2, KEY: 3.0})
    assert durations(store) == {KEY: 3.0, OTHER_KEY: 2.0}
    remember_durations(store, {KEY: float("nan"), OTHER_KEY: -1.0, "x": 1.0})
    assert durations(store) == {KEY: 3.0, OTHER_KEY: 2.0}


def test_of_too_many_durations_the_longest_stay(store, monkeypatch):
    assert MOST == 50_000
    monkeypatch.setattr("cutlass_aot.store.durations.MOST", 3)
    remember_durations(store, {f"{number:064x}": float(number) for number in range(10)})
    assert sorted(durations(store).values()) == [7.0, 8.0, 9.0]


@pytest.mark.parametrize(
    "data",
    [b"", b"x", seal("cutlass-aot durations", SCHEMA, [1]), seal("cutlass-aot durations", SCHEMA, {KEY: "1"}),
     seal("cutlass-aot durations", SCHEMA, {"x": 1.0}), seal("cutlass-aot durations", SCHEMA + 1, {}),
     seal("cutlass-aot durations", SCHEMA, {KEY: float("inf")})],
)  # fmt: skip
def test_damaged_durations_are_none(store, data):
    (store.root / "durations").write_bytes(data)
    assert durations(store) == {}
    remember_durations(store, {KEY: 1.0})
    assert durations(store) == {KEY: 1.0}


# --- the command


@pytest.fixture
def run(store):
    def call(*arguments):
        try:
            cli.main(["store", *arguments, "--store", str(store.root)])
        except SystemExit as exit_:
            return exit_.code
        raise AssertionError("main ends the process")

    return call


def test_check_says_what_it_set_aside(run, store, capsys):
    assert run("check") == 0
    assert capsys.readouterr().out == f"{store.root}: good\n"
    store.blob_path(digest(DATA)).write_bytes(b"")
    assert run("check", "--dry-run") == 1
    assert run("check", "--json", "--dry-run") == 1
    capsys.readouterr()
    assert run("check") == 1
    out, err = capsys.readouterr()
    assert out == f"{store.root}: 2 problems\n"
    assert "it is cut short; set aside\n" in err
    assert run("check", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"store": str(store.root), "damage": []}


def test_gc_stats_roots_and_forget(run, store, capsys):
    # Longer than the grace by more than clocks differ: that of a file system goes in steps.
    age_all(store, hours=3)
    assert run("gc", "--days", "0", "--grace", "0", "--dry-run", "--json") == 0
    removed = json.loads(capsys.readouterr().out)
    assert [item["what"] for item in removed["removed"]] == ["log", "build state"]
    assert run("gc", "--days", "0", "--dry-run") == 0
    assert capsys.readouterr().out.startswith(f"log  logs/cd/{OTHER_KEY}.txt  5 B\n")
    for value in ("nan", "inf", "-1"):
        assert run("gc", "--days", value) == 2
        assert run("gc", "--grace", value) == 2
    capsys.readouterr()
    assert run("stats") == 0
    assert "kernel        1" in capsys.readouterr().out
    assert run("stats", "--json") == 0
    stats = json.loads(capsys.readouterr().out)
    assert (stats["store"], stats["kinds"]["kernel"]["count"]) == (str(store.root), 1)
    assert run("roots") == 0
    assert capsys.readouterr().out == "nightly  1 record\n"
    assert run("roots", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"nightly": [["kernel", KEY]]}
    assert run("forget", "nobody") == 1
    assert "has no root 'nobody'" in capsys.readouterr().err
    assert run("forget", "nightly") == 0
    age_all(store, hours=3)
    assert run("gc", "--days", "0", "--grace", "0") == 0
    assert "removed" in capsys.readouterr().out
    assert list(store.records()) == []


def test_the_commands_need_a_store(tmp_path):
    runner = CliRunner()
    for name in ("check", "gc", "stats", "roots"):
        result = runner.invoke(cli.group, ["store", name, "--store", str(tmp_path / "none")])
        assert "is not a cutlass-aot store" in str(result.exception)
    assert not (tmp_path / "none").exists()

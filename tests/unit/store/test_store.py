"""The store: atomic, verified, and never lying."""

from __future__ import annotations

import errno
import io
import os
import threading
from functools import partial
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlass_aot.errors import CorruptFile, SchemaTooNew, StoreError
from cutlass_aot.schema.compression import compress, decompress
from cutlass_aot.schema.encoding import digest, seal
from cutlass_aot.schema.kernels.artifact import Artifact, Facts
from cutlass_aot.store.artifacts import keep_artifact, keep_failure, read_artifact, read_failure
from cutlass_aot.store.blobs import frame_bound, opened, raw_frame
from cutlass_aot.store.layout import SCHEMA
from cutlass_aot.store.record import Record
from cutlass_aot.store.store import TOUCH_AFTER, Store
from cutlass_aot.store.upstream.stores import UpstreamDirectory
from tests.support.kernels import gemm
from tests.support.stores import KEY, OTHER_KEY, age, files, together

DATA = b"object code" * 100


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


# --- blobs


def test_a_blob_comes_back_and_is_smaller_there(store):
    sha256 = store.put_blob(DATA)
    assert sha256 == digest(DATA)
    assert store.get_blob(sha256) == DATA
    assert store.put_blob(DATA) == sha256
    assert store.blob_path(sha256).name == f"{sha256}.zst"
    assert store.blob_path(sha256).stat().st_size < len(DATA) / 4


def test_an_absent_blob_and_record_are_none(store, tmp_path):
    assert store.get_blob(KEY) is None
    assert store.get_record("kernel", KEY) is None
    assert not store.extract_blob(KEY, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_is_no_digest_names_no_file(store):
    (store.root / "secret").write_bytes(compress(b"secret", 3))
    for name in ("../../secret", "", "ab", "A" * 64, KEY + "\n"):
        assert store.get_blob(name) is None
        assert not store.extract_blob(name, store.root / "out")
    with pytest.raises(ValueError, match="not a SHA-256"):
        store.blob_path("../../secret")


FRAME = compress(DATA, 3)
DAMAGES = {
    "empty": b"",
    "cut short": FRAME[:-1],
    "one bit": FRAME[:20] + bytes([FRAME[20] ^ 1]) + FRAME[21:],
    "no frame": b"something else altogether",
    "something behind it": FRAME + b"x",
    "a second frame behind it": FRAME + compress(b"x", 3),
    "a frame of something else": compress(b"another", 3),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("how", ["get", "extract"])
def test_a_damaged_blob_is_set_aside_and_absent(store, tmp_path, damage, how):
    sha256 = store.put_blob(DATA)
    path = store.blob_path(sha256)
    path.write_bytes(damage)
    if how == "get":
        assert store.get_blob(sha256) is None
    else:
        assert not store.extract_blob(sha256, tmp_path / "out")
        assert not (tmp_path / "out").exists()
    assert not path.exists()
    assert (store.root / "damaged" / f"sha256-{path.name}").read_bytes() == damage
    assert store.put_blob(DATA) == sha256
    assert store.get_blob(sha256) == DATA


def test_a_blob_that_is_mended_while_a_reader_finds_it_damaged_stays(store, monkeypatch):
    sha256 = store.put_blob(DATA)
    store.blob_path(sha256).write_bytes(b"bad")

    def mended(data, *arguments):
        monkeypatch.undo()
        Store(store.root).put_blob(DATA)
        return opened(data, *arguments)

    monkeypatch.setattr("cutlass_aot.store.store.opened", mended)
    store.get_blob(sha256)
    assert Store(store.root).get_blob(sha256) == DATA


@pytest.mark.parametrize("times", [1, 9])
def test_a_stale_handle_is_opened_again_and_then_absent(store, monkeypatch, times):
    sha256 = store.put_blob(DATA)
    store.put_record("kernel", KEY, {"x": 1})
    original, failed = os.open, []

    def stale(path, *arguments, **options):
        name = Path(path).name
        if name.startswith((KEY, sha256)) and failed.count(name) < times:
            failed.append(name)
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return original(path, *arguments, **options)

    monkeypatch.setattr("os.open", stale)
    assert store.get_blob(sha256) == (DATA if times == 1 else None)
    assert store.get_record("kernel", KEY) == ({"x": 1} if times == 1 else None)


def test_a_damaged_blob_is_replaced_by_the_next_writer(store):
    sha256 = store.put_blob(DATA)
    store.blob_path(sha256).write_bytes(b"")
    assert store.put_blob(DATA) == sha256
    assert store.get_blob(sha256) == DATA


def test_a_small_frame_that_holds_very_much_is_refused_in_time():
    bomb = zstandard.ZstdCompressor(level=1).compress(b"\0" * (64 << 20))
    assert len(bomb) < 1 << 14
    with pytest.raises(CorruptFile, match="more than 1048576 bytes"):
        opened(bomb, digest(b""), 1 << 20)
    huge_window = zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(window_log=27, write_content_size=0)
    ).compressobj()
    with pytest.raises(CorruptFile, match="not a zstd frame"):
        list(decompress(io.BytesIO(huge_window.compress(b"x" * (1 << 20)) + huge_window.flush()), 1 << 30))


@pytest.mark.parametrize("size", [0, len(DATA) - 1, len(DATA) + 1])
def test_a_blob_of_another_size_is_not_opened(size):
    with pytest.raises(CorruptFile, match="it holds"):
        opened(FRAME, digest(DATA), size)
    assert opened(FRAME, digest(DATA), len(DATA)) == DATA


@given(st.binary(max_size=5000), st.sampled_from([raw_frame, partial(compress, level=15)]))
def test_whatever_is_kept_is_opened_again_and_within_its_bound(data, framed):
    frame = framed(data)
    assert opened(frame, digest(data)) == data
    assert len(frame) <= frame_bound(len(data))


@pytest.mark.parametrize("size", [0, 1, (1 << 17) - 1, 1 << 17, (1 << 17) + 1, 3 << 17])
def test_what_is_compressed_already_is_kept_as_it_is_in_a_frame_that_any_zstd_opens(store, size):
    data = os.urandom(size)
    sha256 = store.put_blob(data, compressed=True)
    frame = store.blob_path(sha256).read_bytes()
    assert zstandard.ZstdDecompressor().decompress(frame) == data == store.get_blob(sha256)
    assert b"".join(decompress(io.BytesIO(frame), size)) == data
    assert len(frame) == 14 + size + 3 * max(1, -(-size // (1 << 17)))
    assert frame[17 : 17 + 1000] == data[:1000]


def test_a_blob_that_an_older_release_compressed_again_is_opened(store):
    data = compress(DATA, 19)
    sha256 = store.put_blob(data, compressed=True)
    store.blob_path(sha256).write_bytes(compress(data, 1))
    assert store.get_blob(sha256) == data
    assert store.put_blob(data, compressed=True) == sha256
    assert store.blob_path(sha256).read_bytes() == compress(data, 1)


@given(st.data())
@settings(max_examples=200)
def test_no_altered_frame_is_taken_for_the_blob(data):
    frame = bytearray(FRAME)
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    altered = bytes(frame[: data.draw(st.integers(0, len(frame)))])
    try:
        assert opened(altered, digest(DATA)) == DATA
    except CorruptFile:
        assert altered != FRAME


def test_a_finished_file_is_adopted_if_it_is_what_it_should_be(store, tmp_path):
    file = tmp_path / "x.o"
    file.write_bytes(DATA)
    with pytest.raises(CorruptFile, match="changed between"):
        store.adopt_blob(file, KEY)
    store.adopt_blob(file, digest(DATA))
    assert not file.exists()
    assert store.extract_blob(digest(DATA), tmp_path / "copy.o")
    assert (tmp_path / "copy.o").read_bytes() == DATA


def test_a_blob_that_cannot_be_copied_is_no_damaged_one(store, tmp_path):
    sha256 = store.put_blob(DATA)
    with pytest.raises(StoreError, match="No such file"):
        store.extract_blob(sha256, tmp_path / "nowhere" / "out")
    (tmp_path / "folder").mkdir()
    with pytest.raises(StoreError, match="Is a directory"):
        store.extract_blob(sha256, tmp_path / "folder")
    assert store.get_blob(sha256) == DATA


# --- records


def test_a_record_comes_back_with_its_blobs_named(store):
    sha256 = store.put_blob(DATA)
    store.put_record("kernel", KEY, {"x": 1}, blobs={sha256: len(DATA)})
    assert store.get_record("kernel", KEY) == {"x": 1}
    data = store.record_path("kernel", KEY).read_bytes()
    assert Record.from_bytes(data, "kernel", KEY, "it").blobs == {sha256: len(DATA)}


@pytest.mark.parametrize(
    "blobs", [None, [KEY], {"../x": 1}, {KEY: -1}, {KEY: True}, {KEY: 1 << 40}, {KEY.upper(): 1}]
)
def test_a_record_that_names_no_blobs_is_damaged(store, blobs):
    content = {"key": KEY, "body": {}, "blobs": blobs}
    path = store.record_path("kernel", KEY)
    path.parent.mkdir(parents=True)
    path.write_bytes(seal("cutlass-aot kernel record", SCHEMA, content))
    assert store.get_record("kernel", KEY) is None
    assert (store.root / "damaged" / f"kernel-{KEY}").is_file()


def test_a_damaged_record_is_set_aside_and_absent(store):
    store.put_record("kernel", KEY, {"x": 1})
    path = store.record_path("kernel", KEY)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert store.get_record("kernel", KEY) is None
    assert not path.exists()
    assert (store.root / "damaged" / f"kernel-{KEY}").is_file()


def test_a_record_of_another_kind_or_key_is_absent(store):
    for kind, key in (("plan", KEY), ("kernel", OTHER_KEY)):
        store.put_record("kernel", KEY, {"x": 1})
        store.record_path(kind, key).parent.mkdir(parents=True, exist_ok=True)
        store.record_path("kernel", KEY).rename(store.record_path(kind, key))
        assert store.get_record(kind, key) is None


def test_a_newer_record_is_refused_and_kept(store):
    path = store.record_path("kernel", KEY)
    path.parent.mkdir(parents=True)
    path.write_bytes(seal("cutlass-aot kernel record", SCHEMA + 1, {}))
    with pytest.raises(SchemaTooNew, match="upgrade"):
        store.get_record("kernel", KEY)
    assert path.is_file()


def test_a_record_is_forgotten(store):
    store.put_record("failure", KEY, {})
    store.drop_record("failure", KEY)
    store.drop_record("failure", KEY)
    assert store.get_record("failure", KEY) is None


@pytest.mark.parametrize("hours", [2, -48])
def test_a_use_is_noted_when_the_last_is_long_ago_or_in_the_future(store, hours):
    store.put_record("kernel", KEY, {"x": 1})
    path = store.record_path("kernel", KEY)
    age(path, hours=hours)
    before = path.stat().st_mtime
    assert store.get_record("kernel", KEY) == {"x": 1}
    assert abs(path.stat().st_mtime - (store.root / "FORMAT").stat().st_mtime) < 60
    assert path.stat().st_mtime != before


def test_a_use_is_not_noted_again_within_the_hour(store):
    store.put_record("kernel", KEY, {"x": 1})
    path = store.record_path("kernel", KEY)
    age(path, hours=TOUCH_AFTER / 3600 - 0.1)
    before = path.stat().st_mtime
    assert store.get_record("kernel", KEY) == {"x": 1}
    assert path.stat().st_mtime == before


def test_this_machines_clock_does_not_matter(store, monkeypatch):
    store.put_record("kernel", KEY, {"x": 1})
    path = store.record_path("kernel", KEY)
    age(path, hours=2)
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert store.get_record("kernel", KEY) == {"x": 1}
    assert abs(path.stat().st_mtime - (store.root / "FORMAT").stat().st_mtime) < 60


# --- the directory


def test_a_store_of_another_version_is_refused(tmp_path):
    (tmp_path / "FORMAT").write_text("cutlass-aot store 9\n")
    with pytest.raises(SchemaTooNew, match="store version 9"):
        Store(tmp_path)
    (tmp_path / "FORMAT").write_text("cutlass-aot store 1\n")
    with pytest.raises(StoreError, match="a store is a cache, so delete it"):
        Store(tmp_path)


def test_what_may_not_be_looked_at_is_not_there(store, monkeypatch, tmp_path):
    behind = Store(tmp_path / "behind")
    behind.put_record("kernel", KEY, {}, blobs={behind.put_blob(DATA): len(DATA)})
    level = UpstreamDirectory(behind.root)

    def closed(_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    keep_failure(store, OTHER_KEY, gemm(), "reason", "log", {})
    monkeypatch.setattr("pathlib.Path.lstat", closed)
    store.upstream = (level,)
    assert store.get_record("kernel", KEY) is None
    store.prefetch("kernel", [KEY])
    assert read_failure(store, OTHER_KEY).reason == "reason"


@pytest.mark.parametrize(
    "text", ["", "cutlass-aot store", "cutlass-aot store x", "cutlass-aot bundle 2", "\0" * 99]
)
def test_something_with_another_marker_is_no_store(tmp_path, text):
    (tmp_path / "FORMAT").write_text(text)
    with pytest.raises(StoreError, match="is not a cutlass-aot store"):
        Store(tmp_path)


def test_something_else_is_no_store(tmp_path):
    (tmp_path / "precious").write_text("x")
    with pytest.raises(StoreError, match="not a cutlass-aot store"):
        Store(tmp_path)
    assert (tmp_path / "precious").read_text() == "x"
    with pytest.raises(StoreError, match="is not a cutlass-aot store"):
        Store(tmp_path / "missing", create=False)


def test_several_people_can_share_a_store(tmp_path):
    before = os.umask(0o002)
    try:
        store = Store(tmp_path / "store")
        store.put_record("kernel", KEY, {}, blobs={store.put_blob(DATA): len(DATA)})
        with store.workspace() as path:
            modes = [item.stat().st_mode & 0o777 for item in (path, *store.root.rglob("*"))]
    finally:
        os.umask(before)
    assert set(modes) == {0o664, 0o775}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO])
def test_a_failed_write_leaves_nothing_behind(store, monkeypatch, number):
    def fails(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("pathlib.Path.replace", fails)
    with pytest.raises(StoreError, match=os.strerror(number)):
        store.put_blob(b"data")
    monkeypatch.undo()
    assert files(store) == ["FORMAT"]


def test_a_store_that_cannot_be_written_is_read(store, monkeypatch):
    sha256 = store.put_blob(DATA)
    bad = store.put_blob(b"bad")
    store.blob_path(bad).write_bytes(b"")
    store.put_record("kernel", KEY, {"x": 1})
    age(store.record_path("kernel", KEY), hours=5)

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    for name in ("os.utime", "os.mkdir", "pathlib.Path.replace", "pathlib.Path.mkdir", "pathlib.Path.unlink"):
        monkeypatch.setattr(name, fails)
    reader = Store(store.root)
    assert reader.get_blob(sha256) == DATA
    assert reader.get_record("kernel", KEY) == {"x": 1}
    assert reader.get_blob(bad) is None
    with pytest.raises(StoreError, match="Read-only file system"):
        reader.put_record("kernel", OTHER_KEY, {})


def test_an_error_of_the_disk_is_told(store, monkeypatch):
    sha256 = store.put_blob(DATA)
    store.put_record("kernel", KEY, {})

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("os.open", fails)
    for read in (lambda: store.get_blob(sha256), lambda: store.get_record("kernel", KEY)):
        with pytest.raises(StoreError, match="Input/output error"):
            read()


def test_a_file_that_is_far_too_large_is_not_read(store, monkeypatch):
    store.put_record("plan", KEY, {"x": "y" * (1 << 20)})
    assert store.get_record("plan", KEY) is not None
    monkeypatch.setattr("cutlass_aot.store.layout.MAX_RECORD_BYTES", 100)
    assert store.get_record("plan", KEY) is None
    # A record of one kernel is small, however much memory others may take.
    for kind in ("kernel", "library"):
        store.put_record(kind, KEY, {"x": "y" * (1 << 20)})
        assert store.get_record(kind, KEY) is None


# --- several at once


def test_many_writers_of_one_blob_agree(store):
    data = os.urandom(1 << 16)
    threads = [threading.Thread(target=store.put_blob, args=(data,)) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get_blob(digest(data)) == data


def test_many_builders_make_one_store_and_publish_the_same(tmp_path):
    code = """
for number in range(200):
    store = Store(root / str(number % 20))
    sha256 = store.put_blob(b"blob %d" % number)
    store.put_record("kernel", sha256, {"from": number}, blobs={sha256: 8})
    assert store.get_record("kernel", sha256) == {"from": number}
    assert store.get_blob(sha256) == b"blob %d" % number
    assert store.get_record("kernel", "ab" * 32) in (None, {"x": 1})
    store.put_record("kernel", "ab" * 32, {"x": 1})
"""
    together(code, tmp_path, 4)
    for number in range(20):
        store = Store(tmp_path / str(number), create=False)
        assert len(list(store.blobs())) == 10
        assert len(list(store.records())) == 11
        assert not [name for name in files(store) if ".new-" in name]


# --- artifacts and failures


@pytest.fixture
def artifact():
    return Artifact(digest(DATA), len(DATA), Facts("sm_90a", "12.9", 1, 0, 0, 1), 0.5)


def keep(store, artifact, tmp_path, kernel):
    file = tmp_path / "x.o"
    file.write_bytes(DATA)
    keep_artifact(store, KEY, kernel, artifact, file)


def test_an_artifact_of_another_kernel_does_not_count(store, tmp_path, artifact):
    kernel, other = gemm(), gemm(target="sm_100a")
    keep(store, artifact, tmp_path, kernel)
    assert read_artifact(store, KEY, kernel) == (artifact, "present")
    assert read_artifact(store, KEY, other) == (None, "its record is another kernel's")
    store.blob_path(artifact.object_sha256).unlink()
    assert read_artifact(store, KEY, kernel) == (None, "its object is missing or damaged")


@pytest.mark.parametrize(
    "change",
    [{"size": float("inf")}, {"size": -5}, {"size": 7}, {"seconds": float("nan")}, {"seconds": -1.0},
     {"seconds": float("inf")}, {"seconds": "x"}, {"size": None}],
)  # fmt: skip
def test_an_artifact_whose_figures_are_none_does_not_count(store, tmp_path, artifact, change):
    keep(store, artifact, tmp_path, gemm())
    record = store.get_record("kernel", KEY)
    store.put_record("kernel", KEY, {**record, **change}, blobs={digest(DATA): len(DATA)})
    found, why = read_artifact(store, KEY, gemm())
    assert found is None
    assert "its record" in why


def test_a_failure_is_kept_until_the_kernel_compiles(store, tmp_path, artifact):
    versions = {"nvidia-cutlass-dsl": "4.8.1"}
    assert read_failure(store, KEY) is None
    path = keep_failure(store, KEY, gemm(), "ValueError: \ud800", "the words\n\ud800", versions)
    assert path == store.log_path(KEY)
    assert path.read_text() == "the words\n?"
    failure = read_failure(store, KEY)
    assert (failure.reason, failure.log, failure.versions) == ("ValueError: ?", "the words\n?", versions)
    keep(store, artifact, tmp_path, gemm())
    assert read_failure(store, KEY) is None
    assert not path.exists()
    assert store.get_record("failure", KEY) is None


def test_a_failure_beside_an_artifact_does_not_count(store, tmp_path, artifact):
    keep(store, artifact, tmp_path, gemm())
    keep_failure(store, KEY, gemm(), "it raced", "", {})
    assert read_failure(store, KEY) is None


@pytest.mark.parametrize("body", [None, 1, [], {}, {"reason": "x", "log": "y", "versions": 3}])
def test_a_malformed_failure_is_none(store, body):
    store.put_record("failure", KEY, body)
    assert read_failure(store, KEY) is None

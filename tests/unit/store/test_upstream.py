"""Upstream stores: directories that are never written, and remotes that are never trusted."""

from __future__ import annotations

import contextlib
import functools
import http.server
import socket
import sys
import threading
import time
from pathlib import Path

import fsspec
import pytest

from cutlass_aot.builder.settings import Settings
from cutlass_aot.errors import SchemaTooNew, StoreError
from cutlass_aot.schema.compression import compress
from cutlass_aot.schema.encoding import digest, seal
from cutlass_aot.store.layout import SCHEMA, blob_name, record_name
from cutlass_aot.store.maintenance.check import check
from cutlass_aot.store.store import Store
from cutlass_aot.store.upstream.remote import RemoteStore
from cutlass_aot.store.upstream.stores import UpstreamDirectory
from cutlass_aot.store.upstream.thread_pool import ThreadPool
from tests.support.clock import SOON
from tests.support.stores import KEY, OTHER_KEY, age, files

DATA = b"object code" * 100
BLOB = digest(DATA)


def keep(store, key=KEY, data=DATA, kind="kernel"):
    store.put_record(kind, key, {"of": key}, blobs={store.put_blob(data): len(data)})


def snapshot(root):
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def other(tmp_path):
    """Another store, which has one kernel."""
    other = Store(tmp_path / "other")
    keep(other)
    return other


# --- directories


def test_a_directory_behind_is_read_through_and_never_written(other, tmp_path):
    age(other.record_path("kernel", KEY), hours=100)
    before = snapshot(other.root)
    store = Store(tmp_path / "store", upstream=[UpstreamDirectory(other.root)])
    assert store.get_record("kernel", KEY) == {"of": KEY}
    assert store.get_blob(BLOB) == DATA
    assert store.extract_blob(BLOB, tmp_path / "out")
    assert store.get_record("kernel", OTHER_KEY) is None
    store.prefetch("kernel", [KEY])
    keep(store, OTHER_KEY, b"new")
    store.close()
    assert snapshot(other.root) == before
    assert not store.record_path("kernel", KEY).exists()
    assert not store.blob_path(BLOB).exists()


def test_damage_behind_counts_as_absent_and_is_left_there(other, tmp_path):
    second = Store(tmp_path / "second")
    keep(second)
    other.blob_path(BLOB).write_bytes(compress(b"another", 3))
    keep(other, OTHER_KEY, b"more")
    other.record_path("kernel", OTHER_KEY).write_bytes(b"x")
    before = snapshot(other.root)
    store = Store(tmp_path / "store", upstream=[UpstreamDirectory(other.root)])
    assert store.get_blob(BLOB) is None
    assert store.get_record("kernel", OTHER_KEY) is None
    levels = [UpstreamDirectory(root) for root in (other.root, second.root)]
    store = Store(tmp_path / "store", upstream=levels)
    assert store.get_record("kernel", KEY) == {"of": KEY}
    assert store.get_blob(BLOB) == DATA
    assert snapshot(other.root) == before
    assert list(check(store)) == []


def test_a_record_without_its_blob_is_a_miss_behind(other, tmp_path):
    other.blob_path(BLOB).unlink()
    store = Store(tmp_path / "store", upstream=[UpstreamDirectory(other.root)])
    assert store.get_record("kernel", KEY) is None


def test_what_is_unreadable_or_newer_behind_counts_as_absent(other, tmp_path):
    other.record_path("kernel", KEY).write_bytes(seal("cutlass-aot kernel record", SCHEMA + 1, {}))
    (other.root / record_name("plan", KEY)).mkdir(parents=True)
    store = Store(tmp_path / "store", upstream=[UpstreamDirectory(other.root)])
    assert store.get_record("kernel", KEY) is None
    assert store.get_record("plan", KEY) is None


def test_failures_and_bundles_are_a_stores_own(other, tmp_path):
    other.put_record("failure", KEY, {})
    other.put_record("bundle", KEY, {})
    store = Store(tmp_path / "store", upstream=[UpstreamDirectory(other.root)])
    assert store.get_record("failure", KEY) is None
    assert store.get_record("bundle", KEY) is None


def test_what_is_no_store_cannot_stand_behind_one(tmp_path):
    with pytest.raises(StoreError, match="has no FORMAT file"):
        UpstreamDirectory(tmp_path)
    (tmp_path / "FORMAT").write_text("cutlass-aot store 1\n")
    with pytest.raises(StoreError, match="no longer reads"):
        UpstreamDirectory(tmp_path)
    (tmp_path / "FORMAT").write_text("cutlass-aot store 9\n")
    with pytest.raises(SchemaTooNew):
        UpstreamDirectory(tmp_path)


# --- remotes


@pytest.fixture
def told():
    return []


@pytest.fixture
def memory():
    """URL of an empty place in fsspec's memory."""
    files = fsspec.filesystem("memory")
    files.store.clear()
    files.pseudo_dirs[:] = [""]
    yield "memory://bucket/store"
    files.store.clear()


class Served(http.server.SimpleHTTPRequestHandler):
    """A directory behind HTTP, which counts requests and can be told to misbehave."""

    protocol_version = "HTTP/1.1"
    takes_puts = True
    lies = False
    requests: list[tuple[str, str]]
    alter = staticmethod(lambda data: data)

    def do_GET(self):
        self.requests.append((self.command, self.path))
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        data = path.read_bytes()
        changed = data if path.name == "FORMAT" else self.alter(data)
        self.send_response(200)
        self.send_header("Content-Length", str(len(data if self.lies else changed)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(changed)
            self.close_connection = self.lies

    do_HEAD = do_GET

    def do_PUT(self):
        self.requests.append((self.command, self.path))
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.takes_puts:
            self.send_error(405)
            return
        path = Path(self.translate_path(self.path))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.send_response(201)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def served(root, **behaviour):
    """A server for a directory; gives its URL and its class."""
    handler = type("Handler", (Served,), {"requests": [], **behaviour})
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(handler, directory=str(root))
    )
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def store_with(tmp_path, url, told, name="store", **options):
    return Store(tmp_path / name, upstream=[RemoteStore(url, tell=told.append, **options)])


@pytest.mark.parametrize("protocol", ["memory", "file", "http"])
def test_what_one_builder_pushes_another_pulls(tmp_path, memory, told, protocol):
    with contextlib.ExitStack() as stack:
        remote = tmp_path / "remote"
        remote.mkdir()
        url = {"memory": memory, "file": f"file://{remote}/new"}.get(protocol)
        if url is None:
            url, _ = stack.enter_context(served(remote))
        first = store_with(tmp_path, url, told, "first")
        assert first.get_record("kernel", KEY) is None
        keys = [f"{number:064x}" for number in range(20)]
        for key in keys:
            keep(first, key, b"object of " + key.encode())
        first.put_record("failure", KEY, {})
        first.close()
        assert first.upstream[0].pushed == 20
        second = store_with(tmp_path, url, told, "second")
        assert second.upstream[0].has(record_name("kernel", keys[0]))
        assert not second.upstream[0].has(record_name("kernel", KEY))
        second.prefetch("kernel", keys)
        assert second.get_record("failure", KEY) is None
        alone = Store(second.root)
        for key in keys:
            assert alone.get_record("kernel", key) == {"of": key}
            assert alone.get_blob(digest(b"object of " + key.encode())) == b"object of " + key.encode()
        assert list(check(alone)) == []
        assert [text.partition(" at ")[0] for text in told] == ["there is no store"]
        if protocol != "memory":
            there = Store(remote / "new" if protocol == "file" else remote, create=False)
            assert list(check(there)) == []
            assert not [name for name in files(there) if ".new-" in name]


def test_a_store_directory_that_is_served_is_a_remote(other, tmp_path, told):
    before = snapshot(other.root)
    with served(other.root, takes_puts=False) as (url, _):
        store = store_with(tmp_path, url, told)
        assert store.get_record("kernel", KEY) == {"of": KEY}
        keep(store, OTHER_KEY, b"new")
        store.close()
    assert len(told) == 1
    assert "nothing more is put" in told[0]
    assert "405" in told[0]
    assert snapshot(other.root) == before


def test_a_read_only_remote_is_not_written(other, tmp_path, told):
    with served(other.root) as (url, handler):
        store = store_with(tmp_path, url, told, push=False)
        assert store.get_record("kernel", KEY) == {"of": KEY}
        keep(store, OTHER_KEY, b"new")
        store.close()
        assert {method for method, _ in handler.requests} == {"GET"}
    assert told == []


def test_many_kernels_do_not_cost_a_round_trip_each_in_a_row(tmp_path, told):
    other = Store(tmp_path / "other")
    keys = [f"{number:064x}" for number in range(64)]
    for key in keys:
        keep(other, key, b"object of " + key.encode())

    changed = threading.Condition()
    count = {"now": 0, "most": 0}

    def meet(data):
        # Until four requests have been there at once; if they never are, the first one waits in vain.
        with changed:
            count["now"] += 1
            count["most"] = max(count.values())
            changed.notify_all()
            changed.wait_for(lambda: count["most"] >= 4, SOON)
            count["now"] -= 1
        return data

    with served(other.root, alter=staticmethod(meet)) as (url, handler):
        store = store_with(tmp_path, url, told)
        store.prefetch("kernel", [*keys, KEY])
        assert count["most"] >= 4
        requests = len(handler.requests)
        assert requests == 1 + 64 + 1 + 64
        # What was absent is not asked for again, what is here not at all.
        assert store.get_record("kernel", KEY) is None
        assert all(store.get_record("kernel", key) for key in keys)
        store.prefetch("kernel", [*keys, KEY])
        assert len(handler.requests) == requests


def test_an_empty_remote_is_asked_once(tmp_path, told):
    (tmp_path / "remote").mkdir()
    with served(tmp_path / "remote") as (url, handler):
        store = store_with(tmp_path, url, told)
        store.prefetch("kernel", [f"{number:064x}" for number in range(100)])
        assert store.get_blob(BLOB) is None
        assert handler.requests == [("GET", "/FORMAT")]
    assert [text.partition(" at ")[0] for text in told] == ["there is no store"]


@pytest.mark.parametrize("first", ["no store", "another kernel"])
def test_what_came_since_is_pulled_when_it_is_asked_for_anew(tmp_path, told, first):
    other = Store(tmp_path / "other")
    if first == "no store":
        (other.root / "FORMAT").unlink()
    with served(other.root) as (url, handler):
        store = store_with(tmp_path, url, told)
        store.prefetch("kernel", [KEY, OTHER_KEY])
        Store(other.root)
        keep(other)
        requested = len(handler.requests)
        store.prefetch("kernel", [KEY, OTHER_KEY])
        assert store.get_record("kernel", KEY) is None
        assert len(handler.requests) == requested
        store.prefetch("kernel", [KEY], anew=True)
        assert store.get_record("kernel", KEY) == {"of": KEY}
    assert len(told) == (first == "no store")


def test_what_is_there_is_not_put_again(other, tmp_path, told):
    with served(other.root) as (url, handler):
        store = store_with(tmp_path, url, told)
        keep(store)
        store.close()
        assert {method for method, _ in handler.requests} == {"GET", "HEAD"}
    assert told == []


ALTERED = {
    "flipped": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "another": lambda _: compress(b"another", 3),
    "huge": lambda data: data + b"\0" * (4 << 20),
    "cut": lambda data: data[: len(data) // 2],
    "empty": lambda _: b"",
    "shorter than it says": lambda data: data[: len(data) // 2],
}


@pytest.mark.parametrize("how", ALTERED)
def test_nothing_that_a_server_alters_is_taken(other, tmp_path, told, how):
    lies = how == "shorter than it says"
    with served(other.root, alter=staticmethod(ALTERED[how]), lies=lies) as (url, handler):
        store = store_with(tmp_path, url, told, timeout=5.0)
        assert store.get_record("kernel", KEY) is None
        assert store.get_blob(BLOB) is None
        assert files(store) == ["FORMAT"]
        assert len(told) == lies
        handler.alter = staticmethod(lambda data: data)
        keep(store)
        store.close()
    assert store.get_record("kernel", KEY) == {"of": KEY}


@pytest.mark.parametrize("victim", [record_name("kernel", KEY), blob_name(BLOB)])
def test_what_is_damaged_there_is_replaced(other, tmp_path, told, victim):
    path = other.root / victim
    good = path.read_bytes()
    # In the middle, where the contents stand: zstd 1.5.5 and older ignore some bits at the end of a block.
    middle = len(good) // 2
    path.write_bytes(good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :])
    with served(other.root) as (url, _):
        store = store_with(tmp_path, url, told)
        assert store.get_record("kernel", KEY) is None
        assert list(check(Store(store.root))) == []
        keep(store)
        store.close()
    assert path.read_bytes() == good
    assert told == []


def test_a_file_of_another_key_or_kind_is_not_taken(other, tmp_path, told):
    target = other.root / record_name("kernel", OTHER_KEY)
    target.parent.mkdir(parents=True)
    target.write_bytes(other.record_path("kernel", KEY).read_bytes())
    with served(other.root) as (url, _):
        store = store_with(tmp_path, url, told)
        assert store.get_record("kernel", OTHER_KEY) is None
    assert told == []


def test_a_record_that_claims_a_wrong_size_is_not_taken(other, tmp_path, told):
    huge = b"x" * (1 << 20)
    random = b"".join(digest(b"%d" % number).encode() for number in range(1000))
    other.put_record("kernel", KEY, {}, blobs={other.put_blob(random): 1})
    other.put_record("kernel", OTHER_KEY, {}, blobs={other.put_blob(huge): len(huge)})
    with served(other.root) as (url, _):
        store = store_with(tmp_path, url, told)
        assert store.get_record("kernel", KEY) is None
        assert store.get_record("kernel", OTHER_KEY) == {}
    assert told == []


@pytest.mark.parametrize("text", ["cutlass-aot store 9\n", "cutlass-aot store 1\n", "<html>hello</html>"])
def test_a_remote_of_another_kind_is_left_alone(other, tmp_path, told, text):
    (other.root / "FORMAT").write_text(text)
    with served(other.root) as (url, handler):
        store = store_with(tmp_path, url, told)
        assert store.get_record("kernel", KEY) is None
        keep(store)
        store.close()
        assert handler.requests == [("GET", "/FORMAT")]
    assert len(told) == 1


def closed_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def works_without(store):
    """Everything goes on; a build would take no longer than this."""
    began = time.monotonic()
    store.prefetch("kernel", [f"{number:064x}" for number in range(100)])
    assert store.get_record("kernel", KEY) is None
    keep(store)
    assert store.get_record("kernel", KEY) == {"of": KEY}
    store.close()
    assert time.monotonic() - began < SOON


def test_without_a_server_everything_goes_on(tmp_path, told):
    works_without(store_with(tmp_path, f"http://127.0.0.1:{closed_port()}", told))
    assert len(told) == 1
    assert "is left out from here on" in told[0]


def test_a_server_that_never_answers_costs_one_timeout(tmp_path, told):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(128)
        works_without(
            store_with(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}", told, timeout=0.5)
        )
    assert len(told) == 1
    assert "no answer within 0.5 s" in told[0]


def test_a_server_that_hangs_later_costs_one_timeout(other, tmp_path, told):
    released = threading.Event()

    def hangs(data):
        released.wait(60)
        return data

    with served(other.root, alter=staticmethod(hangs)) as (url, _):
        store = store_with(tmp_path, url, told, timeout=0.5)
        began = time.monotonic()
        assert store.get_record("kernel", KEY) is None
        assert store.get_record("kernel", OTHER_KEY) is None
        assert time.monotonic() - began < SOON
        released.set()
    assert len(told) == 1


def test_a_server_that_hangs_while_it_is_pushed_to_costs_one_timeout(other, tmp_path, told):
    released = threading.Event()

    def do_put(self):
        released.wait(60)

    with served(other.root, do_PUT=do_put) as (url, _):
        store = store_with(tmp_path, url, told, timeout=0.5)
        for number in range(10):
            keep(store, f"{number:064x}", b"%d" % number)
        began = time.monotonic()
        store.close()
        assert time.monotonic() - began < SOON
        released.set()
    assert len(told) == 1
    assert "10 records are left" in told[0]


def test_a_server_that_fails_once_is_asked_again(other, tmp_path, told):
    failed = []

    def fails_once(self):
        if not failed and self.path != "/FORMAT":
            failed.append(self.path)
            self.send_error(503)
        else:
            Served.do_GET(self)

    with served(other.root, do_GET=fails_once) as (url, _):
        store = store_with(tmp_path, url, told)
        assert store.get_record("kernel", KEY) == {"of": KEY}
    assert failed
    assert told == []


@pytest.mark.parametrize("push", [False, True])
def test_where_what_is_absent_is_forbidden_the_rest_is_had(other, tmp_path, told, push):
    """Object storage that may not be listed says so of what is not there."""

    def do_get(self):
        if Path(self.translate_path(self.path)).is_file():
            Served.do_GET(self)
        else:
            self.send_error(403)

    with served(other.root, do_GET=do_get, do_HEAD=do_get) as (url, _):
        store = store_with(tmp_path, url, told, push=push)
        assert store.get_record("kernel", OTHER_KEY) is None
        assert store.get_record("kernel", KEY) == {"of": KEY}
        keep(store, OTHER_KEY, b"more")
        store.close()
    assert other.has_record("kernel", OTHER_KEY) == push
    assert told == []


def test_a_server_that_names_the_compression_is_read_as_it_is(other, tmp_path, told):
    def end_headers(self):
        if self.path.endswith(".zst"):
            self.send_header("Content-Encoding", "zstd")
        http.server.SimpleHTTPRequestHandler.end_headers(self)

    with served(other.root, end_headers=end_headers) as (url, _):
        store = store_with(tmp_path, url, told)
        assert store.get_record("kernel", KEY) == {"of": KEY}
        assert store.get_blob(BLOB) == DATA
    assert told == []


@pytest.mark.parametrize("push", [False, True])
def test_that_there_is_no_store_is_said_once(tmp_path, told, push):
    (tmp_path / "remote").mkdir()
    with served(tmp_path / "remote") as (url, _):
        store = store_with(tmp_path, f"{url}/typo?x=1", told, push=push)
        for _ in range(2):
            assert store.get_record("kernel", KEY) is None
            store.prefetch("kernel", [KEY], anew=True)
        store.close()
        end = "this build begins one" if push else "check the URL"
        assert told == [f"there is no store at {url}/typo: {end}"]


@pytest.mark.parametrize("scheme", ["http", "nosuch"])
def test_nobody_is_told_a_password(tmp_path, told, scheme):
    url = f"{scheme}://alice:s3cr%25t@127.0.0.1:{closed_port()}/store?token=abc"
    try:
        store = store_with(tmp_path, url, told)
        assert store.get_record("kernel", KEY) is None
        keep(store)
        store.close()
    except StoreError as error:
        told.append(str(error))
    assert told
    for text in told:
        assert f"{scheme}://127.0.0.1" in text
        assert not any(secret in text for secret in ("alice", "s3cr", "abc"))
    assert RemoteStore("memory://alice:secret@x/y").url == "memory://x/y"


def test_an_error_does_not_wait_for_what_is_being_pushed(other, tmp_path):
    released = threading.Event()

    def do_put(self):
        released.wait(60)

    with served(other.root, do_PUT=do_put) as (url, _):
        settings = Settings(tmp_path / "store", 1, 1, lambda _: None, remote=url)
        began = time.monotonic()

        def interrupted():
            with settings.open_store() as store:
                assert store.try_lock(KEY)
                for number in range(10):
                    keep(store, f"{number:064x}", b"%d" % number)
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            interrupted()
        assert time.monotonic() - began < SOON
        assert Store(tmp_path / "store").try_lock(KEY)
        released.set()


def test_what_the_end_of_a_build_waits_for_is_said(other, tmp_path, told, monkeypatch):
    def do_put(self):
        time.sleep(0.3)
        Served.do_PUT(self)

    monkeypatch.setattr("cutlass_aot.store.upstream.remote.QUIET_SECONDS", 0.1)
    with served(other.root, do_PUT=do_put) as (url, _):
        store = store_with(tmp_path, url, told)
        keep(store, OTHER_KEY, b"more")
        store.close()
        assert told == [f"waiting for 1 record to be put into the store at {url}"]
        monkeypatch.setattr("cutlass_aot.store.upstream.remote.CLOSE_SECONDS", 0.8)
        told.clear()
        for number in range(40):
            keep(store, f"{number:064x}", b"%d" % number)
        store.close()
    assert "records are left, and a build waits 0.8 s at most" in told[-1]


def test_a_full_disk_is_no_fault_of_the_remote(other, tmp_path, told, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    with served(other.root) as (url, _):
        store = store_with(tmp_path, url, told)
        monkeypatch.setattr("pathlib.Path.replace", full)
        with pytest.raises(StoreError, match="No space left"):
            store.get_record("kernel", KEY)
    assert told == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("remote/store", "is not a URL"),
        ("nosuch://x/y", "Protocol not known"),
        ("reference://x", "cannot be used"),
    ],
)
def test_a_bad_url_says_what_is_expected(url, message):
    with pytest.raises(StoreError, match=message):
        RemoteStore(url)


def test_a_missing_package_says_what_to_install(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "fsspec.core", None)
        with pytest.raises(StoreError, match=r"pip install 'fsspec>=2024.2'"):
            RemoteStore("memory://x")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(StoreError, match="Install s3fs"):
        RemoteStore("s3://bucket/store")


def test_settings_make_levels_in_their_order(other, tmp_path, memory):
    settings = Settings(
        tmp_path / "store", 1, 1, print, upstream=(other.root,), remote=memory, remote_read_only=True
    )
    with settings.open_store() as store:
        directory, remote = store.upstream
        assert isinstance(directory, UpstreamDirectory)
        assert isinstance(remote, RemoteStore)
        assert store.get_record("kernel", KEY) == {"of": KEY}


def test_a_crew_hands_results_and_errors_back():
    pool = ThreadPool(2)

    def fails():
        raise KeyError("x")

    assert [pool.begin(lambda n=n: n * n).result(5) for n in range(5)] == [0, 1, 4, 9, 16]
    with pytest.raises(KeyError):
        pool.begin(fails).result(5)
    with pytest.raises(TimeoutError):
        pool.begin(lambda: time.sleep(0.2)).result(0.01)

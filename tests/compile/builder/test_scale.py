"""Building at scale: shards, remotes, changed tables, failures that are known, why a plan is made again."""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cutlass_aot.store.roots import roots
from cutlass_aot.store.store import Store
from tests.compile.builder.conftest import LAYOUTS, MANIFEST, TABLE
from tests.compile.builder.test_build import command, contents
from tests.support.stores import age_all

pytestmark = pytest.mark.compile


class Place:
    """A manifest, a store and an output of their own."""

    def __init__(self, root, text=MANIFEST):
        self.root = root
        self.manifest = root / "m.toml"
        self.store = root / "store"
        self.out = root / "out"
        self.manifest.write_text(text)

    def __call__(self, *arguments, verb="build", **options):
        where = ("--store", self.store)
        where += ("--out", self.out) if verb == "build" and "--out" not in arguments else ()
        return command(verb, self.manifest, *where, *arguments, **options)

    def events(self, *arguments):
        """The events of a build that has to succeed, by their kind."""
        done = self("--json", *arguments)
        assert done.returncode == 0, done.stderr
        found = {}
        for line in done.stdout.splitlines():
            event = json.loads(line)
            found.setdefault(event["event"], []).append(event)
        return found

    @property
    def bundle(self):
        return contents(self.out / "many")


@pytest.fixture(scope="module")
def whole(many, tmp_path_factory):
    """Five kernels in five tables, built on one machine."""
    root = tmp_path_factory.mktemp("whole")
    for name in ("store", "out"):
        shutil.copytree(many / name, root / name)
    assert (many / "events").read_text().count('"event": "compiled"') == 5
    return Place(root)


@pytest.fixture(scope="module")
def shards(whole, tmp_path_factory):
    """The same in three shards, out of the store of the whole build."""
    folder = tmp_path_factory.mktemp("shards")
    for index in (1, 2, 3):
        done = whole("--shard", f"{index}/3", "--out", folder)
        assert done.returncode == 0, done.stderr
    return sorted(folder.iterdir())


def merge(shards, root):
    return command("bundle", "merge", *shards, "--store", root / "store", "--out", root / "out")


def test_shards_merge_to_the_bundle_of_one_machine(whole, shards, tmp_path):
    assert [path.name for path in shards] == [f"many.shard-{index}-of-3" for index in (1, 2, 3)]
    done = merge(reversed(shards), tmp_path)
    assert done.returncode == 0, done.stderr
    assert "5 kernels, 3 shards, written" in done.stdout
    assert contents(tmp_path / "out" / "many") == whole.bundle


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "of 3 shards of many these are missing: 2"),
        ("twice", "shard 1 of 3 is given twice"),
        ("no shard", "is not a shard"),
        ("damaged", "its object is missing or damaged: build this shard again"),
        ("incomplete", "is not a complete shard"),
    ],
)
def test_shards_that_are_not_all_of_one_bundle_are_refused(shards, tmp_path, change, message):
    given = [shutil.copytree(path, tmp_path / path.name) for path in shards]
    if change == "missing":
        del given[1]
    elif change == "twice":
        given.append(shards[0])
    elif change == "no shard":
        given.append(tmp_path)
    elif change == "damaged":
        blob = next((given[0] / "blobs").rglob("*.zst"))
        blob.write_bytes(blob.read_bytes()[:-1])
    elif change == "incomplete":
        shutil.rmtree(given[0] / "records" / "shard")
    done = merge(given, tmp_path)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


def test_shards_of_two_manifests_are_refused(whole, shards, tmp_path):
    other = Place(tmp_path, MANIFEST + TABLE.format(LAYOUTS[5]))
    other.store = whole.store
    assert other("--shard", "3/3", "--out", tmp_path / "shards").returncode == 0
    done = merge([*shards[:2], *(tmp_path / "shards").iterdir()], tmp_path)
    assert "are not of one build: they were planned from different manifests" in done.stderr


@pytest.mark.parametrize("share", ["0/3", "4/3", "1", "1/0", "a/b", "-1/3"])
def test_a_share_that_is_none_is_refused(whole, share):
    done = whole("--shard", share)
    assert done.returncode == 2
    assert "such as 3/16" in done.stderr


def test_a_changed_table_compiles_what_it_changes(whole, tmp_path):
    place = Place(tmp_path)
    shutil.copytree(whole.store, place.store)
    place.manifest.write_text(MANIFEST.replace(LAYOUTS[2], LAYOUTS[6]))
    explained = place("--explain", verb="plan")
    assert "planned again: the manifest: kernels[2] has changed" in explained.stdout
    assert "5 kernels: 1 to build, 4 present" in explained.stdout
    (compiled,) = place.events()["compiled"]
    assert f"-{LAYOUTS[6]}-" in compiled["kernel"]
    assert "the plan of the last build holds" in place("--explain", verb="plan").stdout
    assert set(place.events()) == {"up_to_date", "finished"}


def test_a_build_is_a_root_of_its_store(whole):
    store = Store(whole.store, create=False)
    rooted = roots(store)["many"]
    kinds = [kind for kind, _ in rooted]
    assert sorted(set(kinds)) == ["bundle", "inputs", "kernel", "library", "plan"]
    assert kinds.count("kernel") == 5
    age_all(store, hours=1000)
    removed = command("store", "gc", "--store", whole.store, "--days", "0", "--grace", "0", "--json")
    assert removed.returncode == 0, removed.stderr
    assert all(store.has_record(*reference) for reference in rooted)
    assert command("store", "check", "--store", whole.store).returncode == 0
    shutil.rmtree(whole.out)
    assert "compiled" not in whole.events()


@contextmanager
def served(folder):
    """A directory, by HTTP."""

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_remote_is_pushed_to_pulled_from_and_done_without(whole, tmp_path):
    remote = tmp_path / "remote"
    first, second, third, fourth = (
        Place(tmp_path / name) for name in ("1", "2", "3", "4") if (tmp_path / name).mkdir() is None
    )
    first.store = whole.store  # What is there already is not pushed; what is linked anew is.
    shutil.copytree(whole.store, second.store)
    shutil.rmtree(second.store / "records" / "kernel")
    assert len(second.events("--remote", f"file://{remote}")["compiled"]) == 5
    assert "compiled" not in third.events("--remote", f"file://{remote}")
    assert third.bundle == second.bundle == whole.bundle
    with served(remote) as address:
        assert "compiled" not in fourth.events("--remote", address, "--remote-read-only")
    assert fourth.bundle == whole.bundle
    shutil.rmtree(fourth.store)
    shutil.rmtree(fourth.out)
    events = fourth.events("--remote", address, "--upstream", third.store)
    assert "compiled" not in events
    assert fourth.bundle == whole.bundle


FAILING = """
plugins = ["tests.support.misbehaving"]
[bundle]
name = "failing"
targets = ["sm_90a"]
device = "h200"
[[kernels]]
generator = "misbehaving"
ab = "f16"
does = ["raise", "crash"]
"""


def test_a_kernel_that_the_compiler_refused_is_not_tried_again_until_asked(tmp_path):
    place = Place(tmp_path, FAILING)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

    def tries(*arguments):
        done = place("--json", *arguments, env=environment)
        assert done.returncode == 1
        events = [json.loads(line) for line in done.stdout.splitlines()]
        failed = [event for event in events if event["event"] == "failed"]
        assert all(Path(event["log"]).is_file() for event in failed)
        assert {event["reason"].partition(" (")[0] for event in failed} == {
            "ValueError: no such instruction",
            "the compiler crashed",
        }
        return [event["kernel"] for event in events if event["event"] == "started"]

    assert len(tries()) == 2
    (again,) = tries()
    assert "crash" in again
    assert len(tries("--retry")) == 2
    planned = place("--json", verb="plan", env=environment)
    whys = {item["why"] for item in json.loads(planned.stdout)["kernels"]}
    assert "failed before with this toolchain: ValueError: no such instruction" in whys
    lines = place("--kernels", verb="plan", env=environment).stdout.splitlines()
    assert [line.split()[0] for line in lines if "-sm_90a-" not in line and "raise" in line] == ["failed"]
    assert lines[-1] == (
        "2 kernels: 1 to build, 0 present, 1 failed in an earlier build and not compiled again without build "
        "--retry"
    )


def test_a_build_that_is_asked_for_twice_at_once_is_right_and_compiles_each_kernel_once(whole, tmp_path):
    place = Place(tmp_path)
    arguments = ["build", place.manifest, "--store", place.store, "--out", place.out]
    builds = [
        subprocess.Popen(
            [sys.executable, "-m", "cutlass_aot", *map(str, arguments)],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [build.communicate(timeout=300)[0] for build in builds]
    assert [build.returncode for build in builds] == [0, 0], said
    assert sum(int(re.search(r"(\d+) compiled", words).group(1)) for words in said) == 5, said
    assert place.bundle == whole.bundle

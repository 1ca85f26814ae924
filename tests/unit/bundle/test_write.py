"""Writing a bundle: same inputs, same bytes; replaced at once or not at all."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import shutil
import signal
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from cutlass_aot.bundle import files, write
from cutlass_aot.bundle import replace as replacing
from cutlass_aot.bundle.files import exchange, manifest_to_bytes
from cutlass_aot.bundle.plan import BundlePlan
from cutlass_aot.bundle.replace import check_output
from cutlass_aot.bundle.verify.directory import verify_bundle
from cutlass_aot.bundle.write import bundle_is, write_bundle
from cutlass_aot.errors import BundleError, CutlassAotError
from cutlass_aot.runtime.files.file_lock import Lock
from cutlass_aot.runtime.files.verified_read import read_catalog, read_manifest
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, MANIFEST_NAME, FileReference
from cutlass_aot.schema.bundles.group_index import group_from_bytes
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.tuning.ranking import RankedProblems, Ranking
from tests.support.replace import replace
from tests.support.synthetic import (
    entry,
    exports,
    group,
    kernels,
    launcher,
    modelled,
    packed,
    plan,
    ranking,
    shared_object,
)


def tree(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def modes(folder):
    return {p.relative_to(folder).as_posix(): p.stat().st_mode & 0o7777 for p in (folder, *folder.rglob("*"))}


@pytest.fixture
def small(tmp_path) -> BundlePlan:
    return plan(tmp_path / "linked")


@pytest.fixture
def out(tmp_path):
    return tmp_path / "bundles" / "small"


def left_behind(out):
    """Whatever is beside the bundle."""
    return [path.name for path in out.parent.iterdir() if path.name != out.name]


def without_exchange(monkeypatch):
    """As on a file system that cannot exchange two directories."""
    monkeypatch.setattr(replacing, "exchange", lambda first, second: False)


def test_what_is_written_reads_back_and_verifies(small, out):
    assert write_bundle(small, out)
    assert verify_bundle(out) == []
    catalog = read_catalog(out)
    assert (catalog.name, catalog.version, catalog.requirements) == ("small", "0.1.0", small.requirements)
    assert [g.name for g in catalog.groups] == sorted(g.name for g in small.groups)
    for found in catalog.groups:
        index = group_from_bytes((out / found.child.path).read_bytes(), found, "child")
        names = [entry.kernel.name for entry in index]
        assert names == sorted(names)
        assert len(names) == found.kernel_count == 3
    bf16, f16 = catalog.groups
    assert bf16.rankings == ()
    (reference,) = f16.rankings
    assert (reference.gpu, reference.measured) == ("NVIDIA H200", True)
    assert Ranking.from_bytes((out / reference.file.path).read_bytes(), "ranking") == small.rankings[0]
    assert catalog.launchers["x86_64"].path == "lib/x86_64/launcher.so.zst"
    assert (out / "lib/x86_64/launcher.so.zst").read_bytes() == small.launchers["x86_64"].path.read_bytes()
    assert catalog.alignment == 16
    assert (out / "licenses/cutlass-aot.txt").read_bytes() == small.licenses["cutlass-aot.txt"]
    assert left_behind(out) == []


def test_the_manifest_lists_every_other_file(small, out):
    write_bundle(small, out)
    assert set(read_manifest(out)) == set(tree(out)) - {MANIFEST_NAME}


def test_the_order_of_the_inputs_does_not_show(small, tmp_path):
    rankings = [
        ranking(kernels()),
        ranking(kernels(), gpu="NVIDIA B200"),
        modelled(kernels(), gpu="b200"),
        ranking(kernels(dtypes=("bf16",) * 3)),
    ]
    small = replace(small, rankings=rankings)
    turned = replace(
        small,
        groups=[replace(g, entries=g.entries[::-1]) for g in reversed(small.groups)],
        targets=list(small.targets),
        rankings=list(reversed(rankings)),
        licenses=dict(reversed(small.licenses.items())),
    )
    write_bundle(small, tmp_path / "one")
    write_bundle(turned, tmp_path / "deep" / "two")
    assert tree(tmp_path / "one") == tree(tmp_path / "deep" / "two")
    # The measured ones first, then by GPU.
    listed = [(r.gpu, r.measured) for r in read_catalog(tmp_path / "one").groups[1].rankings]
    assert listed == [("NVIDIA B200", True), ("NVIDIA H200", True), ("b200", False)]
    assert verify_bundle(tmp_path / "one") == []


def test_modes_do_not_depend_on_the_umask(small, tmp_path):
    before = os.umask(0o077)
    try:
        write_bundle(small, tmp_path / "strict")
        os.umask(0)
        write_bundle(small, tmp_path / "open")
    finally:
        os.umask(before)
    assert modes(tmp_path / "strict") == modes(tmp_path / "open")
    assert set(modes(tmp_path / "open").values()) == {0o644, 0o755}


def test_the_same_bundle_is_not_written_twice(small, out):
    write_bundle(small, out)
    before = (out.stat().st_ino, out.stat().st_mtime_ns)
    assert not write_bundle(small, out)
    assert (out.stat().st_ino, out.stat().st_mtime_ns) == before


@pytest.mark.parametrize("damage", ["altered", "truncated", "missing", "extra", "link"])
def test_a_damaged_bundle_is_written_anew(small, out, damage):
    write_bundle(small, out)
    sound = tree(out)
    library = next((out / "lib/x86_64").iterdir())
    if damage == "altered":
        library.write_bytes(library.read_bytes()[:-1] + b"!")
    elif damage == "truncated":
        library.write_bytes(library.read_bytes()[:-1])
    elif damage == "missing":
        library.unlink()
    elif damage == "extra":
        (out / "lib" / "note.txt").write_text("x")
    else:
        (out / "lib" / "link").symlink_to("nowhere")
    assert write_bundle(small, out)
    assert tree(out) == sound
    assert verify_bundle(out) == []


def test_another_bundle_is_replaced_whole(small, out):
    write_bundle(replace(small, licenses={"OLD.txt": b"old"}), out)
    assert write_bundle(small, out)
    assert not (out / "licenses/OLD.txt").exists()
    assert left_behind(out) == []


def test_an_empty_directory_is_replaced(small, out):
    out.mkdir(parents=True)
    assert write_bundle(small, out)
    assert verify_bundle(out) == []


def test_a_link_to_a_bundle_stays_a_link(small, tmp_path):
    (tmp_path / "link").symlink_to("real")
    write_bundle(small, tmp_path / "link")
    write_bundle(replace(small, version="0.2.0"), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert read_catalog(tmp_path / "real").version == "0.2.0"


def test_whatever_else_is_in_the_way_stays(small, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "thesis.tex").write_text("mine")
    (tmp_path / "mixed").mkdir()
    (tmp_path / "mixed" / MANIFEST_NAME).write_text("{}")
    (tmp_path / "mixed" / "thesis.tex").write_text("mine")
    before = sorted(tmp_path.iterdir())
    for name, says in (("file", "not a directory"), ("folder", "thesis.tex"), ("mixed", "thesis.tex")):
        with pytest.raises(BundleError, match=says):
            write_bundle(small, tmp_path / name)
    assert before == sorted(tmp_path.iterdir())
    assert (tmp_path / "file").read_text() == "mine"
    assert (tmp_path / "folder" / "thesis.tex").read_text() == "mine"
    assert (tmp_path / "mixed" / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("failure", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("at", [0, 3, 7])
def test_a_failure_while_writing_leaves_the_old_bundle(small, out, monkeypatch, failure, at):
    write_bundle(small, out)
    before = tree(out)
    calls = iter(range(100))
    synchronise = os.fsync

    def fail(descriptor):
        if next(calls) == at:
            raise failure
        synchronise(descriptor)

    monkeypatch.setattr(replacing.os, "fsync", fail)
    expected = BundleError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as raised:
        write_bundle(replace(small, version="0.2.0"), out)
    if expected is BundleError:
        assert "No space left on device" in str(raised.value)
        assert str(out) in str(raised.value)
    assert tree(out) == before
    assert left_behind(out) == []


def test_an_exchange_that_is_refused_leaves_the_old_bundle(small, out, monkeypatch):
    write_bundle(small, out)
    before = tree(out)

    def fail(first, second):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(replacing, "exchange", fail)
    with pytest.raises(BundleError, match="Input/output error"):
        write_bundle(replace(small, version="0.2.0"), out)
    assert tree(out) == before
    assert left_behind(out) == []


def test_where_nothing_can_be_exchanged_a_bundle_is_replaced_too(small, out, monkeypatch):
    without_exchange(monkeypatch)
    write_bundle(small, out)
    assert write_bundle(replace(small, version="0.2.0"), out)
    assert read_catalog(out).version == "0.2.0"
    assert verify_bundle(out) == []
    assert left_behind(out) == []


def test_a_failure_at_the_swap_puts_the_old_bundle_back(small, out, monkeypatch):
    without_exchange(monkeypatch)
    write_bundle(small, out)
    before = tree(out)
    rename = type(out).rename

    def fail(path, target):
        if path.name == "new":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(type(out), "rename", fail)
    with pytest.raises(BundleError, match="Input/output error"):
        write_bundle(replace(small, version="0.2.0"), out)
    assert tree(out) == before
    assert left_behind(out) == []


def test_an_old_bundle_that_cannot_be_put_back_is_kept_and_named(small, out, monkeypatch):
    without_exchange(monkeypatch)
    write_bundle(small, out)
    before = tree(out)
    rename = type(out).rename

    def fail(path, target):
        if target == out:
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(type(out), "rename", fail)
    with pytest.raises(BundleError, match="it is whole, at ") as raised:
        write_bundle(replace(small, version="0.2.0"), out)
    monkeypatch.undo()
    (name,) = left_behind(out)
    staging = out.parent / name
    assert str(staging / "old") in str(raised.value)
    assert tree(staging / "old") == before


def test_a_file_the_disk_refuses_is_a_clear_error(small, out):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))
    try:
        with pytest.raises(BundleError, match=os.strerror(errno.EFBIG)):
            write_bundle(small, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert not out.exists()
    assert left_behind(out) == []


def test_a_parent_that_is_a_file_is_a_clear_error(small, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BundleError, match=os.strerror(errno.ENOTDIR)):
        write_bundle(small, tmp_path / "file" / "small")


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_read_only_parent_is_a_clear_error(small, tmp_path):
    parent = tmp_path / "locked"
    parent.mkdir(mode=0o555)
    with pytest.raises(BundleError, match=os.strerror(errno.EACCES)):
        write_bundle(small, parent / "small")


def test_a_missing_library_is_a_clear_error(small, out):
    small.groups[0].libraries["x86_64"][0].path.unlink()
    with pytest.raises(BundleError, match=r"packed-gemm.*No such file"):
        write_bundle(small, out)
    assert not out.exists()


def test_groups_may_share_a_library(small, tmp_path, out):
    together = [entry.kernel for group in small.groups for entry in group.entries]
    library = packed(tmp_path, "together", "so.zst", shared_object(exports(together)))
    shared = {"x86_64": (replace(library, name="sm_90a-0"),)}
    groups = tuple(replace(group, libraries=shared) for group in small.groups)
    write_bundle(replace(small, groups=groups), out)
    assert sorted(file.name for file in (out / "lib" / "x86_64").iterdir()) == [
        "launcher.so.zst",
        "sm_90a-0.so.zst",
    ]
    assert verify_bundle(out) == []


def test_two_libraries_of_one_name_are_refused(small, out):
    groups = tuple(
        replace(group, libraries={"x86_64": (replace(group.libraries["x86_64"][0], name="same"),)})
        for group in small.groups
    )
    with pytest.raises(BundleError, match=r"lib/x86_64/same\.so\.zst names two files"):
        write_bundle(replace(small, groups=groups), out)


@pytest.mark.parametrize("damage", ["torn", "exchanged"])
def test_a_library_that_is_not_what_was_linked_is_refused(small, out, damage):
    library = small.groups[0].libraries["x86_64"][0].path
    other = small.groups[1].libraries["x86_64"][0].path
    library.write_bytes(library.read_bytes()[:-1] if damage == "torn" else other.read_bytes())
    with pytest.raises(BundleError, match=r"packed-gemm.* has SHA-256 [0-9a-f]{64}, .* build again"):
        write_bundle(small, out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": "Small"}, "cannot name a bundle"),
        ({"name": "../small"}, "cannot name a bundle"),
        ({"groups": ()}, "nothing to write"),
        ({"targets": ()}, "names no target"),
        ({"targets": ("sm_90a", "sm_90a")}, "one twice"),
        ({"targets": ("sm_100a",)}, "is for sm_90a"),
        ({"hosts": ("x86_64", "aarch64")}, "needs them for"),
        ({"launchers": {}}, "has launchers for "),
        ({"licenses": {"../EULA.txt": b""}}, "cannot name a file"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(small, out, changes, says):
    with pytest.raises(BundleError, match=says):
        write_bundle(replace(small, **changes), out)
    assert not out.parent.exists()


def test_groups_that_contradict_themselves_are_refused(small, tmp_path, out):
    first = small.groups[0]
    mixed = (*first.entries, entry(kernels(dtypes=("f8e4m3",) * 3)[0]))
    for groups, says in (
        ([replace(first, entries=())], "has no kernels"),
        ([replace(first, entries=mixed)], "not functionally equivalent"),
        ([replace(first, entries=(first.entries[0],) * 2)], "a kernel twice"),
        ([first, first], "one twice"),
        ([replace(first, name="a/b")], "cannot name a file"),
    ):
        with pytest.raises(BundleError, match=says):
            write_bundle(replace(small, groups=groups), out)


def test_rankings_that_do_not_belong_are_refused(small, out):
    f16, bf16, fp8 = (kernels(dtypes=(dtype,) * 3) for dtype in ("f16", "bf16", "f8e4m3"))
    own = ranking(f16)
    turned = RankedProblems(problem._replace(seconds=problem.seconds[::-1]) for problem in own.problems)
    for rankings, says in (
        ([ranking(fp8)], "is of a group that bundle 'small' does not have"),
        ([own, own], "is given twice"),
        ([own, ranking(f16, problems=ranking(bf16).problems)], "is given twice"),
        ([ranking(f16, measured=False)], "has other numbers of kernels and times"),
        ([ranking(f16, problems=turned)], "are impossible, or not in order"),
        ([ranking(f16, problems=ranking(bf16).problems)], "names a kernel that bundle 'small' does not have"),
    ):
        with pytest.raises(BundleError, match=says):
            write_bundle(replace(small, rankings=rankings), out)
    assert not out.parent.exists()


def test_rankings_of_other_gpus_and_origins_live_side_by_side(small, out):
    f16 = kernels()
    several = [ranking(f16), modelled(f16), ranking(f16, gpu="NVIDIA B200")]
    write_bundle(replace(small, rankings=several), out)
    assert len(list((out / "rankings").iterdir())) == 3
    assert verify_bundle(out) == []


def test_a_ranking_changes_the_bundle_and_taking_it_away_removes_its_file(small, out):
    write_bundle(small, out)
    assert list((out / "rankings").iterdir())
    assert write_bundle(replace(small, rankings=()), out)
    assert not (out / "rankings").exists()
    assert verify_bundle(out) == []


def test_a_launcher_that_is_not_what_was_linked_is_refused(small, tmp_path, out):
    other = launcher(tmp_path / "linked", "other", machine=183)
    for wrong in (
        replace(small.launchers["x86_64"], path=other.path),
        replace(small.launchers["x86_64"], sha256="0" * 64),
    ):
        with pytest.raises(BundleError, match=r"packed-.* has SHA-256 [0-9a-f]{64}, .* build again"):
            write_bundle(replace(small, launchers={"x86_64": wrong}), out)
    assert not out.exists()


@pytest.mark.parametrize("name", ["../launcher", "a b", ""])
def test_a_launcher_with_an_impossible_name_is_refused(small, out, name):
    wrong = replace(small.launchers["x86_64"], name=name)
    with pytest.raises(BundleError, match="cannot name a file"):
        write_bundle(replace(small, launchers={"x86_64": wrong}), out)


def test_a_launcher_under_the_name_of_a_library_of_kernels_is_refused(small, out):
    taken = small.groups[0].libraries["x86_64"][0].name
    wrong = replace(small.launchers["x86_64"], name=taken)
    with pytest.raises(BundleError, match="names two files"):
        write_bundle(replace(small, launchers={"x86_64": wrong}), out)


def test_bundle_is_tells_this_bundle_from_any_other(small, tmp_path, out):
    write_bundle(small, out)
    sha256 = read_manifest(out)[CATALOG_NAME].sha256
    assert bundle_is(out, sha256)
    assert not bundle_is(out, "0" * 64)
    assert not bundle_is(tmp_path / "absent", sha256)
    library = next((out / "lib/x86_64").iterdir())
    data = library.read_bytes()
    library.write_bytes(data[:-1])
    assert not bundle_is(out, sha256)
    library.write_bytes(data[:-1] + b"!")
    assert not bundle_is(out, sha256)
    library.unlink()
    assert not bundle_is(out, sha256)
    (out / MANIFEST_NAME).write_bytes(b"{")
    assert not bundle_is(out, sha256)


@pytest.mark.parametrize("extra", ["unlisted", "listed", "link", "pipe"])
def test_a_bundle_with_a_foreign_file_is_not_this_bundle(small, out, extra):
    write_bundle(small, out)
    references = read_manifest(out)
    evil = "lib/x86_64/evil.so"
    if extra == "link":
        (out / evil).symlink_to("nowhere")
    elif extra == "pipe":
        os.mkfifo(out / evil)
    else:
        (out / evil).write_bytes(b"evil")
    if extra == "listed":
        listed = {**references, evil: FileReference(evil, 4, digest(b"evil"))}
        (out / MANIFEST_NAME).write_bytes(manifest_to_bytes(listed))
    assert verify_bundle(out) != []
    assert not bundle_is(out, references[CATALOG_NAME].sha256)


def test_a_manifest_in_another_form_is_not_this_bundle(small, out):
    write_bundle(small, out)
    sha256 = read_manifest(out)[CATALOG_NAME].sha256
    (out / MANIFEST_NAME).write_bytes((out / MANIFEST_NAME).read_bytes() + b" ")
    assert verify_bundle(out) != []
    assert not bundle_is(out, sha256)


def test_a_wider_catalog_changes_its_digest(small, tmp_path):
    wider = replace(small, groups=(*small.groups, group(tmp_path / "linked", kernels(layouts="ttt"))))
    write_bundle(small, tmp_path / "one")
    write_bundle(wider, tmp_path / "two")
    assert not bundle_is(tmp_path / "two", read_manifest(tmp_path / "one")[CATALOG_NAME].sha256)


def test_two_directories_change_places(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text(name)
    if not exchange(tmp_path / "one", tmp_path / "two"):
        pytest.skip("this file system cannot exchange two directories")
    assert tree(tmp_path) == {"one/two": b"two", "two/one": b"one"}
    with pytest.raises(FileNotFoundError) as raised:
        exchange(tmp_path / "one", tmp_path / "absent")
    assert raised.value.filename == str(tmp_path / "one")


@pytest.mark.skipif(os.uname().machine not in ("x86_64", "aarch64"), reason="the call's number is not known")
def test_an_old_c_library_is_no_obstacle(tmp_path, monkeypatch):
    able = files.ctypes.CDLL

    class Old:
        def __init__(self, name, use_errno):
            self.syscall = able(name, use_errno=use_errno).syscall

    (tmp_path / "one").write_text("one")
    (tmp_path / "two").write_text("two")
    if not exchange(tmp_path / "one", tmp_path / "two"):
        pytest.skip("this file system cannot exchange two files")
    monkeypatch.setattr(files.ctypes, "CDLL", Old)
    assert exchange(tmp_path / "one", tmp_path / "two")
    assert tree(tmp_path) == {"one": b"one", "two": b"two"}
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "one", tmp_path / "absent")


def test_what_cannot_be_exchanged_says_so(tmp_path):
    # The kernel's answer to this is the one that a file system without an exchange gives.
    (tmp_path / "inside").mkdir()
    assert exchange(tmp_path, tmp_path / "inside") is False


def test_a_writer_that_waited_looks_again(small, tmp_path, out, monkeypatch):
    write_bundle(small, tmp_path / "elsewhere")

    original, tried = replacing.Lock.try_acquire, []

    def after_another_writer(self):
        assert self.path == out.parent / f".{out.name}.lock"
        tried.append(self.path)
        if len(tried) < 3:
            return False
        shutil.copytree(tmp_path / "elsewhere", out)
        return original(self)

    monkeypatch.setattr(replacing.Lock, "try_acquire", after_another_writer)
    assert not write_bundle(small, out)
    assert verify_bundle(out) == []
    assert left_behind(out) == []


def test_a_writer_does_not_wait_for_ever(small, out, monkeypatch):
    monkeypatch.setattr(replacing, "WAIT_SECONDS", 0.2)
    out.parent.mkdir()
    other = Lock(out.parent / ".small.lock")
    assert other.try_acquire()
    with pytest.raises(BundleError, match="another process has been writing"):
        write_bundle(small, out)
    other.release()
    assert write_bundle(small, out).written


def test_a_lock_that_a_killed_writer_left_goes_too(small, out):
    out.parent.mkdir()
    (out.parent / ".small.lock").touch()
    assert write_bundle(small, out).written
    assert left_behind(out) == []


def test_where_there_are_no_locks_nobody_s_staging_is_removed(small, out, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", none)
    other = out.parent / ".small.staging-abcdefgh"
    other.mkdir(parents=True)
    assert write_bundle(small, out).written
    assert other.is_dir()


@pytest.mark.parametrize("place", ["a file", "a link that leads nowhere", "/proc"])
def test_an_output_that_cannot_be_written_is_found_without_writing(tmp_path, place):
    parent = tmp_path / "parent"
    if place == "a file":
        parent.touch()
    elif place == "/proc":
        parent = Path("/proc/self")
    else:
        parent.symlink_to(tmp_path / "gone" / "far")
        (tmp_path / "gone").touch()
    with pytest.raises(BundleError, match="cannot write the bundle"):
        check_output(parent / "deep" / "small")


def test_looking_whether_an_output_can_be_written_leaves_nothing(tmp_path):
    check_output(tmp_path / "not" / "there" / "small")
    assert list(tmp_path.iterdir()) == []


def write_often(folder, out, exchanges, rounds):
    """Another process: write two bundles by turns; how often something was written."""
    if not exchanges:
        replacing.exchange = lambda first, second: False
    first = plan(folder)
    both = (first, replace(first, version="0.2.0"))
    return sum(write_bundle(both[turn % 2], out).written for turn in range(rounds))


def read_often(out, done):
    """Another process: look at what is there until the writers are; how often a whole bundle was read."""
    whole = 0
    while not done.exists():
        # Held open, so that its number is not given to the next directory.
        folder = os.open(out, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                found = [str(problem) for problem in verify_bundle(out)]
            except CutlassAotError as error:
                found = [str(error)]
            # One that was replaced while it was read is gone by right.
            if os.path.samestat(os.fstat(folder), out.stat()):
                assert found == []
                whole += 1
        finally:
            os.close(folder)
    return whole


@pytest.mark.parametrize("exchanges", [True, False])
def test_many_writers_and_a_reader_do_not_disturb_one_another(small, tmp_path, out, exchanges):
    write_bundle(small, out)
    if exchanges:
        (tmp_path / "probe").mkdir()
        exchanges = exchange(tmp_path / "probe", tmp_path / "linked")
        if exchanges:
            exchange(tmp_path / "probe", tmp_path / "linked")
    done, rounds = tmp_path / "done", 60 if exchanges else 20
    with ProcessPoolExecutor(4, multiprocessing.get_context("spawn")) as pool:
        writers = [
            pool.submit(write_often, tmp_path / f"writer{n}", out, exchanges, rounds) for n in range(3)
        ]
        # Without the exchange there is no bundle for a moment, and a reader may find none.
        reader = pool.submit(read_often, out, done) if exchanges else None
        try:
            written = [writer.result() for writer in writers]
        finally:
            done.touch()
        assert sum(written) >= rounds
        if reader is not None:
            assert reader.result() > 0
    assert verify_bundle(out) == []
    assert left_behind(out) == []


def write_and_be_killed(folder, out, at):
    """Another process: write a bundle, and be killed at a given point of it."""

    def kill(*arguments):
        os.kill(os.getpid(), signal.SIGKILL)

    def exchange_and_kill(first, second):
        exchange(first, second)
        kill()

    rename = type(out).rename

    def rename_or_kill(path, target):
        kill() if path.name == "new" else rename(path, target)

    if at == "filled":
        replacing._swap_in = kill
    elif at == "exchanged":
        replacing.exchange = exchange_and_kill
    else:
        replacing.exchange = lambda first, second: False
        type(out).rename = rename_or_kill
    write_bundle(replace(plan(folder), version="0.2.0"), out)


@pytest.mark.parametrize("at", ["filled", "exchanged", "moved aside"])
def test_a_killed_writer_leaves_a_bundle_and_the_next_one_clears_up(small, tmp_path, out, monkeypatch, at):
    write_bundle(small, out)
    writer = multiprocessing.get_context("spawn").Process(
        target=write_and_be_killed, args=(tmp_path / "killed", out, at)
    )
    writer.start()
    writer.join()
    assert writer.exitcode == -signal.SIGKILL
    assert [name.rpartition("-")[0] for name in sorted(left_behind(out))] == ["", ".small.staging"]
    if at != "moved aside":
        assert verify_bundle(out) == []
    else:
        assert not out.exists()

    # What looks like ours and is not: another bundle's, a file, a link.
    out.with_name(".small.staging-x.staging-abcd").mkdir()
    out.with_name(".small.staging-file").write_text("mine")
    out.with_name(".small.staging-link").symlink_to(tmp_path)
    foreign = {".small.staging-x.staging-abcd", ".small.staging-file", ".small.staging-link"}

    # The next writer fails: even so the bundle that was moved aside is back.
    with monkeypatch.context() as failing:
        failing.setattr(write, "_fill", lambda *arguments: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(BundleError, match="full"):
            write_bundle(replace(small, version="0.3.0"), out)
    assert verify_bundle(out) == []
    assert set(left_behind(out)) == foreign
    assert write_bundle(replace(small, version="0.3.0"), out)
    assert read_catalog(out).version == "0.3.0"
    assert verify_bundle(out) == []
    assert set(left_behind(out)) == foreign


def test_a_manifest_that_no_reader_takes_is_not_put_in_the_place_of_another(small, out, monkeypatch):
    write_bundle(small, out)
    before = manifest_to_bytes(read_manifest(out))
    monkeypatch.setattr(write, "MAX_MANIFEST_BYTES", len(before))
    write_bundle(replace(small, version="2"), out)
    monkeypatch.setattr(write, "MAX_MANIFEST_BYTES", len(before) - 1)
    with pytest.raises(
        BundleError, match=rf"would have {len(before)} bytes, at most {len(before) - 1} can be"
    ):
        write_bundle(replace(small, version="3"), out)
    assert read_catalog(out).version == "2"

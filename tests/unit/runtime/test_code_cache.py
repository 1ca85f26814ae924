"""Unpacked GPU code: shared by processes, verified before it is given out; in memory if it must be."""

from __future__ import annotations

import errno
import fcntl
import gc
import logging
import os
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutlass_aot.errors import BundleError, CorruptFile
from cutlass_aot.runtime.launching import code_cache, unpacking
from cutlass_aot.runtime.launching.gpu_code import Code
from cutlass_aot.schema.bundles.catalog import FileReference
from cutlass_aot.schema.bundles.group_index import CodeSpan
from cutlass_aot.schema.compression import compress
from cutlass_aot.schema.encoding import digest
from tests.support.clock import SOON

PARTS = [bytes([number]) * (1000 + number) for number in range(40)]
SPANS = [
    CodeSpan(sum(map(len, PARTS[:number])), len(part), digest(part)) for number, part in enumerate(PARTS)
]
PROCESSES = 200


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shared directory, which does not exist yet."""
    monkeypatch.setenv(code_cache.DIRECTORY_VARIABLE, str(tmp_path / "shared"))
    monkeypatch.delenv(unpacking.LIMIT_VARIABLE, raising=False)
    monkeypatch.setattr(unpacking, "_told", set())
    monkeypatch.setattr(unpacking, "_held_up", set())
    return tmp_path / "shared"


def packed(root: Path, name: str = "k", content: bytes = b"".join(PARTS)) -> FileReference:
    """A file of GPU code in a bundle."""
    root.mkdir(exist_ok=True)
    data = compress(content, 3)
    (root / f"{name}.zst").write_bytes(data)
    return FileReference(f"{name}.zst", len(data), digest(data))


@pytest.fixture
def reference(tmp_path: Path) -> FileReference:
    return packed(tmp_path / "bundle")


@pytest.fixture
def code(tmp_path: Path, reference: FileReference) -> Callable[[], Code]:
    """Makes the code as another process would see it."""
    return lambda: Code(tmp_path / "bundle", reference)


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.code"))


def test_the_first_use_unpacks_and_the_next_process_reads(
    code: Callable[[], Code], folder: Path, tmp_path: Path
) -> None:
    first = code()
    assert first.kept is None
    assert [first.read(span) for span in SPANS] == PARTS
    (file,) = kept(folder)
    assert first.kept == file
    assert file.read_bytes() == b"".join(PARTS)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    # From now on the packed file is not needed.
    (tmp_path / "bundle" / "k.zst").unlink()
    assert code().read(SPANS[7]) == PARTS[7]


def test_nothing_is_unpacked_before_it_is_needed(code: Callable[[], Code], folder: Path) -> None:
    code()
    assert not folder.exists()


def test_an_altered_packed_file_is_not_unpacked(
    tmp_path: Path, code: Callable[[], Code], folder: Path
) -> None:
    file = tmp_path / "bundle" / "k.zst"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CorruptFile, match=r"k\.zst has SHA-256 .* altered"):
        code().read(SPANS[0])
    assert kept(folder) == []
    assert list(folder.glob(".new-*")) == []


@pytest.mark.parametrize("content", [b"no frame", b"", compress(b"short", 3), compress(b"a", 3) * 2])
def test_what_is_no_code_is_an_error_and_not_kept(tmp_path: Path, content: bytes, folder: Path) -> None:
    root = tmp_path / "other"
    root.mkdir()
    (root / "x.zst").write_bytes(content)
    code = Code(root, FileReference("x.zst", len(content), digest(content)))
    with pytest.raises(CorruptFile, match=r"x\.zst: "):
        code.read(SPANS[0])
    assert list(folder.glob(".new-*")) == []


def test_a_missing_packed_file_is_an_error(tmp_path: Path, code: Callable[[], Code]) -> None:
    (tmp_path / "bundle" / "k.zst").unlink()
    with pytest.raises(BundleError, match="is missing"):
        code().read(SPANS[0])


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_becomes_of_the_shared_file_the_code_is_right(
    data: st.DataObject, code: Callable[[], Code], folder: Path
) -> None:
    open_before = code()
    assert open_before.read(SPANS[0]) == PARTS[0]
    for file in kept(folder):
        content = bytearray(file.read_bytes())
        for place in data.draw(st.lists(st.integers(0, len(content) - 1), max_size=3)):
            content[place] ^= data.draw(st.integers(1, 255))
        # In place, as nobody of ours does.
        with file.open("r+b") as stream:
            stream.write(content)
            stream.truncate(data.draw(st.integers(0, len(content))))
    for span, part in zip(SPANS, PARTS, strict=True):
        assert open_before.read(span) == part
    assert [code().read(span) for span in SPANS] == PARTS


@pytest.mark.parametrize("instead", ["link", "dangling", "fifo", "directory", "empty"])
def test_something_else_under_the_name_is_not_read(
    code: Callable[[], Code], folder: Path, tmp_path: Path, reference: FileReference, instead: str
) -> None:
    folder.mkdir()
    path = folder / f"{reference.sha256}.code"
    target = tmp_path / "elsewhere"
    if instead == "link":
        target.write_bytes(b"x" * 100_000)
        path.symlink_to(target)
    elif instead == "dangling":
        path.symlink_to(target)
    elif instead == "fifo":
        os.mkfifo(path)
    elif instead == "directory":
        path.mkdir()
    else:
        path.write_bytes(b"")
    assert code().read(SPANS[3]) == PARTS[3]
    if instead == "link":
        assert target.read_bytes() == b"x" * 100_000
    if instead != "directory":
        assert path.read_bytes() == b"".join(PARTS)
        assert not path.is_symlink()


@pytest.mark.parametrize("where", ["", "/proc/nowhere/at/all", "file/below"])
def test_without_a_directory_the_code_is_in_memory(
    code: Callable[[], Code],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    (tmp_path / "file").write_bytes(b"")
    named = str(tmp_path / where) if where.startswith("file") else where
    monkeypatch.setenv(code_cache.DIRECTORY_VARIABLE, named)
    with caplog.at_level(logging.WARNING, "cutlass_aot"):
        made = code()
        assert [made.read(span) for span in SPANS] == PARTS
        assert code().read(SPANS[1]) == PARTS[1]
    assert made.kept is None
    # Said once, and only where something is wrong.
    assert len(caplog.records) == (1 if where else 0)
    if where:
        assert f"cannot be kept in {named}" in caplog.text
        assert "in memory" in caplog.text


def nothing_new(patch: pytest.MonkeyPatch, error: OSError) -> None:
    """A disk on which no file can be made; what is there can be read."""
    opened = os.open

    def refused(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if flags & os.O_CREAT:
            raise error
        return opened(path, flags, *rest, **named)

    patch.setattr(os, "open", refused)


def test_a_directory_that_may_only_be_read_serves(
    code: Callable[[], Code], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code().read(SPANS[0])

    def refused(*_: Any, **__: Any) -> Any:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    for name in ("utime", "unlink", "replace", "mkdir"):
        monkeypatch.setattr(os, name, refused)
    nothing_new(monkeypatch, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    (file,) = kept(folder)
    assert code().read(SPANS[5]) == PARTS[5]
    assert kept(folder) == [file]


@pytest.mark.parametrize("call", ["write", "open", "replace"])
def test_a_full_disk_means_memory(
    code: Callable[[], Code],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if call == "open":
            nothing_new(patch, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        else:
            patch.setattr(os if call == "write" else Path, call, full)
        with caplog.at_level(logging.WARNING, "cutlass_aot"):
            assert [code().read(span) for span in SPANS] == PARTS
    assert "No space left on device" in caplog.text
    assert kept(folder) == []
    assert list(folder.glob(".new-*")) == []


def test_a_home_that_is_nobodys_means_memory(
    monkeypatch: pytest.MonkeyPatch, code: Callable[[], Code]
) -> None:
    monkeypatch.delenv(code_cache.DIRECTORY_VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/")
    assert code_cache.directory() is None
    assert code().read(SPANS[2]) == PARTS[2]


def test_where_the_directory_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(code_cache.DIRECTORY_VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative, and so not counted")
    assert code_cache.directory() == tmp_path / ".cache" / "cutlass-aot"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert code_cache.directory() == tmp_path / "x" / "cutlass-aot"


def test_what_was_used_longest_ago_goes_first(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum(map(len, PARTS))
    monkeypatch.setenv(unpacking.LIMIT_VARIABLE, str(3 * size))
    references = [packed(tmp_path / "bundle", str(n), b"".join(PARTS) + bytes([n])) for n in range(5)]
    used: list[Code] = []
    for number, reference in enumerate(references):
        used.append(Code(tmp_path / "bundle", reference))
        # What is asked for is the first part: room is needed for all of them.
        used[-1].read(SPANS[0])
        (file,) = (path for path in kept(folder) if path.name.startswith(reference.sha256))
        os.utime(file, (number * 1000, number * 1000))
    assert len(kept(folder)) <= 3
    assert not any(path.name.startswith(references[0].sha256) for path in kept(folder))
    assert any(path.name.startswith(references[4].sha256) for path in kept(folder))
    # Whoever needs it again has it again.
    assert used[0].read(SPANS[4]) == PARTS[4]
    assert any(path.name.startswith(references[0].sha256) for path in kept(folder))


def test_use_is_noted(code: Callable[[], Code], folder: Path) -> None:
    code().read(SPANS[0])
    (file,) = kept(folder)
    long_ago = time.time() - 100_000
    os.utime(file, (long_ago, long_ago))
    code().read(SPANS[0])
    assert file.stat().st_mtime > long_ago + 50_000


def test_an_impossible_limit_is_said(
    code: Callable[[], Code], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(unpacking.LIMIT_VARIABLE, "much")
    with caplog.at_level(logging.WARNING, "cutlass_aot"):
        assert code().read(SPANS[0]) == PARTS[0]
    assert "CUTLASS_AOT_CACHE_BYTES is 'much': expected a number of bytes" in caplog.text


def test_what_a_killed_process_left_goes(code: Callable[[], Code], folder: Path) -> None:
    folder.mkdir()
    left, fresh, other = (folder / f".new-{name}" for name in ("ab" * 16, "cd" * 16, "folder-of-a-tool"))
    for path in (left, fresh, other, folder / "mine"):
        path.write_bytes(b"half")
    for path in (left, other):
        os.utime(path, (1, 1))
    code().read(SPANS[0])
    assert not left.exists()
    assert fresh.exists()
    assert other.exists()
    assert (folder / "mine").exists()


@pytest.mark.parametrize("whose", ["directory", "files"])
def test_nothing_of_others_is_removed(
    tmp_path: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    whose: str,
) -> None:
    """Where what others have leaves no room, code is in memory."""
    if os.geteuid() != 0:
        pytest.skip("only the superuser makes files of others")
    size = sum(map(len, PARTS))
    monkeypatch.setenv(unpacking.LIMIT_VARIABLE, str(2 * size))
    references = [packed(tmp_path / "bundle", str(n), b"".join(PARTS) + bytes([n])) for n in range(3)]
    assert Code(tmp_path / "bundle", references[0]).read(SPANS[0]) == PARTS[0]
    theirs = folder / f".new-{'ab' * 16}"
    theirs.write_bytes(b"half")
    os.utime(theirs, (1, 1))
    for path in (folder,) if whose == "directory" else (*kept(folder), theirs):
        os.chown(path, 12345, -1)
    before = kept(folder)
    last = Code(tmp_path / "bundle", references[1])
    with caplog.at_level(logging.WARNING, "cutlass_aot"):
        assert last.read(SPANS[0]) == PARTS[0]
    assert last.kept is None
    assert "not this process's to remove" in caplog.text
    assert kept(folder) == before
    assert theirs.exists()
    assert list(folder.glob(".new-*")) == [theirs]


def test_locks_that_do_not_work_are_done_without(
    code: Callable[[], Code], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refused)
    assert code().read(SPANS[0]) == PARTS[0]
    assert len(kept(folder)) == 1


def test_whoever_holds_all_locks_holds_a_process_up_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that was stopped, or another user who may write there."""
    monkeypatch.setattr(unpacking, "LOCK_SECONDS", 0.5)
    references = [packed(tmp_path / "bundle", str(n), b"".join(PARTS) + bytes([n])) for n in range(80)]
    folder.mkdir()
    held = []
    try:
        for reference in references[1:]:
            held.append(os.open(folder / f".{reference.sha256[:16]}.lock", os.O_RDWR | os.O_CREAT, 0o600))
            fcntl.flock(held[-1], fcntl.LOCK_EX)
        assert Code(tmp_path / "bundle", references[0]).read(SPANS[0]) == PARTS[0]
        start = time.monotonic()
        with caplog.at_level(logging.WARNING, "cutlass_aot"):
            for reference in references[1:]:
                assert Code(tmp_path / "bundle", reference).read(SPANS[0]) == PARTS[0]
        assert 0.5 <= time.monotonic() - start < SOON  # each for itself: 40 s
        assert caplog.text.count("another process has held") == 1
        with pytest.raises(BundleError, match="another process has held"):
            Code(tmp_path / "bundle", references[1]).fill(folder, SPANS, None)
        # What is there is read.
        assert Code(tmp_path / "bundle", references[0]).read(SPANS[1]) == PARTS[1]
    finally:
        for descriptor in held:
            os.close(descriptor)
    assert len(kept(folder)) == 1


def test_threads_that_wait_for_different_locks_wait_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr(unpacking, "LOCK_SECONDS", 0.5)
    monkeypatch.setattr(unpacking.Lock, "try_acquire", lambda self: False)
    references = [packed(tmp_path / "bundle", str(n), b"".join(PARTS) + bytes([n])) for n in range(160)]
    start = time.monotonic()
    with ThreadPoolExecutor(2) as pool:
        read = [pool.submit(Code(tmp_path / "bundle", item).read, SPANS[0]) for item in references]
        assert [future.result() for future in read] == [PARTS[0]] * len(references)
    assert time.monotonic() - start < SOON  # one after the other: 40 s


def test_a_lock_that_is_a_link_is_not_followed(
    code: Callable[[], Code], folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = code()
    folder.mkdir()
    (folder / f".{made._reference.sha256[:16]}.lock").symlink_to(tmp_path / "elsewhere")
    with caplog.at_level(logging.WARNING, "cutlass_aot"):
        assert made.read(SPANS[0]) == PARTS[0]
    assert "cannot be kept" in caplog.text
    assert not (tmp_path / "elsewhere").exists()


def test_threads_that_find_damage_all_get_what_is_right(code: Callable[[], Code], folder: Path) -> None:
    code().read(SPANS[0])
    (file,) = kept(folder)
    # What tests before left to the garbage collector may have files open, which it closes at any time.
    gc.collect()
    opened = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(40):
        file.write_bytes(b"?" * sum(map(len, PARTS)))
        shared = code()
        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(shared.read, SPANS[:8])) == PARTS[:8]
        code().read(SPANS[0])
    assert len(list(Path("/proc/self/fd").iterdir())) <= opened


def test_a_disk_that_fails_when_it_is_read_means_memory(
    code: Callable[[], Code], folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    code().read(SPANS[0])

    def stale(*_: Any) -> bytes:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(os, "pread", stale)
    with caplog.at_level(logging.WARNING, "cutlass_aot"):
        assert [code().read(span) for span in SPANS[:3]] == PARTS[:3]
    assert os.strerror(errno.ESTALE) in caplog.text


def test_a_name_that_is_no_digest_is_no_path(folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious.code"
    precious.write_bytes(b"")
    for name in (str(tmp_path / "precious"), "../precious", "A" * 64):
        with pytest.raises(ValueError, match="is not a digest"):
            unpacking.read(name, 0, 1, lambda: [b"x"])
    assert precious.exists()
    assert not folder.exists()


def test_two_hundred_processes_at_once_unpack_each_file_once(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    references = [packed(tmp_path / "bundle", str(n), b"".join(PARTS) + bytes([n])) for n in range(3)]
    log = tmp_path / "unpacked"
    real = Code._pieces

    def counted(self: Code) -> Iterator[bytes]:
        with log.open("ab", buffering=0) as stream:
            stream.write(f"{self._reference.path}\n".encode())
        # Long enough for all of them to be there.
        time.sleep(0.2)
        return real(self)

    monkeypatch.setattr(Code, "_pieces", counted)
    start, go = os.pipe()
    children = []
    for number in range(PROCESSES):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.close(go)
                os.read(start, 1)  # until the parent closes its end
                for step in range(3):
                    made = Code(tmp_path / "bundle", references[(number + step) % 3])
                    if [made.read(span) for span in SPANS] != PARTS or made.kept is None:
                        os._exit(2)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    os.close(start)
    os.close(go)
    statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert statuses == [0] * PROCESSES
    assert sorted(log.read_text().split()) == ["0.zst", "1.zst", "2.zst"]
    assert [path.stat().st_size for path in kept(folder)] == [sum(map(len, PARTS)) + 1] * 3


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own, if this process may mount one."""
    path = tmp_path / "disk"
    path.mkdir()
    done = _mount("-t", "tmpfs", "-o", "size=16k", "tmpfs", str(path))
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def _mount(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)


def test_on_a_disk_that_is_full_or_read_only_it_still_runs(
    disk: Path, code: Callable[[], Code], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(code_cache.DIRECTORY_VARIABLE, str(disk / "shared"))
    with caplog.at_level(logging.WARNING, "cutlass_aot"):
        assert [code().read(span) for span in SPANS] == PARTS
        assert "No space left on device" in caplog.text
        assert _mount("-o", "remount,size=1m", str(disk)).returncode == 0
        kept_now = code()
        assert kept_now.read(SPANS[0]) == PARTS[0]
        assert kept_now.kept is not None
        assert _mount("-o", "remount,ro", str(disk)).returncode == 0
        # What is there is read; what is not is unpacked in memory.
        assert code().read(SPANS[6]) == PARTS[6]
        monkeypatch.setenv(code_cache.DIRECTORY_VARIABLE, str(disk / "another"))
        monkeypatch.setattr(unpacking, "_told", set())
        assert code().read(SPANS[6]) == PARTS[6]
        assert "Read-only file system" in caplog.text


def test_the_state_says_where_and_why_not(
    code: Callable[[], Code], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert unpacking.state() == unpacking.State(folder, 0, unpacking.DEFAULT_LIMIT, "")
    assert not folder.exists()
    code().read(SPANS[0])
    assert unpacking.state().held == sum(map(len, PARTS))
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv(code_cache.DIRECTORY_VARIABLE, str(tmp_path / "file" / "below"))
    assert unpacking.state().problem == f"{tmp_path / 'file'} is not a directory"
    monkeypatch.setenv(code_cache.DIRECTORY_VARIABLE, "")
    assert unpacking.state() == unpacking.State(
        None, 0, unpacking.DEFAULT_LIMIT, "CUTLASS_AOT_CACHE is empty"
    )

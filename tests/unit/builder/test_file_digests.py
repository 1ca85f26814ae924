"""Files and folders that something was made from: what counts as a change, and what is read again."""

from __future__ import annotations

import os
import time

import pytest

from cutlass_aot.builder.inputs import file_digests
from cutlass_aot.builder.inputs.file_digests import (
    MISSING,
    Files,
    Seen,
    look_into,
    settled,
)
from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.codec import codec_of, from_plain

UNTRUSTED = (-1, -1, -1, -1)


def old(path):
    """Let a file's times lie back far enough to be trusted, as far as a test may: its change time is now."""
    os.utime(path, (1_000_000_000, 1_000_000_000))


@pytest.fixture
def later(monkeypatch):
    """The clock runs an hour ahead of the file system's: what was written just now has settled."""
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() + 3600 * 10**9)


def reads(monkeypatch):
    """Names of the files that are read from here on."""
    found = []
    plain = file_digests._look

    def look(name, remembered):
        seen = plain(name, remembered)
        if seen is not remembered:
            found.append(name)
        return seen

    monkeypatch.setattr(file_digests, "_look", look)
    return found


def test_a_file_is_read_once_and_not_at_all_where_its_stamp_is_remembered(tmp_path, later, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"1")
    first = Files()
    assert first.digest(path) == first.digest(path)
    assert first.changed()
    read = reads(monkeypatch)
    again = Files(from_plain(dict[str, Seen], codec_of(dict[str, Seen]).to_plain(first.used), "it"))
    assert again.digest(path) == first.digest(path)
    assert not read
    assert not again.changed()


@pytest.mark.parametrize("change", ["bytes", "size", "times", "exchange", "remove"])
def test_a_change_is_seen(tmp_path, later, change):
    path = tmp_path / "a"
    path.write_bytes(b"1")
    first = Files()
    before = first.digest(path)
    if change == "bytes":
        path.write_bytes(b"2")
    elif change == "size":
        path.write_bytes(b"12")
    elif change == "times":
        path.write_bytes(b"2")
        os.utime(path, ns=(0, first.used[str(path)].stamp[1]))
    elif change == "exchange":
        (tmp_path / "b").write_bytes(b"2")
        (tmp_path / "b").replace(path)
    else:
        path.unlink()
    after = Files(first.used).digest(path)
    assert after != before
    assert (after == MISSING) == (change == "remove")


def test_what_was_written_a_moment_ago_is_read_again(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(b"1")
    first = Files()
    first.digest(path)
    assert first.used[str(path)].stamp == UNTRUSTED
    read = reads(monkeypatch)
    Files(first.used).digest(path)
    assert read == [str(path)]


@pytest.mark.parametrize(
    ("modified", "changed", "trusted"),
    [(0, 0, True), (0, 9 * 10**9, False), (9 * 10**9, 0, False), (99 * 10**9, 0, False)],
)
def test_times_are_trusted_when_they_lie_back(modified, changed, trusted):
    stamp = (1, modified, changed, 7)
    assert (settled(stamp, 10 * 10**9) == stamp) == trusted


def test_a_folder_is_its_names(tmp_path, later):
    (tmp_path / "b").touch()
    first = look_into(str(tmp_path))
    assert look_into(str(tmp_path), first) is first
    (tmp_path / "b").write_text("other bytes")
    assert look_into(str(tmp_path)).digest == first.digest
    (tmp_path / "c").touch()
    assert look_into(str(tmp_path), first).digest != first.digest
    assert look_into(str(tmp_path / "none")) == Seen(MISSING, UNTRUSTED)


def test_only_what_can_be_imported_counts_on_the_search_path(tmp_path):
    first = look_into(str(tmp_path), importable=True).digest
    for name in ("notes.txt", "a.o", "no-package.d", "__pycache__"):
        (tmp_path / name).mkdir()
    assert look_into(str(tmp_path), importable=True).digest == first
    for name in ("module.py", "package", "thing-1.0.dist-info", "native.so"):
        before = look_into(str(tmp_path), importable=True).digest
        (tmp_path / name).mkdir()
        assert look_into(str(tmp_path), importable=True).digest != before


@pytest.mark.parametrize("row", [1, ["b"], ["b", [1, 2, 3]], ["b", [1, 2, 3, "x"]]])
def test_rows_that_are_something_else_are_refused(row):
    with pytest.raises(CorruptFile):
        from_plain(dict[str, Seen], {"a": row}, "it")

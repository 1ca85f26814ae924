"""Shares of a build: every key in exactly one, as many in one as in another, whoever works it out."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.builder.plan.recipe import Origins, PlannedBundle, Recipe
from cutlass_aot.builder.records import Selection
from cutlass_aot.builder.shard import Shard, Share, read_shard, write_shard
from cutlass_aot.bundle import replace
from cutlass_aot.errors import BundleError
from cutlass_aot.store.store import Store

KEYS = st.lists(st.text("0123456789abcdef", min_size=4, max_size=4), unique=True, max_size=60)


@given(KEYS, st.integers(1, 20))
def test_every_key_is_in_exactly_one_share(keys, count):
    shares = [Share(index, count).of(keys) for index in range(1, count + 1)]
    assert sorted(key for share in shares for key in share) == sorted(keys)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@given(KEYS, st.randoms(), st.integers(1, 5))
def test_the_order_of_keys_does_not_matter(keys, random, count):
    shuffled = list(keys)
    random.shuffle(shuffled)
    assert Share(1, count).of(shuffled) == Share(1, count).of(keys)


@given(st.integers(1, 999_999), st.integers(1, 999_999))
def test_a_share_is_read_as_it_is_written(index, count):
    if index <= count:
        assert Share.parse(f"{index}/{count}") == Share(index, count)
    else:
        with pytest.raises(ValueError, match="such as 3/16"):
            Share.parse(f"{index}/{count}")


@pytest.mark.parametrize(
    "text", ["", "1", "1/", "/2", "1/2/3", "1.5/2", " 1/2", "\uff11/\uff12", "0/0", "9999999/9999999"]
)
def test_what_is_no_share_is_refused(text):
    with pytest.raises(ValueError, match="such as 3/16"):
        Share.parse(text)


# -- writing ------------------------------------------------------------------------------------------------


def write(folder: Path, version: str) -> Path:
    """Write a shard without kernels of a bundle of this version."""
    recipe = Recipe("many", version, "h200", ("sm_90a",), ("x86_64",))
    planned = PlannedBundle(recipe, Selection((), ()), Origins({}, "t", {}, "s", {}), ())
    path = folder / "many.shard-1-of-2"
    write_shard(Shard(Share(1, 2), planned, path), {}, Store(folder / "store"))
    return path


def version_of(path: Path) -> str:
    return read_shard(path).planned.recipe.version


@pytest.fixture(params=[True, False], ids=["exchange", "no exchange"])
def exchanges(request, monkeypatch):
    """Whether the file system exchanges directories."""
    if not request.param:
        monkeypatch.setattr(replace, "exchange", lambda first, second: False)
    return request.param


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_shard_replaces_another(tmp_path, exchanges):
    assert version_of(write(tmp_path, "1")) == "1"
    assert version_of(write(tmp_path, "2")) == "2"
    assert left(tmp_path) == ["many.shard-1-of-2", "store"]


def failing_renames(monkeypatch, fails) -> None:
    """Have renames fail of which ``fails`` is true, by the name of what is moved, as a full disk would."""
    rename = Path.rename

    def maybe(self: Path, target: Path) -> Path:
        if fails(self):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", maybe)


@pytest.mark.parametrize("of", ["new", "many.shard-1-of-2"])
def test_a_shard_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path, monkeypatch, of):
    path = write(tmp_path, "1")
    with monkeypatch.context() as fault:
        fault.setattr(replace, "exchange", lambda first, second: False)
        failing_renames(fault, lambda moved: moved.name == of)
        with pytest.raises(BundleError, match=r"many.shard-1-of-2 cannot be written: .*No space left"):
            write(tmp_path, "2")
    assert version_of(path) == "1"
    assert left(tmp_path) == ["many.shard-1-of-2", "store"]


def test_a_shard_that_cannot_be_put_back_stays_whole_beside_its_place(tmp_path, monkeypatch):
    path = write(tmp_path, "1")
    with monkeypatch.context() as fault:
        fault.setattr(replace, "exchange", lambda first, second: False)
        failing_renames(fault, lambda moved: moved.name != path.name)
        with pytest.raises(BundleError, match=r"it is whole, at .*\.many\.shard-1-of-2\.replaced$"):
            write(tmp_path, "2")
    assert version_of(tmp_path / ".many.shard-1-of-2.replaced") == "1"
    # The next writer puts it back, also if it fails itself.
    with monkeypatch.context() as fault:
        fault.setattr("cutlass_aot.builder.shard.swap_in", lambda *_: (_ for _ in ()).throw(OSError("full")))
        with pytest.raises(BundleError, match="full"):
            write(tmp_path, "3")
    assert version_of(path) == "1"
    assert version_of(write(tmp_path, "3")) == "3"
    assert left(tmp_path) == ["many.shard-1-of-2", "store"]

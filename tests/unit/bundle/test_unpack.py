"""Kernels of a bundle as plain files: what is taken is verified, and nothing half is left."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.bundle.unpack import unpack_bundle
from cutlass_aot.errors import BundleError, CorruptFile, CutlassAotError
from cutlass_aot.schema import compression
from tests.support.bundles import FAKE_LIBRARY, HOST, code_of, designs, write_bundle


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle", [*designs(), *designs(dtypes=("bf16",) * 3)])


def test_every_kernel_has_its_code_and_its_library(bundle: Path, tmp_path: Path) -> None:
    output = tmp_path / "new" / "out"
    index = unpack_bundle(bundle, output)
    assert json.loads((output / "index.json").read_text()) == index
    assert [item["name"] for item in index] == sorted(item["name"] for item in index)
    kernels = {kernel.symbol: kernel for kernel in [*designs(), *designs(dtypes=("bf16",) * 3)]}
    assert {item["symbol"] for item in index} == set(kernels)
    for item in index:
        assert (output / item["code"]).read_bytes() == code_of(kernels[item["symbol"]])
        assert (output / item["libraries"][HOST]).read_bytes() == FAKE_LIBRARY
    files = {path.relative_to(output).as_posix() for path in output.rglob("*") if path.is_file()}
    assert files == {
        "index.json",
        *(item["code"] for item in index),
        *(item["libraries"][HOST] for item in index),
    }


def test_equal_bundles_give_equal_files(bundle: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        unpack_bundle(bundle, tmp_path / name)
    one, two = (
        {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "one", tmp_path / "two")
    )
    assert one == two


def test_kernels_that_are_named_alone(bundle: Path, tmp_path: Path) -> None:
    kernel = designs()[1]
    (item,) = unpack_bundle(bundle, tmp_path / "out", [kernel.digest[:16]])
    assert item["symbol"] == kernel.symbol
    assert len(list((tmp_path / "out" / "code").iterdir())) == 1


def test_others_may_read_it_whatever_the_umask_is(bundle: Path, tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        unpack_bundle(bundle, tmp_path / "out")
    finally:
        os.umask(before)
    everything = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in everything if path.is_dir()} == {0o755}
    assert {path.stat().st_mode & 0o777 for path in everything if path.is_file()} == {0o644}
    assert len([path for path in everything if path.is_dir()]) == 4


def test_a_link_that_leads_nowhere_is_something(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to(tmp_path / "nowhere")
    with pytest.raises(BundleError, match=r"out exists: name a directory that is to be made, or remove it"):
        unpack_bundle(bundle, tmp_path / "out")
    assert (tmp_path / "out").is_symlink()


@pytest.mark.parametrize("where", ["before", "at the end"])
def test_a_disk_that_refuses_is_told_with_what_to_do(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def refuse(self: Path, *arguments: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "mkdir" if where == "before" else "rename", refuse)
    with pytest.raises(
        BundleError,
        match=r"cannot write the unpacked bundle .*out: .*: No space left on device; check permissions "
        r"and free space, or name another output, and unpack again",
    ):
        unpack_bundle(bundle, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]


@pytest.mark.parametrize("what", ["there", "unknown kernel", "no bundle", "file in the way"])
def test_errors_leave_nothing(bundle: Path, tmp_path: Path, what: str) -> None:
    output, kernels = tmp_path / "out", []
    if what == "there":
        output.mkdir()
    elif what == "unknown kernel":
        kernels = ["nothing"]
    elif what == "no bundle":
        bundle = tmp_path
    else:
        (tmp_path / "file").write_bytes(b"")
        output = tmp_path / "file" / "out"
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CutlassAotError):
        unpack_bundle(bundle, output, kernels)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("folder", ["code", f"lib/{HOST}", "groups"])
def test_what_was_altered_is_not_unpacked(bundle: Path, tmp_path: Path, folder: str) -> None:
    file = next(path for path in sorted((bundle / folder).iterdir()) if "launcher" not in path.name)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises((CorruptFile, BundleError)):
        unpack_bundle(bundle, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bundle"]


def test_no_more_is_unpacked_than_the_sizes_of_the_files_allow(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "MOST_SMALL", 700)
    monkeypatch.setattr(compression, "MOST_TIMES", 0)
    with pytest.raises(CorruptFile, match=r"\.zst: it .*more than \d+ bytes: build or fetch"):
        unpack_bundle(bundle, tmp_path / "out")
    assert not (tmp_path / "out").exists()

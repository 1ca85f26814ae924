"""A shared directory that is filled beforehand: whole, readable for others, and believed by nobody."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cutlass_aot.bundle.prefill import prefill
from cutlass_aot.cli.bundle import command
from cutlass_aot.errors import BundleError, CorruptFile, UntrustedBundle
from cutlass_aot.runtime.files.verified_read import read_catalog
from cutlass_aot.runtime.launching import code_cache, unpacking
from cutlass_aot.runtime.launching.gpu_code import Code
from cutlass_aot.schema import compression
from cutlass_aot.schema.bundles.group_index import CodeSpan
from tests.support.bundles import designs, write_bundle
from tests.unit.runtime.test_code_cache import nothing_new


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle", [*designs(), *designs(dtypes=("bf16",) * 3)])


def codes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.code")}


def test_a_filled_directory_serves_without_being_written(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "image" / "cache"
    umask = os.umask(0o077)
    try:
        filled = prefill(bundle, folder)
    finally:
        os.umask(umask)
    assert (filled.directory, filled.files) == (folder, len(codes(folder)))
    assert filled.size == sum(map(len, codes(folder).values())) > 0
    assert folder.stat().st_mode & 0o777 == folder.parent.stat().st_mode & 0o777 == 0o755
    assert {path.suffix for path in folder.iterdir()} == {".code"}
    assert {path.stat().st_mode & 0o777 for path in folder.glob("*.code")} == {0o644}
    monkeypatch.setenv(code_cache.DIRECTORY_VARIABLE, str(folder))
    nothing_new(monkeypatch, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))
    for entry in read_catalog(bundle).groups:
        assert code_cache.read(entry.code.sha256, 0, 1) is not None


def test_a_directory_that_is_there_stays_as_it_is(bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(mode=0o700)
    prefill(bundle, tmp_path / "mine")
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700


def test_without_a_directory_it_is_the_users_own(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(code_cache.DIRECTORY_VARIABLE, str(tmp_path / "own"))
    done = CliRunner().invoke(command, ["prefill", str(bundle)], standalone_mode=False)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{tmp_path / 'own'}: ")
    assert len(codes(tmp_path / "own")) == len({entry.code for entry in read_catalog(bundle).groups})
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv(code_cache.DIRECTORY_VARIABLE, "")
    with pytest.raises(BundleError, match=f"{code_cache.DIRECTORY_VARIABLE} is empty: name a directory"):
        prefill(bundle)


def test_what_is_damaged_is_made_again_and_what_is_whole_stays(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    prefill(bundle, folder)
    whole = codes(folder)
    (folder / "other").write_bytes(b"not ours")
    before = {path: path.stat().st_ino for path in folder.glob("*.code")}
    prefill(bundle, folder)
    assert {path: path.stat().st_ino for path in folder.glob("*.code")} == before
    for damage in (b"damaged", b"?".join([b"", next(iter(whole.values()))[1:]])):
        for path in folder.glob("*.code"):
            path.write_bytes(damage)
        prefill(bundle, folder)
        assert codes(folder) == whole
    assert (folder / "other").read_bytes() == b"not ours"


def test_a_bundle_that_fits_makes_none_of_the_others_go(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "own"
    monkeypatch.setenv(code_cache.DIRECTORY_VARIABLE, str(folder))
    unpacking.fill(folder, "0" * 64, [(0, 7, "")], lambda: [b"another"], None)
    filled = prefill(bundle)
    monkeypatch.setenv(unpacking.LIMIT_VARIABLE, str(filled.size + len(b"another")))
    for path in folder.glob("*.code"):
        if not path.name.startswith("0" * 64):
            path.write_bytes(path.read_bytes()[::-1])
    # What is replaced needs no room beside what replaces it.
    prefill(bundle)
    assert (folder / f"{'0' * 64}.code").read_bytes() == b"another"


def test_a_policy_that_wants_signatures_holds(bundle: Path, tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    from cutlass_aot.bundle.sign import new_key

    new_key(tmp_path / "key")
    # In a process of its own, which trusts no other from then on.
    done = subprocess.run(
        [sys.executable, "-m", "cutlass_aot", "bundle", "prefill", str(bundle), str(tmp_path / "cache")],
        env={**os.environ, "CUTLASS_AOT_TRUSTED_KEYS": str(tmp_path / "key.pub")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == UntrustedBundle.exit_code
    assert "is not signed by a key that is trusted" in done.stderr
    assert not (tmp_path / "cache").exists()


def test_a_damaged_bundle_leaves_nothing_of_it(bundle: Path, tmp_path: Path) -> None:
    reference = read_catalog(bundle).groups[0].code
    packed = bundle / reference.path
    packed.write_bytes(packed.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptFile, match=reference.path):
        prefill(bundle, tmp_path / "cache")
    assert f"{reference.sha256}.code" not in codes(tmp_path / "cache")
    assert list((tmp_path / "cache").glob(".new-*")) == []


def test_a_limit_that_is_too_small_is_named(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of two files, the second makes the first one go.
    first, *_ = read_catalog(bundle).groups
    monkeypatch.setenv(unpacking.LIMIT_VARIABLE, "1")
    monkeypatch.setenv(code_cache.DIRECTORY_VARIABLE, str(tmp_path / "cache"))
    fill = Code.fill

    def filled_and_another(code: Code, folder: Path, spans: Any, limit: int | None) -> Path:
        path = fill(code, folder, spans, limit)
        unpacking.fill(folder, "0" * 64, [(0, 7, "")], lambda: [b"another"], limit)
        return path

    monkeypatch.setattr(Code, "fill", filled_and_another)
    with pytest.raises(BundleError, match=r"holds at most 1 bytes.*CUTLASS_AOT_CACHE_BYTES sets another"):
        prefill(bundle)
    assert f"{first.code.sha256}.code" not in codes(tmp_path / "cache")
    # Whoever names a directory says what it is for.
    prefill(bundle, tmp_path / "image")
    assert f"{first.code.sha256}.code" in codes(tmp_path / "image")


@pytest.mark.parametrize("where", ["a file", "a full disk"])
def test_a_directory_that_cannot_be_written_is_an_error(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    folder = tmp_path / "cache"
    if where == "a file":
        folder.write_bytes(b"")
    else:

        def full(*_: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(code_cache.os, "write", full)
    with pytest.raises(BundleError, match=f"cannot unpack into {folder}: .*name a directory with room"):
        prefill(bundle, folder)
    if where != "a file":
        assert list(folder.iterdir()) == []


def test_no_more_is_unpacked_than_the_sizes_of_the_files_allow(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "MOST_SMALL", 300)
    monkeypatch.setattr(compression, "MOST_TIMES", 0)
    with pytest.raises(CorruptFile, match=r"code/.*\.zst: it .*hold more than 300 bytes"):
        prefill(bundle, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_code_that_no_kernel_has_is_not_unpacked(bundle: Path, tmp_path: Path) -> None:
    """A small file could hold a gigabyte."""
    reference = read_catalog(bundle).groups[0].code
    code = Code(bundle, reference)
    with pytest.raises(CorruptFile, match=r"it holds more than 10 bytes"):
        code.fill(tmp_path, [CodeSpan(0, 10, "00" * 32)], None)

"""``doctor BUNDLE``: of a directory, a wheel or an installed bundle; for this machine or another."""

from __future__ import annotations

import errno
import io
import json
import os
import struct
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cutlass_aot.bundle.wheel import catalog as wheel_catalog
from cutlass_aot.bundle.wheel.catalog import read_wheel_catalog
from cutlass_aot.cli import main
from cutlass_aot.doctor.bundle import find_bundles
from cutlass_aot.errors import BundleError, CorruptFile, CutlassAotError
from cutlass_aot.runtime import search_path
from cutlass_aot.runtime.search_path import InstalledBundle
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, MANIFEST_NAME
from tests.support.bundles import REQUIREMENTS, designs, write_bundle
from tests.support.unreadable import unreadable

Doctor = Callable[..., tuple[int, str, str]]

FACTS = """
host = "x86_64"
libc = "glibc 2.39"
tvm_ffi = "0.1.15.post2"
torch = "2.9.0+cu130"
driver = { release = "570.172.08" }
gpus = [{ name = "NVIDIA H200" }, { name = "NVIDIA H200" }, { name = "NVIDIA L4" }]
"""


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Doctor:
    def call(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["doctor", *map(str, arguments)])
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return call


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    kernels = [*designs(), *designs(target="sm_100a")]
    return write_bundle(tmp_path / "bundle", kernels, hosts=("x86_64",))


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    file = tmp_path / "facts.toml"
    file.write_text(FACTS)
    return file


def packed(root: Path, path: Path, compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """A wheel as far as its bundle goes."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for file in sorted(root.rglob("*")):
            if file.is_file():
                archive.write(file, f"package/bundle/{file.relative_to(root)}")
        archive.writestr("package-0.1.0.dist-info/RECORD", "")
    return path


def test_the_whole_answer(doctor: Doctor, bundle: Path, facts: Path) -> None:
    assert doctor(bundle, "--facts", facts) == (
        0,
        """\
machine
  x86_64, glibc 2.39, apache-tvm-ffi 0.1.15.post2, torch 2.9.0+cu130
  driver: release 570.172.08
  GPUs 0 to 1: NVIDIA H200
  GPU 2: NVIDIA L4
bundle small 0.1.0
  kernels for sm_90a, sm_100a; hosts x86_64
  needs apache-tvm-ffi 0.1.15.post2, glibc 2.28
  needs a driver for CUDA 12.0, release 525.60.13 or newer, for sm_90a
  needs a driver for CUDA 12.8, release 570.26 or newer, for sm_100a
can run
  yes, on 2 of 3 GPUs
  (its files are taken to be whole: cutlass-aot verify reads them)
  GPUs 0 to 1: sm_90a (architecture-specific)
  GPU 2: no: NVIDIA L4 has compute capability 8.9, the bundle has kernels for
    sm_100a, sm_90a
    next: build it with a target such as sm_89
warnings
  torch 2.9.0+cu130 is built for CUDA 13.0 and finds no GPU with a driver for
    CUDA 12.8: install one built for CUDA 12, or upgrade the GPU driver, to
    580.65.06 or newer
  torch 2.9.0+cu130 is older than 2.10, from which on tvm-ffi takes its tensors
    and its stream natively: pip install torch-c-dlpack-ext, or the first import
    compiles that
""",
        "",
    )


def test_what_cannot_be_read_is_said(doctor: Doctor, tmp_path: Path) -> None:
    with unreadable(tmp_path) as folder:
        for path in (folder / "bundle", folder):
            with pytest.raises(BundleError, match=r"unreadable\S* cannot be read: Permission denied"):
                find_bundles(str(path))
    for name, says in (("x" * 300, "File name too long"), ("a\0b", "embedded null")):
        with pytest.raises(BundleError, match=f"cannot be read: {says}.*; nor is a bundle of that name inst"):
            find_bundles(name)
    # Neither a directory nor something in one that is none.
    for name in (tmp_path / "none", Path(__file__) / "x"):
        with pytest.raises(BundleError, match="is not a bundle: expected a directory, a wheel, or the name"):
            find_bundles(str(name))
    status, _, err = doctor("x" * 300)
    assert status == 1
    assert "cannot be read: File name too long" in err


def test_an_installed_bundle_is_found_where_the_directory_at_hand_must_not_be_read(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = InstalledBundle("small", "0.1.0", "", "", bundle)
    monkeypatch.setattr(search_path, "installed_bundles", lambda: [installed])

    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", refused)
        assert [found.where for found in find_bundles("small")] == [str(bundle)]


def test_a_directory_that_is_no_bundle_does_not_hide_an_installed_one(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work" / "small").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(BundleError, match="not a bundle, or an incomplete one"):
        find_bundles("small")
    installed = InstalledBundle("small", "0.1.0", "", "", bundle)
    monkeypatch.setattr(search_path, "installed_bundles", lambda: [installed])
    assert [found.where for found in find_bundles("small")] == [str(bundle)]
    with pytest.raises(BundleError, match="not a bundle, or an incomplete one"):
        find_bundles("./small")


def test_plain_data(doctor: Doctor, bundle: Path, facts: Path) -> None:
    status, out, _ = doctor(bundle, "--facts", facts, "--json")
    found = json.loads(out)
    assert status == 0
    assert found["accepted"]
    assert found["facts"]["gpus"][2] == {"name": "NVIDIA L4"}
    (answer,) = found["bundles"]
    assert answer["needs"] == {"cuda_driver": "12.0", "tvm_ffi": "0.1.15.post2", "glibc": "2.28"}
    assert answer["drivers"] == {
        "sm_90a": {"cuda": "12.0", "release": "525.60.13"},
        "sm_100a": {"cuda": "12.8", "release": "570.26"},
    }
    assert answer["gpus"][0] == {
        "name": "NVIDIA H200",
        "target": "sm_90a",
        "kind": "architecture-specific",
        "targets": ["sm_90a"],
        "reasons": [],
    }
    (reason,) = answer["gpus"][2]["reasons"]
    assert reason["about"] == "gpu"
    assert reason["advice"] == "build it with a target such as sm_89"


def test_a_wheel_is_asked_as_its_directory_is(
    doctor: Doctor, bundle: Path, facts: Path, tmp_path: Path
) -> None:
    wheel = packed(bundle, tmp_path / "small.whl")
    assert read_wheel_catalog(wheel) == find_bundles(str(bundle))[0].catalog
    assert doctor(wheel, "--facts", facts) == doctor(bundle, "--facts", facts)


def test_this_machine_writes_what_reads_back(
    doctor: Doctor, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = tmp_path / "here.json"
    status, out, _ = doctor("--facts-out", written)
    assert status == 0
    assert out.startswith(f"{written}: facts of this machine")
    here = doctor(bundle)
    assert doctor(bundle, "--facts", written) == here
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(doctor("--json")[1].encode())))
    assert doctor(bundle, "--facts", "-") == here


def test_an_installed_bundle_by_its_name(
    doctor: Doctor, bundle: Path, facts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_bundle(tmp_path / "other", designs(target="sm_89"), hosts=("x86_64",))
    installed = [
        InstalledBundle("gone", "1", "d", "p", None),
        InstalledBundle("small", "0.1.0", "d", "p", bundle),
        InstalledBundle("small", "0.1.0", "e", "q", other),
    ]
    monkeypatch.setattr(search_path, "installed_bundles", lambda: installed)
    status, out, _ = doctor("small", "--facts", facts)
    assert status == 0
    assert out.count("bundle small 0.1.0\n") == 2
    assert "GPU 2: sm_89 (portable)" in out
    for name in ("gone", "smal"):
        status, _, errors = doctor(name, "--facts", facts)
        assert status == 1
        assert f"'{name}' is not a bundle" in errors
        assert "(installed: gone, small)" in errors


def test_usage(doctor: Doctor, bundle: Path, facts: Path) -> None:
    assert doctor("--facts", facts)[0] == 2
    assert doctor(bundle, "--build")[0] == 2
    assert doctor(bundle, "--facts-out", facts)[0] == 2
    status, _, errors = doctor(bundle, "--facts", facts.with_name("missing"))
    assert status == 2
    assert "missing cannot be read" in errors
    status, _, errors = doctor("--facts-out", facts / "below")
    assert status == 2
    assert "cannot be written" in errors


def test_names_of_others_do_not_reach_the_terminal_as_they_are(
    doctor: Doctor, bundle: Path, facts: Path
) -> None:
    requirements = REQUIREMENTS._replace(glibc="2.28\x1b[31m")
    root = write_bundle(bundle.with_name("odd"), designs(), hosts=("x86_64",), requirements=requirements)
    status, out, err = doctor(root, "--facts", facts)
    assert status == 1
    assert "\x1b" not in out + err
    assert "glibc: found '2.28\\x1b[31m', expected text of one line without control characters" in out + err


# -- wheels of any kind -----------------------------------------------------------------------------------


def test_what_is_no_wheel_is_refused(tmp_path: Path, bundle: Path) -> None:
    file = tmp_path / "x.whl"
    file.write_bytes(b"")
    with pytest.raises(CorruptFile, match=r"is not a zip file, or a truncated one"):
        read_wheel_catalog(file)
    packed(bundle, file)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CorruptFile, match=r"is not a zip file, or a truncated one|not a readable wheel"):
        read_wheel_catalog(file)
    packed(tmp_path / "nothing", file)
    with pytest.raises(BundleError, match="holds 0 bundles: expected the wheel of one"):
        read_wheel_catalog(file)
    with pytest.raises(BundleError, match="cannot be read: No such file"):
        read_wheel_catalog(tmp_path / "missing.whl")


def test_a_catalog_that_was_altered_is_refused(tmp_path: Path, bundle: Path) -> None:
    catalog = bundle / CATALOG_NAME
    data = catalog.read_bytes()
    for other in (data[:-1] + b"?", data[:-1], data + b"?", b""):
        catalog.write_bytes(other)
        with pytest.raises(CorruptFile, match=r"not what its manifest says|is larger than"):
            read_wheel_catalog(packed(bundle, tmp_path / "x.whl"))
    catalog.unlink()
    with pytest.raises(CorruptFile, match=f"lacks package/bundle/{CATALOG_NAME}"):
        read_wheel_catalog(packed(bundle, tmp_path / "x.whl"))
    manifest = json.loads((bundle / MANIFEST_NAME).read_text())
    del manifest["files"][CATALOG_NAME]
    (bundle / MANIFEST_NAME).write_text(json.dumps(manifest))
    with pytest.raises(CorruptFile, match=f"does not list {CATALOG_NAME}"):
        read_wheel_catalog(packed(bundle, tmp_path / "x.whl"))


def test_nothing_large_is_read(tmp_path: Path, bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = packed(bundle, tmp_path / "x.whl")
    with monkeypatch.context() as patch:
        patch.setattr(wheel_catalog, "MAX_MANIFEST_BYTES", 10)
        with pytest.raises(CorruptFile, match="is larger than the 10 bytes expected"):
            read_wheel_catalog(wheel)
    with pytest.raises(CorruptFile, match="compressed otherwise than wheels are"):
        read_wheel_catalog(packed(bundle, tmp_path / "y.whl", zipfile.ZIP_LZMA))
    # The index claims to be larger than one can be; the file is small.
    data = bytearray(wheel.read_bytes())
    end = data.rfind(b"PK\x05\x06")
    struct.pack_into("<L", data, end + 12, wheel_catalog.MAX_DIRECTORY_BYTES + 1)
    wheel.write_bytes(data)
    with pytest.raises(CorruptFile, match="has an index of more than"):
        read_wheel_catalog(wheel)
    # The index of a zip file of more than 4.3 GB.
    large = bytearray(packed(bundle, wheel).read_bytes())
    end = large.rfind(b"PK\x05\x06")
    large[end:end] = b"PK\x06\x07" + bytes(16)
    wheel.write_bytes(large)
    with pytest.raises(CorruptFile, match="has an index of more than"):
        read_wheel_catalog(wheel)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_wheel_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    wheel = tmp_path / "good.whl"
    if not wheel.exists():
        packed(write_bundle(tmp_path / "for-the-wheel", designs([(64, 128)])), wheel)
    good = wheel.read_bytes()
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    other = tmp_path / "damaged.whl"
    other.write_bytes(
        damaged[: data.draw(st.integers(0, len(good)))] if data.draw(st.booleans()) else damaged
    )
    expected = read_wheel_catalog(wheel)
    try:
        found = read_wheel_catalog(other)
    except CutlassAotError:
        return
    assert found == expected

"""Wheels of bundles: installable, reproducible, and verified down to the byte."""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib.metadata
import io
import json
import os
import platform
import re
import struct
import subprocess
import sys
import zipfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlass_aot.bundle.wheel import catalog, verify, zip_reader
from cutlass_aot.bundle.wheel.write import build_wheels
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.files.verified_read import read_manifest
from cutlass_aot.runtime.machine.compatibility import Machine, Requirements, decide
from cutlass_aot.schema import compression
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME, VersionRequirements, check_relative
from tests.support.synthetic import plan
from tests.support.verifying import verify_path, verify_wheel
from tools.fuzz.zips import HIDDEN

NAME = "cutlass_aot_bundle_small-0.1.0-py3-none-manylinux_2_28_x86_64.whl"
PACKAGE, DIST_INFO = "cutlass_aot_bundle_small", "cutlass_aot_bundle_small-0.1.0.dist-info"


@pytest.fixture(autouse=True)
def _no_epoch(monkeypatch):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)


def make(folder, **changes):
    write_bundle(plan(folder / "linked", **changes), folder / "bundle")
    return folder / "bundle"


def build_wheel(bundle, output):
    (wheel,) = build_wheels(bundle, output)
    return wheel


@pytest.fixture
def bundle(tmp_path):
    return make(tmp_path)


@pytest.fixture
def wheel(bundle, tmp_path):
    return build_wheel(bundle, tmp_path / "wheels")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    return build_wheel(make(folder), folder / "wheels")


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {info.filename: archive.read(info) for info in archive.infolist()}


def rewritten(folder, files, record=None):
    """A wheel of these files under the right name; ``record`` makes RECORD agree with them."""
    folder.mkdir(exist_ok=True)
    if record:
        rows = [
            (path, "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("="),
             len(data))
            for path, data in files.items() if path != record
        ]  # fmt: skip
        text = io.StringIO(newline="")
        csv.writer(text, lineterminator="\n").writerows([*rows, (record, "", "")])
        files = {**files, record: text.getvalue().encode()}
    with zipfile.ZipFile(folder / NAME, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in files.items():
            archive.writestr(path, data)
    return folder / NAME


def test_a_wheel_has_the_bundle_and_its_metadata(bundle, wheel):
    assert wheel.name == NAME
    files = contents(wheel)
    inside = {
        f"{PACKAGE}/bundle/{p.relative_to(bundle).as_posix()}": p.read_bytes()
        for p in bundle.rglob("*") if p.is_file()
    }  # fmt: skip
    assert {path: data for path, data in files.items() if path in inside} == inside
    assert set(files) - set(inside) == {
        f"{PACKAGE}/__init__.py",
        *(f"{DIST_INFO}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")),
        f"{DIST_INFO}/licenses/LICENSES.txt",
        f"{DIST_INFO}/sboms/bundle.cdx.json",
    }
    assert files[f"{DIST_INFO}/entry_points.txt"] == (
        b"[cutlass_aot.bundles]\nsmall = cutlass_aot_bundle_small\n"
    )
    metadata = files[f"{DIST_INFO}/METADATA"].decode().splitlines()
    assert "Name: cutlass-aot-bundle-small" in metadata
    assert "Version: 0.1.0" in metadata
    assert "License-File: LICENSES.txt" in metadata
    assert "Requires-Python: >=3.10" in metadata
    assert "Requires-Dist: apache-tvm-ffi>=0.1.15,<0.2" in metadata
    assert any(line.startswith("Requires-Dist: cutlass-aot>=0.") for line in metadata)
    tags = [line for line in files[f"{DIST_INFO}/WHEEL"].decode().splitlines() if "ag:" in line]
    assert tags == ["Tag: py3-none-manylinux_2_28_x86_64"]
    assert list(wheel.parent.iterdir()) == [wheel]


def test_a_wheel_carries_launchers_and_rankings(bundle, wheel):
    files = set(contents(wheel))
    assert f"{PACKAGE}/bundle/lib/x86_64/launcher.so.zst" in files
    (ranking,) = (bundle / "rankings").iterdir()
    assert f"{PACKAGE}/bundle/rankings/{ranking.name}" in files
    assert verify_path(wheel) == []


@pytest.mark.parametrize("folder", ["lib/x86_64", "rankings"])
def test_a_wheel_that_lost_its_launcher_or_a_ranking_is_found(bundle, wheel, tmp_path, folder):
    files = contents(wheel)
    lost = sorted(path for path in files if path.startswith(f"{PACKAGE}/bundle/{folder}/"))[-1]
    del files[lost]
    damaged = rewritten(tmp_path / "lost", files, record=f"{DIST_INFO}/RECORD")
    assert lost in {problem.path for problem in verify_path(damaged)}


def test_the_only_code_in_a_wheel_is_a_docstring(wheel):
    code = [data for path, data in contents(wheel).items() if path.endswith(".py")]
    assert len(code) == 1
    assert compile(code[0], "__init__", "exec").co_consts[0].startswith("Kernels of")
    assert len(code[0].splitlines()) == 1


def test_record_lists_every_file_with_its_digest(wheel):
    files = contents(wheel)
    rows = list(csv.reader(io.StringIO(files[f"{DIST_INFO}/RECORD"].decode())))
    assert [row[0] for row in rows] == list(files)
    assert rows[-1] == [f"{DIST_INFO}/RECORD", "", ""]
    for path, sha256, size in rows[:-1]:
        found = base64.urlsafe_b64encode(hashlib.sha256(files[path]).digest()).decode()
        assert sha256 == "sha256=" + found.rstrip("=")
        assert int(size) == len(files[path])


def test_two_builds_are_equal_to_the_byte(bundle, wheel, tmp_path):
    write_bundle(plan(tmp_path / "again" / "linked"), tmp_path / "again" / "bundle")
    before = os.umask(0o077)
    try:
        other = build_wheel(tmp_path / "again" / "bundle", tmp_path / "deep" / "wheels")
    finally:
        os.umask(before)
    assert other.read_bytes() == wheel.read_bytes()
    assert other.stat().st_mode & 0o777 == wheel.stat().st_mode & 0o777 == 0o644
    assert build_wheel(bundle, wheel.parent).read_bytes() == other.read_bytes()


def test_entries_have_fixed_permissions_and_an_order(wheel):
    with zipfile.ZipFile(wheel) as archive:
        infos = archive.infolist()
    assert {info.external_attr >> 16 for info in infos} == {0o100644}
    assert {info.create_system for info in infos} == {3}
    assert infos[-1].filename.endswith("RECORD")
    assert {info.date_time for info in infos} == {(1980, 1, 1, 0, 0, 0)}


@pytest.mark.parametrize(
    ("epoch", "date"),
    [
        ("1700000000", (2023, 11, 14, 22, 13, 20)),
        ("0", (1980, 1, 1, 0, 0, 0)),
        ("-5", (1980, 1, 1, 0, 0, 0)),
        ("4354819198", (2107, 12, 31, 23, 59, 58)),
    ],
)
def test_the_date_is_source_date_epoch(bundle, tmp_path, monkeypatch, epoch, date):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    built = build_wheel(bundle, tmp_path / "dated")
    with zipfile.ZipFile(built) as archive:
        assert {info.date_time for info in archive.infolist()} == {date}
    assert verify_wheel(built) == []


@pytest.mark.parametrize("epoch", ["", "now", "1.5", "1e9", "4354819200", "9" * 30, "\u0661"])
def test_a_malformed_source_date_epoch_is_refused(bundle, tmp_path, monkeypatch, epoch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    with pytest.raises(BundleError, match="SOURCE_DATE_EPOCH"):
        build_wheel(bundle, tmp_path / "dated")
    assert not (tmp_path / "dated").exists()


@pytest.mark.parametrize("version", ["1", "0.1.0", "1!2.0", "1.0a1", "1.0rc2.post3.dev4", "2.0+cu13.1"])
def test_normalised_versions_are_taken(tmp_path, version):
    built = build_wheel(make(tmp_path, version=version), tmp_path)
    assert f"-{version}-py3" in built.name
    assert verify_wheel(built) == []


@pytest.mark.parametrize(
    "version", ["", "1.0-1", "v1", "01.0", "1.0.alpha", "1.0+CU", "1.0\n", "1.0+a-b", "\u0663"]
)
def test_other_versions_are_refused(tmp_path, version):
    with pytest.raises(
        BundleError, match=r"bundle\.version|version: found '1\.0\\n', expected text of one line"
    ):
        build_wheel(make(tmp_path, version=version), tmp_path)


@pytest.mark.parametrize(
    ("name", "package"),
    [("sm100-dense", "sm100_dense"), ("a.b__c", "a_b_c"), ("9", "9")],
)
def test_names_are_normalised(tmp_path, name, package):
    built = build_wheel(make(tmp_path, name=name), tmp_path)
    assert built.name.startswith(f"cutlass_aot_bundle_{package}-0.1.0-")
    points = next(data for path, data in contents(built).items() if path.endswith("entry_points.txt"))
    assert points.decode().splitlines()[1] == f"{name} = cutlass_aot_bundle_{package}"
    assert verify_wheel(built) == []


@pytest.mark.parametrize("linked", ["0.1.15.post2", "0.1.15.post2+ours", "0.1.15", "0.1.15rc1"])
def test_a_wheel_requires_the_tvm_ffi_that_its_bundle_opens_with(tmp_path, linked):
    """A post release counts as its release in both, and nothing else that is older is taken."""
    specifiers = pytest.importorskip("packaging.specifiers")
    requirements = VersionRequirements(cuda_driver="12.0", tvm_ffi=linked, glibc="2.28")
    built = build_wheel(make(tmp_path / "bundle", requirements=requirements), tmp_path)
    metadata = next(data for path, data in contents(built).items() if path.endswith("METADATA")).decode()
    (required,) = re.findall(r"^Requires-Dist: apache-tvm-ffi(.*)$", metadata, re.MULTILINE)
    for version in ("0.1.9", "0.1.14.post9", "0.1.15.dev1", "0.1.15rc1", "0.1.15", "0.1.15.post1",
                    "0.1.15.post2", "0.1.16", "0.2.0"):  # fmt: skip
        machine = Machine("x86_64", "glibc 2.36", version)
        opens = decide(machine, Requirements(("sm_90a",), ("x86_64",), requirements)).accepted
        assert specifiers.SpecifierSet(required).contains(version, prereleases=True) is opens, version


def test_what_cannot_be_a_wheel_is_refused(tmp_path):
    requirements = VersionRequirements(cuda_driver="12.0", tvm_ffi="0.1.15", glibc="two")
    with pytest.raises(BundleError, match=r"is damaged: .*'two' is not a version"):
        build_wheel(make(tmp_path / "glibc", requirements=requirements), tmp_path)
    requirements = VersionRequirements(cuda_driver="12.0", tvm_ffi="main", glibc="2.28")
    with pytest.raises(BundleError, match="'main' is not a version"):
        build_wheel(make(tmp_path / "ffi", requirements=requirements), tmp_path)
    assert not list(tmp_path.glob("*.whl"))
    assert not list(tmp_path.glob(".wheel-*"))


def test_a_damaged_bundle_is_not_packed(bundle, tmp_path):
    library = next((bundle / "lib/x86_64").iterdir())
    library.write_bytes(library.read_bytes()[:-1])
    with pytest.raises(BundleError, match=rf"is damaged: lib/x86_64/{library.name}: found \d+ bytes"):
        build_wheel(bundle, tmp_path / "wheels")
    assert not (tmp_path / "wheels").exists()


def test_what_is_no_bundle_is_called_that(tmp_path):
    (tmp_path / "empty").mkdir()
    for name, words in (("empty", "is not a bundle, or an incomplete one"), ("none", "no such directory")):
        with pytest.raises(BundleError, match=words) as caught:
            build_wheel(tmp_path / name, tmp_path / "wheels")
        assert "damaged" not in str(caught.value)
    assert not (tmp_path / "wheels").exists()


def test_an_output_that_cannot_be_written_is_a_clear_error(bundle, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BundleError, match=r"cannot write .*file"):
        build_wheel(bundle, tmp_path / "file")
    (tmp_path / "taken" / NAME).mkdir(parents=True)
    with pytest.raises(BundleError, match="Is a directory"):
        build_wheel(bundle, tmp_path / "taken")
    assert [path.name for path in (tmp_path / "taken").iterdir()] == [NAME]


@pytest.mark.skipif(
    platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc",
    reason="the wheel is for x86-64 and glibc",
)
def test_pip_installs_it_and_its_entry_point_leads_to_the_bundle(bundle, wheel, tmp_path):
    target = tmp_path / "target"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile",
         "--disable-pip-version-check", "--target", str(target), str(wheel)],
        check=True,
    )  # fmt: skip
    code = (
        "import importlib.metadata, importlib.resources, json\n"
        "(point,) = importlib.metadata.entry_points(group='cutlass_aot.bundles', name='small')\n"
        "folder = importlib.resources.files(point.load()) / 'bundle'\n"
        "print(json.dumps([str(folder), point.dist.name, point.dist.requires]))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        check=True, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(target)},
    )  # fmt: skip
    folder, name, requires = json.loads(run.stdout)
    assert folder == str(target / PACKAGE / "bundle")
    assert name == "cutlass-aot-bundle-small"
    assert len(requires) == 2
    assert verify_path(target / PACKAGE / "bundle") == []
    assert read_manifest(target / PACKAGE / "bundle") == read_manifest(bundle)


def test_the_metadata_parses_with_the_standard_library(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "unpacked")
    found = importlib.metadata.PathDistribution(tmp_path / "unpacked" / DIST_INFO)
    assert (found.version, found.metadata["Requires-Python"]) == ("0.1.0", ">=3.10")
    assert {point.name: point.value for point in found.entry_points} == {"small": PACKAGE}


def test_a_sound_wheel_has_no_problems(wheel):
    assert verify_wheel(wheel) == []
    assert verify_path(wheel) == []


def test_every_file_flipped_truncated_or_missing_is_found(sound, tmp_path):
    files = contents(sound)
    for path, data in files.items():
        for changed in (bytes([data[0] ^ 1]) + data[1:], data[:-1], b"", None):
            others = {p: d for p, d in files.items() if p != path}
            bad = rewritten(tmp_path, others if changed is None else {**others, path: changed})
            problems = verify_wheel(bad)
            assert problems
            named = {problem.path for problem in problems}
            # Without the file that makes it a bundle or a wheel, it is the wheel that is wrong; and what an
            # altered RECORD lists or does not is named, not RECORD.
            assert path in named or NAME in named or path.endswith("/RECORD"), (path, problems)


def test_a_file_that_record_does_not_list_is_found(sound, tmp_path):
    for path in (f"{PACKAGE}/extra.py", f"{PACKAGE}/bundle/lib/extra.so", "other/__init__.py"):
        bad = rewritten(tmp_path, {**contents(sound), path: b"x"})
        assert path in {problem.path for problem in verify_wheel(bad)}


def test_foreign_code_is_found_even_if_record_lists_it(sound, tmp_path):
    files = contents(sound)
    for path in ("other/__init__.py", f"{PACKAGE}/extra.py", "evil.pth", f"{DIST_INFO}/direct_url.json"):
        bad = rewritten(tmp_path, {**files, path: b"import os\n"}, f"{DIST_INFO}/RECORD")
        assert [problem.path for problem in verify_wheel(bad)] == [path]
    for path in (f"{PACKAGE}/__init__.py", f"{DIST_INFO}/entry_points.txt"):
        bad = rewritten(tmp_path, {**files, path: files[path] + b"import os\n"}, f"{DIST_INFO}/RECORD")
        assert [problem.path for problem in verify_wheel(bad)] == [path]


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("METADATA", b"Version: 0.1.0", b"Version: 9.9.9"),
        ("METADATA", b"Name: cutlass-aot-bundle-small", b"Name: numpy"),
        ("WHEEL", b"Tag: py3-none-manylinux_2_28_x86_64", b"Tag: py3-none-any"),
    ],
)
def test_metadata_that_lies_is_found(sound, tmp_path, path, old, new):
    files = contents(sound)
    changed = files[f"{DIST_INFO}/{path}"].replace(old, new)
    assert changed != files[f"{DIST_INFO}/{path}"]
    bad = rewritten(tmp_path, {**files, f"{DIST_INFO}/{path}": changed}, f"{DIST_INFO}/RECORD")
    assert [problem.path for problem in verify_wheel(bad)] == [f"{DIST_INFO}/{path}"]


def test_another_file_name_is_found(wheel):
    other = wheel.with_name("cutlass_aot_bundle_small-0.1.0-py3-none-any.whl")
    wheel.rename(other)
    (problem,) = verify_wheel(other)
    assert NAME in problem.expected


@pytest.mark.parametrize(
    "path",
    ["../outside", "/outside", f"{PACKAGE}/bundle/../../outside", "a\\b", "a//b", "a/", "./a", "a\nb", "ä"],
)
def test_unsafe_names_are_found_before_anything_is_unpacked(sound, tmp_path, path, monkeypatch):
    bad = rewritten(tmp_path, {**contents(sound), path: b"x"})
    monkeypatch.setattr(verify, "digest_of", None)
    problems = verify_wheel(bad)
    assert problems
    assert all(str(problem).isprintable() for problem in problems)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_name_twice_is_found(sound):
    bad = sound.parent.parent / NAME
    bad.write_bytes(sound.read_bytes())
    with zipfile.ZipFile(bad, "a") as archive:
        archive.writestr(f"{PACKAGE}/__init__.py", b"import os\n")
    assert [(problem.path, problem.expected) for problem in verify_wheel(bad)] == [
        (f"{PACKAGE}/__init__.py", "one")
    ]


def test_a_file_below_a_file_is_found(sound, tmp_path):
    path = f"{PACKAGE}/bundle/{MANIFEST_NAME}/x"
    bad = rewritten(tmp_path, {**contents(sound), path: b"x"})
    assert path in {problem.path for problem in verify_wheel(bad)}


@pytest.mark.parametrize("path", ["a/" * 32 + "a", "a" * 1025, "ä" * 513, "a/" * 30_000 + "a"])
def test_names_of_any_length_or_depth_are_refused_before_they_are_taken_apart(
    sound, tmp_path, path, monkeypatch
):
    bad = rewritten(tmp_path, {**contents(sound), path: b"x"})
    looked_at = []

    def check(name):
        looked_at.append(name)
        check_relative(name)

    monkeypatch.setattr(zip_reader, "check_relative", check)
    monkeypatch.setattr(verify, "digest_of", None)
    (problem,) = verify_wheel(bad)
    assert problem.expected == "at most 1024 bytes and 32 parts"
    assert len(str(problem)) < 400
    assert path not in looked_at
    assert looked_at


@pytest.mark.parametrize("path", ["a/" * 31 + "a", "a" * 1024])
def test_names_within_the_bounds_are_taken_apart(sound, tmp_path, path):
    """And are not files of a wheel."""
    bad = rewritten(tmp_path, {**contents(sound), path: b"x"})
    assert {problem.path for problem in verify_wheel(bad)} == {path}


def test_a_symbolic_link_is_found(sound, tmp_path):
    bad = tmp_path / NAME
    bad.write_bytes(sound.read_bytes())
    info = zipfile.ZipInfo(f"{PACKAGE}/link")
    info.create_system, info.external_attr = 3, 0o120777 << 16
    with zipfile.ZipFile(bad, "a") as archive:
        archive.writestr(info, "/etc/passwd")
    (problem,) = verify_wheel(bad)
    assert (problem.path, problem.expected) == (f"{PACKAGE}/link", "a plain file")


@pytest.mark.parametrize(
    ("module", "bound", "expected"),
    [(zip_reader, "MAX_FILE_BYTES", "bytes unpacked"), (compression, "MOST_SMALL", "hold more than")],
)
def test_a_bomb_is_refused_before_it_is_read(sound, tmp_path, monkeypatch, module, bound, expected):
    bad = rewritten(tmp_path, {**contents(sound), "bomb": bytes(1 << 23)})
    assert bad.stat().st_size < 1 << 15
    monkeypatch.setattr(module, bound, 1 << 19)
    monkeypatch.setattr(verify, "digest_of", None)
    (problem,) = verify_wheel(bad)
    assert expected in problem.found


def test_a_size_that_the_index_makes_up_is_refused(sound, tmp_path):
    bad = rewritten(tmp_path, {**contents(sound), "bomb": bytes(1 << 20)})
    data = bytearray(bad.read_bytes())
    # The central directory: signature, then the unpacked size at 24 and the name at 46.
    entry = data.rindex(b"bomb") - 46
    assert data[entry : entry + 4] == b"PK\x01\x02"
    data[entry + 24 : entry + 28] = (0xFFFFFFFE).to_bytes(4, "little")
    bad.write_bytes(data)
    assert [problem.path for problem in verify_wheel(bad)] == ["bomb", "the wheel"]


@pytest.mark.parametrize("stored", [True, False])
def test_more_bytes_than_packed_ones_can_stand_for_are_refused(sound, tmp_path, stored, monkeypatch):
    bad = tmp_path / NAME
    bad.write_bytes(sound.read_bytes())
    method = zipfile.ZIP_STORED if stored else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(bad, "a") as made:
        made.writestr("bomb", b"x" * 100, method)
    data = bytearray(bad.read_bytes())
    entry = data.rindex(b"bomb") - 46
    data[entry + 24 : entry + 28] = (101 if stored else 1 << 20).to_bytes(4, "little")
    bad.write_bytes(data)
    monkeypatch.setattr(verify, "digest_of", None)
    (problem,) = verify_wheel(bad)
    assert problem.path == "bomb"
    assert "bytes unpacked of" in problem.found


def test_files_that_share_their_data_are_refused(sound, tmp_path, monkeypatch):
    bad = tmp_path / NAME
    bad.write_bytes(sound.read_bytes())
    with zipfile.ZipFile(bad, "a") as made:
        made.writestr("one", bytes(100))
        made.writestr("two", bytes(100))
    data = bytearray(bad.read_bytes())
    first, second = (data.rindex(name) - 46 for name in (b"one", b"two"))
    # Where the data of an entry begins, as the central directory has it.
    data[second + 42 : second + 46] = data[first + 42 : first + 46]
    bad.write_bytes(data)
    monkeypatch.setattr(verify, "digest_of", None)
    (problem,) = verify_wheel(bad)
    assert problem.path == "two"
    assert problem.found.startswith("an entry at byte")


@pytest.mark.parametrize("what", HIDDEN)
def test_what_an_index_does_not_list_is_found_before_a_file_is_read(sound, tmp_path, what, monkeypatch):
    data = sound.read_bytes()
    changed = HIDDEN[what](data)
    assert changed != data
    (tmp_path / NAME).write_bytes(changed)
    # What reads by the index alone sees nothing of it.
    assert set(contents(sound)) == set(zipfile.ZipFile(tmp_path / NAME).namelist())
    monkeypatch.setattr(verify, "digest_of", None)
    assert len(verify_wheel(tmp_path / NAME)) == 1


def test_a_file_that_the_index_gives_more_fields_is_found(sound, tmp_path):
    bad = tmp_path / NAME
    with zipfile.ZipFile(bad, "w") as archive:
        for name, data in contents(sound).items():
            info = zipfile.ZipInfo(name)
            info.extra = struct.pack("<HH4s", 0x7075, 4, b"evil")
            archive.writestr(info, data)
    (problem,) = verify_wheel(bad)
    assert problem.found == "a comment, or bytes around the zip's index"


def test_an_index_that_is_too_large_is_refused_before_it_is_read(sound, tmp_path, monkeypatch):
    bad = tmp_path / NAME
    bad.write_bytes(sound.read_bytes())
    monkeypatch.setattr(catalog, "MAX_DIRECTORY_BYTES", 100)
    monkeypatch.setattr(zipfile, "ZipFile", None)
    (problem,) = verify_wheel(bad)
    assert "an index of more than 100 bytes" in problem.found


def test_other_compressions_are_refused(sound, tmp_path):
    bad = tmp_path / NAME
    bad.write_bytes(sound.read_bytes())
    with zipfile.ZipFile(bad, "a") as archive:
        archive.writestr("x", b"x" * 99, zipfile.ZIP_LZMA)
    (problem,) = verify_wheel(bad)
    assert problem.expected == "stored or deflated"


def test_an_index_that_points_outside_the_file_is_found(sound, tmp_path):
    data = bytearray(sound.read_bytes())
    end = data.rindex(b"PK\x05\x06")
    # Where the central directory begins, as the end record has it.
    data[end + 16 : end + 20] = (len(data) * 2).to_bytes(4, "little")
    (tmp_path / NAME).write_bytes(data)
    assert [problem.path for problem in verify_wheel(tmp_path / NAME)] == ["the wheel"]


def test_a_foreign_zip_and_no_zip_are_found(tmp_path):
    foreign = rewritten(tmp_path, {"readme.txt": b"hello"})
    assert [problem.found for problem in verify_path(foreign)] == ["0 files *.dist-info/RECORD"]
    foreign = rewritten(tmp_path, {"x-1.dist-info/RECORD": b"", "x/__init__.py": b""})
    assert [problem.found for problem in verify_path(foreign)] == ["0 bundles"]
    foreign.write_bytes(b"not a zip file")
    assert "no readable zip file" in verify_path(foreign)[0].found
    foreign.write_bytes(b"")
    assert "no readable zip file" in verify_path(foreign)[0].found


def test_a_wheel_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(BundleError, match="No such file"):
        verify_wheel(tmp_path / NAME)


def test_truncated_wheels_are_found(sound, tmp_path):
    data = sound.read_bytes()
    for length in range(0, len(data), 97):
        (tmp_path / NAME).write_bytes(data[:length])
        assert verify_wheel(tmp_path / NAME), length


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("altered")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_altered_wheels_never_escape_as_another_error(sound, scratch, data):
    altered = bytearray(sound.read_bytes())
    # The central directory is where an archive lies best, so half of the changes go there.
    start = data.draw(st.sampled_from([0, altered.index(b"PK\x01\x02")]))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(start, len(altered) - 1))
        altered[at] = data.draw(st.one_of(st.sampled_from([0, 0x7F, 0x80, 0xFF]), st.integers(0, 255)))
    (scratch / NAME).write_bytes(altered)
    problems = verify_wheel(scratch / NAME)
    # A change that is found no problem (a date, a comment) has to leave every file as it was.
    if not problems:
        assert contents(scratch / NAME) == contents(sound)

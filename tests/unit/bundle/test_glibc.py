"""Platform tags: what libraries need of glibc, read from them as the loader does."""

from __future__ import annotations

import contextlib
import struct
import sys
import sysconfig
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutlass_aot.bundle.elf import SharedObject, read_shared_object
from cutlass_aot.bundle.glibc import glibc_of, needed_glibc, platform_tags, promised_glibc
from cutlass_aot.errors import BundleError, CorruptFile
from tools.torture.other_files import put

PLAIN = SharedObject("x86_64", frozenset(), ("libc.so.6",))


def shared_objects() -> list[Path]:
    """Libraries of this machine: extension modules of the interpreter and of its packages."""
    folders = [Path(sysconfig.get_path("platlib")), Path(sysconfig.get_config_var("DESTSHARED") or "/none")]
    found = [
        path for folder in folders for path in sorted(folder.glob("**/*.so")) if path.stat().st_size < 1 << 24
    ]
    return found[:: max(1, len(found) // 12)]


def with_elftools(path: Path) -> set[str]:
    """The same question put to a full reader of ELF."""
    elffile = pytest.importorskip("elftools.elf.elffile")
    with path.open("rb") as file:
        section = elffile.ELFFile(file).get_section_by_name(".gnu.version_r")
        if section is None:
            return set()
        return {
            version.name
            for _, versions in section.iter_versions()
            for version in versions
            if not version["vna_flags"] & 2
        }


@pytest.mark.skipif(sys.platform != "linux", reason="reads this machine's libraries")
def test_versions_are_what_another_reader_finds() -> None:
    paths = shared_objects()
    found = {path: read_shared_object(path.read_bytes(), str(path)).versions for path in paths}
    assert {path: set(versions) for path, versions in found.items()} == {p: with_elftools(p) for p in paths}
    assert any(version.startswith("GLIBC_2") for versions in found.values() for version in versions)


@pytest.mark.parametrize(
    ("versions", "relocations", "expected"),
    [
        ((), False, (0, 0)),
        (("GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.9"), False, (2, 17)),
        (("GLIBC_2.2.5",), True, (2, 36)),
        (("GLIBC_ABI_DT_RELR", "GLIBC_2.34"), False, (2, 36)),
        (("GLIBC_2.38",), True, (2, 38)),
    ],
)
def test_the_newest_version_is_what_is_needed(
    versions: tuple[str, ...], relocations: bool, expected: tuple[int, int]
) -> None:
    library = replace(PLAIN, versions=frozenset(versions), packed_relocations=relocations)
    assert needed_glibc(library, "x.so") == expected


@pytest.mark.parametrize("version", ["GLIBC_PRIVATE", "GCC_3.0", "GLIBCXX_3.4", "GLIBC_2", "GLIBC_\u0662.17"])
def test_what_no_glibc_promises_is_refused(version: str) -> None:
    with pytest.raises(BundleError, match=r"x\.so needs symbols of version G"):
        needed_glibc(replace(PLAIN, versions=frozenset({version})), "x.so")


def test_never_older_than_installers_know_and_never_below_the_need() -> None:
    assert promised_glibc([]) == promised_glibc([(2, 4), (2, 17)]) == "2.17"
    assert promised_glibc([(2, 4), (2, 28), (2, 9)]) == "2.28"


def test_tags_and_their_legacy_names() -> None:
    assert platform_tags("2.28", "aarch64") == ("manylinux_2_28_aarch64",)
    assert platform_tags("2.17", "x86_64") == ("manylinux_2_17_x86_64", "manylinux2014_x86_64")
    for text in ("two", "", "2", "2.0", "1.9", "2.17.1", "2.\u0663"):
        with pytest.raises(BundleError, match="cannot promise glibc"):
            platform_tags(text, "x86_64")


def test_tags_are_those_that_packaging_gives_a_machine() -> None:
    manylinux = pytest.importorskip("packaging._manylinux")
    assert manylinux._LEGACY_MANYLINUX_MAP[(2, 17)] == "manylinux2014"


@pytest.fixture(scope="module")
def library() -> bytes:
    return next(
        data for path in shared_objects()
        if len(data := path.read_bytes()) < 1 << 18 and read_shared_object(data, "").versions
    )  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_altered_version_needs_are_refused_or_read(library: bytes, data: st.DataObject) -> None:
    altered = bytearray(library)
    tags = [altered.index(struct.pack("<q", tag)) for tag in (0x6FFFFFFE, 0x6FFFFFFF)]
    for at in tags:
        where = at + 8 + data.draw(st.integers(0, 7))
        altered[where] = data.draw(st.integers(0, 255))
    # Refused with a reason, or read: a hang, or another error, would fail.
    with contextlib.suppress(CorruptFile):
        read_shared_object(bytes(altered), "x")


@pytest.mark.parametrize("kind", ["gone", "named pipe", "directory"])
def test_a_library_that_cannot_be_read_is_an_error_of_the_bundle(tmp_path, kind):
    path = tmp_path / "library.zst"
    if kind != "gone":
        put(kind, path)
    with pytest.raises((BundleError, CorruptFile), match=r"library\.zst"):
        glibc_of([path])

"""The ELF reader: what a library exports, and never a byte outside it."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.bundle.elf import read_sections, read_shared_object
from cutlass_aot.errors import CorruptFile
from tests.support.synthetic import shared_object

EXPORTED = [f"__tvm_ffi_kernel_{i}" for i in range(5)]


def read(data):
    return read_shared_object(data, "library.so")


@pytest.mark.parametrize("gnu_hash", [False, True], ids=["hash", "gnu-hash"])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_defined_symbols_are_exported_and_undefined_ones_are_not(tmp_path, gnu_hash, count):
    data = shared_object(EXPORTED[:count], undefined=["TVMFFIEnvGetStream"], gnu_hash=gnu_hash)
    found = read(data)
    assert found.exported == frozenset(EXPORTED[:count])
    assert found.needed == ("libtvm_ffi.so", "libc.so.6")
    assert found.host == "x86_64"


@pytest.mark.parametrize(("machine", "host"), [(183, "aarch64"), (40, "machine 40")])
def test_the_host_is_read(machine, host):
    assert read(shared_object(EXPORTED, machine=machine)).host == host


@pytest.mark.parametrize("gnu_hash", [False, True], ids=["hash", "gnu-hash"])
def test_every_truncation_is_refused(tmp_path, gnu_hash):
    data = shared_object(EXPORTED, gnu_hash=gnu_hash)
    for length in range(len(data)):
        with pytest.raises(CorruptFile):
            read(data[:length])


@pytest.mark.parametrize(
    ("offset", "value", "says"),
    [
        (0, b"\x7fELG", "64-bit little-endian ELF"),
        (4, b"\x01", "64-bit little-endian ELF"),
        (16, b"\x02\x00", "ELF type is 2"),
        (32, struct.pack("<Q", 2**63), "program header table ends at"),
        (56, b"\x00\x00", "0 program headers"),
        (64, struct.pack("<I", 0), "in no loaded segment"),
        (64 + 56, struct.pack("<I", 0), "no dynamic segment"),
        (64 + 56 + 32, struct.pack("<Q", 2**62), "dynamic segment claims"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, offset, value, says):
    data = bytearray(shared_object(EXPORTED))
    data[offset : offset + len(value)] = value
    with pytest.raises(CorruptFile, match=says):
        read(bytes(data))


def test_a_symbol_count_beyond_reason_is_refused_before_anything_is_read(tmp_path):
    data = shared_object(EXPORTED)
    good = struct.pack("<II", 1, 6)
    assert data.count(good) == 1
    with pytest.raises(CorruptFile, match="dynamic symbols"):
        read(data.replace(good, struct.pack("<II", 1, 2**32 - 1)))


def test_a_chain_without_an_end_is_refused(tmp_path):
    data = bytearray(shared_object(EXPORTED, gnu_hash=True))
    end = bytes(data).index(struct.pack("<5I", 0, 0, 0, 0, 1)) + 16
    # Everything behind the chain belongs to the dynamic segment; odd words there would end it too.
    for at in range(end, len(data), 4):
        (word,) = struct.unpack_from("<I", data, at)
        if at == end or word & 1:
            struct.pack_into("<I", data, at, word & ~1)
    with pytest.raises(CorruptFile):
        read(bytes(data))


def program():
    """A program of this machine, with sections."""
    data = Path(sys.executable).read_bytes()
    if data[4:6] != b"\x02\x01" or not any(data[60:62]):
        pytest.skip("Python is not a 64-bit little-endian ELF file with sections")
    return data


def test_sections_are_those_of_a_full_reader():
    elffile = pytest.importorskip("elftools.elf.elffile")
    found = read_sections(program(), "python")
    with open(sys.executable, "rb") as file:  # noqa: PTH123
        full = elffile.ELFFile(file)
        assert (found.version, found.flags) == (1, full["e_flags"])
        assert [(s.name, s.size) for s in found.sections] == [
            (s.name, s["sh_size"]) for s in full.iter_sections()
        ]
        for mine, theirs in zip(found.sections, full.iter_sections(), strict=True):
            if theirs["sh_type"] not in ("SHT_NULL", "SHT_NOBITS"):
                assert bytes(mine.content) == theirs.data()
            else:
                assert not mine.content


def test_sections_that_are_not_in_the_file_are_refused():
    data = program()
    (headers,) = struct.unpack_from("<Q", data, 40)
    for damaged in (
        data[: headers + 64],
        data[:40] + struct.pack("<Q", 2**63) + data[48:],
        data[:60] + b"\x00\x00" + data[62:],
        data[:62] + b"\xff\xff" + data[64:],
        data[: headers + 64 + 24] + struct.pack("<QQ", 2**62, 2**62) + data[headers + 64 + 40 :],
        data[: headers + 64] + b"\xff" * 4 + data[headers + 68 :],
    ):
        with pytest.raises(CorruptFile, match="python is not a sound ELF file"):
            read_sections(damaged, "python")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("elf")


@given(data=st.data())
def test_altered_bytes_give_a_reading_or_a_clear_refusal(folder, data):
    library = bytearray(
        shared_object(EXPORTED, undefined=["TVMFFIEnvGetStream"], gnu_hash=data.draw(st.booleans()))
    )
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(library) - 8))
        width = data.draw(st.sampled_from([1, 2, 4, 8]))
        value = data.draw(st.one_of(st.sampled_from([0, 1, 2**63, 2**64 - 1]), st.integers(0, 2**64 - 1)))
        library[at : at + width] = struct.pack("<Q", value)[:width]
    try:
        found = read(bytes(library))
    except CorruptFile:
        return
    assert len(found.exported) <= len(library) // 24


@given(st.binary(max_size=4096))
def test_any_bytes_give_a_reading_or_a_clear_refusal(folder, data):
    for reader in (read_shared_object, read_sections):
        with pytest.raises(CorruptFile):
            reader(data, "library.so")


@pytest.mark.compile
@pytest.mark.parametrize("style", ["sysv", "gnu", "both"])
def test_a_linked_library_is_read(tmp_path, style):
    source, script, library = tmp_path / "k.c", tmp_path / "exports.map", tmp_path / "k.so"
    source.write_text(
        '#include <stdio.h>\nint hidden(void) { return puts("x"); }\n'
        "int __tvm_ffi_one(void) { return hidden(); }\nint __tvm_ffi_two(void) { return 2; }\n"
    )
    script.write_text("{ global: __tvm_ffi_*; local: *; };\n")
    arguments = ["-shared", "-fPIC", "-target", "x86_64-linux-gnu.2.28", f"-Wl,--hash-style={style}"]
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", *arguments, f"-Wl,--version-script={script}",
         "-o", str(library), str(source)],
        check=True,
    )  # fmt: skip
    found = read_shared_object(library.read_bytes(), library.name)
    assert found.exported == {"__tvm_ffi_one", "__tvm_ffi_two"}
    assert found.host == "x86_64"
    assert "libc.so.6" in found.needed

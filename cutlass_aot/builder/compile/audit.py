"""Read the properties of a compiled object, and refuse one that is not what was requested.

GPU code is a fat binary, a container of ELF files for the GPU (cubins). NVIDIA documents neither format; what
is read here was learned from objects for every target, and a test compares it with NVIDIA's own
``cuobjdump``. All fields are little-endian.

Container: ``u32 magic, u16 version, u16 header size, u64 size of the entries``. Entry: ``u16 kind`` (1 PTX,
2 cubin) at 0, ``u32`` header size at 4, ``u64`` size of what follows at 8, ``u32`` compute capability at 28,
``u64`` flags at 40.

Cubin: ELF machine 190. Up to ABI version 7: the ELF flags have the compute capability in bits 0-7 and bit 11
for ``a`` targets; the ELF version is 10 times the toolkit's. From ABI version 8: the flags have the compute
capability in bits 8-15 and bit 3 for ``a`` targets; the note ``.note.nv.tkinfo`` names the toolkit. CUDA 13
sets no such bit: there, attribute 9 of section ``.nv.compat`` is 1 for ``a`` targets and 0 for ``f`` targets,
and portable targets have no such section. Sections ``.nv.info`` and ``.nv.compat``: records ``u8 format, u8
attribute, u16 value``, where format 4 says that ``value`` bytes follow, which for the attributes of
``.nv.info`` read here are ``u32 symbol, u32 value``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.builder.native import SHIM_SYMBOLS, TVM_FFI_SYMBOLS
from cutlass_aot.bundle.elf import read_sections
from cutlass_aot.errors import ArtifactError, CorruptFile
from cutlass_aot.schema.kernels.artifact import CODE_PREFIX, EXPORT_PREFIX, Facts
from cutlass_aot.schema.words import few

ALLOWED_UNDEFINED = (
    SHIM_SYMBOLS
    | TVM_FFI_SYMBOLS
    | {
        # Called to copy structures.
        "memcpy",
        "memmove",
        "memset",
        # Called in internal checks of the DSL, which optimisation removes.
        "printf",
    }
)
"""Symbols that an object may leave undefined: the shim, libtvm_ffi and the C library define them."""

_FATBIN_MAGIC = b"\x50\xed\x55\xba"
_FATBIN_VERSION = 1
_ENTRY_KIND_CUBIN = 2
_ENTRY_FLAG_A = 0x100000
_ENTRY_FLAG_F = 0x200000
_MACHINE_CUDA = 190
_OLD_ABI_FLAG_A = 0x800
_NEW_ABI = 8
_NEW_ABI_FLAG_A = 0x8
_COMPAT_FLAG_A = 9
_INFO_SIZED = 4
_INFO_REGISTERS = 0x2F
_INFO_FRAME_SIZE = 0x11
_TOOLKIT = re.compile(rb"release [0-9.]+, V([0-9]+(?:\.[0-9]+)+)\0")


@dataclass(frozen=True, slots=True)
class Inspection:
    """What was read from an object.

    ``facts`` describe its GPU code. Of its sorted symbols, ``undefined`` are those that something else has to
    define, ``defined`` those visible to others.
    """

    facts: Facts
    undefined: tuple[str, ...]
    defined: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Cubin:
    """One entry of a fat binary."""

    number: int
    suffix: str
    code: bytes


def inspect_object(data: bytes) -> Inspection:
    """Read the symbols of a kernel object, and the facts of its GPU code.

    The format is described in :mod:`cutlass_aot.builder.link.kernel_object`.
    """
    item = KernelObject.from_bytes(data)
    undefined, defined = item.symbols()
    cubins = cubins_of(item.gpu_code)
    if not cubins:
        raise ArtifactError("the object holds no GPU code; expected a fat binary with one cubin")
    read = [_cubin_facts(cubin) for cubin in cubins]
    targets = sorted({facts.cubin_target for facts in read})
    versions = sorted({facts.ptxas_version for facts in read})
    if len(targets) != 1 or len(versions) != 1:
        raise ArtifactError(
            f"the object holds GPU code for {', '.join(targets)} (ptxas {', '.join(versions)}); "
            "expected one target and one assembler: compile each target on its own"
        )
    return Inspection(
        facts=Facts(
            cubin_target=targets[0],
            ptxas_version=versions[0],
            registers=max(facts.registers for facts in read),
            spill_bytes=max(facts.spill_bytes for facts in read),
            shared_memory_bytes=max(facts.shared_memory_bytes for facts in read),
            cubin_bytes=sum(facts.cubin_bytes for facts in read),
        ),
        undefined=tuple(sorted(undefined)),
        defined=tuple(sorted(defined)),
    )


def audit(inspection: Inspection, target: str, symbol: str) -> None:
    """Refuse an object that is not the kernel requested, or that could not be linked or loaded.

    ``target`` is a GPU code target such as ``sm_90a``; ``symbol`` is the kernel's, without ``__tvm_ffi_``.
    """
    built = inspection.facts.cubin_target
    if built != target:
        raise ArtifactError(
            f"{symbol}: the GPU code was built for {built}, expected {target}; "
            "the generator did not compile for the target of the kernel's record"
        )
    unknown = sorted(set(inspection.undefined) - ALLOWED_UNDEFINED)
    if unknown:
        raise ArtifactError(
            f"{symbol}: undefined symbols that nothing provides at run time: {few(unknown, 8)}; "
            "the kernel calls host functions that ahead-of-time libraries do not have"
        )
    entry, slot = EXPORT_PREFIX + symbol, CODE_PREFIX + symbol
    if entry not in inspection.defined:
        raise ArtifactError(
            f"{symbol}: the object does not define {entry} (it shows "
            f"{few(inspection.defined, 8)}); it was exported under another name"
        )
    others = [name for name in inspection.defined if name not in (entry, slot)]
    if others:
        raise ArtifactError(
            f"{symbol}: the object shows {few(others, 8)} besides {entry}, which would clash with "
            "other kernels' symbols; export it with export_only_tvm_ffi_symbols=True"
        )


def cubins_of(content: bytes) -> list[Cubin]:
    """The cubins of one fat binary, or of several one after the other."""
    cubins: list[Cubin] = []
    position = content.find(_FATBIN_MAGIC)
    while position >= 0:
        _, version, header, size = _unpack("<IHHQ", content, position)
        end = position + header + size
        if version != _FATBIN_VERSION or header < 16 or end > len(content):
            raise CorruptFile("the fat binary is malformed or truncated")
        position += header
        while position < end:
            kind, _, header, size = _unpack("<HHIQ", content, position)
            if header < 64 or position + header + size > end:
                raise CorruptFile("an entry of the fat binary is malformed or truncated")
            if kind == _ENTRY_KIND_CUBIN:
                (number,) = _unpack("<I", content, position + 28)
                (flags,) = _unpack("<Q", content, position + 40)
                suffix = "a" if flags & _ENTRY_FLAG_A else "f" if flags & _ENTRY_FLAG_F else ""
                code = content[position + header : position + header + size]
                cubins.append(Cubin(number, suffix, code))
            position += header + size
        position = content.find(_FATBIN_MAGIC, end)
    return cubins


def _cubin_facts(cubin: Cubin) -> Facts:
    if not cubin.code.startswith(b"\x7fELF"):
        raise ArtifactError(
            "the object's GPU code is compressed or in no known format, so that it cannot be "
            "audited; compile without compressing it"
        )
    elf = read_sections(cubin.code, "the cubin")
    if elf.machine != _MACHINE_CUDA:
        raise ArtifactError(
            f"found an ELF file for machine {elf.machine}, expected GPU code (machine {_MACHINE_CUDA})"
        )
    flags = elf.flags
    new_abi = elf.abi_version >= _NEW_ABI
    number = flags >> 8 & 0xFF if new_abi else flags & 0xFF
    specific = bool(flags & (_NEW_ABI_FLAG_A if new_abi else _OLD_ABI_FLAG_A))
    for section in elf.sections:
        if section.name == ".nv.compat":
            specific |= any(
                attribute == _COMPAT_FLAG_A and value & 0xFF
                for form, attribute, value, _ in _records(section.content)
                if form != _INFO_SIZED
            )
    if number != cubin.number or specific != (cubin.suffix == "a"):
        raise CorruptFile(
            f"the fat binary says sm_{cubin.number}{cubin.suffix}, its cubin "
            f"sm_{number}{'a' if specific else ''}: the object was altered"
        )
    version = ""
    if not new_abi:
        version = f"{elf.version // 10}.{elf.version % 10}" if elf.version >= 10 else ""
    registers = frame = shared = 0
    for section in elf.sections:
        name = section.name
        if name == ".nv.info":
            for attribute, value in _attributes(section.content):
                if attribute == _INFO_REGISTERS:
                    registers = max(registers, value)
                elif attribute == _INFO_FRAME_SIZE:
                    frame = max(frame, value)
        elif name.startswith(".nv.shared.") and not name.startswith(".nv.shared.reserved."):
            shared = max(shared, section.size)
        elif name == ".note.nv.tkinfo" and new_abi:
            match = _TOOLKIT.search(section.content)
            version = match.group(1).decode("ascii") if match is not None else ""
    if not registers or not version:
        raise CorruptFile("the cubin does not say its registers or its assembler's version")
    return Facts(
        cubin_target=f"sm_{number}{cubin.suffix}",
        ptxas_version=version,
        registers=registers,
        spill_bytes=frame,
        shared_memory_bytes=shared,
        cubin_bytes=len(cubin.code),
    )


def _attributes(content: memoryview) -> list[tuple[int, int]]:
    """Attribute numbers of functions, with their values."""
    found = []
    for form, attribute, _, position in _records(content):
        if form == _INFO_SIZED and attribute in (_INFO_REGISTERS, _INFO_FRAME_SIZE):
            _, value = _unpack("<II", content, position)
            found.append((attribute, value))
    return found


def _records(content: memoryview) -> Iterator[tuple[int, int, int, int]]:
    """Format, attribute and value of each record, and where what follows it begins."""
    position = 0
    while position < len(content):
        form, attribute, value = _unpack("<BBH", content, position)
        position += 4
        yield form, attribute, value, position
        if form == _INFO_SIZED:
            position += value


def _unpack(form: str, content: bytes | memoryview, position: int) -> tuple[int, ...]:
    try:
        return struct.unpack_from(form, content, position)
    except struct.error:
        raise CorruptFile("the object's GPU code is truncated") from None

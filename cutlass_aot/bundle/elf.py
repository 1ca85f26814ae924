"""Read ELF files within bounds: the dynamic segment of a shared library, and the sections of a cubin.

Verification runs where no build tool is installed, so this reader needs the standard library alone. It reads
64-bit little-endian ELF and checks every offset against the file's length before it is used.
Formats: System V gABI, chapters 4 and 5; https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html, and
for ``DT_GNU_HASH`` the GNU C Library's ``elf/dl-lookup.c``, ``do_lookup_x``; for version needs the Linux
Standard Base, "Symbol Versioning".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from cutlass_aot.errors import CorruptFile

MACHINES = {62: "x86_64", 183: "aarch64"}
"""ELF machine numbers of the hosts."""

MAX_SYMBOLS = 1 << 20
MAX_STRING_BYTES = 1 << 26
MAX_SEGMENTS = 1 << 10
MAX_SECTIONS = 1 << 12
MAX_DYNAMIC_ENTRIES = 1 << 12
MAX_VERSIONS = 1 << 10
MAX_NAME_BYTES = 1 << 12
"""Of one symbol, library or section: many entries could share one long text, and each would copy it."""

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_DYNAMIC = struct.Struct("<qQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_VERSIONS_OF_A_LIBRARY = struct.Struct("<HHIII")
_VERSION = struct.Struct("<IHHII")
_SHARED_OBJECT = 3
_LOAD, _DYNAMIC_SEGMENT = 1, 2
_SECTIONS_WITHOUT_CONTENT = (0, 8)  # null, no bits
_NULL, _NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SYMENT = 0, 1, 4, 5, 6, 10, 11
_RPATH, _RUNPATH = 15, 29
_RELR = 36
_GNU_HASH, _VERNEED, _VERNEEDNUM = 0x6FFFFEF5, 0x6FFFFFFE, 0x6FFFFFFF
_WEAK_VERSION = 2  # one that may be missing: the loader warns of it alone
_UNDEFINED = 0
_VISIBLE_BINDINGS = (1, 2, 10)  # global, weak, unique
_VISIBLE = (0, 3)  # default, protected


@dataclass(frozen=True, slots=True)
class SharedObject:
    """What can be said of a shared library without loading it.

    Attributes:
        host: CPU architecture, such as ``x86_64``, or such as ``machine 40`` if it is not a host of ours.
        exported: names of the defined symbols that others can bind to.
        needed: libraries it needs, in the file's order.
        versions: symbol versions that those libraries must have, such as ``GLIBC_2.17``, or else the loader
            refuses this one.
        packed_relocations: whether it has ``DT_RELR``.
        search_paths: values of ``DT_RPATH`` and ``DT_RUNPATH``.
    """

    host: str
    exported: frozenset[str]
    needed: tuple[str, ...]
    versions: frozenset[str] = frozenset()
    packed_relocations: bool = False
    search_paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Section:
    """A section of an ELF file: ``size`` bytes in memory, ``content`` in the file.

    The name is cut after :data:`MAX_NAME_BYTES`.
    """

    name: str
    size: int
    content: memoryview


@dataclass(frozen=True, slots=True)
class SectionedFile:
    """Sections of an ELF file, and numbers of its header."""

    machine: int
    version: int
    abi_version: int
    flags: int
    sections: tuple[Section, ...]


def read_shared_object(data: bytes, what: str) -> SharedObject:
    """Read the dynamic segment of a shared library; errors call it ``what``."""
    return _Reader(data, f"{what} is not a sound shared library").shared_object()


def read_sections(data: bytes, what: str) -> SectionedFile:
    """Read the sections of an ELF file; errors call it ``what``."""
    return _Reader(data, f"{what} is not a sound ELF file").sections()


class _Reader:
    def __init__(self, data: bytes, refusal: str) -> None:
        self._data = data
        self._refusal = refusal
        self._size = len(data)
        # (virtual address, bytes in the file, offset in the file)
        self._loads: list[tuple[int, int, int]] = []
        if self._size < _HEADER.size:
            raise self._corrupt(f"it has {self._size} bytes, an ELF header has {_HEADER.size}")
        (
            self._identity, self._kind, self._machine, self._version, _,
            self._segments_at, self._sections_at, self._flags, _,
            self._segment_size, self._segments, self._section_size, self._sections, self._names,
        ) = _HEADER.unpack_from(data)  # fmt: skip
        if self._identity[:4] != b"\x7fELF" or self._identity[4:7] != b"\x02\x01\x01":
            raise self._corrupt("it does not begin as 64-bit little-endian ELF does")

    def _corrupt(self, problem: str) -> CorruptFile:
        return CorruptFile(f"{self._refusal}: {problem}")

    def _bytes(self, offset: int, length: int, part: str) -> bytes:
        if offset + length > self._size:
            raise self._corrupt(f"its {part} ends at byte {offset + length}, the file at {self._size}")
        return self._data[offset : offset + length]

    def _offset(self, address: int, part: str) -> tuple[int, int]:
        """File offset of a virtual address, and how many bytes of its segment follow."""
        for start, length, offset in self._loads:
            if start <= address < start + length:
                skip = address - start
                return offset + skip, length - skip
        raise self._corrupt(f"its {part}, at address {address:#x}, is in no loaded segment")

    def _table(self, address: int, length: int, part: str) -> bytes:
        """Bytes at a virtual address."""
        offset, available = self._offset(address, part)
        if length > available:
            raise self._corrupt(f"its {part} claims {length} bytes, {available} are loaded")
        return self._bytes(offset, length, part)

    def sections(self) -> SectionedFile:
        if self._section_size != _SECTION.size or not 0 < self._sections <= MAX_SECTIONS:
            raise self._corrupt(f"it has {self._sections} section headers of {self._section_size} bytes")
        table = self._bytes(self._sections_at, self._sections * _SECTION.size, "section header table")
        headers = list(_SECTION.iter_unpack(table))
        if self._names >= len(headers):
            raise self._corrupt("it has no section with the names of the others")
        *_, names_at, names_size, _, _, _, _ = headers[self._names]
        names = self._bytes(names_at, names_size, "table of section names")
        view = memoryview(self._data)
        found = []
        for name, kind, _, _, offset, size, *_ in headers:
            if name >= len(names):
                raise self._corrupt(f"a section's name at {name} is outside the table of names")
            text = names[name : name + MAX_NAME_BYTES].partition(b"\0")[0].decode("utf-8", "backslashreplace")
            stored = 0 if kind in _SECTIONS_WITHOUT_CONTENT else size
            if stored and offset + stored > self._size:
                raise self._corrupt(f"it is truncated: section {text!r} ends beyond it")
            found.append(Section(text, size, view[offset : offset + stored]))
        return SectionedFile(self._machine, self._version, self._identity[8], self._flags, tuple(found))

    def shared_object(self) -> SharedObject:
        if self._kind != _SHARED_OBJECT:
            raise self._corrupt(f"its ELF type is {self._kind}, a shared library has {_SHARED_OBJECT}")
        if self._segment_size != _SEGMENT.size or not 0 < self._segments <= MAX_SEGMENTS:
            raise self._corrupt(f"it has {self._segments} program headers of {self._segment_size} bytes")
        # It is not used, but it comes last in the file: this finds truncated files.
        self._bytes(self._sections_at, self._sections * self._section_size, "section header table")
        table = self._bytes(self._segments_at, self._segments * _SEGMENT.size, "program header table")
        dynamic: tuple[int, int] | None = None
        for tag, _, offset, address, _, length, _, _ in _SEGMENT.iter_unpack(table):
            if tag == _LOAD:
                if offset + length > self._size:
                    raise self._corrupt(
                        f"a loaded segment ends at byte {offset + length}, the file at {self._size}"
                    )
                self._loads.append((address, length, offset))
            elif tag == _DYNAMIC_SEGMENT:
                dynamic = (offset, length)
        if dynamic is None:
            raise self._corrupt("it has no dynamic segment")
        entries, needed, paths = self._dynamic(*dynamic)
        strings = self._strings(entries)
        return SharedObject(
            host=MACHINES.get(self._machine, f"machine {self._machine}"),
            exported=frozenset(self._exported(entries, strings)),
            needed=tuple(self._name(strings, offset) for offset in needed),
            versions=frozenset(self._versions(entries, strings)),
            packed_relocations=_RELR in entries,
            search_paths=tuple(self._name(strings, offset) for offset in paths),
        )

    def _dynamic(self, offset: int, length: int) -> tuple[dict[int, int], list[int], list[int]]:
        if length > MAX_DYNAMIC_ENTRIES * _DYNAMIC.size:
            raise self._corrupt(f"its dynamic segment claims {length} bytes")
        whole = length - length % _DYNAMIC.size
        entries: dict[int, int] = {}
        needed: list[int] = []
        paths: list[int] = []
        for tag, value in _DYNAMIC.iter_unpack(self._bytes(offset, whole, "dynamic segment")):
            if tag == _NULL:
                break
            if tag == _NEEDED:
                needed.append(value)
            elif tag in (_RPATH, _RUNPATH):
                paths.append(value)
            else:
                entries[tag] = value
        return entries, needed, paths

    def _entry(self, entries: dict[int, int], tag: int, name: str) -> int:
        try:
            return entries[tag]
        except KeyError:
            raise self._corrupt(f"its dynamic segment has no {name}") from None

    def _strings(self, entries: dict[int, int]) -> bytes:
        length = self._entry(entries, _STRSZ, "DT_STRSZ")
        if not 0 < length <= MAX_STRING_BYTES:
            raise self._corrupt(f"its string table claims {length} bytes")
        return self._table(self._entry(entries, _STRTAB, "DT_STRTAB"), length, "string table")

    def _name(self, strings: bytes, offset: int) -> str:
        end = strings.find(b"\0", offset, offset + MAX_NAME_BYTES) if offset < len(strings) else -1
        if end < 0:
            raise self._corrupt(
                f"a name at {offset} has more than {MAX_NAME_BYTES} bytes, or runs out of its string table"
            )
        # Bytes that are not UTF-8 match no name of ours, but errors must be able to show them.
        return strings[offset:end].decode("utf-8", "backslashreplace")

    def _exported(self, entries: dict[int, int], strings: bytes) -> Iterator[str]:
        if self._entry(entries, _SYMENT, "DT_SYMENT") != _SYMBOL.size:
            raise self._corrupt(f"its symbols have {entries[_SYMENT]} bytes, not {_SYMBOL.size}")
        count = self._symbol_count(entries)
        if count > MAX_SYMBOLS:
            raise self._corrupt(f"it claims {count} dynamic symbols")
        address = self._entry(entries, _SYMTAB, "DT_SYMTAB")
        table = self._table(address, count * _SYMBOL.size, "symbol table") if count else b""
        # Names can overlap: each of a million symbols could have 4.1 KB of the same string table.
        left = MAX_STRING_BYTES
        for name, info, other, section, _, _ in _SYMBOL.iter_unpack(table):
            visible = info >> 4 in _VISIBLE_BINDINGS and other & 3 in _VISIBLE
            if visible and section != _UNDEFINED:
                text = self._name(strings, name)
                left -= len(text)
                if left < 0:
                    raise self._corrupt(f"its symbols' names have more than {MAX_STRING_BYTES} bytes")
                yield text

    def _versions(self, entries: dict[int, int], strings: bytes) -> Iterator[str]:
        if _VERNEED not in entries:
            return
        address, libraries = entries[_VERNEED], self._entry(entries, _VERNEEDNUM, "DT_VERNEEDNUM")
        seen = 0
        for _ in range(libraries):
            record = self._table(address, _VERSIONS_OF_A_LIBRARY.size, "version needs")
            _, versions, _, first, following = _VERSIONS_OF_A_LIBRARY.unpack(record)
            seen += 1 + versions
            if seen > MAX_VERSIONS:
                raise self._corrupt(f"it needs more than {MAX_VERSIONS} versions of symbols")
            at = address + first
            for _ in range(versions):
                version = _VERSION.unpack(self._table(at, _VERSION.size, "version needs"))
                _, flags, _, name, step = version
                if not flags & _WEAK_VERSION:
                    yield self._name(strings, name)
                at += step
            address += following

    def _symbol_count(self, entries: dict[int, int]) -> int:
        """The number of symbols, from either hash table: no field of the dynamic segment holds it."""
        if _HASH in entries:
            _, count = struct.unpack("<II", self._table(entries[_HASH], 8, "hash table"))
            return int(count)
        address = self._entry(entries, _GNU_HASH, "DT_HASH or DT_GNU_HASH")
        buckets, first, bloom, _ = struct.unpack("<IIII", self._table(address, 16, "hash table"))
        if buckets > MAX_SYMBOLS or bloom > MAX_SYMBOLS:
            raise self._corrupt(f"its hash table claims {buckets} buckets, {bloom} filter words")
        buckets_at = address + 16 + 8 * bloom
        words = self._table(buckets_at, 4 * buckets, "hash table") if buckets else b""
        last = max((word for (word,) in struct.iter_unpack("<I", words)), default=0)
        if last < first:
            return int(first)
        # The chain of the last bucket ends, with its low bit set, at the last symbol.
        offset, available = self._offset(
            buckets_at + 4 * buckets + 4 * (last - first), "hash table's last chain"
        )
        length = min(available - available % 4, 4 * MAX_SYMBOLS)
        for index, (word,) in enumerate(
            struct.iter_unpack("<I", self._bytes(offset, length, "hash table's last chain"))
        ):
            if word & 1:
                return int(last + index + 1)
        raise self._corrupt("its hash table's last chain has no end")

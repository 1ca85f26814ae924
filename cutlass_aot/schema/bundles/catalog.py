"""The catalog: a bundle's index of its groups of kernels.

Files of a bundle (msgpack ones are sealed, see :mod:`~cutlass_aot.schema.encoding`)::

    MANIFEST.json          every other file's size and SHA-256; written last
    catalog.msgpack        this index
    groups/<group>.msgpack one index a group (:mod:`~.group_index`)
    requests/*.msgpack     requests that a program's kernels answer (:mod:`~.request_index`)
    rankings/*.msgpack     speeds of a group's kernels (:mod:`~.ranking`), where known
    code/*.zst             GPU code of one or more groups of one target, the same for every host
    lib/<host>/*.so.zst    linked host code of the same kernels; and the launcher
    licenses/*             licences of what is linked in and of what was compiled into kernels
    sbom/*                 bill of materials
    signatures/*           signatures of the manifest; the only files that it does not list

A file of GPU code has the kernels' fat binaries one after the other, equal ones once. Each file of code and
each library is one zstd frame (RFC 8878).

Groups are stored by signature (operation, element types, layouts and target), each encoded separately:
opening a bundle decodes none of them, and a look-up decodes those of one signature. Within a group, what
others have too (an operand, code, libraries) is encoded separately again, and equal bytes are decoded once.
"""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.codec import (
    AS_MAP,
    OMIT,
    SHARED,
    Check,
    Codec,
    Digest,
    Form,
    Key,
    Line,
    check_lines,
    from_plain,
    row,
    to_plain,
    within,
)
from cutlass_aot.schema.encoding import decode, encode, seal, shown, unseal
from cutlass_aot.schema.kernels.accumulation import Accumulation
from cutlass_aot.schema.kernels.constraints import LAYOUT_LETTERS, OperandConstraint, check_operands
from cutlass_aot.schema.kernels.design import NO_VALUES, Values
from cutlass_aot.schema.named_tuple import NamedTuple
from cutlass_aot.schema.versions import release

SCHEMA = 14
MANIFEST_NAME = "MANIFEST.json"
CATALOG_NAME = "catalog.msgpack"
MAX_FILE_BYTES = 1 << 30
MAX_FILES = 1 << 15
"""Files that a manifest may list: a bundle of 100,000 kernels has about 1,800."""
MAX_INDEX_BYTES = 1 << 24
"""Bytes of an index or a ranking: of 100,000 kernels the catalog has 0.6 MB, a group's index 0.1 at most."""
MAX_PATH = 1024
"""Characters of a file's path."""
MAX_LIBRARY_BYTES = 1 << 26
"""Bytes of an unpacked library: host code of a hundred kernels is about a megabyte."""
CATALOG_KIND = "cutlass-aot catalog"
BUNDLE_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")
"""A bundle's name: lower-case letters and digits, with ``.``, ``_`` and ``-`` between them."""
FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
"""A name that files of a bundle have: that of a group, a host or a licence, and each part of a path."""
VARIANT_NAME = re.compile(r"[a-z0-9]*")
"""A bundle's variant, which stands in names of wheels."""


def _named_by(pattern: re.Pattern[str], expected: str) -> Check:
    """Names that match a pattern: they become parts of paths, and must lead nowhere else."""

    def test(name: str) -> None:
        if len(name) > MAX_PATH or not pattern.fullmatch(name):
            raise ValueError(f"found {shown(name)}, expected {expected}")

    return Check(test)


FileName = Annotated[
    str,
    _named_by(FILE_NAME, "letters, digits, '.', '_', '+' and '-', beginning with a letter or a digit"),
]


_LEADING_OUT = frozenset(("", ".", ".."))


def check_relative(path: str) -> None:
    """Refuse a path that could lead out of a bundle.

    Absolute paths, ``.``, ``..``, empty parts, backslashes, unprintable characters and more than
    :data:`MAX_PATH` characters raise CorruptFile.
    """
    if len(path) > MAX_PATH:
        raise CorruptFile(f"path {path[:64]!r}... has {len(path)} characters, expected at most {MAX_PATH}")
    parts = path.split("/")
    if not path.isprintable() or "\\" in path or not _LEADING_OUT.isdisjoint(parts):
        raise CorruptFile(f"path {path!r} leads out of the bundle")


class FileReference(NamedTuple):
    """A file by its path in the bundle, size in bytes and digest, which also names unpacked copies of it."""

    path: Annotated[str, Check(check_relative)]
    size: Annotated[int, within(0, MAX_FILE_BYTES)]
    sha256: Digest


@row
class RankingReference(NamedTuple):
    """The file of a ranking, with ``gpu`` and ``measured`` of :class:`~.ranking.Ranking`."""

    gpu: Line
    measured: bool
    file: FileReference


def _check_libraries(libraries: Mapping[str, tuple[FileReference, ...]]) -> None:
    check_lines(*libraries)
    if len({len(references) for references in libraries.values()}) > 1 or not all(libraries.values()):
        raise ValueError("not as many libraries for one host as for another, or none")


def _check_keys(mapping: Mapping[str, FileReference]) -> None:
    check_lines(*mapping)


def _check_provenance(provenance: Mapping[str, str]) -> None:
    check_lines(*provenance, *provenance.values())


class GroupEntry(NamedTuple):
    """One group in the catalog: enough to find it, or to say why it does not match.

    Attributes not listed are as in :class:`~.Kernel`.

    Attributes:
        name: readable name, also the stem of its files.
        kernel_count: number of kernels.
        child: the group's own index.
        code: GPU code of its kernels, and perhaps of other groups'.
        libraries: host to the libraries with the kernels' host code, the same number for each host.
        rankings: measured ones first, then by GPU.
        requests: requests of a program that its kernels answer; None if kernels are found by operands.
        cost: formula of :mod:`~cutlass_aot.schema.kernels.cost` that kernels are chosen by, ``""`` for none.
    """

    name: FileName
    operation: str
    operands: Annotated[tuple[Annotated[OperandConstraint, SHARED], ...], Check(check_operands)]
    accumulator: str
    epilogue: str
    target: str
    kernel_count: Annotated[int, Key("count")]
    child: FileReference
    code: Annotated[FileReference, SHARED]
    libraries: Annotated[Mapping[str, tuple[FileReference, ...]], SHARED, Check(_check_libraries)]
    rankings: Annotated[tuple[RankingReference, ...], OMIT] = ()
    parameters: Annotated[Values, AS_MAP, OMIT] = NO_VALUES
    requests: Annotated[FileReference | None, OMIT] = None
    cost: Annotated[str, OMIT] = ""
    accumulation: Annotated[Accumulation, OMIT] = ""

    @property
    def files(self) -> tuple[FileReference, ...]:
        """All files of the bundle that the group refers to."""
        libraries = (reference for references in self.libraries.values() for reference in references)
        requests = () if self.requests is None else (self.requests,)
        return (self.child, self.code, *libraries, *(ranking.file for ranking in self.rankings), *requests)

    @property
    def signature(self) -> str:
        """The :func:`signature` of the group."""
        return signature(self.operation, [o.dtype for o in self.operands], self.layouts, self.target)

    @property
    def layouts(self) -> str:
        """Layout letters of the operands in order, such as ``tnt``."""
        return "".join([LAYOUT_LETTERS[operand.contiguous] for operand in self.operands])

    def validate(self) -> None:
        """Refuse a group that neither operands nor requests can find, and names that are none."""
        check_lines(self.operation, self.accumulator, self.target, self.cost)
        for pair in self.parameters:
            check_lines(*(text for text in pair if isinstance(text, str)))
        if not self.operands and self.requests is None:
            raise ValueError("a group that neither operands nor requests find")


def signature(operation: str, dtypes: Sequence[str], layouts: str, target: str) -> str:
    """The text that groups are stored by, such as ``gemm f16.f16.f32 tnt sm_90a``."""
    return f"{operation} {'.'.join(dtypes)} {layouts} {target}"


def _speaks_of(word: str, operation: str, target: str) -> bool:
    return word.startswith(f"{operation} ") and word.endswith(f" {target}")


class VersionRequirements(NamedTuple):
    """Versions that a bundle needs on the machine that loads it.

    Attributes:
        cuda_driver: lowest CUDA version of a driver with the functions that the libraries call.
        tvm_ffi: version of apache-tvm-ffi that was linked against; the installed one must have the same major
            and minor version and not be older.
        glibc: version that the libraries were linked for.
    """

    cuda_driver: Annotated[Line, Check(release)]
    tvm_ffi: Annotated[Line, Check(release)]
    glibc: Annotated[Line, Check(release)]


class Groups(Sequence[GroupEntry]):
    """A catalog's groups by name, each decoded when it is first needed.

    ``records`` maps signatures to encoded groups in order of name (other types are a TypeError), and ``what``
    names the file in errors.
    """

    def __init__(self, records: Mapping[str, Sequence[bytes]], what: str) -> None:
        if not all(isinstance(item, bytes) for group in records.values() for item in group):
            raise TypeError("a group is not kept as bytes")
        self._records = records
        self._what = what
        self._by_signature: dict[str, tuple[GroupEntry, ...]] = {}
        self._all: tuple[GroupEntry, ...] | None = None

    @classmethod
    def of(cls, entries: Sequence[GroupEntry]) -> "Groups":
        """Encode groups, given in any order."""
        records: dict[str, list[bytes]] = {}
        for entry in sorted(entries, key=lambda entry: entry.name):
            records.setdefault(entry.signature, []).append(encode(to_plain(entry)))
        return cls(records, "catalog")

    @property
    def records(self) -> Mapping[str, Sequence[bytes]]:
        """Signature to the encoded groups."""
        return self._records

    def with_signature(self, word: str) -> tuple[GroupEntry, ...]:
        """Groups with this :func:`signature`, by name; no others are decoded."""
        found = self._by_signature.get(word)
        if found is None:
            found = tuple(self._decoded(data, word) for data in self._records.get(word, ()))
            self._by_signature[word] = found
        return found

    def with_dtypes(self, operation: str, dtypes: Sequence[str]) -> tuple[GroupEntry, ...]:
        """Groups of one operation and element types, with any layouts and target."""
        beginning = signature(operation, dtypes, "", "").rstrip() + " "
        words = [word for word in self._records if word.startswith(beginning)]
        return tuple(entry for word in words for entry in self.with_signature(word))

    def of_operation(self, operation: str, target: str) -> tuple[GroupEntry, ...]:
        """Groups of one operation and target, with any operands."""
        words = [word for word in self._records if _speaks_of(word, operation, target)]
        return tuple(entry for word in words for entry in self.with_signature(word))

    def __len__(self) -> int:
        return sum(map(len, self._records.values()))

    def __getitem__(self, index: Any) -> Any:
        return self._entries()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Groups) and self._records == other._records

    def __hash__(self) -> int:
        return hash(frozenset(self._records))

    def _entries(self) -> tuple[GroupEntry, ...]:
        if self._all is None:
            found = [self._decoded(data, word) for word, records in self._records.items() for data in records]
            self._all = tuple(sorted(found, key=lambda entry: entry.name))
        return self._all

    def _decoded(self, data: bytes, word: str) -> GroupEntry:
        entry = from_plain(GroupEntry, decode(data, self._what), self._what)
        if entry.signature != word:
            raise CorruptFile(f"{self._what} keeps a group of {entry.signature} under {shown(word)}")
        return entry


class Catalog(NamedTuple):
    """The catalog of a bundle.

    Attributes:
        device: name of the device profile of the build.
        targets: GPU code targets, sorted.
        hosts: CPU architectures with libraries, sorted.
        provenance: names and versions of what built it (no times, no paths).
        launchers: host to the library through which kernels are launched.
        alignment: bytes; which kernels support an operand depends on its address modulo this number only.
        variant: target of a bundle that was split by target, such as ``sm90a``; ``""`` if it was not split.
    """

    name: Annotated[str, _named_by(BUNDLE_NAME, "such a name as sm100-dense")]
    version: Line
    device: Line
    targets: tuple[FileName, ...]
    hosts: tuple[FileName, ...]
    requirements: Annotated[VersionRequirements, Key("needs")]
    provenance: Annotated[Mapping[str, str], Check(_check_provenance)]
    launchers: Annotated[Mapping[str, FileReference], Check(_check_keys)]
    groups: Annotated[Groups, Form(lambda _: Codec(Groups, lambda groups: dict(groups.records)))]
    alignment: Annotated[int, within(1, (1 << 32) - 1)] = 1
    variant: Annotated[str, _named_by(VARIANT_NAME, "lower-case letters and digits")] = ""

    def to_bytes(self) -> bytes:
        """The catalog's file."""
        return seal(CATALOG_KIND, SCHEMA, to_plain(self))

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> "Catalog":
        """Read a catalog. Its groups are decoded later, which may then raise ``CorruptFile``."""
        return from_plain(cls, unseal(data, CATALOG_KIND, SCHEMA, what), what)


def common_alignment(groups: Sequence[GroupEntry]) -> int:
    """:attr:`Catalog.alignment`: the least common multiple of the alignments of all operands."""
    return math.lcm(1, *(operand.alignment for group in groups for operand in group.operands))

"""The bundle's index: a small parent that maps problems to groups, and one child a group.

Files (all sealed msgpack, see :mod:`~cutlass_aot.schema.encoding`)::

    MANIFEST.json          every other file's size and SHA-256; written last
    catalog.msgpack        parent
    groups/<group>.msgpack children
    lib/<host>/*.so        linked libraries; groups of one target may share one
    licenses/*             licences of what is linked in
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cutlass_aot.errors import CorruptFile
from cutlass_aot.schema.artifact import Facts
from cutlass_aot.schema.encoding import seal, unseal
from cutlass_aot.schema.kernel import Kernel, OperandConstraint
from cutlass_aot.schema.versions import release

SCHEMA = 1
MANIFEST_NAME = "MANIFEST.json"
CATALOG_NAME = "catalog.msgpack"
MAX_FILE_BYTES = 1 << 30
MAX_INDEX_BYTES = 1 << 28
CATALOG_KIND = "cutlass-aot catalog"
GROUP_KIND = "cutlass-aot group"
BUNDLE_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")
"""Names of bundles: lower-case letters and digits, and ``.``, ``_``, ``-`` between them."""


@dataclass(frozen=True, slots=True)
class FileReference:
    """A file of a bundle, by its path in the bundle, size and digest."""

    path: str
    size: int
    sha256: str

    def to_record(self) -> dict[str, Any]:
        """Plain data for the canonical encoding."""
        return {"path": self.path, "size": self.size, "sha256": self.sha256}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> FileReference:
        """Read what :meth:`to_record` gave; paths that lead out of the bundle are refused."""
        path, size, sha256 = record["path"], record["size"], record["sha256"]
        if not isinstance(path, str) or not isinstance(sha256, str) or not isinstance(size, int):
            raise CorruptFile("a file reference of the catalog is malformed")
        check_relative(path)
        if not 0 <= size <= MAX_FILE_BYTES:
            raise CorruptFile(f"{path}: impossible size {size}")
        return cls(path, size, sha256)


def check_relative(path: str) -> None:
    """Refuse a path that could lead out of a bundle.

    Raises:
        CorruptFile: for an absolute path, ``..``, an empty part, a backslash or an unprintable character.
    """
    parts = path.split("/")
    if not path.isprintable() or "\\" in path or any(part in ("", ".", "..") for part in parts):
        raise CorruptFile(f"path {path!r} leads out of the bundle")


@dataclass(frozen=True, slots=True)
class GroupEntry:
    """One group in the parent: enough to look it up and to say why it does not fit.

    Attributes:
        name: readable name, also the stem of its files.
        operation: what its kernels compute.
        operands: constraints they share.
        accumulator: element type of the accumulator.
        epilogue: epilogue formula, ``""`` for none.
        target: GPU code target.
        count: number of kernels.
        child: the group's own index.
        libraries: host to library.
    """

    name: str
    operation: str
    operands: tuple[OperandConstraint, ...]
    accumulator: str
    epilogue: str
    target: str
    count: int
    child: FileReference
    libraries: Mapping[str, FileReference]

    @property
    def layouts(self) -> str:
        """Layout letters of the operands in order, such as ``tnt``."""
        return "".join(operand.layout for operand in self.operands)

    def to_record(self) -> dict[str, Any]:
        """Plain data for the canonical encoding."""
        return {
            "name": self.name,
            "operation": self.operation,
            "operands": [operand.to_record() for operand in self.operands],
            "accumulator": self.accumulator,
            "epilogue": self.epilogue,
            "target": self.target,
            "count": self.count,
            "child": self.child.to_record(),
            "libraries": {host: ref.to_record() for host, ref in self.libraries.items()},
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> GroupEntry:
        """Read what :meth:`to_record` gave."""
        return cls(
            name=str(record["name"]),
            operation=str(record["operation"]),
            operands=tuple(OperandConstraint.from_record(item) for item in record["operands"]),
            accumulator=str(record["accumulator"]),
            epilogue=str(record["epilogue"]),
            target=str(record["target"]),
            count=int(record["count"]),
            child=FileReference.from_record(record["child"]),
            libraries={
                str(host): FileReference.from_record(ref) for host, ref in record["libraries"].items()
            },
        )


@dataclass(frozen=True, slots=True)
class Needs:
    """What a bundle needs of the machine that loads it: three versions.

    Attributes:
        cuda_runtime: version of the CUDA runtime linked in; the driver has to support its major version.
        tvm_ffi: version of apache-tvm-ffi it was linked against; the installed one has the same major and
            minor version and is not older.
        glibc: glibc version the libraries were linked for.
    """

    cuda_runtime: str
    tvm_ffi: str
    glibc: str


@dataclass(frozen=True, slots=True)
class Catalog:
    """The parent index of a bundle.

    Attributes:
        name: the bundle's name.
        version: the bundle's version.
        device: device profile it was built with.
        targets: GPU code targets, sorted.
        hosts: CPU architectures it has libraries for, sorted.
        needs: what it needs of a machine.
        provenance: names and versions of what built it (no times, no paths).
        groups: sorted by name.
    """

    name: str
    version: str
    device: str
    targets: tuple[str, ...]
    hosts: tuple[str, ...]
    needs: Needs
    provenance: Mapping[str, str]
    groups: tuple[GroupEntry, ...]

    def to_bytes(self) -> bytes:
        """The parent's file."""
        body = {
            "name": self.name,
            "version": self.version,
            "device": self.device,
            "targets": self.targets,
            "hosts": self.hosts,
            "needs": {
                "cuda_runtime": self.needs.cuda_runtime,
                "tvm_ffi": self.needs.tvm_ffi,
                "glibc": self.needs.glibc,
            },
            "provenance": self.provenance,
            "groups": [group.to_record() for group in self.groups],
        }
        return seal(CATALOG_KIND, SCHEMA, body)

    @classmethod
    def from_bytes(cls, data: bytes, what: str) -> Catalog:
        """Read a parent.

        Raises:
            CorruptFile: if it is truncated, altered or malformed.
            SchemaTooNew: if a newer release wrote it.
        """
        body = unseal(data, CATALOG_KIND, SCHEMA, what)
        try:
            for version in body["needs"].values():
                release(str(version))
            return cls(
                name=str(body["name"]),
                version=str(body["version"]),
                device=str(body["device"]),
                targets=tuple(str(target) for target in body["targets"]),
                hosts=tuple(str(host) for host in body["hosts"]),
                needs=Needs(
                    cuda_runtime=str(body["needs"]["cuda_runtime"]),
                    tvm_ffi=str(body["needs"]["tvm_ffi"]),
                    glibc=str(body["needs"]["glibc"]),
                ),
                provenance={str(k): str(v) for k, v in body["provenance"].items()},
                groups=tuple(GroupEntry.from_record(record) for record in body["groups"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CorruptFile(f"{what} is malformed: {error!r}") from None


@dataclass(frozen=True, slots=True)
class KernelEntry:
    """One kernel in a child index.

    Attributes:
        kernel: the whole record.
        object_sha256: digest of the object that was linked in.
        facts: what was read back from it.
        provenance: generator version and toolchain fingerprint that gave it.
    """

    kernel: Kernel
    object_sha256: str
    facts: Facts
    provenance: Mapping[str, str]

    def to_record(self) -> dict[str, Any]:
        """Plain data for the canonical encoding."""
        return {
            "kernel": self.kernel.to_record(),
            "object_sha256": self.object_sha256,
            "facts": self.facts.to_record(),
            "provenance": self.provenance,
        }


def group_to_bytes(entries: tuple[KernelEntry, ...]) -> bytes:
    """A child's file; kernels in the order given."""
    return seal(GROUP_KIND, SCHEMA, {"kernels": [entry.to_record() for entry in entries]})


def group_from_bytes(data: bytes, what: str) -> tuple[KernelEntry, ...]:
    """Read a child.

    Raises:
        CorruptFile: if it is truncated, altered or malformed.
        SchemaTooNew: if a newer release wrote it.
    """
    body = unseal(data, GROUP_KIND, SCHEMA, what)
    try:
        return tuple(
            KernelEntry(
                kernel=Kernel.from_record(record["kernel"]),
                object_sha256=str(record["object_sha256"]),
                facts=Facts.from_record(record["facts"]),
                provenance={str(k): str(v) for k, v in record["provenance"].items()},
            )
            for record in body["kernels"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptFile(f"{what} is malformed: {error!r}") from None

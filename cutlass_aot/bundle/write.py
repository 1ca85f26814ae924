"""Write a bundle: beside the output, complete and synchronised, then swapped in at once."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cutlass_aot.bundle.files import is_exactly, manifest_to_bytes
from cutlass_aot.bundle.replace import create, disk_error, make_folders, replace_bundle, synchronise
from cutlass_aot.bundle.sbom import BILL_FOLDER, BILL_NAME, bill_of_materials
from cutlass_aot.errors import BundleError, CorruptFile, CutlassAotError
from cutlass_aot.runtime.files.verified_read import read_catalog, read_manifest
from cutlass_aot.schema.bundles.catalog import (
    BUNDLE_NAME,
    CATALOG_NAME,
    MANIFEST_NAME,
    MAX_FILE_BYTES,
    MAX_INDEX_BYTES,
    Catalog,
    FileReference,
    GroupEntry,
    Groups,
    RankingReference,
    VersionRequirements,
    common_alignment,
)
from cutlass_aot.schema.bundles.group_index import KernelEntry, group_to_bytes
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.requests.request import OPERATION, CompiledRequest
from cutlass_aot.schema.requests.request_index import requests_to_bytes
from cutlass_aot.schema.tuning.ranking import Ranking

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")
VARIANT_NAME = re.compile(r"[a-z0-9]+")

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class PackedFile:
    """GPU code, or a library, of one group or several: one zstd frame.

    Attributes:
        name: stem of its file in the bundle.
        path: where it was made.
        sha256: what was made; a file with another digest is never taken.
    """

    name: str
    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One group to be written.

    Attributes:
        name: readable name, also the stem of its index.
        entries: its kernels, in any order, at least one.
        code: their GPU code.
        libraries: host to the libraries of their host code, as many for each.
        requests: of a program's kernels, one for each, in any order; empty for kernels that operands find.
    """

    name: str
    entries: tuple[KernelEntry, ...]
    code: PackedFile
    libraries: Mapping[str, tuple[PackedFile, ...]]
    requests: tuple[CompiledRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class BundlePlan:
    """Everything a bundle is made of.

    Attributes:
        name: lower-case letters, digits, ``.``, ``_`` and ``-``.
        version: the bundle's version.
        device: device profile it was built with.
        targets: GPU code targets, in any order.
        hosts: CPU architectures; each group has a library for each.
        requirements: versions that it needs on a machine.
        provenance: names and versions of what built it (no times, no paths).
        groups: in any order, at least one.
        launchers: host to the library through which kernels are launched.
        licenses: file name to text, of what is linked in.
        rankings: speeds of groups' kernels, in any order; each names a group of the bundle.
        variant: see :attr:`~cutlass_aot.schema.bundles.catalog.Catalog.variant`.
    """

    name: str
    version: str
    device: str
    targets: Sequence[str]
    hosts: Sequence[str]
    requirements: VersionRequirements
    provenance: Mapping[str, str]
    groups: Sequence[GroupPlan]
    launchers: Mapping[str, PackedFile]
    licenses: Mapping[str, bytes]
    rankings: Sequence[Ranking] = ()
    variant: str = ""


@dataclass(frozen=True, slots=True)
class _Contents:
    """A bundle's files, each as its bytes or as the library to copy, with their references."""

    sources: Mapping[str, bytes | Path]
    references: Mapping[str, FileReference]
    manifest: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What :func:`write_bundle` did; true if it wrote anything.

    Attributes:
        written: whether anything was written; ``False`` if exactly this bundle was there already.
        catalog_sha256: digest of the bundle's catalog, by which :func:`bundle_is` knows it again.
    """

    written: bool
    catalog_sha256: str

    def __bool__(self) -> bool:
        return self.written


def code_path(name: str) -> str:
    """Where a bundle has GPU code, by the stem of its file."""
    return f"code/{name}.zst"


def library_path(host: str, name: str) -> str:
    """Where a bundle has a library, by its host and the stem of its file."""
    return f"lib/{host}/{name}.so.zst"


def write_bundle(plan: BundlePlan, output: Path) -> Outcome:
    """Write a bundle to the directory ``output``. Equal plans give equal bytes.

    What is there is replaced as :func:`cutlass_aot.bundle.replace.replace_bundle` says.

    Raises:
        BundleError: for a plan that contradicts itself, for anything else at ``output``, or if the disk
            refuses; what was at ``output`` stays.
    """
    try:
        contents = _contents(plan)
        written = replace_bundle(
            output,
            lambda folder: _fill(folder, contents),
            lambda folder: is_exactly(folder, contents.references),
        )
    except OSError as error:
        raise disk_error(error, output, "build again: what was compiled is kept") from error
    return Outcome(written, contents.references[CATALOG_NAME].sha256)


def bundle_is(output: Path, catalog_sha256: str) -> bool:
    """Whether a complete, unaltered bundle with this catalog is at ``output``, and no other file there.

    Never raises for its contents.

    Args:
        output: the bundle's directory, which need not exist.
        catalog_sha256: digest of the catalog's file.
    """
    try:
        references = read_manifest(output)
        catalog = references.get(CATALOG_NAME)
        if catalog is None or catalog.sha256 != catalog_sha256:
            return False
        used = {CATALOG_NAME}
        opened = read_catalog(output)
        for group in opened.groups:
            used.update(reference.path for reference in group.files)
        used.update(reference.path for reference in opened.launchers.values())
    except (OSError, CutlassAotError):
        return False
    # These are listed in the manifest alone.
    if any(path not in used and not path.startswith(("licenses/", f"{BILL_FOLDER}/")) for path in references):
        return False
    return is_exactly(output, references)


def _contents(plan: BundlePlan) -> _Contents:
    _check_plan(plan)
    sources: dict[str, bytes | Path] = {}
    references: dict[str, FileReference] = {}

    def refer(path: str, source: bytes | Path, size: int, sha256: str, bound: int) -> FileReference:
        if size > bound:
            raise BundleError(
                f"{path} has {size} bytes, a bundle's file has at most {bound}: "
                "split the group, e.g. with a cap in the manifest"
            )
        sources[path] = source
        references[path] = FileReference(path, size, sha256)
        return references[path]

    def add(path: str, data: bytes) -> FileReference:
        return refer(path, data, len(data), digest(data), MAX_INDEX_BYTES)

    def add_packed(path: str, packed: PackedFile) -> FileReference:
        if path not in references:
            # Its digest is what was made; the file is checked against it while it is copied.
            return refer(path, packed.path, packed.path.stat().st_size, packed.sha256, MAX_FILE_BYTES)
        if references[path].sha256 != packed.sha256:
            raise BundleError(f"{path} names two files, {sources[path]!r} and {packed.path}")
        return references[path]

    groups = []
    for group in sorted(plan.groups, key=lambda group: group.name):
        ordered = sorted(group.entries, key=lambda entry: (entry.kernel.name, entry.kernel.digest))
        kernel = ordered[0].kernel
        groups.append(
            GroupEntry(
                name=group.name,
                operation=kernel.operation,
                operands=kernel.operands,
                accumulator=kernel.accumulator,
                epilogue=kernel.epilogue,
                target=kernel.target,
                count=len(ordered),
                child=add(f"groups/{group.name}.msgpack", group_to_bytes(tuple(ordered))),
                code=add_packed(code_path(group.code.name), group.code),
                libraries={
                    host: tuple(add_packed(library_path(host, library.name), library) for library in own)
                    for host, own in sorted(group.libraries.items())
                },
                rankings=tuple(
                    RankingReference(
                        ranking.gpu,
                        ranking.measured,
                        add(f"rankings/{group.name}-{number}.msgpack", ranking.to_bytes()),
                    )
                    for number, ranking in enumerate(_rankings_of(kernel.group, plan.rankings))
                ),
                parameters=kernel.parameters,
                requests=add(f"requests/{group.name}.msgpack", requests_to_bytes(_in_order(group, ordered)))
                if group.requests
                else None,
            )
        )
    for name, text in sorted(plan.licenses.items()):
        add(f"licenses/{name}", text)
    catalog = Catalog(
        name=plan.name,
        version=plan.version,
        device=plan.device,
        targets=tuple(sorted(plan.targets)),
        hosts=tuple(sorted(plan.hosts)),
        requirements=plan.requirements,
        provenance=plan.provenance,
        launchers={
            host: add_packed(library_path(host, library.name), library)
            for host, library in sorted(plan.launchers.items())
        },
        groups=Groups.of(groups),
        alignment=common_alignment(groups),
        variant=plan.variant,
    )
    add(CATALOG_NAME, catalog.to_bytes())
    kernels = [entry for group in plan.groups for entry in group.entries]
    requests = [compiled.request for group in plan.groups for compiled in group.requests]
    add(f"{BILL_FOLDER}/{BILL_NAME}", bill_of_materials(catalog, kernels, requests))
    return _Contents(sources, references, manifest_to_bytes(references))


def _in_order(group: GroupPlan, ordered: Sequence[KernelEntry]) -> list[CompiledRequest]:
    """A group's requests in the order of its kernels."""
    by_kernel = {compiled.request.kernel.digest: compiled for compiled in group.requests}
    return [by_kernel[entry.kernel.digest] for entry in ordered]


def _rankings_of(group: str, rankings: Sequence[Ranking]) -> list[Ranking]:
    """A group's rankings: the measured ones first, then by GPU."""
    own = [ranking for ranking in rankings if ranking.group == group]
    return sorted(own, key=lambda ranking: (not ranking.measured, ranking.gpu))


def _check_plan(plan: BundlePlan) -> None:
    if not BUNDLE_NAME.fullmatch(plan.name):
        raise BundleError(
            f"{plan.name!r} cannot name a bundle: expected lower-case letters, digits, '.', '_' and '-', "
            "beginning and ending with a letter or a digit"
        )
    if not plan.groups:
        raise BundleError(f"bundle {plan.name!r} has no kernels: nothing to write")
    if plan.variant and not VARIANT_NAME.fullmatch(plan.variant):
        raise BundleError(
            f"bundle {plan.name!r} cannot have a variant {plan.variant!r}: expected lower-case letters "
            "and digits"
        )
    for what, values in (
        ("target", plan.targets),
        ("host", plan.hosts),
        ("group", [group.name for group in plan.groups]),
    ):
        if not values or len(set(values)) != len(values):
            raise BundleError(f"bundle {plan.name!r} names no {what}, or one twice: {list(values)}")
    if set(plan.launchers) != set(plan.hosts):
        raise BundleError(
            f"bundle {plan.name!r} has launchers for {sorted(plan.launchers)}, needs them for {plan.hosts}"
        )
    libraries = [library for group in plan.groups for own in group.libraries.values() for library in own]
    codes = [group.code for group in plan.groups]
    names = [packed.name for packed in (*codes, *libraries, *plan.launchers.values())]
    for name in (*plan.hosts, *(group.name for group in plan.groups), *names, *plan.licenses):
        if not FILE_NAME.fullmatch(name):
            raise BundleError(
                f"{name!r} cannot name a file of a bundle: expected letters, digits, '.', '_', '+' and '-', "
                "beginning with a letter or a digit"
            )
    for group in plan.groups:
        _check_group(group, plan)
    _check_rankings(plan)


def _check_rankings(plan: BundlePlan) -> None:
    digests = {
        group.entries[0].kernel.group: {entry.kernel.digest for entry in group.entries}
        for group in plan.groups
    }
    seen: set[tuple[str, str, bool]] = set()
    for ranking in plan.rankings:
        what = f"the ranking of group {ranking.group[:12]} for {ranking.gpu}"
        if ranking.group not in digests:
            raise BundleError(f"{what} is of a group that bundle {plan.name!r} does not have")
        if (ranking.group, ranking.gpu, ranking.measured) in seen:
            raise BundleError(f"{what} is given twice to bundle {plan.name!r}")
        seen.add((ranking.group, ranking.gpu, ranking.measured))
        try:
            # What is written has to be read again.
            Ranking.from_bytes(ranking.to_bytes(), what)
        except CorruptFile as error:
            raise BundleError(f"{error}: expected kernels each once, and times in ascending order") from None
        named = {digest for problem in ranking.problems for digest in problem.kernels}
        unknown = sorted(named - digests[ranking.group])
        if unknown:
            raise BundleError(f"{what} names a kernel that bundle {plan.name!r} does not have: {unknown[0]}")


def _check_group(group: GroupPlan, plan: BundlePlan) -> None:
    if not group.entries:
        raise BundleError(f"group {group.name!r} has no kernels")
    if len({entry.kernel.group for entry in group.entries}) != 1:
        raise BundleError(
            f"the kernels of group {group.name!r} are not functionally equivalent: expected one operation, "
            "operands, accumulator, epilogue and target"
        )
    if len({entry.kernel.symbol for entry in group.entries}) != len(group.entries):
        raise BundleError(f"group {group.name!r} has a kernel twice")
    _check_requests(group)
    target = group.entries[0].kernel.target
    if target not in plan.targets:
        raise BundleError(f"group {group.name!r} is for {target}, the bundle for {', '.join(plan.targets)}")
    if set(group.libraries) != set(plan.hosts):
        raise BundleError(
            f"group {group.name!r} has libraries for {sorted(group.libraries)}, "
            f"the bundle needs them for {sorted(plan.hosts)}"
        )
    count = max(entry.library for entry in group.entries) + 1
    if (
        any(len(own) < count for own in group.libraries.values())
        or len({len(own) for own in group.libraries.values()}) != 1
    ):
        raise BundleError(
            f"group {group.name!r} has kernels in {count} libraries, and not as many for each host"
        )


def _check_requests(group: GroupPlan) -> None:
    of_program = group.entries[0].kernel.operation == OPERATION
    if of_program != bool(group.requests):
        found, expected = ("no requests", "one for each") if of_program else ("requests", "none")
        raise BundleError(
            f"group {group.name!r} of operation {group.entries[0].kernel.operation} has {found}: expected "
            f"{expected} of its kernels"
        )
    answered = sorted(compiled.request.kernel.digest for compiled in group.requests)
    if of_program and answered != sorted(entry.kernel.digest for entry in group.entries):
        raise BundleError(
            f"group {group.name!r} has {len(group.requests)} requests for {len(group.entries)} kernels: "
            "expected the request of each kernel, once"
        )


def _fill(folder: Path, contents: _Contents) -> None:
    """Write every file, the manifest last, all of it on the disk when this returns."""
    folders = make_folders(folder, contents.sources)
    for path, source in sorted(contents.sources.items()):
        expected = contents.references[path].sha256
        with create(folder / path) as file:
            if isinstance(source, bytes):
                file.write(source)
            elif (found := _copy(source, file)) != expected:
                raise BundleError(
                    f"{source} has SHA-256 {found}, what was made has {expected}: "
                    "it was exchanged or damaged since, build again"
                )
            _flush(file)
    with create(folder / MANIFEST_NAME) as file:
        file.write(contents.manifest)
        _flush(file)
    for item in folders:
        synchronise(item)


def _copy(source: Path, file: BinaryIO) -> str:
    """Copy a file, and give the SHA-256 of what was copied."""
    hasher = hashlib.sha256()
    with source.open("rb") as library:
        while chunk := library.read(_COPY_BYTES):
            file.write(chunk)
            hasher.update(chunk)
    return hasher.hexdigest()


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())

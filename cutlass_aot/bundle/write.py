"""Write a bundle beside the output, complete and synchronised, and then swap it in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from cutlass_aot.bundle.files import LICENSES, MAX_LICENSE_BYTES, is_exactly, manifest_to_bytes
from cutlass_aot.bundle.plan import BundlePlan, GroupPlan, PackedFile, check_plan
from cutlass_aot.bundle.replace import create, disk_error, make_folders, replace_bundle, synchronise
from cutlass_aot.bundle.sbom import BILL_FOLDER, BILL_NAME, bill_of_materials, most_bytes
from cutlass_aot.bundle.verify.verified import VerifiedBundle
from cutlass_aot.errors import BundleError, CorruptFile, CutlassAotError
from cutlass_aot.runtime.files.verified_read import (
    MAX_MANIFEST_BYTES,
    manifest_bytes,
    parse_manifest,
    read_file,
)
from cutlass_aot.schema.bundles.catalog import (
    CATALOG_NAME,
    MANIFEST_NAME,
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_INDEX_BYTES,
    Catalog,
    FileReference,
    GroupEntry,
    Groups,
    RankingReference,
    common_alignment,
)
from cutlass_aot.schema.bundles.group_index import group_to_bytes
from cutlass_aot.schema.compression import Unpacking
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.requests.request_index import requests_to_bytes
from cutlass_aot.schema.tuning.ranking import Ranking

_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Outcome:
    """What :func:`write_bundle` did; false if exactly this bundle was there already.

    ``bundle`` is what is there now, without signatures that were there already.
    """

    written: bool
    bundle: VerifiedBundle

    def __bool__(self) -> bool:
        return self.written

    @property
    def catalog_sha256(self) -> str:
        """Digest of the bundle's catalog, for :func:`bundle_is`."""
        return self.bundle.references[CATALOG_NAME].sha256


def write_bundle(plan: BundlePlan, output: Path) -> Outcome:
    """Write a bundle to the directory ``output``. Equal plans give equal bytes.

    What is there is replaced as by :func:`cutlass_aot.bundle.replace.replace_bundle`; after an error, such as
    for a plan that contradicts itself, it is still there.
    """
    try:
        bundle, sources = _laid_out(plan, output)
        written = replace_bundle(
            output,
            lambda folder: _fill(folder, bundle, sources),
            lambda folder: is_exactly(folder, bundle.manifest, bundle.references),
        )
    except OSError as error:
        raise disk_error(error, output, "build again: what was compiled is kept") from error
    return Outcome(written, bundle)


def bundle_is(output: Path, catalog_sha256: str) -> bool:
    """Whether the directory ``output`` has a complete, unaltered bundle with this catalog, and no other file.

    It need not exist. This never raises for its contents.
    """
    try:
        manifest = manifest_bytes(output)
        references = parse_manifest(manifest, MANIFEST_NAME)
        reference = references.get(CATALOG_NAME)
        if (
            reference is None
            or reference.sha256 != catalog_sha256
            or manifest != manifest_to_bytes(references)
        ):
            return False
        catalog = Catalog.from_bytes(read_file(output, reference), CATALOG_NAME)
        used = {item.path for group in catalog.groups for item in group.files}
        used |= {CATALOG_NAME, *(item.path for item in catalog.launchers.values())}
    except (OSError, CutlassAotError):
        return False
    # The catalog does not list these.
    if any(not path.startswith((f"{LICENSES}/", f"{BILL_FOLDER}/")) for path in references.keys() - used):
        return False
    return is_exactly(output, manifest, references, checked=(CATALOG_NAME,))


class _Layout:
    """The files of a bundle to be written: of each, its bytes or the file to copy, and its reference."""

    def __init__(self) -> None:
        self.sources: dict[str, bytes | Path] = {}
        self.references: dict[str, FileReference] = {}

    def add(self, path: str, data: bytes, most: int = MAX_INDEX_BYTES) -> FileReference:
        return self._refer(path, data, len(data), digest(data), most)

    def add_packed(self, path: str, packed: PackedFile) -> FileReference:
        """Add a file to copy, which several groups may share."""
        if path not in self.references:
            # The digest is of what was made; the file is checked against it while it is copied.
            return self._refer(path, packed.path, packed.path.stat().st_size, packed.sha256, MAX_FILE_BYTES)
        if self.references[path].sha256 != packed.sha256:
            raise BundleError(f"{path} names two files, {self.sources[path]!r} and {packed.path}")
        return self.references[path]

    def add_library(self, host: str, library: PackedFile) -> FileReference:
        return self.add_packed(f"lib/{host}/{library.name}.so.zst", library)

    def _refer(self, path: str, source: bytes | Path, size: int, sha256: str, bound: int) -> FileReference:
        if size > bound:
            raise BundleError(
                f"{path} has {size} bytes, a bundle's file has at most {bound}: "
                "split the group, e.g. with a cap in the manifest"
            )
        self.sources[path] = source
        self.references[path] = FileReference(path, size, sha256)
        return self.references[path]


def _laid_out(plan: BundlePlan, output: Path) -> tuple[VerifiedBundle, dict[str, bytes | Path]]:
    """The bundle to write at ``output``, and each of its files, as bytes or as the file to copy."""
    check_plan(plan)
    layout = _Layout()
    groups = [_group_entry(layout, group, plan) for group in sorted(plan.groups, key=lambda item: item.name)]
    for name, text in sorted(plan.licenses.items()):
        layout.add(f"{LICENSES}/{name}", text, MAX_LICENSE_BYTES)
    catalog = _catalog(layout, plan, groups)
    kernels = [entry for group in plan.groups for entry in group.entries]
    requests = [compiled.request for group in plan.groups for compiled in group.requests]
    bill = bill_of_materials(catalog, kernels, requests, plan.licenses)
    layout.add(f"{BILL_FOLDER}/{BILL_NAME}", bill, most_bytes(len(kernels) + len(requests)))
    manifest = manifest_to_bytes(layout.references)
    _check_bounds(plan, layout.references, manifest)
    bundle = VerifiedBundle(
        output, manifest, layout.references, catalog, tuple(plan.groups), tuple(plan.rankings)
    )
    return bundle, {**layout.sources, MANIFEST_NAME: manifest}


def _group_entry(layout: _Layout, group: GroupPlan, plan: BundlePlan) -> GroupEntry:
    """Add the files of a group, and return its entry in the catalog."""
    ordered = sorted(group.entries, key=lambda entry: (entry.kernel.name, entry.kernel.digest))
    kernel = ordered[0].kernel
    child = layout.add(f"groups/{group.name}.msgpack", group_to_bytes(tuple(ordered)))
    code = layout.add_packed(f"code/{group.code.name}.zst", group.code)
    libraries = {
        host: tuple(layout.add_library(host, library) for library in own)
        for host, own in sorted(group.libraries.items())
    }
    rankings = []
    for number, ranking in enumerate(_rankings_of(kernel.group, plan.rankings)):
        file = layout.add(f"rankings/{group.name}-{number}.msgpack", ranking.to_bytes())
        rankings.append(RankingReference(ranking.gpu, ranking.measured, file))
    requests = None
    if group.requests:
        by_kernel = {compiled.request.kernel.digest: compiled for compiled in group.requests}
        data = requests_to_bytes([by_kernel[entry.kernel.digest] for entry in ordered])
        requests = layout.add(f"requests/{group.name}.msgpack", data)
    return GroupEntry(
        name=group.name,
        operation=kernel.operation,
        operands=kernel.operands,
        accumulator=kernel.accumulator,
        epilogue=kernel.epilogue,
        target=kernel.target,
        kernel_count=len(ordered),
        child=child,
        code=code,
        libraries=libraries,
        rankings=tuple(rankings),
        parameters=kernel.parameters,
        requests=requests,
        cost=kernel.cost,
        accumulation=kernel.accumulation,
    )


def _catalog(layout: _Layout, plan: BundlePlan, groups: list[GroupEntry]) -> Catalog:
    """Add the launchers and the catalog, and return the catalog."""
    catalog = Catalog(
        name=plan.name,
        version=plan.version,
        device=plan.device,
        targets=tuple(sorted(plan.targets)),
        hosts=tuple(sorted(plan.hosts)),
        requirements=plan.requirements,
        provenance=plan.provenance,
        launchers={
            host: layout.add_library(host, library) for host, library in sorted(plan.launchers.items())
        },
        groups=Groups.of(groups),
        alignment=common_alignment(groups),
        variant=plan.variant,
    )
    layout.add(CATALOG_NAME, catalog.to_bytes())
    return catalog


def _check_bounds(plan: BundlePlan, references: Mapping[str, FileReference], manifest: bytes) -> None:
    """Refuse what no reader would take."""
    if len(references) > MAX_FILES:
        raise BundleError(
            f"bundle {plan.name!r} would have {len(references)} files, a bundle has at most {MAX_FILES}: "
            "build several, e.g. one a target"
        )
    unpacking = Unpacking(sum(reference.size for reference in references.values()))
    ends: dict[str, int] = {}
    for group in plan.groups:
        for entry in group.entries:
            end = entry.code.offset + entry.code.size
            ends[group.code.name] = max(ends.get(group.code.name, 0), end)
    try:
        unpacking.take(sum(ends.values()))
    except CorruptFile as error:
        raise BundleError(f"the GPU code of bundle {plan.name!r} packs too well: {error}") from None
    if len(manifest) > MAX_MANIFEST_BYTES:
        raise BundleError(
            f"{MANIFEST_NAME} of bundle {plan.name!r} would have {len(manifest)} bytes, at most "
            f"{MAX_MANIFEST_BYTES} can be read: build several bundles, e.g. one a target"
        )


def _rankings_of(group: str, rankings: Sequence[Ranking]) -> list[Ranking]:
    """A group's rankings: the measured ones first, then by GPU."""
    own = [ranking for ranking in rankings if ranking.group == group]
    return sorted(own, key=lambda ranking: (not ranking.measured, ranking.gpu))


def _fill(folder: Path, bundle: VerifiedBundle, sources: Mapping[str, bytes | Path]) -> None:
    """Write every file, and synchronise all of them to the disk."""
    folders = make_folders(folder, sources)
    for path, source in sources.items():
        with create(folder / path) as file:
            if isinstance(source, bytes):
                file.write(source)
            elif (found := _copy(source, file)) != bundle.references[path].sha256:
                raise BundleError(
                    f"{source} has SHA-256 {found}, what was made has {bundle.references[path].sha256}: "
                    "it was exchanged or damaged since, build again"
                )
    for item in folders:
        synchronise(item)


def _copy(source: Path, file: BinaryIO) -> str:
    """Copy a file, and return the SHA-256 of what was copied."""
    hasher = hashlib.sha256()
    with source.open("rb") as library:
        while chunk := library.read(_COPY_BYTES):
            file.write(chunk)
            hasher.update(chunk)
    return hasher.hexdigest()

"""A bundle that was verified or written, as it was read, so that it need not be read again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.bundle.files import read_licenses
from cutlass_aot.bundle.plan import BundlePlan, GroupPlan, PackedFile
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME, Catalog, FileReference
from cutlass_aot.schema.bundles.signature import Signature
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.requests.request import Request
from cutlass_aot.schema.tuning.ranking import Ranking


@dataclass(frozen=True, slots=True)
class VerifiedBundle:
    """A bundle whose files agreed with the manifest when they were read or written.

    The directory may have changed since: code that copies one of its files checks the bytes that it copies.

    Attributes:
        manifest: the bytes of ``MANIFEST.json``.
        references: the files that the manifest lists, by path.
        signatures: of the manifest; unchecked where the package ``cryptography`` is not installed.
    """

    directory: Path
    manifest: bytes
    references: dict[str, FileReference]
    catalog: Catalog
    groups: tuple[GroupPlan, ...]
    rankings: tuple[Ranking, ...]
    signatures: tuple[Signature, ...] = ()

    @property
    def files(self) -> list[FileReference]:
        """Every file, ``MANIFEST.json`` and signatures included, by path."""
        unlisted = {MANIFEST_NAME: self.manifest, **{item.path: item.to_bytes() for item in self.signatures}}
        references = (FileReference(path, len(data), digest(data)) for path, data in unlisted.items())
        return sorted([*self.references.values(), *references])

    @property
    def requests(self) -> list[Request]:
        """The requests of all groups."""
        return [compiled.request for group in self.groups for compiled in group.requests]

    def plan(self) -> BundlePlan:
        """The plan of the same bundle, without signatures; code and libraries are those in the directory."""
        catalog = self.catalog
        return BundlePlan(
            name=catalog.name,
            version=catalog.version,
            device=catalog.device,
            targets=catalog.targets,
            hosts=catalog.hosts,
            requirements=catalog.requirements,
            provenance=catalog.provenance,
            groups=self.groups,
            launchers={
                host: packed_file(self.directory, reference) for host, reference in catalog.launchers.items()
            },
            licenses=read_licenses(self.directory, self.references),
            rankings=self.rankings,
            variant=catalog.variant,
        )


def packed_file(bundle: Path, reference: FileReference) -> PackedFile:
    """Code or a library of a bundle, for the plan of another one."""
    name = Path(reference.path).name.removesuffix(".zst").removesuffix(".so")
    return PackedFile(name, bundle / reference.path, reference.sha256)

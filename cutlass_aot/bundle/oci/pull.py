"""Pull a bundle from a registry into a directory beside the output, verify it, and put it in place."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cutlass_aot.bundle.files import digest_beneath, is_exactly, list_files
from cutlass_aot.bundle.oci import TIMEOUT
from cutlass_aot.bundle.oci.artifact import Contents, check_config, check_same_files, parse_oci_manifest
from cutlass_aot.bundle.oci.reference import Reference
from cutlass_aot.bundle.replace import create, disk_error, make_folders, replace_bundle, synchronise
from cutlass_aot.bundle.verify.directory import in_short, look_at_bundle
from cutlass_aot.errors import CorruptFile, CutlassAotError, RegistryError, RegistryNameError, UntrustedBundle
from cutlass_aot.runtime.files import trust
from cutlass_aot.runtime.files.verified_read import manifest_bytes, parse_manifest
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME, FileReference
from cutlass_aot.schema.bundles.signature import MAX_SIGNATURE_FILE, is_signature_path
from cutlass_aot.schema.encoding import digest

if TYPE_CHECKING:
    from cutlass_aot.bundle.oci.registry import Registry


@dataclass(frozen=True, slots=True)
class Pulled:
    """What :func:`pull_bundle` did.

    Attributes:
        name: the bundle in the registry, by its digest.
        written: False if exactly this bundle was there already.
        files: number of its files.
        size: bytes of all files.
    """

    name: str
    written: bool
    files: int
    size: int


def pull_bundle(
    name: str,
    output: Path,
    *,
    keys: Sequence[Path] = (),
    plain_http: bool = False,
    timeout: float = TIMEOUT,
    login_hosts: Sequence[str] = (),
    allow_older: bool = False,
) -> Pulled:
    """Pull ``registry/repository:tag`` or ``registry/repository@sha256:...`` into the directory ``output``.

    The OCI manifest is checked first, then the bundle's own, then its signatures; the rest is fetched last.
    What is at ``output`` is replaced, as by :func:`cutlass_aot.bundle.replace.replace_bundle`, once the new
    bundle is whole and verified.

    ``keys`` are files of public keys, and directories of them; one of the keys must have signed the bundle.
    Without ``keys``, those apply that a program on this machine would require
    (:mod:`cutlass_aot.runtime.files.trust`). A bundle that one of the keys has signed is not replaced by
    one of a lower sequence by that key, unless ``allow_older``. ``timeout`` and ``login_hosts`` are those of
    :class:`~cutlass_aot.bundle.oci.registry.Registry`.
    """
    reference = Reference.parse(name)
    if not reference.tag_or_digest:
        raise RegistryNameError(
            f"{name} names neither a tag nor a digest: expected registry/repository:tag or "
            "registry/repository@sha256:..."
        )
    # A key that cannot be read is reported before anything is requested.
    trust.required(keys or None)
    # Imported here, because the client for registries need not be installed for anything else.
    from cutlass_aot.bundle.oci.registry import Registry

    registry = Registry(reference, plain_http=plain_http, timeout=timeout, login_hosts=login_hosts)
    with registry.session:
        pull = _Pull.begin(registry, reference, keys)
        try:
            written = replace_bundle(
                output, lambda folder: pull.fill(folder, None if allow_older else output), pull.is_there
            )
        except OSError as error:
            raise disk_error(error, output, "pull again") from error
    return Pulled(pull.name, written, len(pull.contents.files), pull.contents.size)


@dataclass(frozen=True, slots=True)
class _Pull:
    """A bundle in a registry whose OCI manifest and ``MANIFEST.json`` have been read and agree."""

    registry: Registry
    reference: Reference
    keys: Sequence[Path]
    name: str
    contents: Contents
    manifest: bytes
    listed: dict[str, FileReference]

    @classmethod
    def begin(cls, registry: Registry, reference: Reference, keys: Sequence[Path]) -> _Pull:
        data = registry.manifest()
        what = f"the manifest of {reference}"
        contents = parse_oci_manifest(data, what)
        manifest = _read(registry, contents.files[MANIFEST_NAME])
        listed = parse_manifest(manifest, f"{MANIFEST_NAME} of {reference}")
        check_same_files(contents, listed, what)
        name = reference.at(f"sha256:{digest(data)}")
        return cls(registry, reference, keys, name, contents, manifest, listed)

    def is_there(self, folder: Path) -> bool:
        """Whether exactly this bundle is in ``folder``, with these signatures."""
        try:
            if not is_exactly(folder, self.manifest, self.listed):
                return False
            if _signatures_in(folder) != sorted(self.contents.signatures):
                return False
        except (OSError, CutlassAotError):
            return False
        self._check_trust(folder)
        return True

    def fill(self, folder: Path, before: Path | None) -> None:
        """Fetch and verify every file, and synchronise all of them to the disk.

        It may not be older than a bundle at ``before``.
        """
        free = shutil.disk_usage(folder.parent).free
        if self.contents.size > free:
            raise RegistryError(
                f"the bundle has {self.contents.size} bytes, {free} are free at {folder.parent.parent}: make "
                "room or name another output"
            )
        folders = make_folders(folder, sorted(self.contents.files))
        with create(folder / MANIFEST_NAME) as output:
            output.write(self.manifest)
        signatures = self.contents.signatures
        for file in signatures:
            self._fetch(file, folder)
        self._check_trust(folder)
        for path, file in sorted(self.contents.files.items()):
            if path != MANIFEST_NAME and file not in signatures:
                self._fetch(file, folder)
        for item in folders:
            synchronise(item)
        findings = look_at_bundle(folder)
        if findings.problems or findings.bundle is None:
            raise CorruptFile(
                f"what was pulled is not a sound bundle: {in_short(findings.problems)}; push one that is"
            )
        if before is not None:
            self._check_newer(folder, before)
        if self.contents.config is not None:
            check_config(_read(self.registry, self.contents.config), findings.bundle.catalog)

    def _check_newer(self, folder: Path, before: Path) -> None:
        """Refuse a bundle for which a key has signed a lower sequence than for the one in its place, or none.

        Whatever the names of the two: another bundle by the same signer would else be a way back.
        """
        try:
            last = trust.sequences(before, manifest_bytes(before), self.keys or None)
        except (OSError, CutlassAotError):
            # What is damaged, or not signed by a key that is required now, says nothing of what is newer.
            return
        found = trust.sequences(folder, self.manifest, self.keys or None)
        for key, sequence in sorted(last.items()):
            if (new := found.get(key, 0)) < sequence:
                raise UntrustedBundle(
                    f"bundle {self.reference} has sequence {new} by key {key}, what is at {before} has "
                    f"{sequence}: it is older; pull a newer one, or give --allow-older to go back"
                )

    def _check_trust(self, folder: Path) -> None:
        try:
            trust.check(folder, self.manifest, self.keys or None)
        except UntrustedBundle as error:
            # The directory is temporary: the error names the bundle by its reference.
            raise UntrustedBundle(str(error).replace(str(folder), str(self.reference))) from None

    def _fetch(self, file: FileReference, folder: Path) -> None:
        with create(folder / file.path) as output:
            self.registry.fetch(file, file.path, output.write)


def _signatures_in(folder: Path) -> list[FileReference]:
    references = []
    for path in filter(is_signature_path, list_files(folder).regular):
        sha256, size = digest_beneath(folder, path, MAX_SIGNATURE_FILE)
        references.append(FileReference(path, size, sha256))
    return references


def _read(registry: Registry, file: FileReference) -> bytes:
    data = bytearray()
    registry.fetch(file, file.path or "the config", data.extend)
    return bytes(data)

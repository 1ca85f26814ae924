"""Fetch a bundle from a registry: into a directory beside the output, verified, and then put in place."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cutlass_aot.bundle.files import is_exactly
from cutlass_aot.bundle.oci.client import TIMEOUT, open_registry
from cutlass_aot.bundle.oci.manifest import (
    Contents,
    check_same_files,
    config_of,
    parse_config,
    parse_oci_manifest,
)
from cutlass_aot.bundle.oci.push import files_of
from cutlass_aot.bundle.oci.reference import Reference
from cutlass_aot.bundle.replace import create, disk_error, make_folders, replace_bundle, synchronise
from cutlass_aot.bundle.verify_directory import in_short, verify_bundle
from cutlass_aot.errors import CorruptFile, CutlassAotError, RegistryError, RegistryNameError, UntrustedBundle
from cutlass_aot.runtime.files import trust
from cutlass_aot.runtime.files.verified_read import parse_manifest, read_catalog
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME, FileReference
from cutlass_aot.schema.encoding import digest, shown

if TYPE_CHECKING:
    from cutlass_aot.bundle.oci.registry import Registry

Check = Callable[[Path], None]
"""Called with a directory that has a bundle's ``MANIFEST.json`` and signatures; raises to refuse it."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """What :func:`pull_bundle` did.

    Attributes:
        name: the bundle in the registry, by its digest.
        written: whether anything was written; ``False`` if exactly this bundle was there already.
        files: number of its files.
        size: bytes of them.
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
) -> Pulled:
    """Fetch a bundle from a registry. What is at ``output`` stays until the new one is whole and verified.

    Sizes and names are looked at before anything is fetched: the OCI manifest first, then the bundle's own,
    then signatures, the rest at last. What is there is replaced as
    :func:`cutlass_aot.bundle.replace.replace_bundle` says.

    Args:
        name: ``registry/repository:tag`` or ``registry/repository@sha256:...``.
        output: the bundle's directory.
        keys: files of public keys, and directories of them, of which one has to have signed it; whether one
            has is seen before anything but ``MANIFEST.json`` and signatures is fetched. If there are none,
            those count that a program here would require (:mod:`cutlass_aot.runtime.files.trust`).
        plain_http: whether to speak plain HTTP.
        timeout: seconds that the registry may be silent.

    Raises:
        RegistryNameError: for another form of ``name``.
        RegistryError: if the registry cannot be reached or refuses, or has something other than a bundle.
        CorruptFile: if anything is not as its digest or as the bundle's manifest says.
        BundleError: if something else than a bundle is at ``output``, or the disk refuses.
        ToolchainError: if the client is not installed.
        UntrustedBundle: if keys are required and none of them has signed it.
        SignatureError: if a key cannot be read, or the package ``cryptography`` is needed and not installed.
    """
    reference = Reference.parse(name)
    if not reference.asked:
        raise RegistryNameError(
            f"{name} names neither a tag nor a digest: expected registry/repository:tag or "
            "registry/repository@sha256:..."
        )
    # What is wrong with a key is told before anything is asked for.
    trust.required(keys or None)
    with open_registry(reference, plain_http=plain_http, timeout=timeout) as registry:
        data = registry.manifest()
        whole = reference.at(f"sha256:{digest(data)}")
        contents = parse_oci_manifest(data, f"the manifest of {reference}")
        bundle_manifest = _in_memory(registry, contents.files[MANIFEST_NAME])
        listed = parse_manifest(bundle_manifest, f"{MANIFEST_NAME} of {reference}")
        check_same_files(contents, listed, f"the manifest of {reference}")

        def check(folder: Path) -> None:
            try:
                trust.check(folder, bundle_manifest, keys or None)
            except UntrustedBundle as error:
                # Where it is on its way is gone when this is read.
                raise UntrustedBundle(str(error).replace(str(folder), str(reference))) from None

        try:
            written = replace_bundle(
                output,
                lambda folder: _fill(folder, registry, contents, bundle_manifest, check),
                lambda folder: _is_there(folder, contents, listed, check),
            )
        except OSError as error:
            raise disk_error(error, output, "pull again") from error
    return Pulled(whole, written, len(contents.files), contents.size)


def _is_there(folder: Path, contents: Contents, listed: dict[str, FileReference], check: Check) -> bool:
    """Whether exactly this bundle is there, with these signatures, and passes the check."""
    if not is_exactly(folder, listed):
        return False
    try:
        if files_of(folder) != sorted(contents.files.values()):
            return False
    except (OSError, CutlassAotError):
        return False
    check(folder)
    return True


def _fill(folder: Path, registry: Registry, contents: Contents, bundle_manifest: bytes, check: Check) -> None:
    """Fetch every file, and verify all of it; on the disk when this returns."""
    free = shutil.disk_usage(folder.parent).free
    if contents.size > free:
        raise RegistryError(
            f"the bundle has {contents.size} bytes, {free} are free at {folder.parent.parent}: make room or "
            "name another output"
        )
    folders = make_folders(folder, sorted(contents.files))
    with create(folder / MANIFEST_NAME) as file:
        file.write(bundle_manifest)
        file.flush()
        os.fsync(file.fileno())
    for reference in contents.signatures:
        _fetch(registry, reference, folder)
    check(folder)
    early = {MANIFEST_NAME, *(reference.path for reference in contents.signatures)}
    for path, reference in sorted(contents.files.items()):
        if path not in early:
            _fetch(registry, reference, folder)
    for item in folders:
        synchronise(item)
    problems = verify_bundle(folder)
    if problems:
        raise CorruptFile(f"what was pulled is no sound bundle: {in_short(problems)}; push one that is")
    if contents.config is not None:
        _check_config(registry, contents.config, config_of(read_catalog(folder)))


def _fetch(registry: Registry, reference: FileReference, folder: Path) -> None:
    with create(folder / reference.path) as file:
        registry.fetch(reference, reference.path, file.write)
        file.flush()
        os.fsync(file.fileno())


def _in_memory(registry: Registry, reference: FileReference) -> bytes:
    data = bytearray()
    registry.fetch(reference, reference.path or "the config", data.extend)
    return bytes(data)


def _check_config(registry: Registry, reference: FileReference, expected: bytes) -> None:
    """Hold what a registry shows of the bundle against the bundle: people choose by it."""
    found = parse_config(_in_memory(registry, reference), "the config")
    own = parse_config(expected, "the config")
    for key, value in own.items():
        if found.get(key) != value:
            raise CorruptFile(
                f"the config says {key} {shown(found.get(key))}, the bundle has {shown(value)}: "
                "push the bundle again"
            )

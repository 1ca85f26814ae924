"""Push a bundle to a registry: the blobs that the registry lacks, then the manifest under its tag."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.bundle.oci import TIMEOUT
from cutlass_aot.bundle.oci.artifact import config_of, manifest_of
from cutlass_aot.bundle.oci.reference import Reference
from cutlass_aot.bundle.verify.directory import require_sound
from cutlass_aot.errors import RegistryNameError
from cutlass_aot.runtime.files.verified_read import open_beneath
from cutlass_aot.schema.bundles.catalog import FileReference
from cutlass_aot.schema.encoding import digest


@dataclass(frozen=True, slots=True)
class Pushed:
    """What :func:`push_bundle` did: it uploaded those of all ``blobs`` that the registry did not have.

    ``name`` is that of the bundle in the registry, by its digest.
    """

    name: str
    uploaded: int
    blobs: int


def push_bundle(
    bundle: Path,
    name: str,
    *,
    plain_http: bool = False,
    timeout: float = TIMEOUT,
    login_hosts: Sequence[str] = (),
) -> Pushed:
    """Push a bundle to ``registry/repository:tag``; every byte is verified before anything is sent.

    Equal bundles have equal digests there. ``timeout`` and ``login_hosts`` are those of
    :class:`~cutlass_aot.bundle.oci.registry.Registry`.
    """
    reference = Reference.parse(name)
    if not reference.tag or reference.digest:
        raise RegistryNameError(
            f"{name} names no tag to push to, or a digest beside it: expected registry/repository:tag; the "
            "digest follows from the bundle"
        )
    # Imported here, because the client for registries need not be installed for anything else.
    from cutlass_aot.bundle.oci.registry import Registry

    verified = require_sound(bundle)
    files = verified.files
    config = config_of(verified.catalog)
    manifest = manifest_of(files, config)
    by_digest = {file.sha256: file for file in files}
    registry = Registry(reference, plain_http=plain_http, timeout=timeout, login_hosts=login_hosts)
    with registry.session:
        uploaded = int(registry.upload(FileReference("", len(config), digest(config)), config, "the config"))
        for file in by_digest.values():
            with os.fdopen(open_beneath(bundle, file.path), "rb") as source:
                uploaded += registry.upload(file, source, file.path)
        pushed = registry.put_manifest(manifest)
    return Pushed(reference.at(pushed), uploaded, len(by_digest) + 1)

"""The OCI manifest of a bundle: made from its files, and read back from a registry that is not trusted.

One layer a file, with its path in the bundle as ``org.opencontainers.image.title``, so that any OCI client
that knows titles writes the bundle's directory. The config is a small JSON of what is in it. There is no time
in it and no path of a machine: equal bundles have equal digests. Format:
https://github.com/opencontainers/image-spec/blob/main/manifest.md
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cutlass_aot.bundle.oci.reference import DIGEST
from cutlass_aot.bundle.sbom import BILL_FOLDER
from cutlass_aot.errors import CorruptFile, RegistryError
from cutlass_aot.runtime.files.verified_read import MAX_MANIFEST_BYTES
from cutlass_aot.schema.bundles.catalog import (
    CATALOG_NAME,
    MANIFEST_NAME,
    MAX_FILE_BYTES,
    SCHEMA,
    Catalog,
    FileReference,
    check_relative,
)
from cutlass_aot.schema.bundles.signature import MAX_SIGNATURE_FILE, MAX_SIGNATURES, SIGNATURES
from cutlass_aot.schema.encoding import digest, shown

MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT_TYPE = "application/vnd.cutlass-aot.bundle.v1"
CONFIG_TYPE = "application/vnd.cutlass-aot.bundle.config.v1+json"
TITLE = "org.opencontainers.image.title"
MAX_OCI_MANIFEST_BYTES = 1 << 22
"""What every registry takes: https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pushing-manifests"""
MAX_CONFIG_BYTES = 1 << 16
MAX_BUNDLE_BYTES = 1 << 36
"""Bytes of all files of a bundle together."""

_PLAIN = "application/vnd.cutlass-aot.bundle.file.v1"
_TYPES = {
    MANIFEST_NAME: "application/vnd.cutlass-aot.bundle.manifest.v1+json",
    CATALOG_NAME: "application/vnd.cutlass-aot.bundle.catalog.v1",
    BILL_FOLDER: "application/vnd.cyclonedx+json",
    "code": "application/vnd.cutlass-aot.bundle.code.v1",
    "groups": "application/vnd.cutlass-aot.bundle.group.v1",
    "lib": "application/vnd.cutlass-aot.bundle.library.v1",
    "licenses": "application/vnd.cutlass-aot.bundle.license.v1",
    "rankings": "application/vnd.cutlass-aot.bundle.ranking.v1",
    SIGNATURES: "application/vnd.cutlass-aot.bundle.signature.v1+json",
}
_AGAIN = "push the bundle again, or pull by the digest of one that is whole"


def config_of(catalog: Catalog) -> bytes:
    """The config's bytes: what is in a bundle, for whoever lists a registry."""
    body = {
        "name": catalog.name,
        "version": catalog.version,
        "targets": list(catalog.targets),
        "hosts": list(catalog.hosts),
        "schema": SCHEMA,
    }
    if catalog.variant:
        body["variant"] = catalog.variant
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def manifest_of(files: Iterable[FileReference], config: bytes) -> bytes:
    """The OCI manifest's bytes: the only ones for these files.

    Args:
        files: every file of the bundle, ``MANIFEST.json`` and signatures too, in any order.
        config: what :func:`config_of` gave.

    Raises:
        RegistryError: if there are more files than a registry's manifest has room for.
    """
    layers = [
        {**_descriptor(media_type(file.path), file.size, file.sha256), "annotations": {TITLE: file.path}}
        for file in sorted(files)
    ]
    body = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "artifactType": ARTIFACT_TYPE,
        "config": _descriptor(CONFIG_TYPE, len(config), digest(config)),
        "layers": layers,
    }
    data = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    if len(data) > MAX_OCI_MANIFEST_BYTES:
        raise RegistryError(
            f"the OCI manifest of the bundle's {len(layers)} files has {len(data)} bytes, registries "
            f"take {MAX_OCI_MANIFEST_BYTES}: build several bundles, e.g. one a target, and push each"
        )
    return data


def _descriptor(kind: str, size: int, sha256: str) -> dict[str, Any]:
    return {"mediaType": kind, "size": size, "digest": f"sha256:{sha256}"}


def media_type(path: str) -> str:
    """The media type of a bundle's file: by what it is, for whoever lists a registry."""
    return _TYPES.get(path.partition("/")[0], _PLAIN)


def _is_of_signatures(path: str) -> bool:
    return path.startswith(f"{SIGNATURES}/")


@dataclass(frozen=True, slots=True)
class Contents:
    """What an OCI manifest lists, looked at.

    Attributes:
        config: the config, its path ``""``; ``None`` where its type is not ours (what ``oras push`` makes).
        files: every file of the bundle by its path.
    """

    config: FileReference | None
    files: Mapping[str, FileReference]

    @property
    def signatures(self) -> tuple[FileReference, ...]:
        """Those that ``MANIFEST.json`` does not list: what is in the folder of signatures."""
        return tuple(file for path, file in self.files.items() if _is_of_signatures(path))

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


def parse_oci_manifest(data: bytes, what: str) -> Contents:
    """Read an OCI manifest of untrusted origin.

    Args:
        data: its bytes, at most :data:`MAX_OCI_MANIFEST_BYTES`.
        what: how to call it in an error.

    Raises:
        CorruptFile: if it is malformed, or lists what no bundle has: a file twice, a path that leads
            elsewhere, impossible sizes.
        RegistryError: if it is of something other than a bundle.
    """
    body = _json(data, MAX_OCI_MANIFEST_BYTES, what)
    if body.get("mediaType", MANIFEST_TYPE) != MANIFEST_TYPE or body.get("schemaVersion") != 2:
        raise RegistryError(
            f"{what} is of media type {shown(body.get('mediaType'))}; expected an OCI image manifest "
            f"with artifactType {ARTIFACT_TYPE}: name what cutlass-aot bundle push put there"
        )
    config = body.get("config")
    found = body.get("artifactType") or (config.get("mediaType") if isinstance(config, dict) else None)
    if found not in (ARTIFACT_TYPE, CONFIG_TYPE):
        raise RegistryError(
            f"{what} is an artifact of type {shown(found)}, not a bundle; expected {ARTIFACT_TYPE}: "
            "name what cutlass-aot bundle push put there"
        )
    layers = body.get("layers")
    if not isinstance(layers, list):
        raise CorruptFile(f"{what} lists no layers: {_AGAIN}")
    files: dict[str, FileReference] = {}
    for layer in layers:
        file = _layer(layer, what)
        if file.path in files:
            raise CorruptFile(f"{what} lists {file.path} twice: {_AGAIN}")
        files[file.path] = file
    own = isinstance(config, dict) and config.get("mediaType") == CONFIG_TYPE
    contents = Contents(_reference(config, "", MAX_CONFIG_BYTES, what) if own else None, files)
    _check_bounds(contents, what)
    return contents


def parse_config(data: bytes, what: str) -> Mapping[str, Any]:
    """Read a config of untrusted origin.

    Raises:
        CorruptFile: if it is no JSON object.
    """
    return _json(data, MAX_CONFIG_BYTES, what)


def _json(data: bytes, limit: int, what: str) -> dict[str, Any]:
    if len(data) > limit:
        raise CorruptFile(f"{what} has {len(data)} bytes, expected at most {limit}: {_AGAIN}")
    try:
        body = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{what} is not readable JSON ({error}): {_AGAIN}") from None
    if not isinstance(body, dict):
        raise CorruptFile(f"{what} is a JSON {type(body).__name__}, expected an object: {_AGAIN}")
    return body


def _layer(layer: Any, what: str) -> FileReference:
    annotations = layer.get("annotations") if isinstance(layer, dict) else None
    title = annotations.get(TITLE) if isinstance(annotations, dict) else None
    if not isinstance(title, str):
        raise CorruptFile(f"{what} has a layer without a title, which is its path in the bundle: {_AGAIN}")
    check_relative(title)
    limit = MAX_FILE_BYTES
    if title == MANIFEST_NAME:
        limit = MAX_MANIFEST_BYTES
    elif _is_of_signatures(title):
        limit = MAX_SIGNATURE_FILE
    return _reference(layer, title, limit, what)


def _reference(descriptor: Any, path: str, limit: int, what: str) -> FileReference:
    size = descriptor.get("size") if isinstance(descriptor, dict) else None
    name = descriptor.get("digest") if isinstance(descriptor, dict) else None
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= limit:
        raise CorruptFile(
            f"{what}: {path or 'its config'} has {shown(size)} as its size, expected at most {limit}: "
            f"{_AGAIN}"
        )
    if not isinstance(name, str) or not DIGEST.fullmatch(name):
        raise CorruptFile(f"{what}: {path or 'its config'} has no SHA-256 as its digest: {_AGAIN}")
    return FileReference(path, size, name.removeprefix("sha256:"))


def _check_bounds(contents: Contents, what: str) -> None:
    for name in (MANIFEST_NAME, CATALOG_NAME):
        if name not in contents.files:
            raise CorruptFile(f"{what} has no layer {name}, which every bundle has: {_AGAIN}")
    if len(contents.signatures) > MAX_SIGNATURES:
        raise CorruptFile(
            f"{what} has {len(contents.signatures)} signatures, expected at most {MAX_SIGNATURES}: {_AGAIN}"
        )
    if contents.size > MAX_BUNDLE_BYTES:
        raise CorruptFile(
            f"{what} has files of {contents.size} bytes together, expected at most {MAX_BUNDLE_BYTES}: "
            f"{_AGAIN}"
        )


def check_same_files(contents: Contents, listed: Mapping[str, FileReference], what: str) -> None:
    """Hold the layers against the bundle's own ``MANIFEST.json``, before they are fetched.

    Args:
        contents: what the OCI manifest lists.
        listed: what ``MANIFEST.json`` lists.
        what: how to call the OCI manifest in an error.

    Raises:
        CorruptFile: if one lists a file, a size or a digest that the other does not.
    """
    own = {
        path: file
        for path, file in contents.files.items()
        if path != MANIFEST_NAME and not _is_of_signatures(path)
    }
    for path in sorted({*own, *listed}):
        if own.get(path) != listed.get(path):
            there, expected = (
                f"{file.size} bytes with SHA-256 {file.sha256}" if file else "nothing"
                for file in (own.get(path), listed.get(path))
            )
            raise CorruptFile(f"{what}: {path} is {there}, expected {expected} by {MANIFEST_NAME}: {_AGAIN}")

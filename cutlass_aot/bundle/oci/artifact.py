"""The OCI artifact of a bundle: write its manifest and config, and read them from untrusted registries.

There is one layer for each file, with the file's path as ``org.opencontainers.image.title``, so that any OCI
client that knows titles writes the bundle's directory. The config is a small JSON object that describes the
bundle. Neither has a time or a path of a machine, so equal bundles have equal digests. Format:
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
    MAX_FILES,
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
MEDIA_TYPES = {
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
"""Media types of layers, by the first part of the file's path."""
OTHER_TYPE = "application/vnd.cutlass-aot.bundle.file.v1"

MAX_OCI_MANIFEST_BYTES = 1 << 22
"""What every registry takes: https://github.com/opencontainers/distribution-spec/blob/main/spec.md#pushing-manifests"""
MAX_CONFIG_BYTES = 1 << 16
MAX_BUNDLE_BYTES = 1 << 36
"""Most bytes of all files of a bundle together."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What an OCI manifest lists: the config, and every file of the bundle by its path.

    The config's path is ``""``; it is None if its type is not ours (``oras push`` makes an empty one).
    """

    config: FileReference | None
    files: Mapping[str, FileReference]

    @property
    def signatures(self) -> list[FileReference]:
        """The files in the folder of signatures, which ``MANIFEST.json`` does not list."""
        return [file for path, file in self.files.items() if _is_signature(path)]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files.values())


def config_of(catalog: Catalog) -> bytes:
    """The config of a bundle, which registries can show in listings."""
    body = {
        "name": catalog.name,
        "version": catalog.version,
        "targets": list(catalog.targets),
        "hosts": list(catalog.hosts),
        "schema": SCHEMA,
    }
    return _to_json({**body, "variant": catalog.variant} if catalog.variant else body)


def manifest_of(files: Iterable[FileReference], config: bytes) -> bytes:
    """The OCI manifest of a bundle with the config of :func:`config_of`.

    ``files`` are all files, ``MANIFEST.json`` and signatures included; their order does not matter.
    """

    def descriptor(kind: str, size: int, sha256: str) -> dict[str, Any]:
        return {"mediaType": kind, "size": size, "digest": f"sha256:{sha256}"}

    layers = [
        {
            **descriptor(MEDIA_TYPES.get(file.path.partition("/")[0], OTHER_TYPE), file.size, file.sha256),
            "annotations": {TITLE: file.path},
        }
        for file in sorted(files)
    ]
    data = _to_json(
        {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "artifactType": ARTIFACT_TYPE,
            "config": descriptor(CONFIG_TYPE, len(config), digest(config)),
            "layers": layers,
        }
    )
    if len(data) > MAX_OCI_MANIFEST_BYTES:
        raise RegistryError(
            f"the OCI manifest of the bundle's {len(layers)} files has {len(data)} bytes, registries "
            f"take {MAX_OCI_MANIFEST_BYTES}: build several bundles, e.g. one a target, and push each"
        )
    return data


def parse_oci_manifest(data: bytes, what: str) -> Contents:
    """Read an OCI manifest of untrusted origin; errors call it ``what``.

    It is a :class:`CorruptFile` if it is malformed, lists a file twice or a path out of the bundle, or has
    impossible sizes; a :class:`RegistryError` if it is of something other than a bundle.
    """
    body = _from_json(data, MAX_OCI_MANIFEST_BYTES, what)
    config = _object(body.get("config"))
    media_type = body.get("mediaType", MANIFEST_TYPE)
    artifact_type = body.get("artifactType") or config.get("mediaType")
    for found, expected in ((media_type, (MANIFEST_TYPE,)), (artifact_type, (ARTIFACT_TYPE, CONFIG_TYPE))):
        if found not in expected or body.get("schemaVersion") != 2:
            raise RegistryError(
                f"{what} has type {shown(found)} and schemaVersion {shown(body.get('schemaVersion'))}, so it "
                f"is not a bundle; expected {expected[0]} and 2: name what cutlass-aot bundle push put there"
            )
    layers = body.get("layers")
    if not isinstance(layers, list):
        raise _corrupt(what, "lists no layers")
    if len(layers) > MAX_FILES + MAX_SIGNATURES + 1:
        raise _corrupt(what, f"lists {len(layers)} files, a bundle has at most {MAX_FILES}")
    files: dict[str, FileReference] = {}
    for layer in map(_object, layers):
        path = _object(layer.get("annotations")).get(TITLE)
        if not isinstance(path, str):
            raise _corrupt(what, "has a layer without a title, which is its path in the bundle")
        check_relative(path)
        if path in files:
            raise _corrupt(what, f"lists {path} twice")
        limit = MAX_SIGNATURE_FILE if _is_signature(path) else MAX_FILE_BYTES
        files[path] = _file(layer, path, MAX_MANIFEST_BYTES if path == MANIFEST_NAME else limit, what)
    own = config.get("mediaType") == CONFIG_TYPE
    contents = Contents(_file(config, "", MAX_CONFIG_BYTES, what) if own else None, files)
    for name in (MANIFEST_NAME, CATALOG_NAME):
        if name not in files:
            raise _corrupt(what, f"has no layer {name}, which every bundle has")
    for count, most, unit in (
        (len(contents.signatures), MAX_SIGNATURES, "signatures"),
        (contents.size, MAX_BUNDLE_BYTES, "bytes together"),
    ):
        if count > most:
            raise _corrupt(what, f"has {count} {unit}, expected at most {most}")
    return contents


def parse_config(data: bytes, what: str) -> dict[str, Any]:
    """Read a config of untrusted origin; errors call it ``what``."""
    return _from_json(data, MAX_CONFIG_BYTES, what)


def check_config(data: bytes, catalog: Catalog) -> None:
    """Check an artifact's config against the bundle that came with it, because people choose by it."""
    found = parse_config(data, "the config")
    for key, value in parse_config(config_of(catalog), "the config").items():
        if found.get(key) != value:
            raise _corrupt(
                f"the config says {key} {shown(found.get(key))},", f"the bundle has {shown(value)}"
            )


def check_same_files(contents: Contents, listed: Mapping[str, FileReference], what: str) -> None:
    """Check the layers against what the bundle's own ``MANIFEST.json`` lists."""

    def text(file: FileReference | None) -> str:
        return f"{file.size} bytes with SHA-256 {file.sha256}" if file else "nothing"

    layers = {path: file for path, file in contents.files.items() if not _is_signature(path)}
    del layers[MANIFEST_NAME]
    for path in sorted({*layers, *listed}):
        layer, expected = layers.get(path), listed.get(path)
        if layer != expected:
            raise _corrupt(
                f"{what}:", f"{path} is {text(layer)}, expected {text(expected)} by {MANIFEST_NAME}"
            )


def _is_signature(path: str) -> bool:
    return path.startswith(f"{SIGNATURES}/")


def _object(value: Any) -> dict[str, Any]:
    """A JSON object; for any other value an empty one, so that every key is missing."""
    return value if isinstance(value, dict) else {}


def _file(descriptor: dict[str, Any], path: str, limit: int, what: str) -> FileReference:
    size, name = descriptor.get("size"), descriptor.get("digest")
    if type(size) is not int or not 0 <= size <= limit:
        raise _corrupt(
            f"{what}:", f"{path or 'its config'} has {shown(size)} as its size, expected at most {limit}"
        )
    if not isinstance(name, str) or not DIGEST.fullmatch(name):
        raise _corrupt(f"{what}:", f"{path or 'its config'} has no SHA-256 as its digest")
    return FileReference(path, size, name.removeprefix("sha256:"))


def _to_json(body: dict[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def _from_json(data: bytes, limit: int, what: str) -> dict[str, Any]:
    if len(data) > limit:
        raise _corrupt(what, f"has {len(data)} bytes, expected at most {limit}")
    try:
        body = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _corrupt(what, f"is not readable JSON ({error})") from None
    if not isinstance(body, dict):
        raise _corrupt(what, f"is a JSON {type(body).__name__}, expected an object")
    return body


def _corrupt(what: str, problem: str) -> CorruptFile:
    return CorruptFile(f"{what} {problem}: push the bundle again, or pull one that is whole by its digest")

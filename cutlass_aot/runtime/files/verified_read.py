"""Read a bundle's files: of bounded size, never through a symbolic link, and checked against their digests.

``MANIFEST.json`` is written last and lists every other file::

    {"schema": 5, "kind": "cutlass-aot bundle",
     "files": {"catalog.msgpack": {"sha256": "<64 hexadecimal digits>", "size": 1234}, ...}}
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

from cutlass_aot.errors import BundleError, CorruptFile
from cutlass_aot.schema.bundles.catalog import (
    CATALOG_NAME,
    MANIFEST_NAME,
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_INDEX_BYTES,
    SCHEMA,
    Catalog,
    FileReference,
    check_relative,
)
from cutlass_aot.schema.encoding import check_schema, digest, is_digest, shown

MANIFEST_KIND = "cutlass-aot bundle"
MAX_MANIFEST_BYTES = 1 << 23
_FETCH = "build or fetch the bundle again"
_WHOLE = 1 << 20
"""Bytes per read of a file that is read whole; most files are smaller."""


def open_beneath(root: Path, path: str) -> int:
    """Open a regular file of a bundle for reading, and return its descriptor.

    Every component below ``root`` is opened without following symbolic links, so that a path in the bundle
    cannot lead to a file outside.
    """
    check_relative(path)
    first, *others = path.split("/")
    # Of a path in one piece, links are followed up to its last component, which is the first below the root.
    *parents, name = f"{os.fspath(root)}/{first}", *others
    folder: int | None = None
    try:
        for parent in parents:
            inner = _open(root, path, parent, folder, os.O_DIRECTORY | os.O_NOFOLLOW)
            if folder is not None:
                os.close(folder)
            folder = inner
        # Non-blocking, or opening a FIFO would wait for a writer.
        file = _open(root, path, name, folder, os.O_NOFOLLOW | os.O_NONBLOCK)
    finally:
        if folder is not None:
            os.close(folder)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise CorruptFile(f"{root / path} is not a regular file: {_FETCH}")
    return file


def _open(root: Path, path: str, name: str, folder: int | None, flags: int) -> int:
    """Open one component of ``path``, the first of them together with ``root``."""
    try:
        return os.open(name, os.O_RDONLY | os.O_CLOEXEC | flags, dir_fd=folder)
    except (OSError, ValueError) as error:
        raise _not_opened(root, path, error) from None


def _not_opened(root: Path, path: str, error: OSError | ValueError) -> BundleError | CorruptFile:
    if isinstance(error, ValueError) or not not_for_files(error):
        try:
            os.close(os.open(root, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY))
        except (OSError, ValueError) as of_root:
            error, path = of_root, ""
    where = root / path
    if isinstance(error, ValueError):
        # A path with a NUL, or one that the file system's encoding cannot express.
        return BundleError(f"{os.fspath(where)!r} cannot be the path of a file: {error}")
    if error.errno == errno.ENOENT:
        if not path:
            return BundleError(f"{where}: no such directory: expected a bundle")
        if path == MANIFEST_NAME:
            return BundleError(
                f"{root} is not a bundle, or an incomplete one: it has no {MANIFEST_NAME} "
                "(which is written last); build it again"
            )
        return BundleError(f"{where} is missing: the bundle is incomplete, {_FETCH}")
    if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENOTDIR) and path:
        return CorruptFile(
            f"{where} is reached through a symbolic link or something that is not a directory; "
            "a bundle holds plain files: copy it with the links resolved (cp -rL)"
        )
    if error.errno == errno.ENOTDIR:
        return BundleError(
            f"{where} is not a directory: a bundle is one (install a wheel, and use open_installed)"
        )
    return BundleError(f"{where} cannot be read: {why_unreadable(error)}")


def why_unreadable(error: OSError) -> str:
    """The system's message for a file that cannot be read, with advice where there is some."""
    said = error.strerror or str(error)
    if not_for_files(error):
        return f"{said}: raise the limit (ulimit -n; for the whole system, fs.file-max)"
    return said


def not_for_files(error: OSError) -> bool:
    """Whether the error is a lack of file descriptors; the loader's own errors have a text but no number."""
    numbers = errno.EMFILE, errno.ENFILE
    return error.errno in numbers or any(str(error).endswith(os.strerror(number)) for number in numbers)


def read_bounded(root: Path, path: str, limit: int) -> bytes:
    """Read a whole file of a bundle; one of more than ``limit`` bytes is refused."""
    blocks: list[bytes] = []
    left = limit + 1
    file = open_beneath(root, path)
    try:
        while left and (block := os.read(file, min(left, _WHOLE))):
            blocks.append(block)
            left -= len(block)
    except OSError as error:
        raise BundleError(f"{root / path} cannot be read: {why_unreadable(error)}") from None
    finally:
        os.close(file)
    if not left:
        raise CorruptFile(f"{root / path} is larger than the {limit} bytes expected: {_FETCH}")
    return b"".join(blocks)


def read_file(root: Path, reference: FileReference) -> bytes:
    """Read a file of a bundle and check it against its size and digest."""
    data = read_bounded(root, reference.path, reference.size)
    _check(root, reference, len(data), digest(data))
    return data


def _check(root: Path, reference: FileReference, size: int, found: str) -> None:
    """Refuse a file whose size or digest differs from the reference."""
    if size != reference.size:
        raise CorruptFile(
            f"{root / reference.path} has {size} bytes, expected {reference.size}: it is truncated, {_FETCH}"
        )
    if found != reference.sha256:
        raise CorruptFile(
            f"{root / reference.path} has SHA-256 {found}, expected {reference.sha256}: "
            f"it was altered, {_FETCH}"
        )


def read_manifest(root: Path) -> dict[str, FileReference]:
    """Read ``MANIFEST.json``: every other file of the bundle by its path."""
    return parse_manifest(manifest_bytes(root), str(root / MANIFEST_NAME))


def manifest_bytes(root: Path) -> bytes:
    """The bytes of ``MANIFEST.json``, which signatures sign and :func:`catalog_of` verifies against."""
    return read_bounded(root, MANIFEST_NAME, MAX_MANIFEST_BYTES)


def parse_manifest(data: bytes, what: str) -> dict[str, FileReference]:
    """Parse a ``MANIFEST.json``; ``what`` is its name in errors."""
    return {path: _reference(path, entry, what) for path, entry in sorted(_listed(data, what).items())}


def _listed(data: bytes, what: str) -> dict[str, Any]:
    """The entries of a manifest, not yet checked."""
    try:
        body = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(
            f"{what} is not readable JSON ({error}); it is truncated or altered: {_FETCH}"
        ) from None
    if not isinstance(body, dict) or body.get("kind") != MANIFEST_KIND:
        found = body.get("kind") if isinstance(body, dict) else type(body).__name__
        raise CorruptFile(f"{what} is not the manifest of a bundle (found kind {shown(found)})")
    check_schema(body.get("schema"), SCHEMA, what)
    files = body.get("files")
    if not isinstance(files, dict):
        raise CorruptFile(f"{what} lists no files: {_FETCH}")
    if len(files) > MAX_FILES:
        raise CorruptFile(f"{what} lists {len(files)} files, a bundle has at most {MAX_FILES}: {_FETCH}")
    return files


def _reference(path: str, entry: Any, what: str) -> FileReference:
    size = entry.get("size") if isinstance(entry, dict) else None
    sha256 = entry.get("sha256") if isinstance(entry, dict) else None
    if (
        not isinstance(size, int)
        or isinstance(size, bool)
        or not 0 <= size <= MAX_FILE_BYTES
        or not isinstance(sha256, str)
        or not is_digest(sha256)
    ):
        raise CorruptFile(f"{what}: the entry of {path[:100]!r} has no valid size and SHA-256: {_FETCH}")
    check_relative(path)
    return FileReference(path, size, sha256)


def read_catalog(root: Path) -> Catalog:
    """Read a bundle's parent index, verified against its manifest. No other file is read."""
    return catalog_of(root, manifest_bytes(root))


def catalog_of(root: Path, manifest: bytes) -> Catalog:
    """Read the parent index of the bundle that has this manifest; ``MANIFEST.json`` is not read again.

    ``manifest`` is the result of :func:`manifest_bytes`, so that the bytes whose signature was checked are
    the ones used. The catalog has the digest of every file that is read later; ``verify`` checks that both
    agree.
    """
    what = f"{root}/{MANIFEST_NAME}"
    listed = _listed(manifest, what)
    if CATALOG_NAME not in listed:
        raise CorruptFile(f"{what} does not list {CATALOG_NAME}: {_FETCH}")
    reference = _reference(CATALOG_NAME, listed[CATALOG_NAME], what)
    if reference.size > MAX_INDEX_BYTES:
        raise CorruptFile(f"{root / CATALOG_NAME}: impossible size {reference.size}: {_FETCH}")
    return Catalog.from_bytes(read_file(root, reference), f"{root}/{CATALOG_NAME}")

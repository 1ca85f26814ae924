"""A bundle's files: what its manifest says of them, and what is really there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from cutlass_aot.errors import BundleError, CorruptFile, SchemaTooNew
from cutlass_aot.schema.catalog import (
    MANIFEST_NAME,
    MAX_INDEX_BYTES,
    SCHEMA,
    FileReference,
)

MANIFEST_KIND = "cutlass-aot bundle"
_READ_BYTES = 1 << 20


def manifest_to_bytes(references: Mapping[str, FileReference]) -> bytes:
    """The manifest's file: JSON, sorted, one key a line."""
    files = {path: {"sha256": item.sha256, "size": item.size} for path, item in references.items()}
    text = json.dumps(
        {"schema": SCHEMA, "kind": MANIFEST_KIND, "files": files}, indent=1, sort_keys=True
    )
    return text.encode() + b"\n"


def digest_file(path: Path, *, follow: bool = True) -> tuple[str, int]:
    """SHA-256 in hexadecimal and length of a file, read in pieces.

    Args:
        path: the file.
        follow: whether to follow a symbolic link; without it, one raises ``OSError``.
    """
    hasher, size = hashlib.sha256(), 0
    flags = os.O_RDONLY | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    with os.fdopen(os.open(path, flags), "rb", buffering=0) as file:
        while chunk := file.read(_READ_BYTES):
            hasher.update(chunk)
            size += len(chunk)
    return hasher.hexdigest(), size


def matches(bundle: Path, reference: FileReference) -> bool:
    """Whether a file is there with the size and digest of ``reference``; the cheap question comes first.

    Raises:
        OSError: if it is not there or cannot be read.
    """
    path = bundle / reference.path
    if path.is_symlink() or path.stat().st_size != reference.size:
        return False
    return digest_file(path, follow=False) == (reference.sha256, reference.size)

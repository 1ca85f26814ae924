"""A bundle's files: what a manifest says of them, and what is really there."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.files import MANIFEST_KIND, open_beneath
from cutlass_aot.schema.catalog import SCHEMA, FileReference

_READ_BYTES = 1 << 20


def manifest_to_bytes(references: Mapping[str, FileReference]) -> bytes:
    """The manifest's file: JSON, sorted, one key a line; the only bytes for these references."""
    files = {path: {"sha256": item.sha256, "size": item.size} for path, item in references.items()}
    text = json.dumps({"schema": SCHEMA, "kind": MANIFEST_KIND, "files": files}, indent=1, sort_keys=True)
    return text.encode() + b"\n"


def digest_file(path: Path) -> tuple[str, int]:
    """SHA-256 in hexadecimal and length of a file, read in pieces.

    Raises:
        OSError: if it cannot be read.
    """
    return _digest(os.open(path, os.O_RDONLY | os.O_CLOEXEC))


def digest_beneath(bundle: Path, path: str) -> tuple[str, int]:
    """SHA-256 in hexadecimal and length of a file of a bundle, never read through a symbolic link.

    Raises:
        CorruptFile: if it is not a regular file of the bundle.
        BundleError: if it is missing or unreadable.
    """
    try:
        return _digest(open_beneath(bundle, path))
    except OSError as error:
        raise BundleError(f"{bundle / path} cannot be read: {error.strerror}") from None


def _digest(descriptor: int) -> tuple[str, int]:
    hasher, size = hashlib.sha256(), 0
    with open(descriptor, "rb", buffering=0) as file:
        while block := file.read(_READ_BYTES):
            hasher.update(block)
            size += len(block)
    return hasher.hexdigest(), size


def matches(bundle: Path, reference: FileReference) -> bool:
    """Whether a file is as ``reference`` says: there, of its size, of its digest.

    Raises:
        CorruptFile: if it is not a regular file of the bundle.
        BundleError: if it is missing or unreadable.
    """
    # The cheap question first: a truncated library need not be read.
    descriptor = open_beneath(bundle, reference.path)
    size = os.fstat(descriptor).st_size
    os.close(descriptor)
    return size == reference.size and digest_beneath(bundle, reference.path) == (
        reference.sha256,
        reference.size,
    )


@dataclass(frozen=True, slots=True)
class Listing:
    """What is in a directory.

    Attributes:
        regular: plain files, by their paths in it, sorted.
        links: symbolic links, sorted; what they point at is not looked at.
        special: anything else that is no directory (sockets, devices, FIFOs), sorted.
    """

    regular: tuple[str, ...]
    links: tuple[str, ...]
    special: tuple[str, ...]


def list_files(root: Path) -> Listing:
    """Every file below ``root``, with no link followed.

    Names that are no UTF-8 are shown with the bytes escaped.

    Raises:
        OSError: if a directory cannot be read.
    """
    regular: list[str] = []
    links: list[str] = []
    special: list[str] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                path = f"{folder}{entry.name}"
                shown = os.fsencode(path).decode("utf-8", "backslashreplace")
                if entry.is_symlink():
                    links.append(shown)
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(f"{path}/")
                elif entry.is_file(follow_symlinks=False):
                    regular.append(shown)
                else:
                    special.append(shown)
    return Listing(tuple(sorted(regular)), tuple(sorted(links)), tuple(sorted(special)))

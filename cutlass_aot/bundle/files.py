"""A bundle's files: what a manifest says of them, what is really there, and how two of them change places."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import platform
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.errors import BundleError, CutlassAotError
from cutlass_aot.runtime.files.signatures import read_signature
from cutlass_aot.runtime.files.verified_read import (
    MANIFEST_KIND,
    MAX_MANIFEST_BYTES,
    open_beneath,
    read_bounded,
    read_file,
)
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME, SCHEMA, FileReference
from cutlass_aot.schema.bundles.signature import MAX_SIGNATURES, is_signature_path

_READ_BYTES = 1 << 20
# Of renameat2, from the kernel's headers: linux/fcntl.h, linux/fs.h, asm/unistd.h.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_RENAMEAT2_CALL = {"x86_64": 316, "aarch64": 276}


def manifest_to_bytes(references: Mapping[str, FileReference]) -> bytes:
    """The manifest's file: JSON, sorted, one key a line; the only bytes for these references."""
    files = {path: {"sha256": item.sha256, "size": item.size} for path, item in references.items()}
    text = json.dumps({"schema": SCHEMA, "kind": MANIFEST_KIND, "files": files}, indent=1, sort_keys=True)
    return text.encode() + b"\n"


LICENSES = "licenses"
"""The folder of the licences of what is linked in."""


def read_licenses(bundle: Path, references: Mapping[str, FileReference]) -> dict[str, bytes]:
    """The licences of a bundle, by the names of their files.

    Args:
        bundle: its directory.
        references: what its manifest lists.

    Raises:
        CutlassAotError: if one cannot be read, or is not what its digest says.
    """
    return {
        path.removeprefix(f"{LICENSES}/"): read_file(bundle, reference)
        for path, reference in references.items()
        if path.startswith(f"{LICENSES}/")
    }


def digest_beneath(bundle: Path, path: str) -> tuple[str, int]:
    """SHA-256 in hexadecimal and length of a file of a bundle, never read through a symbolic link."""
    hasher, size = hashlib.sha256(), 0
    try:
        with os.fdopen(open_beneath(bundle, path), "rb", buffering=0) as file:
            while block := file.read(_READ_BYTES):
                hasher.update(block)
                size += len(block)
    except OSError as error:
        raise BundleError(f"{bundle / path} cannot be read: {error.strerror}") from None
    return hasher.hexdigest(), size


def matches(bundle: Path, reference: FileReference) -> bool:
    """Whether a file is as ``reference`` says: there, of its size, of its digest."""
    with os.fdopen(open_beneath(bundle, reference.path), "rb") as file:
        # First: a truncated library need not be read.
        if os.fstat(file.fileno()).st_size != reference.size:
            return False
    return digest_beneath(bundle, reference.path) == (reference.sha256, reference.size)


@dataclass(frozen=True, slots=True)
class Listing:
    """What is in a directory.

    Attributes:
        regular: plain files, by their paths in it, sorted.
        links: symbolic links, sorted; what they point at is not looked at.
        special: anything else that is not a directory (sockets, devices, FIFOs), sorted.
    """

    regular: tuple[str, ...]
    links: tuple[str, ...]
    special: tuple[str, ...]


def list_files(root: Path) -> Listing:
    """Every file below ``root``, with no link followed.

    Names that are not UTF-8 are shown with the bytes escaped.

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


def is_exactly(
    bundle: Path, manifest: bytes, references: Mapping[str, FileReference], checked: Collection[str] = ()
) -> bool:
    """Whether a bundle has this manifest, the files that it lists unaltered, and else signatures alone.

    Signatures have to be well-formed; whether they are right is the question of who relies on them, and of
    ``verify``. Never raises for what it finds there.

    Args:
        bundle: the directory.
        manifest: the bytes of its manifest.
        references: the files that the manifest lists.
        checked: paths of those whose bytes were checked already.
    """
    try:
        if read_bounded(bundle, MANIFEST_NAME, MAX_MANIFEST_BYTES) != manifest:
            return False
        listing = list_files(bundle)
        present, signatures = set(listing.regular), set(filter(is_signature_path, listing.regular))
        if listing.links or listing.special or present - signatures != {*references, MANIFEST_NAME}:
            return False
        if len(signatures) > MAX_SIGNATURES:
            return False
        for path in signatures:
            read_signature(bundle, path)
        return all(matches(bundle, item) for path, item in references.items() if path not in checked)
    except (OSError, CutlassAotError):
        return False


def exchange(first: Path, second: Path) -> bool:
    """Let two files or directories of one file system change places, at once for whoever looks.

    Returns:
        ``False``, with nothing changed, where the kernel, the C library or the file system cannot do it.

    Raises:
        OSError: if it can be done and is refused.
    """
    library = ctypes.CDLL(None, use_errno=True)
    names = (_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second))
    types = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    # The C library has the function since glibc 2.28, the kernel the call since Linux 3.15.
    if hasattr(library, "renameat2"):
        library.renameat2.argtypes = types
        failed = library.renameat2(*names, _RENAME_EXCHANGE)
    elif platform.machine() in _RENAMEAT2_CALL:
        library.syscall.argtypes = (ctypes.c_long, *types)
        library.syscall.restype = ctypes.c_long
        failed = library.syscall(_RENAMEAT2_CALL[platform.machine()], *names, _RENAME_EXCHANGE)
    else:
        return False
    if not failed:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), os.fspath(first), None, os.fspath(second))

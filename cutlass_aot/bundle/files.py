"""A bundle's files: write their manifest, list and check what is there, exchange two directories."""

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

from cutlass_aot.errors import BundleError, CorruptFile, CutlassAotError
from cutlass_aot.runtime.files.signatures import read_signature
from cutlass_aot.runtime.files.verified_read import (
    MANIFEST_KIND,
    MAX_MANIFEST_BYTES,
    open_beneath,
    read_bounded,
    read_file,
)
from cutlass_aot.schema.bundles.catalog import MANIFEST_NAME, MAX_FILES, SCHEMA, FileReference
from cutlass_aot.schema.bundles.signature import MAX_SIGNATURES, is_signature_path

_READ_BYTES = 1 << 20
MAX_ENTRIES = 2 * MAX_FILES
"""Files and directories below a bundle's."""
# For renameat2; from the kernel's headers linux/fcntl.h, linux/fs.h, asm/unistd.h.
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_RENAMEAT2_CALL = {"x86_64": 316, "aarch64": 276}


def manifest_to_bytes(references: Mapping[str, FileReference]) -> bytes:
    """The manifest's canonical bytes: JSON, sorted, one key a line."""
    files = {path: {"sha256": item.sha256, "size": item.size} for path, item in references.items()}
    text = json.dumps({"schema": SCHEMA, "kind": MANIFEST_KIND, "files": files}, indent=1, sort_keys=True)
    return text.encode() + b"\n"


LICENSES = "licenses"
"""The folder for the licences of what is linked in and of what was compiled into kernels."""


MAX_LICENSE_BYTES = 1 << 22
"""Bytes of one licence."""


def read_licenses(bundle: Path, references: Mapping[str, FileReference]) -> dict[str, bytes]:
    """The verified licences of a bundle with these files, by the names of their files."""
    found = {}
    for path, reference in references.items():
        if path.startswith(f"{LICENSES}/"):
            if reference.size > MAX_LICENSE_BYTES:
                raise CorruptFile(f"{bundle / path} has {reference.size} bytes, which no licence has")
            found[path.removeprefix(f"{LICENSES}/")] = read_file(bundle, reference)
    return found


def digest_beneath(bundle: Path, path: str, most: int) -> tuple[str, int]:
    """SHA-256 in hexadecimal, and length, of a bundle's file, which is never read through a symbolic link.

    A file of more than ``most`` bytes is not read, and has no digest: ``""``.
    """
    hasher, size = hashlib.sha256(), 0
    try:
        with os.fdopen(open_beneath(bundle, path), "rb", buffering=0) as file:
            length = os.fstat(file.fileno()).st_size
            if length > most:
                return "", length
            while block := file.read(_READ_BYTES):
                hasher.update(block)
                size += len(block)
                # It grows while it is read.
                if size > most:
                    return "", size
    except OSError as error:
        raise BundleError(f"{bundle / path} cannot be read: {error.strerror}") from None
    return hasher.hexdigest(), size


def matches(bundle: Path, reference: FileReference) -> bool:
    """Whether a file is there and has the reference's size and digest."""
    with os.fdopen(open_beneath(bundle, reference.path), "rb") as file:
        # First, so that a truncated library need not be read.
        if os.fstat(file.fileno()).st_size != reference.size:
            return False
    return digest_beneath(bundle, reference.path, reference.size) == (reference.sha256, reference.size)


@dataclass(frozen=True, slots=True)
class Listing:
    """What is below a directory: sorted paths of plain files, of symbolic links, and of all else.

    What links point at is not looked at; ``special`` are sockets, devices and FIFOs.
    """

    regular: tuple[str, ...]
    links: tuple[str, ...]
    special: tuple[str, ...]


def list_files(root: Path) -> Listing:
    """Every file below ``root``, without following links; an ``OSError`` if a directory cannot be read.

    Bytes of names that are not UTF-8 are escaped. More than :data:`MAX_ENTRIES` files and directories are a
    :class:`CorruptFile`.
    """
    count = 0
    regular: list[str] = []
    links: list[str] = []
    special: list[str] = []
    folders = [""]
    while folders:
        folder = folders.pop()
        with os.scandir(root / folder) as entries:
            for entry in entries:
                count += 1
                if count > MAX_ENTRIES:
                    raise CorruptFile(f"{root} holds more than {MAX_ENTRIES} files, as no bundle does")
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
    """Whether a bundle has this manifest, the files that it lists unaltered, and nothing else but signatures.

    Signatures must be well-formed; whether they are right is checked by ``verify`` and by those who rely on
    them. The files ``checked`` are not read again. This never raises for what it finds there.
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
    """Exchange two files or directories of one file system atomically.

    False, with nothing changed, if the kernel, the C library or the file system cannot do that; an
    ``OSError`` if they can and refuse.
    """
    library = ctypes.CDLL(None, use_errno=True)
    names = (_AT_FDCWD, os.fsencode(first), _AT_FDCWD, os.fsencode(second))
    types = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    # The function is in glibc since 2.28, the system call in Linux since 3.15.
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

"""Read the catalog of a bundle out of its wheel, within bounds and without unpacking to the disk.

Format: a wheel is a zip file (PKWARE's APPNOTE.TXT); its bundle is in ``PACKAGE/bundle``.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from cutlass_aot.errors import BundleError, CorruptFile
from cutlass_aot.runtime.files.verified_read import MAX_MANIFEST_BYTES, parse_manifest
from cutlass_aot.runtime.search_path import FOLDER
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, MANIFEST_NAME, MAX_INDEX_BYTES, Catalog
from cutlass_aot.schema.encoding import digest

MAX_DIRECTORY_BYTES = 1 << 23
"""Most bytes of the zip file's own index."""

END = struct.Struct("<4s4H2LH")
"""The end of a zip file: signature, disk numbers, entries, the index's size and place, a comment's size."""
_LARGE_END_BYTES = 20  # of the record before it in a zip file of more than 4.3 GB
_MAX_COMMENT = 0xFFFF
ZIP_ERRORS = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, OverflowError, RuntimeError,
    ValueError,
)  # fmt: skip
"""What the standard library's reader raises for archives that are truncated, altered or malicious."""


def read_wheel_catalog(wheel: Path) -> Catalog:
    """Read the parent index of a bundle in its wheel, verified against the bundle's manifest."""
    try:
        with wheel.open("rb") as file:
            check_directory(file, wheel)
            with zipfile.ZipFile(file) as archive:
                return _catalog(archive, wheel)
    except ZIP_ERRORS as error:
        raise CorruptFile(f"{wheel} is not a readable wheel ({error}): build or fetch it again") from None
    except OSError as error:
        raise BundleError(f"{wheel} cannot be read: {error.strerror or error}") from None


def check_directory(file: BinaryIO, wheel: Path) -> None:
    """Refuse a zip index that is too large, before the standard library reads all of it."""
    size = file.seek(0, 2)
    file.seek(max(size - END.size - _MAX_COMMENT - _LARGE_END_BYTES, 0))
    tail = file.read(END.size + _MAX_COMMENT + _LARGE_END_BYTES)
    at = tail.rfind(b"PK\x05\x06")
    if at < 0 or len(tail) - at < END.size:
        raise CorruptFile(f"{wheel} is not a zip file, or a truncated one: build or fetch it again")
    found = END.unpack_from(tail, at)[5]
    large = tail[max(at - _LARGE_END_BYTES, 0) : at].startswith(b"PK\x06\x07")
    if large or found > MAX_DIRECTORY_BYTES:
        raise CorruptFile(f"{wheel} has an index of more than {MAX_DIRECTORY_BYTES} bytes, as no wheel has")


def _catalog(archive: zipfile.ZipFile, wheel: Path) -> Catalog:
    ending = f"/{FOLDER}/{MANIFEST_NAME}"
    manifests = [name for name in archive.namelist() if name.endswith(ending) and name.count("/") == 2]
    if len(manifests) != 1:
        raise BundleError(f"{wheel} holds {len(manifests)} bundles: expected the wheel of one")
    what = f"{wheel}: {manifests[0]}"
    listed = parse_manifest(_read(archive, manifests[0], MAX_MANIFEST_BYTES, wheel), what)
    reference = listed.get(CATALOG_NAME)
    if reference is None:
        raise CorruptFile(f"{what} does not list {CATALOG_NAME}: build or fetch it again")
    name = manifests[0].removesuffix(MANIFEST_NAME) + CATALOG_NAME
    data = _read(archive, name, min(reference.size, MAX_INDEX_BYTES), wheel)
    if len(data) != reference.size or digest(data) != reference.sha256:
        raise CorruptFile(f"{wheel}: {name} is not what its manifest says: it was altered, fetch it again")
    return Catalog.from_bytes(data, f"{wheel}: {name}")


def _read(archive: zipfile.ZipFile, name: str, limit: int, wheel: Path) -> bytes:
    """One file of the archive; no more than ``limit`` bytes are unpacked, whatever size it claims."""
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise CorruptFile(f"{wheel} lacks {name}: build or fetch it again") from None
    # For other compressions, the standard library does not bound what it unpacks at once.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise CorruptFile(f"{wheel}: {name} is compressed otherwise than wheels are: expected deflate")
    # The standard library allocates what an entry claims before it finds out whether the file has it.
    if info.header_offset + info.compress_size > wheel.stat().st_size:
        raise CorruptFile(f"{wheel}: {name} claims more bytes than the file has: build or fetch it again")
    with archive.open(info) as source:
        data = source.read(limit + 1)
    if len(data) > limit:
        raise CorruptFile(f"{wheel}: {name} is larger than the {limit} bytes expected")
    return data

"""The platform tag of a wheel, from the versions of glibc that its libraries need.

Source: PEP 600 (``manylinux_X_Y``: a wheel runs on any distribution with that glibc or a newer one), and its
legacy aliases of PEP 599.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from cutlass_aot.bundle.elf import SharedObject, read_shared_object
from cutlass_aot.errors import BundleError
from cutlass_aot.runtime.files.verified_read import read_bounded
from cutlass_aot.schema.bundles.catalog import MAX_LIBRARY_BYTES
from cutlass_aot.schema.compression import decompressed

OLDEST = (2, 17)
"""The oldest glibc that is promised: the first with aarch64, and the oldest with a legacy tag of its own for
both hosts."""

_PACKED_RELOCATIONS = (2, 36)
"""The first glibc whose loader knows ``DT_RELR``. Source: its release notes."""

_LEGACY = {(2, 17): "manylinux2014"}
"""Tags from before PEP 600, for installers that do not know its tags."""

_GLIBC = re.compile(r"GLIBC_(\d{1,4})\.(\d{1,4})(?:\.\d{1,4})?", re.ASCII)
_VERSION = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)


def needed_glibc(library: SharedObject, what: str) -> tuple[int, int]:
    """The oldest glibc that can load a library, by the versions of the symbols that it binds to.

    A symbol that no release of glibc promises is a :class:`BundleError`.
    """
    found = _PACKED_RELOCATIONS if library.packed_relocations else (0, 0)
    for version in sorted(library.versions):
        if version == "GLIBC_ABI_DT_RELR":
            found = max(found, _PACKED_RELOCATIONS)
            continue
        match = _GLIBC.fullmatch(version)
        if match is None:
            raise BundleError(
                f"{what} needs symbols of version {version}: expected versions of glibc such as GLIBC_2.17; "
                "a wheel with it could promise no platform"
            )
        found = max(found, (int(match[1]), int(match[2])))
    return found


def promised_glibc(libraries: Iterable[tuple[int, int]]) -> str:
    """The glibc that a wheel with libraries that need these promises to need, such as ``2.17``."""
    major, minor = max((OLDEST, *libraries))
    return f"{major}.{minor}"


def glibc_of(libraries: Iterable[Path]) -> str:
    """The glibc that a bundle promises to need, with these libraries, each one zstd frame.

    Raises :class:`BundleError` for a file that cannot be read, and :class:`CorruptFile` for one that holds
    something else.
    """
    read = {}
    for path in sorted(set(libraries)):
        frame = read_bounded(path.parent, path.name, MAX_LIBRARY_BYTES)
        read[path] = read_shared_object(decompressed(frame, MAX_LIBRARY_BYTES), path.name)
    return promised_glibc(needed_glibc(library, path.name) for path, library in read.items())


def platform_tags(glibc: str, host: str) -> tuple[str, ...]:
    """Platform tags of a wheel that promises to need a glibc such as ``2.17``; the one of PEP 600 first."""
    match = _VERSION.fullmatch(glibc)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version < (2, 1):
        raise BundleError(
            f"a wheel cannot promise glibc {glibc!r}; expected a version such as 2.28: build the bundle again"
        )
    tags = [f"manylinux_{version[0]}_{version[1]}_{host}"]
    if version in _LEGACY:
        tags.append(f"{_LEGACY[version]}_{host}")
    return tuple(tags)

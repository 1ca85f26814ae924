"""Check a linked library: what it exports, and what it requires."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from cutlass_aot.builder.native import GLIBC
from cutlass_aot.bundle.elf import read_shared_object
from cutlass_aot.errors import CorruptFile, LinkError
from cutlass_aot.schema.versions import release
from cutlass_aot.schema.words import few

# The libraries of glibc 2.28 (later versions have threads and dl in libc.so.6, and keep the other names).
_LOADERS = {"aarch64": "ld-linux-aarch64.so.1", "x86_64": "ld-linux-x86-64.so.2"}
_NEEDED = frozenset(
    {"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1", "libtvm_ffi.so"}
)
_GLIBC_VERSION = re.compile(r"^GLIBC_(\d+(?:\.\d+)*)$")


def check_library(path: Path, symbols: Sequence[str], host: str) -> None:
    """Check that a linked library exports ``symbols`` alone, and that machines of the host can load it."""
    try:
        library = read_shared_object(path.read_bytes(), path.name)
    except (CorruptFile, OSError) as error:
        raise LinkError(f"{path.name}: what was linked cannot be read back: {error}") from None
    if library.host != host:
        raise LinkError(f"{path.name}: what was linked is for {library.host}; expected {host}")
    expected = set(symbols)
    exported, needed = library.exported, set(library.needed)
    if exported != expected:
        raise LinkError(
            f"{path.name}: exported symbols are not those expected; missing: "
            f"{few(sorted(expected - exported), 8)}; not expected: {few(sorted(exported - expected), 8)}"
        )
    allowed = _NEEDED | {_LOADERS[host]}
    if needed - allowed:
        raise LinkError(
            f"{path.name}: needs {few(sorted(needed - allowed), 8)}; "
            f"expected nothing but {few(sorted(allowed), 8)}"
        )
    if library.search_paths:
        raise LinkError(f"{path.name}: carries library search paths: {few(library.search_paths, 8)}")
    versions = {match[1] for match in map(_GLIBC_VERSION.match, library.versions) if match}
    newer = {version for version in versions if release(version) > release(GLIBC)}
    if newer:
        raise LinkError(f"{path.name}: needs glibc {few(sorted(newer), 8)}; expected at most {GLIBC}")

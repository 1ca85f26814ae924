"""Facts about this machine that need no GPU: C library and installed packages; nothing is imported."""

from __future__ import annotations

import os
import re
from pathlib import Path

_MAPS = Path("/proc/self/maps")


def glibc_version() -> str | None:
    """Version of the C library if it is glibc, such as ``2.36``."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return None
    name, _, version = text.partition(" ")
    return version if name == "glibc" and version else None


def c_library() -> str | None:
    """The C library, such as ``glibc 2.36``, or ``musl``; None if it is another."""
    version = glibc_version()
    if version is not None:
        return f"glibc {version}"
    return "musl" if _is_musl() else None


def _is_musl() -> bool:
    """Whether this process runs on musl, whose loader is also its C library and therefore mapped."""
    try:
        with _MAPS.open(encoding="utf-8", errors="replace") as maps:
            return any("/ld-musl-" in line or "/libc.musl-" in line for line in maps)
    except OSError:
        return False


def torch_cuda() -> str | None:
    """CUDA version that the installed torch was built for, such as ``13.0``; torch is not imported.

    None if torch is not installed, was built without CUDA, or does not tell.
    """
    from importlib import metadata

    try:
        file = Path(str(metadata.distribution("torch").locate_file("torch/version.py")))
        with file.open(encoding="utf-8") as source:
            text = source.read(1 << 16)
    except (metadata.PackageNotFoundError, OSError, ValueError):
        return None
    # A version is written as a string there, None without quotes.
    match = re.search(r"""^cuda\b[^=\n]*=\s*['"](\d+(?:\.\d+)*)['"]""", text, re.MULTILINE)
    return match and match[1]


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, such as ``apache-tvm-ffi``; it is not imported."""
    from importlib import metadata

    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return None
    # Not parsed as mail headers: that parser takes longer than all the rest of opening a bundle.
    for line in (found.read_text("METADATA") or "").splitlines():
        if line.startswith("Version:"):
            return line.removeprefix("Version:").strip()
        if not line:
            break
    return found.version

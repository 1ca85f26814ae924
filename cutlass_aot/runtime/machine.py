"""Facts about this machine that need no GPU: C library and installed packages; nothing is imported."""

from __future__ import annotations

import os


def glibc_version() -> str | None:
    """Version of the C library if it is glibc, such as ``2.36``."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (ValueError, OSError):
        return None
    name, _, version = text.partition(" ")
    return version if name == "glibc" and version else None


def installed_version(distribution: str) -> str | None:
    """Version of an installed distribution, such as ``apache-tvm-ffi``; it is not imported."""
    from importlib import metadata

    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return None
    # The headers are those of a mail, whose parser takes longer than all the rest of opening a bundle.
    for line in (found.read_text("METADATA") or "").splitlines():
        if line.startswith("Version:"):
            return line.removeprefix("Version:").strip()
        if not line:
            break
    return found.version

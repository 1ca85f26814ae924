"""Versions compare as numbers, never as text: 0.6.11 is newer than 0.6.2, and neither is 0.6.1."""

from __future__ import annotations

import re

_RELEASE = re.compile(r"^\s*v?(\d+(?:\.\d+)*)")


def release(version: str) -> tuple[int, ...]:
    """The numeric release part of a version, without trailing zeros.

    ``"0.1.15.post2"`` gives ``(0, 1, 15)``, ``"13.0"`` gives ``(13,)``.

    Raises:
        ValueError: if the text does not begin with a number.
    """
    match = _RELEASE.match(version)
    if match is None:
        raise ValueError(f"{version!r} is not a version")
    parts = [int(part) for part in match.group(1).split(".")]
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def major_minor(version: str) -> tuple[int, int]:
    """Major and minor number; a missing minor counts as 0."""
    parts = (*release(version), 0)
    return parts[0], parts[1]

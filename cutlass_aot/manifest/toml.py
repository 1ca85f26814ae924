"""Read a TOML file; errors name the file and the line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from cutlass_aot.errors import ManifestError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_BYTES = 4 << 20


def parse_toml(data: bytes, what: str) -> dict[str, Any]:
    """Parse TOML bytes."""
    try:
        document: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ManifestError(f"{what}: not UTF-8 text at byte {error.start}") from None
    # A plain ValueError comes of a number with thousands of digits.
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{what}: not valid TOML: {error}") from None
    return document


def read_bytes(path: Path) -> bytes:
    """Read a file of at most ``MAX_BYTES``."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ManifestError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_BYTES:
        raise ManifestError(
            f"{path}: larger than {MAX_BYTES} bytes, expected a manifest or a list of problems"
        )
    return data


def load_toml(path: Path) -> dict[str, Any]:
    """Read and parse a TOML file."""
    return parse_toml(read_bytes(path), str(path))

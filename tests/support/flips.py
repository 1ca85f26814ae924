"""Damage for tests: one bit of one byte, at places worth trying."""

from __future__ import annotations

from pathlib import Path


def files_of(folder: Path) -> list[str]:
    """Every file below a folder, by its path in it."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def flipped(data: bytes, position: int, bit: int = 6) -> bytes:
    return data[:position] + bytes([data[position] ^ 1 << bit]) + data[position + 1 :]


def positions(size: int) -> list[int]:
    """The ends, and some between."""
    return sorted({0, 1, size // 3, size // 2, 2 * size // 3, size - 2, size - 1} & set(range(size)))

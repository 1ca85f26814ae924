"""Values of a design and of parameters: what they can be, their short names, and what a value matches."""

from collections.abc import Container, Mapping
from fnmatch import fnmatchcase
from typing import TypeGuard

from cutlass_aot.schema.encoding import encode

DesignValue = str | int | float | bool | tuple[int, ...]


class Values(tuple[tuple[str, DesignValue], ...]):
    """Values by name, in order of their names; equal if types and bits are: 1, 1.0 and True are three."""

    __slots__ = ()

    @classmethod
    def of(cls, values: Mapping[str, DesignValue]) -> "Values":
        """Values from a mapping."""
        return cls(sorted(values.items()))

    def _bytes(self) -> bytes:
        return encode([list(item) for item in self]) if self else b""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Values) and self._bytes() == other._bytes()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._bytes())


NO_VALUES = Values()


def is_value(value: object) -> TypeGuard[DesignValue]:
    """Whether it is one that a design or a parameter can have."""
    if isinstance(value, tuple):
        return all(type(item) is int for item in value)
    return type(value) in (bool, int, float, str) and value == value


SHORT_NAMES = {
    "tile": "tile_shape",
    "cluster": "cluster_shape",
    "fallback_cluster": "fallback_cluster_shape",
    "scheduler": "tile_scheduler",
    "stages": "num_smem_stages",
}
"""Short names, with the names of ``cutlass.operators`` that they stand for."""


def full_name(name: str, known: Container[str] = ()) -> str:
    """The name in a design that a short name stands for; any other name stands for itself.

    Args:
        name: as somebody wrote it.
        known: names that there are; one of these stands for itself too.
    """
    return name if name in known else SHORT_NAMES.get(name, name)


def matches(allowed: str | int | bool, value: DesignValue) -> bool:
    """Whether a design value is what a manifest or a listing allows.

    Args:
        allowed: a value, or text with ``*``, ``?`` and ``[...]``. Shapes read ``256x128x64``, or their first
            extents; switches are booleans, or read ``true`` and ``false``.
        value: of a kernel's design.
    """
    if isinstance(value, bool):
        text = str(value).lower()
        return allowed is value or (isinstance(allowed, str) and fnmatchcase(text, allowed))
    if isinstance(allowed, bool):
        return False
    pattern = str(allowed)
    if isinstance(value, tuple):
        # A shape is text: in a list of numbers each would speak of the first extent alone.
        if not isinstance(allowed, str):
            return False
        # "256x128" speaks of the first two extents of 256x128x64.
        return fnmatchcase("x".join(str(extent) for extent in value[: pattern.count("x") + 1]), pattern)
    return fnmatchcase(str(value), pattern)

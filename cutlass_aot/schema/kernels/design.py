"""Values of a design and of parameters: their types, short names of them, and matching."""

from collections.abc import Container, Mapping
from fnmatch import fnmatchcase
from typing import TypeGuard

from cutlass_aot.schema.encoding import encode

DesignValue = str | int | float | bool | tuple[int, ...]


class Values(tuple[tuple[str, DesignValue], ...]):
    """Values by name, sorted; equal if types and bits are equal: 1, 1.0 and True differ."""

    __slots__ = ()

    @classmethod
    def of(cls, values: Mapping[str, DesignValue]) -> "Values":
        """Values from a mapping."""
        return cls(sorted(values.items()))

    def _bytes(self) -> bytes:
        return encode([list(item) for item in self]) if self else b""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Values):
            return False
        # Most have none.
        return self._bytes() == other._bytes() if self and other else not (self or other)

    def __ne__(self, other: object) -> bool:
        return not self.__eq__(other)

    def __hash__(self) -> int:
        return hash(self._bytes())


NO_VALUES = Values()


def is_value(value: object) -> TypeGuard[DesignValue]:
    """Whether a design or a parameter can have this value; NaN is none."""
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
"""Short names, and the names in ``cutlass.operators`` that they stand for."""


def full_name(name: str, known: Container[str] = ()) -> str:
    """The name that a short name stands for; names in ``known`` and all others stand for themselves."""
    return name if name in known else SHORT_NAMES.get(name, name)


def matches(allowed: str | int | bool, value: DesignValue) -> bool:
    """Whether a design value is what a manifest or a listing allows.

    ``allowed`` is a value, or text with ``*``, ``?`` and ``[...]``. A shape is text such as ``256x128x64`` or
    its first extents; a switch is a boolean, or the text ``true`` or ``false``.
    """
    if isinstance(value, bool):
        text = str(value).lower()
        return allowed is value or (isinstance(allowed, str) and fnmatchcase(text, allowed))
    if isinstance(allowed, bool):
        return False
    pattern = str(allowed)
    if isinstance(value, tuple):
        # Shapes are matched by text only: a number would match the first extent alone.
        if not isinstance(allowed, str):
            return False
        # "256x128" is compared with the first two extents of 256x128x64.
        return fnmatchcase("x".join(str(extent) for extent in value[: pattern.count("x") + 1]), pattern)
    return fnmatchcase(str(value), pattern)

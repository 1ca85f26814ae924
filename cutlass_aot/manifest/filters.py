"""Design filters: does a kernel's design match what a manifest asks for? Pure, over plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from cutlass_aot.schema.kernel import DesignValue

ALIASES = {
    "tile": "tile_shape",
    "cluster": "cluster_shape",
    "fallback_cluster": "fallback_cluster_shape",
    "scheduler": "tile_scheduler",
    "stages": "num_smem_stages",
}
"""Short manifest keys, with the names of ``cutlass.operators`` that they stand for."""

FilterValue = str | int | bool


@dataclass(frozen=True, slots=True)
class DesignFilter:
    """One key of a manifest table and the values it allows.

    Attributes:
        written: the key as the manifest has it.
        name: name in a kernel's design.
        values: allowed values; text is a pattern with ``*``, ``?`` and ``[...]``.
    """

    written: str
    name: str
    values: tuple[FilterValue, ...]

    @classmethod
    def make(cls, written: str, values: Sequence[FilterValue]) -> DesignFilter:
        """A filter for a manifest key, resolving its short form."""
        return cls(written, ALIASES.get(written, written), tuple(values))

    def accepts(self, design: Mapping[str, DesignValue]) -> bool:
        """Whether the design has this name with one of the values."""
        if self.name not in design:
            return False
        return any(_matches(allowed, design[self.name]) for allowed in self.values)

    def __str__(self) -> str:
        return f"{self.written} = {list(self.values)}"


def _matches(allowed: FilterValue, value: DesignValue) -> bool:
    if isinstance(allowed, bool) or isinstance(value, bool):
        return allowed is value
    if isinstance(value, tuple):
        # "256x128" speaks of the first two modes of 256x128x64.
        modes = str(allowed).count("x") + 1
        return fnmatchcase("x".join(str(extent) for extent in value[:modes]), str(allowed))
    if isinstance(allowed, int) or isinstance(value, int):
        return str(allowed) == str(value)
    return fnmatchcase(value, allowed)


def spread(count: int, limit: int) -> list[int]:
    """Indices of at most ``limit`` of ``count`` items, evenly spaced, first and last included."""
    if count <= limit:
        return list(range(count))
    if limit == 1:
        return [0]
    return [index * (count - 1) // (limit - 1) for index in range(limit)]

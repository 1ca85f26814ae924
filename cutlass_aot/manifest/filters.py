"""Design filters: which kernels a manifest asks for, by their designs. Pure, over plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutlass_aot.errors import ManifestError
from cutlass_aot.schema.kernels.design import DesignValue, full_name, matches
from cutlass_aot.schema.words import did_you_mean

FilterValue = str | int | bool


@dataclass(frozen=True, slots=True)
class DesignFilter:
    """One key of a manifest table and the values it allows.

    ``written`` is a name in the design, or its short form; text among the values is a pattern with ``*``,
    ``?`` and ``[...]``.
    """

    written: str
    values: tuple[FilterValue, ...]

    def accepts(self, design: Mapping[str, DesignValue]) -> bool:
        """Whether the design has this name with one of the values."""
        name = full_name(self.written, design)
        return name in design and any(matches(allowed, design[name]) for allowed in self.values)

    def singles(self) -> tuple[DesignFilter, ...]:
        """One filter for each value."""
        return tuple(DesignFilter(self.written, (value,)) for value in self.values)

    def __str__(self) -> str:
        return f"{self.written} = {list(self.values)}"


def design_filters(
    table: Mapping[str, Any], where: str, reserved: Sequence[str] = ()
) -> tuple[DesignFilter, ...]:
    """The filters of a manifest's table: one for each key that is not ``reserved``."""
    found = []
    for key, value in table.items():
        if key in reserved:
            continue
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(item, (str, int, bool)) for item in values):
            raise ManifestError(
                f"{where}.{key}: {value!r}: expected a value, a pattern, or a list of them"
                + did_you_mean(key, reserved)
            )
        if any(isinstance(item, int) and abs(item) >= 2**63 for item in values):
            raise ManifestError(f"{where}.{key}: a number of more than 64 bits matches nothing")
        found.append(DesignFilter(key, tuple(values)))
    return tuple(found)


def spread(count: int, limit: int) -> list[int]:
    """At most ``limit`` of ``count`` indices, evenly spaced from first to last; one alone is the middle."""
    if count <= limit:
        return list(range(count))
    if limit == 1:
        return [count // 2]
    return [index * (count - 1) // (limit - 1) for index in range(limit)]

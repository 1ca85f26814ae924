"""The manifest's ``[[known_bad]]`` tables: kernels that must not be built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from cutlass_aot.errors import ManifestError
from cutlass_aot.manifest.filters import DesignFilter, design_filters
from cutlass_aot.manifest.validation import known, list_of_tables, strings, text, unknown, words
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.targets import KNOWN_TARGETS, target_meant
from cutlass_aot.schema.versions import release

KEYS = (
    "generator", "targets", "dtypes", "accumulator", "layouts", "design", "since", "until", "reason",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KnownBad:
    """Kernels that must not be built. An empty field matches every kernel.

    Attributes:
        reason: what happens, and who reported it, for messages.
        capability: compute capability of GPUs, which stands for every target that runs on them.
        dtypes: patterns of the operands' element types, one an operand, such as ``("i8", "i8", "*")``.
        design: filters that all have to accept the kernel.
        since: first version of the DSL with the defect.
        until: first later version of the DSL without it.
        evidence: what was seen, and where, of a row of the package's own table.
    """

    generator: str
    reason: str
    targets: tuple[str, ...] = ()
    capability: tuple[int, int] | None = None
    dtypes: tuple[tuple[str, ...], ...] = ()
    accumulator: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    design: tuple[DesignFilter, ...] = ()
    since: str = ""
    until: str = ""
    evidence: str = ""


def parse_known_bad(tables: Any) -> tuple[KnownBad, ...]:
    """Read the tables."""
    found = list_of_tables(
        tables, "known_bad", "[[known_bad]]: expected tables, each with a generator and a reason"
    )
    return tuple(_row(table, f"known_bad[{index}]") for index, table in enumerate(found))


def _row(table: Mapping[str, Any], where: str) -> KnownBad:
    known(table, KEYS, where)
    design = table.get("design", {})
    if not isinstance(design, dict):
        raise ManifestError(f"{where}.design: {design!r}, expected a table of design filters")
    versions = {}
    for key in ("since", "until"):
        versions[key] = text(table, key, where) if key in table else ""
        try:
            release(versions[key] or "0")
        except ValueError:
            raise ManifestError(
                f"{where}.{key}: {versions[key]!r}, expected a version of the DSL such as 4.8.1"
            ) from None
    return KnownBad(
        generator=text(table, "generator", where),
        reason=text(table, "reason", where),
        targets=words(table, "targets", where, KNOWN_TARGETS, (), target_meant),
        dtypes=_dtypes(table, where),
        accumulator=words(table, "accumulator", where, tuple(DTYPES), ()),
        layouts=_layouts(table, where),
        design=design_filters(design, f"{where}.design"),
        since=versions["since"],
        until=versions["until"],
    )


def _dtypes(table: Mapping[str, Any], where: str) -> tuple[tuple[str, ...], ...]:
    rows = tuple(tuple(word.split(".")) for word in strings(table, "dtypes", where, ()))
    for row in rows:
        for pattern in row:
            if not any(fnmatchcase(dtype, pattern) for dtype in DTYPES):
                raise ManifestError(unknown(f"{where}.dtypes", pattern, tuple(DTYPES)) + ", or a pattern")
    return rows


def _layouts(table: Mapping[str, Any], where: str) -> tuple[str, ...]:
    words = tuple(strings(table, "layouts", where, ()))
    for word in words:
        if set(word) - set("tn*?"):
            raise ManifestError(
                f'{where}.layouts: {word!r}: expected t and n, one an operand, or a pattern such as "*nt"'
            )
    return words

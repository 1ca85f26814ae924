"""The manifest's ``[[kernels]]`` tables: operands, layouts and design filters of kernels to build."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from cutlass_aot.errors import ManifestError
from cutlass_aot.manifest.filters import DesignFilter, design_filters
from cutlass_aot.manifest.scales import Scales, parse_scales
from cutlass_aot.manifest.validation import (
    alone,
    is_whole_number,
    list_of_tables,
    strings,
    text,
    unknown,
    words,
)
from cutlass_aot.schema.kernels.accumulation import ACCUMULATIONS, EXACT, RequestedAccumulation
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.epilogue import Epilogue, parse_epilogue
from cutlass_aot.schema.targets import target_meant
from cutlass_aot.schema.words import closest

Combinations = tuple[tuple[tuple[str, ...], str], ...]

TABLE_KEYS = (
    "generator", "operation", "accumulator", "accumulation", "layouts", "targets", "exclude", "max_per_group",
    "scale", "a_scale", "b_scale", "epilogue", "operands",
    "ab", "a", "b", "out", "dtypes",
)  # fmt: skip
"""Keys of a kernel table; every other key filters on the design."""
GEMM_OPERATIONS = ("gemm", "grouped_gemm", "masked_grouped_gemm")
"""Operations whose operands a table has to name; another may fix them itself."""
DEFAULT_ACCUMULATORS = {"f64": "f64", "i8": "i32", "u8": "i32"}
"""Accumulator for each A/B dtype where a table names none; every other dtype gets f32."""
_LAYOUTS = re.compile(r"[tn]+")


@dataclass(frozen=True, slots=True)
class KernelTable:
    """One ``[[kernels]]`` table.

    Attributes:
        where: its name in errors, such as ``kernels[0]``.
        combinations: operand dtypes with accumulators, each ``((a, b, out), accumulator)``; ``((), "")`` for
            an operation that fixes its operands itself.
        accumulations: how sums are added up, where kernels of both kinds can be built.
        layouts: words of layout letters, one letter an operand.
        scales: scale factors of a and b, each combination once.
        filters: all have to accept a kernel's design.
        exclude: a kernel that all filters of one of these accept is left out.
        max_per_group: most kernels of one group; None for any number.
    """

    where: str
    generator: str
    operation: str
    combinations: Combinations
    accumulations: tuple[RequestedAccumulation, ...]
    layouts: tuple[str, ...]
    scales: tuple[Scales, ...]
    epilogue: Epilogue | None
    targets: tuple[str, ...]
    filters: tuple[DesignFilter, ...]
    exclude: tuple[tuple[DesignFilter, ...], ...]
    max_per_group: int | None


def parse_kernels(tables: Any, targets: tuple[str, ...]) -> tuple[KernelTable, ...]:
    """Read the tables; ``targets`` are those of the bundle."""
    found = list_of_tables(
        tables,
        "kernels",
        "[[kernels]], [[programs]] and [[recordings]] are missing: at least one table says which kernels to "
        "build",
    )
    return tuple(_table(table, f"kernels[{index}]", targets) for index, table in enumerate(found))


def _table(table: Mapping[str, Any], where: str, targets: tuple[str, ...]) -> KernelTable:
    exclude = table.get("exclude", [])
    if isinstance(exclude, dict):
        exclude = [exclude]
    if not isinstance(exclude, list) or not all(isinstance(item, dict) and item for item in exclude):
        raise ManifestError(f"{where}.exclude: expected a table of design filters, or a list of them")
    limit = table.get("max_per_group")
    if limit is not None and not is_whole_number(limit):
        raise ManifestError(f"{where}.max_per_group: {limit!r}, expected a whole number above 0")
    combinations = _combinations(table, where)
    count = len(combinations[0][0])
    layouts = tuple(strings(table, "layouts", where, ("tnt",))) if count else ("",)
    for word in layouts if count else ():
        if not _LAYOUTS.fullmatch(word) or len(word) != count:
            raise ManifestError(
                f"{where}.layouts: {word!r}: expected one letter an operand, t (row-major) or "
                'n (column-major), such as "tnt"'
            )
    return KernelTable(
        where=where,
        generator=text(table, "generator", where),
        operation=text(table, "operation", where, "gemm"),
        combinations=combinations,
        accumulations=_accumulations(table, where),
        layouts=layouts,
        scales=parse_scales(table, where),
        epilogue=_epilogue(table, where),
        targets=words(table, "targets", where, targets, targets, target_meant),
        filters=design_filters(table, where, TABLE_KEYS),
        exclude=tuple(design_filters(item, f"{where}.exclude") for item in exclude),
        max_per_group=limit,
    )


def _accumulations(table: Mapping[str, Any], where: str) -> tuple[RequestedAccumulation, ...]:
    named = words(table, "accumulation", where, ACCUMULATIONS, (EXACT,))
    return tuple(word for word in ACCUMULATIONS if word in named)


def _epilogue(table: Mapping[str, Any], where: str) -> Epilogue | None:
    if "epilogue" not in table:
        if "operands" in table:
            raise ManifestError(f"{where}.operands: they are those of an epilogue, and `epilogue` is missing")
        return None
    operands = table.get("operands", {})
    if not isinstance(operands, dict):
        raise ManifestError(f"{where}.operands: expected a table with a table for each operand's name")
    try:
        epilogue = parse_epilogue(text(table, "epilogue", where), operands)
    except ManifestError as error:
        message = str(error)
        raise ManifestError(message if message.startswith(where) else f"{where}.{message}") from None
    return None if epilogue.is_identity else epilogue


def _combinations(table: Mapping[str, Any], where: str) -> Combinations:
    """Operand dtypes with accumulators; a single combination without dtypes if the table names none."""
    if "dtypes" in table:
        return _listed(table, where)
    if any(key in table for key in ("ab", "a", "b", "out")):
        return _of_a_and_b(table, where)
    if table.get("operation", "gemm") in GEMM_OPERATIONS:
        meant = [
            f"; {key!r} may be meant for {near!r}"
            for key in table
            if key not in TABLE_KEYS and (near := closest(key, TABLE_KEYS)) in ("ab", "dtypes")
        ]
        raise ManifestError(f"{where}.ab: missing, expected some of {', '.join(DTYPES)}{''.join(meant)}")
    for key in ("accumulator", "accumulation", "layouts", "scale", "a_scale", "b_scale", "epilogue"):
        if key in table:
            raise ManifestError(
                f"{where}.{key}: needs operands: name them by `ab`, by `a` and `b`, or by `dtypes`"
            )
    return (((), ""),)


def _of_a_and_b(table: Mapping[str, Any], where: str) -> Combinations:
    if "ab" in table or not ("a" in table or "b" in table):
        alone(table, "ab", ("a", "b"), where)
        pairs = [(name, name) for name in words(table, "ab", where, tuple(DTYPES))]
    else:
        first, second = (words(table, key, where, tuple(DTYPES)) for key in ("a", "b"))
        pairs = list(product(first, second))
    outs = words(table, "out", where, ("same", *DTYPES), ("same",))
    named = words(table, "accumulator", where, tuple(DTYPES), ("",))
    found: dict[tuple[tuple[str, ...], str], None] = {}
    for (a, b), out, accumulator in product(pairs, outs, named):
        defaults = {DEFAULT_ACCUMULATORS.get(name, "f32") for name in (a, b)}
        usual = defaults.pop() if len(defaults) == 1 else "f32"
        found[(a, b, _same(a, b) if out == "same" else out), accumulator or usual] = None
    return tuple(found)


def _same(a: str, b: str) -> str:
    """The output's element type where a manifest says ``same``: that of a, or of b where a is narrower."""
    wider = b if DTYPES[b].bits > DTYPES[a].bits else a
    return DTYPES[wider].reads or wider


def _listed(table: Mapping[str, Any], where: str) -> Combinations:
    alone(table, "dtypes", ("ab", "a", "b", "out"), where)
    rows = table["dtypes"]
    if not isinstance(rows, list) or not rows or not all(isinstance(row, list) and row for row in rows):
        raise ManifestError(
            f'{where}.dtypes: expected a list of lists, one dtype an operand, such as [["f32", "f32", "f32"]]'
        )
    if len({len(row) for row in rows}) != 1:
        raise ManifestError(f"{where}.dtypes: every row needs the same number of operands")
    for row in rows:
        for dtype in row:
            if not isinstance(dtype, str) or dtype not in DTYPES:
                raise ManifestError(unknown(f"{where}.dtypes", dtype, tuple(DTYPES)))
    accumulators = words(table, "accumulator", where, tuple(DTYPES))
    return tuple((tuple(row), accumulator) for row, accumulator in product(rows, accumulators))

"""Lists of GEMM problems, as a shapes file or a manifest writes them: which m with which (n, k).

A file has ``m`` at its top, a list of extents, and tables, each with ``nk``, a list of pairs ``[n, k]``:
every m is taken with every pair. A table can have an ``m`` of its own, and ``batch``, one number or a list,
1 if left out. A table with ``groups`` describes grouped GEMMs, which nothing here ranks; it is passed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from cutlass_aot.errors import ManifestError
from cutlass_aot.manifest.keys import is_whole_number, known
from cutlass_aot.schema.operands import MAX_EXTENT
from cutlass_aot.schema.ranking import Extents

MAX_SHAPES = 4096
"""Most problems of one list: each of them costs milliseconds a group of kernels at every new plan."""

_TABLE_KEYS = ("m", "nk", "batch", "groups")
_NUMBER = f"a whole number from 1 to {MAX_EXTENT}"


@dataclass(frozen=True, slots=True)
class Shapes:
    """A list of GEMM problems.

    Attributes:
        extents: each problem once, sorted.
        passed_over: names of tables that hold problems of another kind.
    """

    extents: tuple[Extents, ...]
    passed_over: tuple[str, ...] = ()


def shapes_of_file(document: Mapping[str, Any]) -> Shapes:
    """The problems of a parsed shapes file.

    Raises:
        ManifestError: for anything that is not as the module's description says; it names the key.
    """
    shared = document.get("m")
    tables = {name: table for name, table in document.items() if name != "m"}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise ManifestError(f"{name}: {table!r}, expected `m`, or tables with `nk`")
    return _shapes(tables, shared, "a table of shapes")


def shapes_of_list(tables: Sequence[Any], where: str) -> Shapes:
    """The problems of a list of tables, each with an ``m`` of its own.

    Raises:
        ManifestError: for anything that is not as the module's description says; it names the key.
    """
    for index, table in enumerate(tables):
        if not isinstance(table, dict):
            raise ManifestError(f"{where}[{index}]: {table!r}, expected a table with `m` and `nk`")
    return _shapes({f"{where}[{index}]": table for index, table in enumerate(tables)}, None, where)


def _shapes(tables: Mapping[str, dict[str, Any]], shared: Any, what: str) -> Shapes:
    found: set[Extents] = set()
    passed_over = []
    for name, table in tables.items():
        known(table, _TABLE_KEYS, name)
        if "groups" in table:
            passed_over.append(name)
            continue
        found |= _problems(table, shared, name)
        if len(found) > MAX_SHAPES:
            raise ManifestError(f"{name}: more than {MAX_SHAPES} problems; leave out what matters least")
    if not found:
        raise ManifestError(f"{what}: no problems; expected `m` and at least one table with `nk`")
    return Shapes(tuple(sorted(found)), tuple(sorted(passed_over)))


def _problems(table: Mapping[str, Any], shared: Any, where: str) -> set[Extents]:
    pairs = table.get("nk")
    if not isinstance(pairs, list) or not pairs:
        found = "missing" if pairs is None else repr(pairs)
        raise ManifestError(f"{where}.nk: {found}, expected a list of pairs [n, k]")
    for index, pair in enumerate(pairs):
        if not isinstance(pair, list) or len(pair) != 2 or not all(map(_is_extent, pair)):
            raise ManifestError(f"{where}.nk[{index}]: {pair!r}, expected [n, k], each {_NUMBER}")
    rows = _numbers(table.get("m", shared), f"{where}.m")
    batches = _numbers(table.get("batch", 1), f"{where}.batch")
    if len(rows) * len(batches) * len(pairs) > MAX_SHAPES:
        raise ManifestError(f"{where}: more than {MAX_SHAPES} problems; leave out what matters least")
    return {Extents(batch, m, n, k) for batch, m, (n, k) in product(batches, rows, pairs)}


def _numbers(value: Any, where: str) -> list[int]:
    numbers = value if isinstance(value, list) else [value]
    if not numbers or not all(map(_is_extent, numbers)):
        found = "missing" if value is None else repr(value)
        raise ManifestError(f"{where}: {found}, expected {_NUMBER}, or a list of them")
    return numbers


def _is_extent(value: object) -> bool:
    return is_whole_number(value, MAX_EXTENT)

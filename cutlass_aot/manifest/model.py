"""The typed manifest; errors name the file, the key, what was found and what would be allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from cutlass_aot.errors import ManifestError
from cutlass_aot.manifest.filters import DesignFilter, design_filters
from cutlass_aot.manifest.known_bad import KnownBad, parse_known_bad
from cutlass_aot.manifest.programs import ProgramTable, RecordingTable, parse_programs, parse_recordings
from cutlass_aot.manifest.scales import Scales, parse_scales
from cutlass_aot.manifest.select import SelectSettings, parse_select
from cutlass_aot.manifest.toml import parse_toml, read_bytes
from cutlass_aot.manifest.validation import known, strings, text, unknown, words
from cutlass_aot.schema.bundles.catalog import BUNDLE_NAME
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.epilogue import Epilogue, parse_epilogue
from cutlass_aot.schema.targets import DEFAULT_HOSTS, HOSTS, KNOWN_TARGETS
from cutlass_aot.schema.versions import release

Combinations = tuple[tuple[tuple[str, ...], str], ...]

_VERSION = re.compile(r"\d+(\.\d+)*((a|b|rc)\d+)?(\.post\d+)?(\.dev\d+)?", re.ASCII)
_LAYOUTS = re.compile(r"[tn]+")
_BUNDLE_KEYS = ("name", "version", "targets", "hosts", "device")
_COMMON_KEYS = (
    "generator", "operation", "accumulator", "layouts", "targets", "exclude", "max_per_group",
    "scale", "a_scale", "b_scale", "epilogue", "operands",
)  # fmt: skip
_OPERAND_KEYS = ("ab", "a", "b", "out", "dtypes")
TABLE_KEYS = (*_COMMON_KEYS, *_OPERAND_KEYS)
"""Keys of a kernel table; every other key filters on the design."""
GEMM_OPERATIONS = ("gemm", "grouped_gemm")
"""Operations whose operands a table has to name; another may fix them itself."""
DEFAULT_ACCUMULATORS = {"f64": "f64", "i8": "i32", "u8": "i32"}
"""Accumulator for each A/B dtype where a table names none; every other dtype gets f32."""


@dataclass(frozen=True, slots=True)
class KernelTable:
    """One ``[[kernels]]`` table.

    Attributes:
        where: how errors call it, such as ``kernels[0]``.
        generator: name of its generator.
        operation: what is computed.
        combinations: operand dtypes with accumulators, each ``((a, b, out), accumulator)``; ``((), "")`` for
            an operation that fixes its operands itself.
        layouts: layout letters, one word each.
        scales: what factors a and b come with, each combination once.
        epilogue: what is done before the result is stored.
        targets: GPU code targets.
        filters: all have to accept a kernel's design.
        exclude: a kernel that all filters of one of these accept is left out.
        max_per_group: most kernels of one group, or None.
    """

    where: str
    generator: str
    operation: str
    combinations: Combinations
    layouts: tuple[str, ...]
    scales: tuple[Scales, ...]
    epilogue: Epilogue | None
    targets: tuple[str, ...]
    filters: tuple[DesignFilter, ...]
    exclude: tuple[tuple[DesignFilter, ...], ...]
    max_per_group: int | None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A whole manifest.

    Attributes:
        path: the file it was read from.
        name: the bundle's name.
        version: the bundle's version (PEP 440).
        targets: GPU code targets, as written.
        hosts: CPU architectures to link for.
        devices: target to its device profile.
        plugins: modules to import for their generators.
        tables: the ``[[kernels]]`` tables.
        programs: the ``[[programs]]`` tables.
        recordings: the ``[[recordings]]`` tables.
        select: the ``[select]`` table.
        known_bad: the ``[[known_bad]]`` tables.
        document: the parsed TOML, for the plan's digest.
    """

    path: Path
    name: str
    version: str
    targets: tuple[str, ...]
    hosts: tuple[str, ...]
    devices: Mapping[str, str]
    plugins: tuple[str, ...]
    tables: tuple[KernelTable, ...]
    programs: tuple[ProgramTable, ...]
    recordings: tuple[RecordingTable, ...]
    select: SelectSettings
    known_bad: tuple[KnownBad, ...]
    document: Mapping[str, Any] = field(repr=False)


def device_text(devices: Mapping[str, str]) -> str:
    """Device profiles by target in words: one name, or one a target."""
    names = sorted(set(devices.values()))
    if len(names) == 1:
        return names[0]
    return ", ".join(f"{target} {name}" for target, name in sorted(devices.items()))


def check_name(name: str) -> str:
    """A bundle's name, if it is one."""
    if not BUNDLE_NAME.fullmatch(name):
        raise ManifestError(
            f"bundle.name: {name!r} is not a name: lower-case letters, digits, and '.', '_', '-' between them"
        )
    return name


def check_version(version: str) -> str:
    """A bundle's version, if it is one (PEP 440)."""
    if not _VERSION.fullmatch(version):
        raise ManifestError(f"bundle.version: {version!r} is not a version such as 1.2.0")
    release(version)
    return version


def load_manifest(path: Path) -> Manifest:
    """Read a manifest."""
    return parse_manifest(read_bytes(path), path)


def parse_manifest(data: bytes, path: Path) -> Manifest:
    """Parse a manifest's bytes; ``path`` is for messages and relative names."""
    try:
        return _parse(parse_toml(data, str(path)), path)
    except ManifestError as error:
        message = str(error)
        raise ManifestError(message if message.startswith(str(path)) else f"{path}: {message}") from None


def _parse(document: dict[str, Any], path: Path) -> Manifest:
    known(
        document,
        ("bundle", "kernels", "known_bad", "plugins", "programs", "recordings", "select"),
        "the top level",
    )
    bundle = document.get("bundle")
    if not isinstance(bundle, dict):
        raise ManifestError("[bundle] is missing: it names the bundle, its version and its targets")
    known(bundle, _BUNDLE_KEYS, "[bundle]")
    name = check_name(text(bundle, "name", "bundle"))
    version = check_version(text(bundle, "version", "bundle", "0.1.0"))
    targets = words(bundle, "targets", "bundle", KNOWN_TARGETS)
    hosts = words(bundle, "hosts", "bundle", tuple(HOSTS), DEFAULT_HOSTS)
    programs = parse_programs(document.get("programs", []), targets)
    recordings = parse_recordings(document.get("recordings", []))
    tables = document.get("kernels", [] if programs or recordings else None)
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise ManifestError(
            "[[kernels]], [[programs]] and [[recordings]] are missing: at least one table says which "
            "kernels to build"
        )
    return Manifest(
        path=path,
        name=name,
        version=version,
        targets=targets,
        hosts=hosts,
        devices=_devices(bundle, targets) if tables or programs or "device" in bundle else {},
        plugins=tuple(strings(document, "plugins", "", ())),
        tables=tuple(_table(table, f"kernels[{i}]", targets) for i, table in enumerate(tables)),
        programs=programs,
        recordings=recordings,
        select=parse_select(document["select"], targets, path.parent)
        if "select" in document
        else SelectSettings(),
        known_bad=parse_known_bad(document.get("known_bad", [])),
        document=document,
    )


def _devices(bundle: dict[str, Any], targets: tuple[str, ...]) -> dict[str, str]:
    """The device profile of each target: one for all, or a table by target."""
    if not isinstance(bundle.get("device"), dict):
        return dict.fromkeys(targets, text(bundle, "device", "bundle"))
    table = bundle["device"]
    known(table, targets, "bundle.device")
    return {target: text(table, target, "bundle.device") for target in targets}


def _table(table: dict[str, Any], where: str, targets: tuple[str, ...]) -> KernelTable:
    operation = text(table, "operation", where, "gemm")
    exclude = table.get("exclude", [])
    if isinstance(exclude, dict):
        exclude = [exclude]
    if not isinstance(exclude, list) or not all(isinstance(item, dict) and item for item in exclude):
        raise ManifestError(f"{where}.exclude: expected a table of design filters, or a list of them")
    limit = table.get("max_per_group")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise ManifestError(f"{where}.max_per_group: {limit!r}, expected a whole number above 0")
    combinations = _combinations(table, where)
    count = len(combinations[0][0])
    layouts = tuple(strings(table, "layouts", where, ("tnt" if count else "",))) if count else ("",)
    for word in layouts if count else ():
        if not _LAYOUTS.fullmatch(word) or len(word) != count:
            raise ManifestError(
                f"{where}.layouts: {word!r}: expected one letter an operand, t (row-major) or "
                'n (column-major), such as "tnt"'
            )
    return KernelTable(
        where=where,
        generator=text(table, "generator", where),
        operation=operation,
        combinations=combinations,
        layouts=layouts,
        scales=parse_scales(table, where),
        epilogue=_epilogue(table, where),
        targets=words(table, "targets", where, targets, targets),
        filters=design_filters(table, where, TABLE_KEYS),
        exclude=tuple(design_filters(item, f"{where}.exclude") for item in exclude),
        max_per_group=limit,
    )


def _epilogue(table: dict[str, Any], where: str) -> Epilogue | None:
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


def _combinations(table: dict[str, Any], where: str) -> Combinations:
    """Operand dtypes with accumulators; one without dtypes if the table names none."""
    if "dtypes" in table:
        return _listed(table, where)
    if any(key in table for key in _OPERAND_KEYS):
        return _of_a_and_b(table, where)
    clash = [
        key for key in ("accumulator", "layouts", "scale", "a_scale", "b_scale", "epilogue") if key in table
    ]
    if table.get("operation", "gemm") in GEMM_OPERATIONS:
        raise ManifestError(f"{where}.ab: missing, expected some of {', '.join(DTYPES)}")
    if clash:
        raise ManifestError(
            f"{where}.{clash[0]}: needs operands: name them by `ab`, by `a` and `b`, or by `dtypes`"
        )
    return (((), ""),)


def _of_a_and_b(table: dict[str, Any], where: str) -> Combinations:
    if "ab" in table or not ("a" in table or "b" in table):
        clash = [key for key in ("a", "b") if key in table]
        if clash:
            raise ManifestError(f"{where}: give either `ab` or `{clash[0]}`, not both")
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


def _listed(table: dict[str, Any], where: str) -> Combinations:
    clash = [key for key in ("ab", "a", "b", "out") if key in table]
    if clash:
        raise ManifestError(f"{where}: give either `dtypes` or `{clash[0]}`, not both")
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

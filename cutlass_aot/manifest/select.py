"""The manifest's ``[select]`` table: problems and measurements to rank kernels by, and how many to keep."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from cutlass_aot.errors import ManifestError
from cutlass_aot.manifest.toml import read_bytes
from cutlass_aot.manifest.validation import is_whole_number, known, strings, text
from cutlass_aot.schema.tuning.shapes import ShapeList, parse_shapes, shapes_of
from cutlass_aot.schema.tuning.tuning import MAX_TUNING_BYTES

SELECT_KEYS = ("shapes", "heuristics", "keep", "gpu", "tuning")
MAX_KEEP = 1024
MAX_SHAPES = 4096
"""Most problems to rank for: each costs milliseconds for every group of kernels in every new plan."""
_TABLE_KEYS = ("m", "nk", "batch")


@dataclass(frozen=True, slots=True)
class SelectSettings:
    """The ``[select]`` table; without any key set, it stands for a manifest that has none.

    Attributes:
        heuristics: name of the model that ranks kernels, or ``""`` for none.
        shapes: the problems to rank for; empty exactly if ``heuristics`` is.
        keep: how many of the best kernels of each problem stay in the bundle; None for all kernels.
        gpus: target to the GPU to rank for, by the heuristic's own name; for other targets it follows from
            the device profile.
        tuning: tuning files, relative to the manifest, as written.
        inputs: each file that was read, by its path as written, to the SHA-256 of its bytes.
    """

    heuristics: str = ""
    shapes: ShapeList = field(default=ShapeList((), ()), repr=False)
    keep: int | None = None
    gpus: Mapping[str, str] = field(default_factory=dict)
    tuning: tuple[str, ...] = ()
    inputs: Mapping[str, str] = field(default_factory=dict)


def parse_select(table: Any, targets: tuple[str, ...], base: Path) -> SelectSettings:
    """Read the table and the files it names, relative to ``base``, the manifest's folder."""
    if not isinstance(table, dict) or not table:
        raise ManifestError(f"[select]: expected a table with some of {', '.join(SELECT_KEYS)}")
    known(table, SELECT_KEYS, "[select]")
    if ("heuristics" in table) != ("shapes" in table):
        has, lacks = ("shapes", "heuristics") if "shapes" in table else ("heuristics", "shapes")
        raise ManifestError(
            f"select.{lacks}: missing: `{has}` needs it, the problems and the model to rank by"
        )
    for key in ("keep", "gpu"):
        if key in table and "heuristics" not in table:
            raise ManifestError(f"select.{key}: needs `heuristics` and `shapes`, which say what is best")
    keep = table.get("keep")
    if keep is not None and not is_whole_number(keep, MAX_KEEP):
        raise ManifestError(f"select.keep: {keep!r}, expected a whole number from 1 to {MAX_KEEP}")
    gpus = table.get("gpu", {})
    if not isinstance(gpus, dict):
        raise ManifestError(f'select.gpu: {gpus!r}, expected a table such as {{ sm_100a = "B200" }}')
    known(gpus, targets, "select.gpu")

    inputs: dict[str, str] = {}
    shapes = _shapes(table["shapes"], base, inputs) if "shapes" in table else ShapeList((), ())
    tuning = strings(table, "tuning", "select", ())
    for name in tuning:
        if name in inputs:
            raise ManifestError(f"select.tuning: {name!r} stands there twice")
        inputs[name] = _tuning_digest(name, base)
    return SelectSettings(
        heuristics=text(table, "heuristics", "select") if "heuristics" in table else "",
        shapes=shapes,
        keep=keep,
        gpus={target: text(gpus, target, "select.gpu") for target in gpus},
        tuning=tuple(tuning),
        inputs=inputs,
    )


def _shapes(value: Any, base: Path, inputs: dict[str, str]) -> ShapeList:
    """The problems of a file, or of a list of tables, each of which has its own ``m``."""
    if isinstance(value, list) and value:
        lists = [_shapes_of_table(table, f"select.shapes[{i}]") for i, table in enumerate(value)]
        found = ShapeList(tuple(dict.fromkeys(e for shapes in lists for e in shapes.extents)), ())
    elif isinstance(value, str) and value:
        path = _path(value, base, "select.shapes")
        try:
            data = read_bytes(path)
        except ManifestError as error:
            words = str(error).removeprefix(f"{path}: ")
            raise ManifestError(f"select.shapes: {value}: {words}") from None
        inputs[value] = hashlib.sha256(data).hexdigest()
        found = parse_shapes(data, f"select.shapes: {value}")
    else:
        raise ManifestError(
            f"select.shapes: {value!r}, expected a file, or a list of tables with `m` and `nk`"
        )
    if not found.extents:
        raise ManifestError(
            f"select.shapes: {value!r} has no table with `nk`: kernels of GEMMs alone are ranked"
        )
    if len(found.extents) > MAX_SHAPES:
        raise ManifestError(
            f"select.shapes: {len(found.extents)} problems, expected at most {MAX_SHAPES}; "
            "leave out what matters least"
        )
    return found


def _shapes_of_table(table: Any, where: str) -> ShapeList:
    if not isinstance(table, dict):
        raise ManifestError(f"{where}: {table!r}, expected a table with `m` and `nk`")
    known(table, _TABLE_KEYS, where)
    rows = {"m": table["m"]} if "m" in table else {}
    return shapes_of({**rows, "table": {key: table[key] for key in table if key != "m"}}, where)


def _tuning_digest(name: str, base: Path) -> str:
    hasher = hashlib.sha256()
    try:
        with _path(name, base, "select.tuning").open("rb") as file:
            while chunk := file.read(1 << 20):
                hasher.update(chunk)
                if file.tell() > MAX_TUNING_BYTES:
                    raise ManifestError(
                        f"select.tuning: {name}: larger than {MAX_TUNING_BYTES} bytes: is it a tuning file?"
                    )
    except OSError as error:
        raise ManifestError(f"select.tuning: {name}: cannot be read: {error.strerror}") from None
    return hasher.hexdigest()


def _path(name: str, base: Path, where: str) -> Path:
    """The file that a manifest names. Absolute paths are refused: they hold on one machine alone."""
    if PurePosixPath(name).is_absolute() or "\0" in name:
        raise ManifestError(f"{where}: {name!r}, expected a path relative to the manifest")
    return base / name

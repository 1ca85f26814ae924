"""Lists of problems in TOML: of GEMMs, every m with every (n, k).

::

    m = [1, 16, 4096]

    [any_name]
    nk = [[4096, 7168], [2112, 7168]]
    batch = 4                           # or several; 1 by default
    m = 32                              # or several, instead of those at the top

    [router]                            # the same by the names of extents, every combination
    M = [1, 4096]
    N = 256
    K = 7168                            # and L for the batch

    [other_name]                        # problems of a kernel of one's own, with its extents
    T = [1, 4096]
    H = 128

Names of tables have no meaning. Another table without ``nk`` is left out, and one with ``groups`` (of a
grouped GEMM) gives dense problems; a note says so.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from cutlass_aot.errors import ManifestError
from cutlass_aot.schema.tuning.ranking import GEMM_NAMES, MAX_EXTENT, Extents
from cutlass_aot.schema.words import did_you_mean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MAX_PROBLEMS = 100_000
_KEYS = ("batch", "groups", "m", "nk")


@dataclass(frozen=True, slots=True)
class ShapeList:
    """At least one problem, each once, in the order of the file, with notes on ignored tables and keys.

    ``own`` are extents by name, as operands have them; those of a GEMM are in ``extents`` too.
    """

    extents: tuple[Extents, ...]
    notes: tuple[str, ...]
    own: tuple[Mapping[str, int], ...] = ()


def parse_shapes(data: bytes, what: str) -> ShapeList:
    """Read a file of problems; ManifestError if it is malformed."""
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ManifestError(f"{what}: not UTF-8 text at byte {error.start}") from None
    # tomllib raises a plain ValueError for a number of thousands of digits.
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{what}: not valid TOML: {error}") from None
    return shapes_of(document, what)


def shapes_of(document: Mapping[str, Any], what: str) -> ShapeList:
    """The problems of a parsed document; ManifestError if it is malformed."""
    found: dict[Extents, None] = {}
    # By names and extents in order of the names: two tables may have them in another order.
    own: dict[tuple[tuple[str, int], ...], Mapping[str, int]] = {}
    notes = []
    for name, table in document.items():
        if name == "m":
            continue
        if not isinstance(table, Mapping):
            raise ManifestError(
                f"{what}: unknown key `{name}`: expected `m`, and tables with `nk` or with extents by name"
            )
        if table and not {*table} & {*_KEYS} and all(map(_is_extents, table.values())):
            for problem in _own(table, name, what, MAX_PROBLEMS - max(len(own), len(found))):
                own.setdefault(tuple(sorted(problem.items())), problem)
                if {*GEMM_NAMES[1:]} <= problem.keys() <= {*GEMM_NAMES}:
                    found[Extents(*(problem.get(extent, 1) for extent in GEMM_NAMES))] = None
            continue
        if "nk" not in table:
            notes.append(f"{what}: table [{name}] has no `nk`: left out")
            continue
        unknown = sorted(set(table) - set(_KEYS))
        if unknown:
            known = ", ".join(f"`{key}`" for key in _KEYS)
            raise ManifestError(
                f"{what}: unknown key `{name}.{unknown[0]}`: expected one of {known}"
                + did_you_mean(unknown[0], _KEYS)
            )
        if "groups" in table:
            notes.append(f"{what}: table [{name}] has `groups`: its `nk` are taken as dense problems")
        where = f"{name}.m" if "m" in table else "m"
        heights = _extents(table.get("m", document.get("m")), where, what)
        batches = _extents(table.get("batch", 1), f"{name}.batch", what)
        for index, pair in enumerate(_list(table["nk"], f"{name}.nk", what)):
            key = f"{name}.nk[{index}]"
            if not isinstance(pair, list) or len(pair) != 2:
                raise ManifestError(f"{what}: `{key}` is {pair!r}: expected [n, k]")
            n, k = (_extent(value, key, what) for value in pair)
            if len(found) + len(batches) * len(heights) > MAX_PROBLEMS:
                raise ManifestError(f"{what}: more than {MAX_PROBLEMS} problems: split the list")
            found.update(dict.fromkeys(Extents(batch, m, n, k) for batch in batches for m in heights))
    if not found and not own:
        raise ManifestError(
            f"{what}: no table has `nk`, or extents by name: expected one such as [layers] with nk = "
            "[[n, k]] and `m`, or with M, N and K, and L for a batch"
        )
    return ShapeList(tuple(found), tuple(notes), tuple(own.values()))


def _is_extents(value: Any) -> bool:
    """Whether a value is meant to be an extent, or several."""
    values = value if isinstance(value, list) else [value]
    return all(isinstance(item, int) and not isinstance(item, bool) for item in values)


def _own(table: Mapping[str, Any], name: str, what: str, most: int) -> list[Mapping[str, int]]:
    """The problems of a table of extents by name: every combination."""
    lists = {key: _extents(value, f"{name}.{key}", what) for key, value in table.items()}
    if prod(map(len, lists.values())) > most:
        raise ManifestError(f"{what}: more than {MAX_PROBLEMS} problems: split the list")
    return [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]


def _list(value: Any, key: str, what: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ManifestError(f"{what}: `{key}` is {value!r}: expected a list that is not empty")
    return value


def _extents(value: Any, key: str, what: str) -> list[int]:
    """One extent or several."""
    if value is None:
        raise ManifestError(f"{what}: `{key}` is missing: expected a list such as m = [1, 16, 4096]")
    if isinstance(value, list):
        return [_extent(item, f"{key}[{index}]", what) for index, item in enumerate(_list(value, key, what))]
    return [_extent(value, key, what)]


def _extent(value: Any, key: str, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_EXTENT:
        raise ManifestError(f"{what}: `{key}` has {value!r}: expected a number from 1 to {MAX_EXTENT}")
    return value

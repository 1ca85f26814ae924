"""A kernel table's scale factors: ``scale``, ``a_scale`` and ``b_scale``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

from cutlass_aot.errors import ManifestError
from cutlass_aot.manifest.validation import is_whole_number, known, unknown
from cutlass_aot.schema.kernels.dtypes import DTYPES

Scale = tuple[str, int] | None
"""Element type of the factors, and how many elements along K share one; None for no factors."""

Scales = tuple[Scale, Scale]
"""Those of a and of b."""

MAX_BLOCK = 1 << 20


def parse_scales(table: Mapping[str, Any], where: str) -> tuple[Scales, ...]:
    """What factors a and b come with: ``scale`` for both alike, or each by its own key."""
    if "scale" in table:
        clash = [key for key in ("a_scale", "b_scale") if key in table]
        if clash:
            raise ManifestError(f"{where}: give either `scale` or `{clash[0]}`, not both")
        return tuple((scale, scale) for scale in _scales(table, "scale", where))
    return tuple(product(_scales(table, "a_scale", where), _scales(table, "b_scale", where)))


def _scales(table: Mapping[str, Any], key: str, where: str) -> tuple[Scale, ...]:
    if key not in table:
        return (None,)
    values = table[key] if isinstance(table[key], list) else [table[key]]
    if not values:
        raise ManifestError(f"{where}.{key}: empty, expected a table such as {_EXAMPLE}")
    return tuple(dict.fromkeys(_scale(value, f"{where}.{key}") for value in values))


def _scale(value: Any, where: str) -> tuple[str, int]:
    if not isinstance(value, Mapping) or "dtype" not in value or "block" not in value:
        raise ManifestError(f"{where}: {value!r}, expected a table such as {_EXAMPLE}")
    known(value, ("dtype", "block"), where)
    dtype, block = value["dtype"], value["block"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ManifestError(unknown(f"{where}.dtype", dtype, tuple(DTYPES)))
    if not is_whole_number(block, MAX_BLOCK):
        raise ManifestError(f"{where}.block: {block!r}, expected a whole number from 1 to {MAX_BLOCK}")
    return dtype, block


_EXAMPLE = '{ dtype = "f8e8m0", block = 32 }'

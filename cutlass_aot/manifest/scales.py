"""A kernel table's scale factors: ``scale``, ``a_scale`` and ``b_scale``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, NamedTuple

from cutlass_aot.errors import ManifestError
from cutlass_aot.manifest.validation import alone, is_whole_number, known, unknown
from cutlass_aot.schema.kernels.dtypes import DTYPES

MAX_BLOCK = 1 << 20


class ScaleRequest(NamedTuple):
    """Scale factors of an operand: their element type, and which elements share one.

    Attributes:
        dtype: element type of the factors.
        block: elements along K.
        across: rows of A, or columns of B.
    """

    dtype: str
    block: int
    across: int = 1

    def __str__(self) -> str:
        block = f"{self.across} x {self.block}" if self.across > 1 else str(self.block)
        return f"{self.dtype} x {block}"


Scales = tuple[ScaleRequest | None, ScaleRequest | None]
"""Those of a and of b; None for an operand without factors."""


def parse_scales(table: Mapping[str, Any], where: str) -> tuple[Scales, ...]:
    """Scale factors of a and b: ``scale`` is for both, ``a_scale`` and ``b_scale`` are for one each."""
    if "scale" in table:
        alone(table, "scale", ("a_scale", "b_scale"), where)
        return tuple((scale, scale) for scale in _scales(table, "scale", where))
    return tuple(product(_scales(table, "a_scale", where), _scales(table, "b_scale", where)))


def _scales(table: Mapping[str, Any], key: str, where: str) -> tuple[ScaleRequest | None, ...]:
    if key not in table:
        return (None,)
    values = table[key] if isinstance(table[key], list) else [table[key]]
    if not values:
        raise ManifestError(f"{where}.{key}: empty, expected a table such as {_EXAMPLE}")
    return tuple(dict.fromkeys(_scale(value, f"{where}.{key}") for value in values))


def _scale(value: Any, where: str) -> ScaleRequest:
    if not isinstance(value, Mapping) or "dtype" not in value or "block" not in value:
        raise ManifestError(f"{where}: {value!r}, expected a table such as {_EXAMPLE}")
    known(value, ("dtype", "block"), where)
    dtype, block = value["dtype"], value["block"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ManifestError(unknown(f"{where}.dtype", dtype, tuple(DTYPES)))
    sizes = block if isinstance(block, list) and len(block) == 2 else [1, block]
    if not all(is_whole_number(size, MAX_BLOCK) for size in sizes):
        raise ManifestError(
            f"{where}.block: {block!r}, expected a whole number from 1 to {MAX_BLOCK}, elements along K that "
            "share a factor, or two: rows of A or columns of B, and elements along K"
        )
    across, along = sizes
    return ScaleRequest(dtype, along, across)


_EXAMPLE = '{ dtype = "f8e8m0", block = 32 }'

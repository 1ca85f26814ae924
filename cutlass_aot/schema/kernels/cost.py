"""The cost of a declared kernel: its author's formula over extents, parameters and numbers of the GPU.

It is evaluated when a kernel is chosen, by :func:`~cutlass_aot.schema.kernels.formula.evaluate`: no code of
the author's runs.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache

from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.kernels.formula import Expression, evaluate, names_in, parse_expression
from cutlass_aot.schema.tuning.costs import Machine

FUNCTIONS: Mapping[str, tuple[int, Callable[..., float]]] = {
    "ceil": (1, lambda value: float(math.ceil(value))),
    "exp": (1, math.exp),
    "log2": (1, math.log2),
    "maximum": (2, max),
    "minimum": (2, min),
}
"""Functions of a formula, each with its number of arguments."""

GPU_NAMES = Machine._fields
"""Names that stand for numbers of the GPU in a formula."""

_ARGUMENTS = {name: count for name, (count, _) in FUNCTIONS.items()}
_CALLED = {name: function for name, (_, function) in FUNCTIONS.items()}


@lru_cache(maxsize=256)
def parse_cost(text: str) -> Expression:
    """Parse a formula such as ``"ceil(N / threads / sm_count)"``; ManifestError if it is none."""
    return parse_expression(text, _ARGUMENTS, "cost")


def names_of(text: str) -> frozenset[str]:
    """The names that a formula reads; ManifestError if it is none."""
    return names_in(parse_cost(text))


def numbers_of(values: Mapping[str, DesignValue]) -> dict[str, float]:
    """The values that a formula can read: numbers, switches as 0 and 1, ``tile_0`` and so on of a tuple."""
    found: dict[str, float] = {}
    for name, value in values.items():
        if isinstance(value, tuple):
            found |= {f"{name}_{index}": float(item) for index, item in enumerate(value)}
        elif not isinstance(value, str):
            found[name] = float(value)
    return found


def cost_of(text: str, values: Mapping[str, float]) -> float:
    """The cost by a formula; infinite where it has no value, as by a division by zero.

    A name that ``values`` lack is a KeyError.
    """
    try:
        found = float(evaluate(parse_cost(text), values, _CALLED))
    except (ArithmeticError, ValueError):
        return math.inf
    return found if found == found else math.inf

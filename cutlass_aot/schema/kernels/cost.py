"""The cost of a declared kernel: its author's formula over extents, parameters and numbers of the GPU.

It is evaluated when a kernel is chosen: no code of the author's runs.
"""

import math
from collections.abc import Callable, Mapping
from functools import lru_cache, partial

from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.kernels.formula import (
    Constant,
    Expression,
    Name,
    application,
    names_in,
    parse_expression,
)
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
    found: list[float] = []
    try:
        for function, arguments in _steps(text):
            found.append(function(values, *[found[place] for place in arguments]))
    except (ArithmeticError, ValueError):
        return math.inf
    return found[-1] if found[-1] == found[-1] else math.inf


@lru_cache(maxsize=256)
def _steps(text: str) -> tuple[tuple[Callable[..., float], tuple[int, ...]], ...]:
    """A formula as steps, each a function of the values by name and of results of steps before.

    A kernel is chosen among many by one formula: it is taken apart once, and what it repeats is one step.
    """
    places: dict[Expression, int] = {}
    steps: list[tuple[Callable[..., float], tuple[int, ...]]] = []

    def place(node: Expression) -> int:
        known = places.get(node)
        if known is not None:
            return known
        if isinstance(node, Name):
            step: tuple[Callable[..., float], tuple[int, ...]] = (partial(_named, node.name), ())
        elif isinstance(node, Constant):
            step = (partial(_constant, float(node.value)), ())
        else:
            function, arguments = application(node, _CALLED)
            step = (partial(_applied, function), tuple(map(place, arguments)))
        steps.append(step)
        return places.setdefault(node, len(steps) - 1)

    place(parse_cost(text))
    return tuple(steps)


def _named(name: str, values: Mapping[str, float]) -> float:
    return float(values[name])


def _constant(value: float, _values: Mapping[str, float]) -> float:
    return value


def _applied(function: Callable[..., float], _values: Mapping[str, float], *arguments: float) -> float:
    return function(*arguments)

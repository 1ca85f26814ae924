"""The cost of a declared kernel: its author's formula over extents, parameters and numbers of the GPU.

It is evaluated when a kernel is chosen: no code of the author's runs.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

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

ROWS_PER_EXPECTED = 4
"""Of so many rows of a masked group, formulas take one to be there: the GPU alone knows how many are.

Whoever expects a number of rows chooses as for so many times as many."""

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
    return costs_of(text, [values])[0]


def costs_of(text: str, choices: Sequence[Mapping[str, float]]) -> list[float]:
    """The same of several sets of values, such as those of kernels to choose from.

    Each step of the formula is taken for all of them before the next, which is several times as fast.
    """
    columns: list[list[float]] = []
    try:
        for step, arguments in _steps(text):
            if isinstance(step, str):
                columns.append([float(values[step]) for values in choices])
            elif isinstance(step, float):
                columns.append([step] * len(choices))
            else:
                columns.append(list(map(step, *[columns[place] for place in arguments])))
    except (ArithmeticError, ValueError):
        # One of them has no value.
        return [math.inf] if len(choices) == 1 else [cost_of(text, values) for values in choices]
    return [cost if cost == cost else math.inf for cost in columns[-1]]


@lru_cache(maxsize=256)
def _steps(text: str) -> tuple[tuple[str | float | Callable[..., float], tuple[int, ...]], ...]:
    """A formula as steps: a name, a number, or a function of results of steps before.

    A kernel is chosen among many by one formula: it is taken apart once, and what it repeats is one step.
    """
    places: dict[Expression, int] = {}
    steps: list[tuple[str | float | Callable[..., float], tuple[int, ...]]] = []

    def place(node: Expression) -> int:
        known = places.get(node)
        if known is not None:
            return known
        if isinstance(node, Name):
            steps.append((node.name, ()))
        elif isinstance(node, Constant):
            steps.append((float(node.value), ()))
        else:
            function, arguments = application(node, _CALLED)
            steps.append((function, tuple(map(place, arguments))))
        return places.setdefault(node, len(steps) - 1)

    place(parse_cost(text))
    return tuple(steps)

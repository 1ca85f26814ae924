"""Cost formulas: what they may say, what they give, and that they run no code."""

from __future__ import annotations

import math

import pytest

from cutlass_aot.errors import ManifestError
from cutlass_aot.schema.kernels.cost import FUNCTIONS, cost_of, costs_of, names_of, numbers_of, parse_cost


@pytest.mark.parametrize(
    ("text", "cost"),
    [
        ("N / 2 + 1", 6.0),
        ("ceil(N / 3) * wide", 4.0),
        ("maximum(N, 100) - minimum(N, 100)", 90.0),
        ("log2(N / 10 + 7) + exp(0)", 4.0),
        ("-N", -10.0),
        # D is an output in an epilogue, and an extent like any other here.
        ("D * tile_1", 14.0),
        ("1 / (N - 10)", math.inf),
        ("log2(N - 10)", math.inf),
        ("exp(N * 1000)", math.inf),
        ("exp(1000) - exp(1000)", math.inf),
    ],
)
def test_a_formula_is_evaluated(text: str, cost: float) -> None:
    values = {"N": 10.0, "D": 7.0, **numbers_of({"wide": True, "tile": (4, 2), "dtype": "f32"})}
    assert cost_of(text, values) == pytest.approx(cost)


def test_several_sets_of_values_have_a_cost_each() -> None:
    sizes = (0.0, 2.0, 4.0)
    assert costs_of("8 / N + ceil(N / 3)", [{"N": size} for size in sizes]) == [math.inf, 5.0, 4.0]
    assert costs_of("7", [{}, {}]) == [7.0, 7.0]
    assert costs_of("N", []) == []


def test_the_names_of_a_formula_are_known_before_it_is_evaluated() -> None:
    assert names_of("ceil(N / threads) + tile_0 * 2") == {"N", "threads", "tile_0"}
    with pytest.raises(KeyError):
        cost_of("N", {})
    assert set(FUNCTIONS) == {"ceil", "exp", "log2", "maximum", "minimum"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (" ", "cost: empty"),
        ("a = b", "expected one expression"),
        ("a; b", "expected one expression"),
        ("max(a, b)", "unknown function 'max': expected one of ceil, exp, log2, maximum, minimum"),
        ("sum(a)", "unknown function 'sum'"),
        ("ceil(a, b)", r"ceil\(\) takes 1 arguments, found 2"),
        ("__import__('os')", 'found "\'"'),
        ("a.b", "'a.b' is not allowed"),
        ("a if b else c", "is not allowed"),
        ("a ** b", "is not allowed"),
        ("(" * 40 + "a" + ")" * 40, "more than 32 parentheses"),
        ("a + " * 2000 + "a", "4096"),
        ("1 / 0", "divides by zero"),
    ],
)
def test_what_is_no_formula_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ManifestError, match=problem):
        parse_cost(text)

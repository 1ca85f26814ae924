"""The functions of epilogues, evaluated by torch in f32, as kernels have them, against torch's own in f64."""

from __future__ import annotations

import math

import pytest

from cutlass_aot.generators.epilogue_functions import torch_functions
from cutlass_aot.schema.kernels.formula import CALLED
from tests.support.epilogue_functions import ARGUMENTS, REFERENCES

torch = pytest.importorskip("torch")

FUNCTIONS = torch_functions(torch)
VALUES = torch.cat(
    [
        torch.linspace(-8, 8, 4001),
        torch.logspace(-30, 1.9, 200),
        -torch.logspace(-30, 1.9, 200),
        torch.zeros(1),
    ]
)


def test_every_function_of_a_formula_is_there_and_has_a_reference():
    assert FUNCTIONS.keys() == CALLED.keys() == REFERENCES.keys()


@pytest.mark.parametrize("name", sorted(CALLED))
def test_it_is_what_torch_computes(name):
    arguments = [VALUES, *(torch.full_like(VALUES, value) for value in ARGUMENTS.get(name, (0.5, 2.0)))]
    arguments = arguments[: CALLED[name]]
    found = FUNCTIONS[name](*arguments)
    assert found.dtype == torch.float32
    expected = REFERENCES[name](*(argument.double() for argument in arguments))
    # Half a dozen roundings of the largest number on the way, and what the argument's rounding gives.
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("relu", [math.nan], 0.0),
        ("maximum", [math.nan, 1.0], 1.0),
        ("maximum", [1.0, math.nan], math.nan),
        ("minimum", [math.nan, 1.0], 1.0),
        ("clamp", [math.nan, 0.0, 1.0], math.nan),
        ("clamp", [5.0, 2.0, 1.0], 1.0),
        ("softplus", [1000.0], 1000.0),
        ("softplus", [-1000.0], 0.0),
        ("softplus", [-20.0], 2.0611536181902037e-09),
        ("sigmoid", [-1000.0], 0.0),
        ("round", [2.5], 2.0),
        ("round", [3.5], 4.0),
        ("where", [math.nan, 1.0, 2.0], 1.0),
        ("where", [0.0, math.nan, 2.0], 2.0),
        ("<", [math.nan, 1.0], 0.0),
        ("!=", [math.nan, math.nan], 1.0),
        ("==", [0.0, -0.0], 1.0),
        ("**", [0.0, 0.0], 1.0),
        ("**", [-2.0, 0.5], math.nan),
    ],
)
def test_at_the_edges(name, arguments, expected):
    found = FUNCTIONS[name](*(torch.tensor([argument]) for argument in arguments))
    assert found.item() == pytest.approx(expected, rel=1e-6, nan_ok=True)

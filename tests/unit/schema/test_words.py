"""Which known word may be meant by one that is not known."""

from __future__ import annotations

import pytest

from cutlass_aot.schema.words import did_you_mean

KNOWN = ("tile_shape", "tile", "swiglu_fp8", "cutlass.operators", "sm_90a", "sm_80", "f32")


@pytest.mark.parametrize(
    ("found", "meant"),
    [
        ("tile_shap", "tile_shape"),
        ("Tile_Shape", "tile_shape"),
        ("swiglu", "swiglu_fp8"),
        ("cutlass_operators", "cutlass.operators"),
        ("sm_90", "sm_90a"),
        ("fp32", "f32"),
    ],
)
def test_a_misspelt_word(found: str, meant: str) -> None:
    assert did_you_mean(found, KNOWN) == f"; did you mean {meant!r}?"


@pytest.mark.parametrize("found", ["", "conv", "x" * 100_000, None, 32, ["tile"]])
def test_what_is_like_none_of_them(found: object) -> None:
    assert did_you_mean(found, KNOWN) == ""


def test_nothing_is_known() -> None:
    assert did_you_mean("tile", ()) == ""

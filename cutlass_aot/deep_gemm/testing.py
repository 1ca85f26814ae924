"""How far results are apart, as tests of DeepGEMM and of its callers measure it."""

from __future__ import annotations

from torch import Tensor

__all__ = ["calc_diff"]


def calc_diff(x: Tensor, y: Tensor) -> Tensor | float:
    """``1 - 2 <x, y> / (<x, x> + <y, y>)`` in f64: 0 for equal tensors, also where both are zero."""
    x, y = x.double(), y.double()
    squares = (x.square() + y.square()).sum()
    return 0.0 if squares == 0 else 1 - 2 * (x * y).sum() / squares

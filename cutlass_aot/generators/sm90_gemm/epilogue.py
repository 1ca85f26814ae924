"""The fused epilogue of the SM90 GEMM: a formula on a few neighbouring elements of a row, in f32.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.schema.kernels.epilogue import COLUMN, ELEMENT, NUMBER, ROW, Epilogue, EpilogueOperand
from cutlass_aot.schema.kernels.formula import ACCUMULATOR, evaluate, names_in

SQRT_2_OVER_PI = 0.7978845608028654


def _maximum(x: Any, y: Any) -> Any:
    return cute.where(x > y, x, y)


def _minimum(x: Any, y: Any) -> Any:
    return cute.where(x < y, x, y)


def _relu(x: Any) -> Any:
    """0 for NaN, as docs/reference/epilogues.md says."""
    return _maximum(x, _like(x, 0.0))


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + cute.math.exp(-x))


def _gelu(x: Any) -> Any:
    """0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))), as the operators package has it."""
    return 0.5 * x * (1.0 + cute.math.tanh(SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)))


def _hardswish(x: Any) -> Any:
    return x * _minimum(_maximum(x + 3.0, _like(x, 0.0)), _like(x, 6.0)) / 6.0


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "exp": cute.math.exp,
    "gelu": _gelu,
    "hardswish": _hardswish,
    "maximum": _maximum,
    "minimum": _minimum,
    "relu": _relu,
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "tanh": cute.math.tanh,
}
"""Functions of a formula, on vectors of f32."""


def results(epilogue: Epilogue, total: Any, operands: Sequence[Any], at: tuple[Any, Any, Any]) -> list[Any]:
    """Values of each statement of the formula, D first, for some neighbouring elements of a row.

    ``total`` has their sums along K in f32, ``operands`` the tensors and numbers of ``epilogue.operands``,
    and ``at`` row, column and batch of the first element; the column is a multiple of their number.
    """
    statements = epilogue.statements
    read = frozenset().union(*(names_in(statement.expression) for statement in statements))
    values = {ACCUMULATOR: total}
    for operand, given in zip(epilogue.operands, operands, strict=True):
        if operand.name in read:
            values[operand.name] = _loaded(operand, given, total, at)
    return [
        evaluate(statement.expression, values, FUNCTIONS, lambda number: _like(total, number))
        for statement in statements
    ]


def _loaded(operand: EpilogueOperand, given: Any, total: Any, at: tuple[Any, Any, Any]) -> Any:
    row, column, batch = at
    if operand.extents == NUMBER:
        return _like(total, given)
    if operand.extents == ELEMENT:
        return _like(total, cutlass.Float32(given[0]))
    if operand.extents == COLUMN:
        return _like(total, cutlass.Float32(given[row]))
    count = cute.size(total.shape)
    offset = column if operand.extents == ROW else cute.crd2idx((batch, row, column), given.layout)
    loaded = cute.make_rmem_tensor(count, given.element_type)
    cute.autovec_copy(neighbours(given, offset, count), loaded)
    return loaded.load().to(cutlass.Float32)


def stored(epilogue: Epilogue, operands: Sequence[Any]) -> list[Any]:
    """The matrices that the statements after D store into."""
    by_name = {operand.name: given for operand, given in zip(epilogue.operands, operands, strict=True)}
    return [by_name[statement.name] for statement in epilogue.statements[1:]]


def store(tensor: Any, at: tuple[Any, Any, Any], values: Any) -> None:
    """Store neighbouring elements of a row of a (L, M, N) tensor, converted to its element type."""
    row, column, batch = at
    count = cute.size(values.shape)
    converted = cute.make_rmem_tensor(count, tensor.element_type)
    converted.store(values.to(tensor.element_type))
    offset = cute.crd2idx((batch, row, column), tensor.layout)
    cute.autovec_copy(converted, neighbours(tensor, offset, count))


def neighbours(tensor: Any, offset: Any, count: int) -> Any:
    """``count`` contiguous elements from an offset, which is a multiple of ``count``."""
    return cute.make_tensor(tensor.iterator + cute.assume(offset, divby=count), cute.make_layout(count))


def _like(total: Any, number: Any) -> Any:
    return cute.full_like(total, number, cutlass.Float32)

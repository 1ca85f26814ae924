"""Functions of epilogues, composed of elementary ones: one table for every generator, and for torch.

It imports neither the DSL nor torch: a caller gives the elementary functions of one of them. What is
computed on a GPU is so checked on a CPU too, against torch in f64
(``tests/unit/generators/test_epilogue_functions.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Function = Callable[..., Any]

ELEMENTARY = (
    "abs", "cos", "div", "erf", "exp", "exp2", "full_like", "log", "log1p", "pow", "reciprocal", "round",
    "rsqrt", "sin", "sqrt", "tanh", "where",
)  # fmt: skip
"""Elementary functions, which do what those of ``torch`` with the same names do; and a rotation beside
them."""

_AS_THEY_ARE = ("abs", "cos", "erf", "exp", "log", "round", "rsqrt", "sin", "sqrt", "tanh")

LOG2_E = 1.4426950408889634
_GELU = -2.0 * 0.7978845608028654 * LOG2_E
_GELU_CUBE = 0.044715 * _GELU


def torch_functions(torch: Any, columns: int = -1) -> Mapping[str, Function]:
    """The functions on tensors of torch, whose columns are the mode ``columns``."""

    def rotated(x: Any) -> Any:
        pairs = x.movedim(columns, -1).unflatten(-1, (-1, 2))
        first, second = pairs.unbind(-1)
        return torch.stack((-second, first), -1).flatten(-2).movedim(-1, columns)

    return functions_of({name: getattr(torch, name) for name in ELEMENTARY}, rotated)


def functions_of(elementary: Mapping[str, Function], rotation: Function) -> Mapping[str, Function]:
    """The functions and operators of :data:`~cutlass_aot.schema.kernels.formula.CALLED`, by name.

    ``elementary`` are those of :data:`ELEMENTARY`, and ``rotation`` is that of
    :data:`~cutlass_aot.schema.kernels.formula.ROTATION`. All take arrays of one element type, of f32 in a
    kernel.
    """
    own = dict(elementary)
    abs_, exp, where = own["abs"], own["exp"], own["where"]

    def maximum(x: Any, y: Any) -> Any:
        """If either is not a number, y."""
        return where(x > y, x, y)

    def minimum(x: Any, y: Any) -> Any:
        """If either is not a number, y."""
        return where(x < y, x, y)

    def number(x: Any, value: float) -> Any:
        return own["full_like"](x, value)

    def clamp(x: Any, least: Any, most: Any) -> Any:
        """What is not a number stays so; most where least is larger. Source: torch.clamp."""
        raised = where(x < least, least, x)
        return where(raised > most, most, raised)

    def sigmoid(x: Any) -> Any:
        return own["reciprocal"](1.0 + own["exp2"](x * -LOG2_E))

    def softplus(x: Any) -> Any:
        """log(1 + exp(x)), without overflow and without cancellation."""
        return where(x > 0.0, x, number(x, 0.0)) + own["log1p"](exp(-abs_(x)))

    def gelu(x: Any) -> Any:
        """Source: torch.nn.functional.gelu with approximate="tanh"; 1 + tanh(x) = 2 sigmoid(2 x)."""
        return x * own["reciprocal"](1.0 + own["exp2"](x * (_GELU + _GELU_CUBE * x * x)))

    def hardswish(x: Any) -> Any:
        """Source: torch.nn.functional.hardswish."""
        return own["div"](x * minimum(maximum(x + 3.0, number(x, 0.0)), number(x, 6.0)), number(x, 6.0))

    def compared(compare: Function) -> Function:
        return lambda x, y: where(compare(x, y), number(x, 1.0), number(x, 0.0))

    return {
        **{name: own[name] for name in _AS_THEY_ARE},
        "clamp": clamp,
        "gelu": gelu,
        "hardswish": hardswish,
        "maximum": maximum,
        "minimum": minimum,
        "rotate_every_two": rotation,
        "relu": lambda x: maximum(x, number(x, 0.0)),
        "sigmoid": sigmoid,
        "silu": lambda x: x * sigmoid(x),
        "softplus": softplus,
        "where": lambda condition, x, y: where(condition != 0.0, x, y),
        "**": own["pow"],
        "<": compared(lambda x, y: x < y),
        "<=": compared(lambda x, y: x <= y),
        ">": compared(lambda x, y: x > y),
        ">=": compared(lambda x, y: x >= y),
        "==": compared(lambda x, y: x == y),
        "!=": compared(lambda x, y: x != y),
    }

"""What the functions of epilogues are, by torch, for tensors of f64; a module of tests and of GPU tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

OWN = torch.nn.functional


def _compared(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: compare(x, y).to(x.dtype)


REFERENCES: Mapping[str, Callable[..., Any]] = {
    **{
        name: getattr(torch, name)
        for name in ("abs", "cos", "erf", "exp", "log", "round", "rsqrt", "sin", "sqrt")
    },
    "clamp": lambda x, least, most: torch.minimum(torch.maximum(x, least), most),
    "gelu": lambda x: OWN.gelu(x, approximate="tanh"),
    "hardswish": OWN.hardswish,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "relu": OWN.relu,
    "rotate_every_two": lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), -1).reshape(x.shape),
    "sigmoid": torch.sigmoid,
    "silu": OWN.silu,
    # torch's own is x from 20 on, which f64 can tell from it.
    "softplus": lambda x: torch.logaddexp(x, torch.zeros_like(x)),
    "tanh": torch.tanh,
    "where": lambda condition, x, y: torch.where(condition != 0, x, y),
    "**": torch.pow,
    "<": _compared(torch.lt),
    "<=": _compared(torch.le),
    ">": _compared(torch.gt),
    ">=": _compared(torch.ge),
    "==": _compared(torch.eq),
    "!=": _compared(torch.ne),
}
"""By the names of :data:`~cutlass_aot.schema.kernels.formula.CALLED`."""

ARGUMENTS: Mapping[str, tuple[float, ...]] = {"clamp": (-1.5, 2.0), "**": (1.5,)}
"""Arguments after the first where (0.5, 2.0) will not do."""

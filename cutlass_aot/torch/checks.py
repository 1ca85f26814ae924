"""Shapes and element types of products, or why there is none: the same rules for real and fake tensors.

Sizes may be symbolic. Whether a bundle has a kernel is not checked here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cutlass_aot.errors import OperandError

Shape = tuple[int, ...]

_DEFAULT_OUTPUT = {
    torch.float64: torch.float64,
    torch.float32: torch.float32,
    torch.float16: torch.float16,
    torch.bfloat16: torch.bfloat16,
    torch.int32: torch.int32,
    torch.int8: torch.int32,
    torch.uint8: torch.int32,
}
"""Element type of the output where none is requested: the operand's own, or one that holds its sums."""

DIFFERENTIABLE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Element types that gradients are given for."""

_SCALED_OUTPUTS = (torch.float32, torch.float16, torch.bfloat16)


def output_shape(rank: int, a: Tensor, b: Tensor) -> Shape:
    """Shape of ``a @ b`` for (m, k) and (k, n), or, with rank 3, each with a batch first."""
    left, right = a.shape, b.shape
    if len(left) != rank or len(right) != rank:
        expected = "(m, k) and (k, n)" if rank == 2 else "(batch, m, k) and (batch, k, n)"
        raise OperandError(f"expected shapes {expected}, got {tuple(left)} and {tuple(right)}")
    if left[-1] != right[-2]:
        raise OperandError(
            f"expected the k of a and b to agree, got {left[-1]} and {right[-2]} in shapes {tuple(left)} "
            f"and {tuple(right)}"
        )
    if rank == 2:
        return left[0], right[1]
    if left[0] != right[0]:
        raise OperandError(
            f"expected the batch of a and b to agree, got {left[0]} and {right[0]}: expand() one that is "
            "to be the same for the whole batch"
        )
    return left[0], left[1], right[2]


def linear_shape(x: Tensor, weight: Tensor) -> Shape:
    """Shape of ``x @ weight.T`` for (..., k) and (n, k)."""
    left, right = x.shape, weight.shape
    if not left or len(right) != 2 or left[-1] != right[1]:
        raise OperandError(
            f"expected x of shape (..., k) and weight of shape (n, k), got {tuple(left)} and {tuple(right)}"
        )
    return (*left[:-1], right[0])


def output_dtype(operand: torch.dtype, out_dtype: torch.dtype | None) -> torch.dtype:
    """Element type of the output: the requested one, else the default for the first operand's."""
    if out_dtype is not None:
        return out_dtype
    dtype = _DEFAULT_OUTPUT.get(operand)
    if dtype is None:
        raise OperandError(f"operands of {operand} have no usual output: pass out_dtype")
    return dtype


def check_out(out: Tensor, shape: Sequence[int]) -> None:
    """Refuse an output of another shape: it is never resized."""
    if tuple(out.shape) != tuple(shape):
        raise OperandError(f"expected out of shape {tuple(shape)}, got {tuple(out.shape)}")


def check_bias(bias: Tensor | None, n: int, dtype: torch.dtype) -> None:
    """Refuse a bias other than one number an output feature, of the output's element type."""
    if bias is None:
        return
    if bias.dim() != 1 or bias.shape[0] != n:
        raise OperandError(f"expected bias of shape ({n},), got {tuple(bias.shape)}")
    if bias.dtype != dtype:
        raise OperandError(f"expected bias of the output's element type {dtype}, got {bias.dtype}")


def check_scales(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, out_dtype: torch.dtype) -> None:
    """Refuse scales other than f32, one number in all or one for each row of a or column of b.

    Also refuses outputs that the scaled f32 product cannot simply be rounded to.
    """
    if out_dtype not in _SCALED_OUTPUTS:
        raise OperandError(
            f"expected out_dtype to be one of {', '.join(map(str, _SCALED_OUTPUTS))}, got {out_dtype}"
        )
    for name, scale, shape in (
        ("scale_a", scale_a, (a.shape[0], 1)),
        ("scale_b", scale_b, (1, b.shape[1])),
    ):
        if scale.dtype != torch.float32:
            raise OperandError(f"expected {name} of torch.float32, got {scale.dtype}")
        if scale.numel() != 1 and tuple(scale.shape) != shape:
            raise OperandError(
                f"expected {name} of one element or of shape {shape}, got {tuple(scale.shape)}"
            )


def check_devices(**operands: Tensor | None) -> None:
    """Refuse operands on different devices."""
    given = [(name, operand) for name, operand in operands.items() if operand is not None]
    first_name, first = given[0]
    for name, operand in given[1:]:
        if operand.device != first.device:
            raise OperandError(f"expected {name} on {first.device} as {first_name} is, got {operand.device}")


def check_differentiable(**operands: Any) -> None:
    """Refuse operands that autograd follows where there is no gradient."""
    for name, dtype in operands.items():
        if dtype not in DIFFERENTIABLE:
            raise OperandError(
                f"there is no gradient with {name} of {dtype}: detach() the operands, or call under "
                "torch.no_grad()"
            )

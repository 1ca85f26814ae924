"""Casts to FP8 with scale factors, as DeepGEMM's callers prepare operands with them.

A factor is the largest magnitude of its block, at least 1e-4, divided by 448, the largest number of f8e4m3.
Source of the names and the formula: DeepGEMM at 54e2261, ``deep_gemm/utils/math.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from cutlass_aot.errors import OperandError

__all__ = [
    "align",
    "ceil_div",
    "ceil_to_ue8m0",
    "per_block_cast_to_fp8",
    "per_channel_cast_to_fp8",
    "per_token_cast_to_fp8",
]

_LARGEST = 448.0
_LEAST_MAGNITUDE = 1e-4
_MANTISSA_BITS = 23
_LARGEST_POWER = 254 << _MANTISSA_BITS
"""The bits of 2^127 as f32."""


def ceil_div(x: int, y: int) -> int:
    """``x / y``, rounded up."""
    return -(-x // y)


def align(x: int, y: int) -> int:
    """The least multiple of ``y`` that is not below ``x``."""
    return ceil_div(x, y) * y


def ceil_to_ue8m0(x: Tensor) -> Tensor:
    """The least power of two not below ``|x|``, from 2^-126 to 2^127, as f32."""
    bits = x.abs().float().view(torch.int32).clamp(max=_LARGEST_POWER)
    exponents = (bits + (1 << _MANTISSA_BITS) - 1) >> _MANTISSA_BITS
    return (exponents.clamp(min=1) << _MANTISSA_BITS).view(torch.float32)


def per_token_cast_to_fp8(
    x: Tensor, use_ue8m0: bool, gran_k: int = 128, use_packed_ue8m0: bool = False
) -> tuple[Tensor, Tensor]:
    """Cast to f8e4m3 with a factor for each row and ``gran_k`` columns.

    Args:
        x: (m, n).
        use_ue8m0: whether factors are rounded up to powers of two.
        gran_k: columns that share a factor; the last may be fewer.
        use_packed_ue8m0: packs four factors into an integer, which no kernel for sm_90a reads: refused.

    Returns:
        (m, n) of f8e4m3 and (m, n / gran_k), rounded up, of f32, both row-major.

    Raises:
        OperandError: if ``x`` is not a matrix, or factors are to be packed.
    """
    if use_packed_ue8m0:
        raise OperandError(
            "per_token_cast_to_fp8: packed UE8M0 factors are for sm_100; kernels for sm_90a take f32: leave "
            "out use_packed_ue8m0"
        )
    m, n = _matrix("per_token_cast_to_fp8", x)
    blocks = pad(x, (0, -n % gran_k)).view(m, ceil_div(n, gran_k), gran_k)
    values, factors = _cast(blocks, (2,), use_ue8m0)
    return values.flatten(1)[:, :n].contiguous(), factors.squeeze(2)


def per_channel_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int = 128) -> tuple[Tensor, Tensor]:
    """Cast to f8e4m3 with a factor for each column and ``gran_k`` rows.

    Args:
        x: (m, n), m a multiple of ``gran_k``.
        use_ue8m0: whether factors are rounded up to powers of two.
        gran_k: rows that share a factor.

    Returns:
        (m, n) of f8e4m3 and (m / gran_k, n) of f32, both row-major.

    Raises:
        OperandError: if ``x`` is not such a matrix.
    """
    m, n = _matrix("per_channel_cast_to_fp8", x)
    if m % gran_k:
        raise OperandError(
            f"per_channel_cast_to_fp8: expected rows that {gran_k} divides, got {m}: pad x with zeros"
        )
    values, factors = _cast(x.reshape(m // gran_k, gran_k, n), (1,), use_ue8m0)
    return values.flatten(0, 1), factors.squeeze(1)


def per_block_cast_to_fp8(x: Tensor, use_ue8m0: bool, gran_k: int = 128) -> tuple[Tensor, Tensor]:
    """Cast to f8e4m3 with a factor for ``gran_k`` rows and as many columns.

    Args:
        x: (m, n).
        use_ue8m0: whether factors are rounded up to powers of two.
        gran_k: rows and columns that share a factor; the last may be fewer.

    Returns:
        (m, n) of f8e4m3 and (m / gran_k, n / gran_k), each rounded up, of f32, both row-major.

    Raises:
        OperandError: if ``x`` is not a matrix.
    """
    m, n = _matrix("per_block_cast_to_fp8", x)
    rows, columns = ceil_div(m, gran_k), ceil_div(n, gran_k)
    blocks = pad(x, (0, -n % gran_k, 0, -m % gran_k)).view(rows, gran_k, columns, gran_k)
    values, factors = _cast(blocks, (1, 3), use_ue8m0)
    return values.flatten(2).flatten(0, 1)[:m, :n].contiguous(), factors.view(rows, columns)


def _matrix(function: str, x: Tensor) -> tuple[int, int]:
    if x.dim() != 2:
        raise OperandError(f"{function}: expected a matrix (m, n), got shape {tuple(x.shape)}")
    return x.shape[0], x.shape[1]


def _cast(blocks: Tensor, within: tuple[int, ...], use_ue8m0: bool) -> tuple[Tensor, Tensor]:
    """Blocks in f8e4m3, and their factors; ``within`` are the modes within a block, which factors keep."""
    factors = blocks.abs().float().amax(within, keepdim=True).clamp(min=_LEAST_MAGNITUDE) / _LARGEST
    if use_ue8m0:
        factors = ceil_to_ue8m0(factors)
    # By the reciprocal, as DeepGEMM: a quotient would round some elements otherwise.
    return (blocks * (1.0 / factors)).to(torch.float8_e4m3fn), factors

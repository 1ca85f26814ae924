"""Convert elements narrower than a byte: bytes to codes and back, codes to values and back.

Elements are packed without gaps, the first one in the lowest bits of the first byte: two 4-bit elements in a
byte, four 6-bit elements in three bytes. A **code** is the bits of one element as an unsigned number. Values
of the floating types are those of the OCP Microscaling Formats (MX) specification 1.0, section 5.3; none of
them has an infinity or a NaN. ``i4`` is two's complement.

=========  ====  ========  ========  =======  ===========
type       bits  exponent  mantissa  largest  smallest > 0
=========  ====  ========  ========  =======  ===========
f4e2m1     4     2         1         6        0.5
f6e2m3     6     2         3         7.5      0.125
f6e3m2     6     3         2         28       0.0625
i4         4                         7        1
=========  ====  ========  ========  =======  ===========

Packed bytes become an operand by :func:`cutlass_aot.view_as`. The functions here work on torch tensors; torch
is imported when one is called.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from cutlass_aot.errors import OperandError
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.words import did_you_mean

__all__ = ["decode", "encode", "pack", "unpack"]

_FLOATS = {"f4e2m1": (2, 1), "f6e2m3": (2, 3), "f6e3m2": (3, 2)}
"""Bits of exponent and mantissa; the exponent's bias is that of IEEE 754, 2^(bits - 1) - 1."""

_GROUPS = {4: (2, 1), 6: (4, 3)}
"""How many elements fill how many bytes, by the bits of one."""


def pack(codes: Any, dtype: str) -> Any:
    """Pack codes into the bytes that kernels read.

    Args:
        codes: torch tensor of an integer type, one code an element; the last mode is the contiguous one.
        dtype: ``f4e2m1``, ``f6e2m3``, ``f6e3m2`` or ``i4``.

    Returns:
        uint8 tensor whose last extent is ``bits / 8`` times that of ``codes``.

    Raises:
        OperandError: if the last extent does not fill whole bytes, a code does not fit, or the type is
            another.
    """
    import torch

    bits = _bits(dtype)
    group, width = _GROUPS[bits]
    extent = int(codes.shape[-1])
    if extent % group:
        raise OperandError(
            f"{extent} elements of {dtype}: expected a multiple of {group}, to fill whole bytes"
        )
    numbers = codes.to(torch.int64)
    low, high = (int(numbers.min()), int(numbers.max())) if numbers.numel() else (0, 0)
    if low < 0 or high >= 1 << bits:
        raise OperandError(f"codes from {low} to {high}: expected 0 to {(1 << bits) - 1}")
    numbers = numbers.reshape(*codes.shape[:-1], extent // group, group)
    words = torch.zeros_like(numbers[..., 0])
    for place in range(group):
        words |= numbers[..., place] << (place * bits)
    parts = [(words >> (8 * place)) & 0xFF for place in range(width)]
    return torch.stack(parts, dim=-1).to(torch.uint8).reshape(*codes.shape[:-1], extent // group * width)


def unpack(packed: Any, dtype: str) -> Any:
    """Unpack bytes into codes: the inverse of :func:`pack`.

    Args:
        packed: torch tensor of bytes (uint8, int8 or ``float4_e2m1fn_x2``), the last mode the contiguous one.
        dtype: of the elements.

    Returns:
        uint8 tensor with one code an element.

    Raises:
        OperandError: if the last extent does not hold whole elements, or the type is another.
    """
    import torch

    bits = _bits(dtype)
    group, width = _GROUPS[bits]
    if packed.element_size() != 1:
        raise OperandError(f"expected bytes of {dtype}, got a tensor of {packed.dtype}")
    extent = int(packed.shape[-1])
    if extent % width:
        raise OperandError(
            f"{extent} bytes of {dtype}: expected a multiple of {width}, to hold whole elements"
        )
    numbers = packed.view(torch.uint8).to(torch.int64)
    numbers = numbers.reshape(*packed.shape[:-1], extent // width, width)
    words = torch.zeros_like(numbers[..., 0])
    for place in range(width):
        words |= numbers[..., place] << (8 * place)
    parts = [(words >> (place * bits)) & ((1 << bits) - 1) for place in range(group)]
    return torch.stack(parts, dim=-1).to(torch.uint8).reshape(*packed.shape[:-1], extent // width * group)


def decode(codes: Any, dtype: str) -> Any:
    """The exact values of codes, a torch tensor of an integer type, as float32 of the same shape.

    Raises:
        OperandError: if the type is another.
    """
    import torch

    table = torch.tensor(_values(dtype), dtype=torch.float32, device=codes.device)
    return table[codes.to(torch.int64)]


def encode(values: Any, dtype: str) -> Any:
    """The codes of the nearest values of the type, as a uint8 tensor of the same shape.

    A value halfway between two gets the code whose last bit is 0; one beyond the largest gets that of the
    largest. ``values`` is a torch tensor of real numbers without NaN.

    Raises:
        OperandError: if the type is another.
    """
    import torch

    known = _values(dtype)
    # 0 and -0 are equal; the first is kept.
    codes = sorted(range(len(known)), key=lambda code: (known[code], code))
    codes = codes[:1] + [code for before, code in pairwise(codes) if known[before] < known[code]]
    table = torch.tensor([known[code] for code in codes], dtype=torch.float64, device=values.device)
    numbers = torch.tensor(codes, dtype=torch.uint8, device=values.device)
    exact = values.to(torch.float64).clamp(table[0], table[-1]).contiguous()
    above = torch.searchsorted(table, exact).clamp(1, len(codes) - 1)
    low, high = exact - table[above - 1], table[above] - exact
    upper = (high < low) | ((high == low) & (numbers[above] % 2 == 0))
    return numbers[torch.where(upper, above, above - 1)]


def _bits(dtype: str) -> int:
    if dtype not in _FLOATS and dtype != "i4":
        known = [*_FLOATS, "i4"]
        raise OperandError(
            f"element type {dtype!r}: expected one of {', '.join(known)}{did_you_mean(dtype, known)}"
        )
    return DTYPES[dtype].bits


def _values(dtype: str) -> list[float]:
    """The value of each code."""
    bits = _bits(dtype)
    if dtype == "i4":
        return [float(code - 16 if code >= 8 else code) for code in range(16)]
    exponent_bits, mantissa_bits = _FLOATS[dtype]
    bias = (1 << (exponent_bits - 1)) - 1
    values = []
    for code in range(1 << bits):
        exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1)
        mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
        size = (1 + mantissa) * 2.0 ** (exponent - bias) if exponent else mantissa * 2.0 ** (1 - bias)
        values.append(-size if code >> (bits - 1) else size)
    return values

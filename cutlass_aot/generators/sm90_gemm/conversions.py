"""Conversions for which Hopper has no instruction: of f32 to f4e2m1, and to f8e8m0 and back.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

_SIGN = 1 << 31
_MANTISSA_BITS = 23
_HALF_STEPS = float(1 << 22)
"""A number of f32 whose neighbours are half a unit away."""
_LARGEST_F4E2M1 = 6.0
_LARGEST_F8E8M0 = 254


def as_f4e2m1(values: Any) -> Any:
    """Numbers of f32 as f4e2m1, two in each byte: to nearest, of two to the even one, and saturated.

    What is not a number becomes the largest positive one.
    """
    elements = cute.make_rmem_tensor(values.shape, cutlass.Float32)
    elements.store(values)
    packed = cute.make_rmem_tensor(cute.size(values.shape) // 2, cutlass.Uint8)
    for index in range(cute.size(packed)):
        low, high = (bits_of_f4e2m1(elements[2 * index + half]) for half in range(2))
        packed[index] = cutlass.Uint8(low | high << 4)
    return packed


def bits_of_f4e2m1(value: Any) -> Any:
    """The four bits of a number: sign, two of the exponent, whose bias is 1, and one of the mantissa."""
    sign = value.bitcast(cutlass.Uint32) >> 28 & 8
    sign = cutlass.Uint32(cutlass.select_(value == value, sign, cutlass.Uint32(0)))
    magnitude = (value.bitcast(cutlass.Uint32) & (_SIGN - 1)).bitcast(cutlass.Float32)
    most = cutlass.Float32(_LARGEST_F4E2M1)
    magnitude = cutlass.Float32(cutlass.select_(magnitude < most, magnitude, most))
    # Below 1 there are steps of a half, whose number is left in the last bits of the sum.
    small = (magnitude + _HALF_STEPS).bitcast(cutlass.Uint32) & 3
    # From 1 on, bits behind the first of the mantissa are rounded away, of two neighbours to the even one.
    bits = magnitude.bitcast(cutlass.Uint32)
    dropped = _MANTISSA_BITS - 1
    rounded = bits + ((1 << dropped - 1) - 1) + (bits >> dropped & 1)
    # 1, whose exponent is 127 in f32, is 2 in f4e2m1.
    large = (rounded >> dropped) - (2 * 127 - 2)
    return cutlass.Uint32(cutlass.select_(magnitude < 1.0, small, large)) | sign


def as_f8e8m0(value: Any) -> Any:
    """The exponent of the smallest power of two that is not below a positive number, at most 2 to the 127."""
    bits = value.bitcast(cutlass.Uint32)
    exponent = cutlass.min(bits + ((1 << _MANTISSA_BITS) - 1) >> _MANTISSA_BITS, _LARGEST_F8E8M0)
    # 2 to the -127 is below the normal numbers of f32.
    least = cutlass.Uint32(1 << _MANTISSA_BITS - 1)
    return cutlass.Uint32(cutlass.select_(bits <= least, cutlass.Uint32(0), exponent))


def from_f8e8m0(exponent: Any) -> Any:
    """The power of two of an exponent, in f32."""
    least = cutlass.Uint32(1 << _MANTISSA_BITS - 1)
    bits = cutlass.Uint32(cutlass.select_(exponent == 0, least, exponent << _MANTISSA_BITS))
    return bits.bitcast(cutlass.Float32)

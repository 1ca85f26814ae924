"""Floats of 16 and 8 bits as their bits, which NumPy has no types for."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy


def f32_bits(value: Any) -> Any:
    """f32 as its bits."""
    return numpy.asarray(value, numpy.float32).view(numpy.uint32)


def to_bf16(value: Any) -> Any:
    """f32 as the bits of bf16, rounded to nearest even."""
    bits = f32_bits(value).astype(numpy.uint64)
    rounded = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)
    return numpy.where(numpy.isnan(value), numpy.uint16(0x7FFF), rounded)


def from_bf16(bits: Any) -> Any:
    """The bits of bf16 as f32."""
    return (bits.astype(numpy.uint32) << 16).view(numpy.float32)


@cache
def e4m3_values() -> Any:
    """The f32 values of the 256 numbers of f8e4m3."""
    codes = numpy.arange(256)
    exponent, mantissa = codes >> 3 & 15, codes & 7
    values = numpy.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * numpy.exp2(exponent - 7.0))
    values = numpy.where((codes & 127) == 127, numpy.nan, values)
    return numpy.where(codes & 128, -values, values).astype(numpy.float32)


def to_e4m3(value: Any) -> Any:
    """f32 as the bits of f8e4m3, rounded to nearest even; beyond the largest it is the largest."""
    table = e4m3_values()[:127].astype(numpy.float64)
    size = numpy.minimum(numpy.abs(value.astype(numpy.float64)), 448.0)
    above = numpy.clip(numpy.searchsorted(table, size), 1, 126)
    below = above - 1
    middle = (table[above] + table[below]) / 2
    up = (size > middle) | ((size == middle) & (above % 2 == 0))
    code = numpy.where(up, above, below)
    code = numpy.where(numpy.isnan(value), 127, code)
    return (code | (numpy.signbit(value).astype(numpy.int64) << 7)).astype(numpy.uint32)

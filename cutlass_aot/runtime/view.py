"""A tensor whose memory is to be read as another element type: FP4, FP6 or FP8 kept as bytes, TF32."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any

from cutlass_aot.errors import OperandError
from cutlass_aot.runtime.operands import View, describe_operand
from cutlass_aot.schema.dtypes import DTYPES, DType


def view_as(tensor: Any, dtype: str) -> View:
    """Say what the memory of a tensor holds, where its own element type does not.

    ::

        weights = cutlass_aot.view_as(packed_bytes, "f4e2m1")     # (n, k / 2) u8: an operand of (n, k)
        a = cutlass_aot.view_as(a_f32, "tf32")                    # the same memory, read as TF32

    Of types below eight bits the first element stands in the lowest bits. The contiguous extent counts
    elements: bytes hold two of ``f4e2m1`` or ``i4``, three bytes four of ``f6e2m3`` or ``f6e3m2``.

    Args:
        tensor: a torch tensor or another object of the DLPack protocol, of whole bytes an element.
        dtype: element type to read.

    Raises:
        OperandError: for an unknown element type, memory that does not hold whole elements of it, or a
            tensor that requires a gradient.
    """
    wanted = DTYPES.get(dtype)
    if wanted is None:
        raise OperandError(f"unknown dtype {dtype!r}: expected one of {', '.join(DTYPES)}")
    if getattr(tensor, "requires_grad", False) is True:
        raise OperandError(
            f"a tensor that requires a gradient cannot be read as {dtype}: pass tensor.detach()"
        )
    found = describe_operand(tensor)
    own = DTYPES[found.dtype]
    if not found.shape:
        raise OperandError(f"expected a tensor to be read as {dtype}, got a number")
    if own.bits == wanted.bits:
        return View(tensor, replace(found, dtype=dtype))
    contiguous = next((mode for mode in reversed(range(len(found.shape))) if found.strides[mode] == 1), None)
    if contiguous is None:
        raise OperandError(f"expected a mode of stride 1 to read as {dtype}, got strides {found.strides}")
    shape = tuple(
        _elements(extent, own, wanted, "an extent") if mode == contiguous else extent
        for mode, extent in enumerate(found.shape)
    )
    strides = tuple(
        1 if mode == contiguous else _elements(stride, own, wanted, "a stride") if extent > 1 else stride
        for mode, (extent, stride) in enumerate(zip(found.shape, found.strides, strict=True))
    )
    return View(tensor, replace(found, dtype=dtype, shape=shape, strides=strides))


def _elements(count: int, own: DType, wanted: DType, what: str) -> int:
    bits = count * own.bits
    if bits % wanted.bits:
        step = wanted.bits // gcd(own.bits, wanted.bits)
        raise OperandError(
            f"expected {what} that holds whole elements of {wanted.name}, a multiple of {step} elements of "
            f"{own.name}, got {count}"
        )
    return bits // wanted.bits

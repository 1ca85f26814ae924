"""Compute the products on real tensors: what the operators do below autograd."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from cutlass_aot.errors import KernelNotFound
from cutlass_aot.runtime.launching.tensors import as_matrix, describe_operand
from cutlass_aot.schema.kernels.accumulation import EXACT, RequestedAccumulation
from cutlass_aot.schema.kernels.operands import OperandDescription, describe
from cutlass_aot.torch import checks
from cutlass_aot.torch.fitting import MAX_REMEMBERED, compute_fitted

if TYPE_CHECKING:
    from cutlass_aot.runtime.bundle import Bundle

COMMON_ALIGNMENT = 16
"""Bytes; for an operand aligned to this, a copy would not be aligned better for any kernel in use."""

_served: WeakKeyDictionary[Bundle, dict[Any, bool]] = WeakKeyDictionary()
"""Whether a bundle has a kernel for operands, by bundle."""


def product(
    rank: int,
    a: Tensor,
    b: Tensor,
    bundle: Bundle,
    out_dtype: torch.dtype | None = None,
    accumulator: str | None = None,
    accumulation: RequestedAccumulation = EXACT,
) -> Tensor:
    """Compute ``a @ b``, row-major, in newly allocated memory. ``rank`` is that of a and b."""
    shape = checks.output_shape(rank, a, b)
    out = a.new_empty(shape, dtype=checks.output_dtype(a.dtype, out_dtype))
    gemm_unchecked(a, b, out, bundle, accumulator, accumulation)
    return out


def product_into(
    rank: int, a: Tensor, b: Tensor, out: Tensor, bundle: Bundle, accumulator: str | None = None
) -> None:
    """Compute ``out = a @ b``; see :func:`product`."""
    checks.check_out(out, checks.output_shape(rank, a, b))
    gemm_unchecked(a, b, out, bundle, accumulator)


def gemm_unchecked(
    a: Tensor,
    b: Tensor,
    out: Tensor,
    bundle: Bundle,
    accumulator: str | None,
    accumulation: RequestedAccumulation = EXACT,
) -> None:
    """Compute ``out = a @ b`` for operands whose shapes are known to fit."""
    if not out.numel():
        return
    if not a.shape[-1]:
        # An empty sum: no kernel takes k = 0.
        out.zero_()
        return
    try:
        if accumulator is None and accumulation == EXACT:
            bundle.gemm(a, b, out)
        else:
            bundle.gemm(a, b, out, accumulator=accumulator, accumulation=accumulation)
    except KernelNotFound:
        checks.check_devices(a=a, b=b, out=out)
        raise


def fitted_product(
    a: Tensor,
    b: Tensor,
    bundle: Bundle,
    out_dtype: torch.dtype,
    accumulator: str | None,
    purpose: str,
) -> Tensor:
    """Compute ``a @ b`` as :func:`product`, on copies of the operands where the bundle's kernels need them.

    The operands are (m, k) and (k, n), or each with a batch first. A result of 16 bits may be computed in f32
    and rounded. ``purpose`` says in errors what the product is for.
    """
    out = a.new_empty(checks.output_shape(a.dim(), a, b), dtype=out_dtype)
    if not out.numel():
        return out
    if not a.shape[-1]:
        return out.zero_()
    compute_fitted(bundle, a, b, out, accumulator, purpose=purpose)
    return out


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    bundle: Bundle,
    out_dtype: torch.dtype | None = None,
    accumulator: str | None = None,
) -> Tensor:
    """Compute ``x @ weight.T + bias``, row-major, in newly allocated memory."""
    shape = checks.linear_shape(x, weight)
    dtype = checks.output_dtype(x.dtype, out_dtype)
    checks.check_bias(bias, shape[-1], dtype)
    out = x.new_empty(shape, dtype=dtype)
    linear_unchecked(x, weight, bias, out, bundle, accumulator)
    return out


def linear_into(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    bundle: Bundle,
    accumulator: str | None = None,
) -> None:
    """Compute ``out = x @ weight.T + bias``; see :func:`linear`."""
    shape = checks.linear_shape(x, weight)
    checks.check_out(out, shape)
    checks.check_bias(bias, shape[-1], out.dtype)
    linear_unchecked(x, weight, bias, out, bundle, accumulator)


def linear_unchecked(
    x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, bundle: Bundle, accumulator: str | None
) -> None:
    """Compute ``out = x @ weight.T + bias`` for operands whose shapes and types are known to fit."""
    if not out.numel():
        return
    if not x.shape[-1]:
        out.zero_()
    else:
        _multiply_rows(x, weight, out, bundle, accumulator)
    if bias is not None:
        out.add_(bias)


def _multiply_rows(x: Tensor, weight: Tensor, out: Tensor, bundle: Bundle, accumulator: str | None) -> None:
    """Compute ``out = x @ weight.T``; only x is copied if no kernel takes its layout."""
    if not x.is_contiguous() or x.data_ptr() % COMMON_ALIGNMENT:
        a, target = as_rows(x), as_matrix("out", out)
        compute_fitted(bundle, a, weight.t(), target, accumulator, purpose="linear layer", copy_b=False)
        return
    try:
        if accumulator is None:
            bundle.linear(x, weight, out)
        else:
            bundle.linear(x, weight, out, accumulator=accumulator)
    except KernelNotFound:
        checks.check_devices(x=x, weight=weight, out=out)
        raise


def as_rows(x: Tensor) -> Tensor:
    """View (..., k) as (rows, k), or copy it where no view exists. Traceable, also with symbolic sizes."""
    # Not reshape(-1, k), which is ambiguous where k is 0.
    return x if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def scaled_product(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bundle: Bundle,
    out_dtype: torch.dtype,
    accumulator: str | None = None,
    accumulation: RequestedAccumulation = EXACT,
) -> Tensor:
    """Compute ``((a @ b) * scale_a) * scale_b``; see :func:`cutlass_aot.torch.scaled_mm`."""
    shape = checks.output_shape(2, a, b)
    checks.check_scales(a, b, scale_a, scale_b, out_dtype)
    out = a.new_empty(shape, dtype=out_dtype)
    if not out.numel():
        return out
    if not a.shape[-1]:
        return out.zero_()
    checks.check_devices(a=a, b=b, scale_a=scale_a, scale_b=scale_b)
    # Asked beforehand: trying it would count a miss, which some policies do not raise.
    wide = describe((a.shape[0], b.shape[1]), "f32", device=a.get_device())
    if _serves(bundle, _like(a), _like(b), wide, accumulator, accumulation):
        unscaled = product(2, a, b, bundle, torch.float32, accumulator, accumulation)
    else:
        unscaled = product(2, a, b, bundle, torch.bfloat16, accumulator, accumulation).float()
    unscaled.mul_(scale_a.reshape(-1, 1))
    return torch.mul(unscaled, scale_b.reshape(1, -1), out=out)


def _like(operand: Tensor) -> OperandDescription:
    """The properties of an operand that decide whether it is served."""
    description = describe_operand(operand)
    return description._replace(address=description.address % COMMON_ALIGNMENT)


def _serves(
    bundle: Bundle,
    a: OperandDescription,
    b: OperandDescription,
    out: OperandDescription,
    accumulator: str | None,
    accumulation: RequestedAccumulation,
) -> bool:
    known = _served.setdefault(bundle, {})
    key = (a, b, out, accumulator, accumulation)
    found = known.get(key)
    if found is None:
        try:
            bundle.choose(a, b, out, accumulator=accumulator, accumulation=accumulation)
            found = True
        except KernelNotFound:
            found = False
        if len(known) >= MAX_REMEMBERED:
            known.clear()
        known[key] = found
    return found

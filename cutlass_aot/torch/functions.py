"""Functions for users: products by a bundle's kernels, on torch tensors.

They are differentiable where their descriptions say so, keep torch.compile in one graph (``fullgraph=True``),
and can be captured in CUDA graphs. A plain call in eager mode goes directly to the bundle; every other one
goes through the operators ``torch.ops.cutlass_aot``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from cutlass_aot.errors import OperandError
from cutlass_aot.schema.kernels.accumulation import EXACT, RequestedAccumulation
from cutlass_aot.torch import checks, compute, operators
from cutlass_aot.torch.eager import is_plain
from cutlass_aot.torch.registry import bundle_of, handle_of

if TYPE_CHECKING:
    from cutlass_aot.runtime.bundle import Bundle


def mm(
    a: Tensor,
    b: Tensor,
    *,
    bundle: Bundle | str,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    accumulator: str | None = None,
) -> Tensor:
    """Compute ``a @ b`` by the best kernel of the bundle. No operand is copied.

    Gradients are products by the same bundle, of ``out``'s gradient rounded to the operands' element type.
    They are computed on copies if the bundle has no kernel for their layout.

    Args:
        a: (m, k).
        b: (k, n); ``weight.T`` for a weight as torch.nn.Linear keeps it.
        bundle: an open bundle, or the handle of a registered one.
        out: (m, n), written; there are no gradients then. None allocates a row-major one.
        out_dtype: element type of an allocated output. None takes that of ``a``, or int32 for integers.
        accumulator: element type, such as ``"f32"``; see :meth:`cutlass_aot.Bundle.find`.

    Returns:
        ``out``. If m or n is 0 it is empty, and if k is 0 it is zero, without a launch.

    Raises:
        OperandError: if the operands do not fit together, or a gradient is requested with ``out`` or with FP8
            operands.
        KernelNotFound: if the bundle has no kernel for the operands, or, in a backward pass, for a gradient,
            unless :mod:`cutlass_aot.policy` says otherwise.
        CutlassAotError: whatever else :meth:`cutlass_aot.Bundle.gemm` raises.
    """
    if out is None:
        if is_plain(a, b):
            return compute.product(2, a, b, bundle_of(bundle), out_dtype, accumulator)
        result: Tensor = operators.mm(a, b, handle_of(bundle), out_dtype, accumulator)
        return result
    _check_dtype(out, out_dtype)
    if is_plain(a, b, out):
        compute.product_into(2, a, b, out, bundle_of(bundle), accumulator)
        increment_version(out)
    else:
        operators.mm_out(a, b, handle_of(bundle), accumulator, out=out)
    return out


def bmm(
    a: Tensor,
    b: Tensor,
    *,
    bundle: Bundle | str,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    accumulator: str | None = None,
) -> Tensor:
    """Compute ``a @ b`` for each matrix of a batch; otherwise as :func:`mm`, also in results and errors.

    Args:
        a: (batch, m, k); the stride along the batch may be 0 (``expand``).
        b: (batch, k, n); the stride along the batch may be 0.
        bundle: an open bundle, or the handle of a registered one.
        out: (batch, m, n), written; there are no gradients then. None allocates a row-major one.
        out_dtype: as for :func:`mm`.
        accumulator: as for :func:`mm`.
    """
    if out is None:
        if is_plain(a, b):
            return compute.product(3, a, b, bundle_of(bundle), out_dtype, accumulator)
        result: Tensor = operators.bmm(a, b, handle_of(bundle), out_dtype, accumulator)
        return result
    _check_dtype(out, out_dtype)
    if is_plain(a, b, out):
        compute.product_into(3, a, b, out, bundle_of(bundle), accumulator)
        increment_version(out)
    else:
        operators.bmm_out(a, b, handle_of(bundle), accumulator, out=out)
    return out


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    bundle: Bundle | str,
    out: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    accumulator: str | None = None,
) -> Tensor:
    """Compute ``x @ weight.T + bias``, as torch.nn.functional.linear; errors are those of :func:`mm`.

    ``x`` is copied if no kernel takes its layout. The product is rounded to the output's element type before
    the bias is added, and the sum again. Gradients are as for :func:`mm`; that of the bias is a sum by torch.

    Args:
        x: (..., k).
        weight: (n, k).
        bias: (n,), of the output's element type.
        bundle: an open bundle, or the handle of a registered one.
        out: (..., n), written; there are no gradients then. None allocates a row-major one.
        out_dtype: as for :func:`mm`.
        accumulator: as for :func:`mm`.
    """
    if out is None:
        if is_plain(x, weight, bias):
            return compute.linear(x, weight, bias, bundle_of(bundle), out_dtype, accumulator)
        result: Tensor
        if bias is not None and torch.compiler.is_compiling():
            # Added here, where the compiler can fuse the sum with what follows.
            checks.check_bias(bias, weight.shape[0], checks.output_dtype(x.dtype, out_dtype))
            result = operators.linear(x, weight, None, handle_of(bundle), out_dtype, accumulator)
            return result + bias
        result = operators.linear(x, weight, bias, handle_of(bundle), out_dtype, accumulator)
        return result
    _check_dtype(out, out_dtype)
    if is_plain(x, weight, bias, out):
        compute.linear_into(x, weight, bias, out, bundle_of(bundle), accumulator)
        increment_version(out)
    else:
        operators.linear_out(x, weight, bias, handle_of(bundle), accumulator, out=out)
    return out


def scaled_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bundle: Bundle | str,
    out_dtype: torch.dtype,
    accumulator: str | None = None,
    accumulation: RequestedAccumulation = EXACT,
) -> Tensor:
    """Compute ``((a @ b) * scale_a) * scale_b`` for FP8 operands with scales. There are no gradients.

    The product is computed into f32, each multiplication is rounded to f32, and the result once more to
    ``out_dtype``. If the bundle has no kernel from these operands into f32, the product is computed into
    bf16, and so rounded to bf16 first.

    Args:
        a: (m, k).
        b: (k, n); column-major for the existing kernels.
        scale_a: f32, one element for the whole tensor, or (m, 1) for one a row.
        scale_b: f32, one element for the whole tensor, or (1, n) for one a column.
        bundle: an open bundle, or the handle of a registered one.
        out_dtype: element type of the result: f32, f16 or bf16.
        accumulator: as for :func:`mm`.
        accumulation: ``"fast"`` permits sums of fewer bits than the accumulator has, as ``use_fast_accum`` of
            ``torch._scaled_mm`` does; see :meth:`cutlass_aot.Bundle.find`.

    Returns:
        (m, n), row-major, newly allocated.

    Raises:
        OperandError: if operands or scales do not fit together, or a gradient is requested.
        KernelNotFound: if the bundle has no kernel for the operands, unless :mod:`cutlass_aot.policy` says
            otherwise.
        CutlassAotError: whatever else :meth:`cutlass_aot.Bundle.gemm` raises.
    """
    if is_plain(a, b, scale_a, scale_b):
        return compute.scaled_product(
            a, b, scale_a, scale_b, bundle_of(bundle), out_dtype, accumulator, accumulation
        )
    result: Tensor = operators.scaled_mm(
        a, b, scale_a, scale_b, handle_of(bundle), out_dtype, accumulator, accumulation
    )
    return result


def _check_dtype(out: Tensor, out_dtype: torch.dtype | None) -> None:
    if out_dtype is not None and out.dtype != out_dtype:
        raise OperandError(f"expected out of out_dtype {out_dtype}, got {out.dtype}: leave out_dtype out")

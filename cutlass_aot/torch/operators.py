"""The operators ``torch.ops.cutlass_aot``: schemas, implementations, fakes, gradients; registered at import.

A bundle is passed as its handle (:mod:`cutlass_aot.torch.registry`). Outputs are row-major and newly
allocated, or given as ``out``; the ``.out`` overloads write it and return nothing, the only form that
functionalization of custom operators supports.

The implementations are registered for all devices, so that the bundle's own message refuses operands on a
wrong one. Gradients are products by the same bundle, through the operator ``fitted_mm``, which copies its
operands where the bundle has no kernel for their layout. It has gradients itself, so second derivatives work.

The autograd kernels are written out here instead of using torch.library.register_autograd, whose kernels
enter the dispatcher a second time for every call, which costs about as much as the rest of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import increment_version

from cutlass_aot.errors import OperandError
from cutlass_aot.schema.kernels.accumulation import EXACT, RequestedAccumulation
from cutlass_aot.torch import checks, compute, inductor
from cutlass_aot.torch.eager import is_plain
from cutlass_aot.torch.registry import bundle_of

NAMESPACE = "cutlass_aot"

_library = torch.library.Library(NAMESPACE, "DEF")
_TAGS = (
    torch.Tag.pt2_compliant_tag,
    # Makes a compiler keep the strides of eager mode: a kernel is for one layout.
    getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order),
)


def _define(
    name: str, arguments: str, result: str, implementation: Callable[..., Any], fake: Callable[..., Any]
) -> Any:
    """Register an operator without gradients, and return it."""
    _library.define(f"{name}({arguments}) -> {result}", tags=_TAGS)
    _library.impl(name, implementation, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.cutlass_aot, packet), overload or "default")


def _below_autograd(operator: Any, keys: Any, arguments: Sequence[Any], options: dict[str, Any]) -> Any:
    with torch._C._AutoDispatchBelowAutograd():
        return operator.redispatch(keys & torch._C._after_autograd_keyset, *arguments, **options)


def _wants_gradient(operands: Sequence[Tensor | None]) -> bool:
    given = [operand for operand in operands if operand is not None]
    if forward_ad._current_level >= 0 and any(
        forward_ad.unpack_dual(operand).tangent is not None for operand in given
    ):
        raise OperandError(f"the operators of {NAMESPACE} have no forward-mode gradients: use backward()")
    recording = torch.is_grad_enabled() and any(operand.requires_grad for operand in given)
    if recording and torch._C._are_functorch_transforms_active():
        raise OperandError(
            f"torch.func has no gradients of the operators of {NAMESPACE}: use torch.autograd.grad"
        )
    return recording


def _with_gradients(
    name: str,
    count: int,
    operator: Any,
    implementation: Callable[..., Any],
    save: Callable[..., None],
    backward: Callable[..., tuple[Tensor | None, ...]],
) -> None:
    """Register an operator's kernel for autograd.

    Args:
        count: how many of its first arguments are tensors.
        implementation: what runs below autograd.
        save: takes a context and the arguments; keeps what ``backward`` needs, or refuses.
        backward: takes the context, which of the first arguments need a gradient, and the output's gradient.
    """

    class Gradients(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(ctx: Any, keys: Any, *arguments: Any) -> Any:
            save(ctx, ctx.needs_input_grad[1:], *arguments)
            ctx.arguments = len(arguments)
            return _below_autograd(operator, keys, arguments, {})

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Any:
            gradients = backward(ctx, ctx.needs_input_grad[1:], grad)
            return (None, *gradients, *(None,) * (ctx.arguments - count))

    def kernel(keys: Any, *arguments: Any) -> Any:
        operands = arguments[:count]
        if is_plain(*operands):
            return implementation(*arguments)
        if _wants_gradient(operands):
            return Gradients.apply(keys, *arguments)
        return _below_autograd(operator, keys, arguments, {})

    _library.impl(name, kernel, "Autograd", with_keyset=True)


def _without_gradients(name: str, operator: Any, reason: str) -> None:
    """Register kernels that refuse every call that autograd would have to record."""

    def kernel(keys: Any, *arguments: Any, **options: Any) -> Any:
        operands = [value for value in (*arguments, *options.values()) if isinstance(value, Tensor)]
        if _wants_gradient(operands):
            raise OperandError(
                f"{NAMESPACE}::{name} {reason}, and an operand requires a gradient: detach() it, or call "
                "under torch.no_grad()"
            )
        return _below_autograd(operator, keys, arguments, options)

    _library.impl(name, kernel, "Autograd", with_keyset=True)


def _writes_out(name: str, operator: Any) -> None:
    """Register a kernel that tells autograd ``out`` was written, in case a gradient needs its old value."""

    def kernel(keys: Any, *arguments: Any, out: Tensor) -> Any:
        increment_version(out)
        with torch._C._AutoDispatchBelowADInplaceOrView():
            return operator.redispatch(keys & torch._C._after_ADInplaceOrView_keyset, *arguments, out=out)

    _library.impl(name, kernel, "ADInplaceOrView", with_keyset=True)


# -- gradients of products ----------------------------------------------------------------------------------


def _save_product(
    ctx: Any,
    needed: Sequence[bool],
    a: Tensor,
    b: Tensor,
    bundle: str,
    out_dtype: torch.dtype | None = None,
    accumulator: str | None = None,
    purpose: str = "",
) -> None:
    checks.check_differentiable(a=a.dtype, b=b.dtype, out=checks.output_dtype(a.dtype, out_dtype))
    ctx.save_for_backward(a if needed[1] else None, b if needed[0] else None)
    ctx.bundle, ctx.accumulator, ctx.purpose = bundle, accumulator, purpose
    ctx.dtypes = a.dtype, b.dtype
    ctx.columns = a.stride(-2) == 1, b.stride(-2) == 1


def _product_backward(ctx: Any, needed: Sequence[bool], grad: Tensor) -> tuple[Tensor | None, ...]:
    """dA = dOut @ B^T and dB = A^T @ dOut, each with the layout of its operand."""
    a, b = ctx.saved_tensors
    of = f" of the {ctx.purpose}" if ctx.purpose else ""
    grad_a = grad_b = None
    if needed[0]:
        rounded, arguments = grad.to(ctx.dtypes[1]), (ctx.bundle, ctx.dtypes[0], ctx.accumulator)
        if ctx.columns[0]:
            grad_a = _fitted_mm(b, rounded.mT, *arguments, f"gradient of a{of}").mT
        else:
            grad_a = _fitted_mm(rounded, b.mT, *arguments, f"gradient of a{of}")
    if needed[1]:
        rounded, arguments = grad.to(ctx.dtypes[0]), (ctx.bundle, ctx.dtypes[1], ctx.accumulator)
        if ctx.columns[1]:
            grad_b = _fitted_mm(rounded.mT, a, *arguments, f"gradient of b{of}").mT
        else:
            grad_b = _fitted_mm(a.mT, rounded, *arguments, f"gradient of b{of}")
    return grad_a, grad_b


# -- mm and bmm ---------------------------------------------------------------------------------------------


def _register_product(name: str, rank: int) -> tuple[Any, Any]:
    """Register ``mm`` or ``bmm``: the operator that allocates its output, and the one that writes ``out``."""

    def implementation(
        a: Tensor,
        b: Tensor,
        bundle: str,
        out_dtype: torch.dtype | None = None,
        accumulator: str | None = None,
    ) -> Tensor:
        return compute.product(rank, a, b, bundle_of(bundle), out_dtype, accumulator)

    def fake(
        a: Tensor,
        b: Tensor,
        bundle: str,
        out_dtype: torch.dtype | None = None,
        accumulator: str | None = None,
    ) -> Tensor:
        inductor.register()
        shape = checks.output_shape(rank, a, b)
        checks.check_devices(a=a, b=b)
        return a.new_empty(shape, dtype=checks.output_dtype(a.dtype, out_dtype))

    def implementation_out(
        a: Tensor, b: Tensor, bundle: str, accumulator: str | None = None, *, out: Tensor
    ) -> None:
        compute.product_into(rank, a, b, out, bundle_of(bundle), accumulator)

    def fake_out(a: Tensor, b: Tensor, bundle: str, accumulator: str | None = None, *, out: Tensor) -> None:
        checks.check_out(out, checks.output_shape(rank, a, b))
        checks.check_devices(a=a, b=b, out=out)

    arguments = "Tensor a, Tensor b, str bundle, {}str? accumulator=None"
    allocating = _define(
        name, arguments.format("ScalarType? out_dtype=None, "), "Tensor", implementation, fake
    )
    _with_gradients(name, 2, allocating, implementation, _save_product, _product_backward)
    writing = _define(
        f"{name}.out", arguments.format("") + ", *, Tensor(a!) out", "()", implementation_out, fake_out
    )
    _without_gradients(f"{name}.out", writing, "gives no gradients")
    _writes_out(f"{name}.out", writing)
    return allocating, writing


mm, mm_out = _register_product("mm", 2)
bmm, bmm_out = _register_product("bmm", 3)


def _fitted_implementation(
    a: Tensor, b: Tensor, bundle: str, out_dtype: torch.dtype, accumulator: str | None, purpose: str
) -> Tensor:
    return compute.fitted_product(a, b, bundle_of(bundle), out_dtype, accumulator, purpose)


def _fitted_fake(
    a: Tensor, b: Tensor, bundle: str, out_dtype: torch.dtype, accumulator: str | None, purpose: str
) -> Tensor:
    return a.new_empty(checks.output_shape(a.dim(), a, b), dtype=out_dtype)


_fitted_mm = _define(
    "fitted_mm",
    "Tensor a, Tensor b, str bundle, ScalarType out_dtype, str? accumulator, str purpose",
    "Tensor",
    _fitted_implementation,
    _fitted_fake,
)
_with_gradients("fitted_mm", 2, _fitted_mm, _fitted_implementation, _save_product, _product_backward)


# -- linear -------------------------------------------------------------------------------------------------


def _linear_implementation(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    bundle: str,
    out_dtype: torch.dtype | None = None,
    accumulator: str | None = None,
) -> Tensor:
    return compute.linear(x, weight, bias, bundle_of(bundle), out_dtype, accumulator)


def _linear_fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    bundle: str,
    out_dtype: torch.dtype | None = None,
    accumulator: str | None = None,
) -> Tensor:
    inductor.register()
    shape = checks.linear_shape(x, weight)
    dtype = checks.output_dtype(x.dtype, out_dtype)
    checks.check_bias(bias, shape[-1], dtype)
    checks.check_devices(x=x, weight=weight, bias=bias)
    return x.new_empty(shape, dtype=dtype)


def _linear_out_implementation(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    bundle: str,
    accumulator: str | None = None,
    *,
    out: Tensor,
) -> None:
    compute.linear_into(x, weight, bias, out, bundle_of(bundle), accumulator)


def _linear_out_fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    bundle: str,
    accumulator: str | None = None,
    *,
    out: Tensor,
) -> None:
    shape = checks.linear_shape(x, weight)
    checks.check_out(out, shape)
    checks.check_bias(bias, shape[-1], out.dtype)
    checks.check_devices(x=x, weight=weight, bias=bias, out=out)


def _save_linear(
    ctx: Any,
    needed: Sequence[bool],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    bundle: str,
    out_dtype: torch.dtype | None = None,
    accumulator: str | None = None,
) -> None:
    checks.check_differentiable(x=x.dtype, weight=weight.dtype, out=checks.output_dtype(x.dtype, out_dtype))
    ctx.save_for_backward(x if needed[1] else None, weight if needed[0] else None)
    ctx.bundle, ctx.accumulator = bundle, accumulator
    ctx.dtypes, ctx.shape = (x.dtype, weight.dtype), x.shape


def _linear_backward(ctx: Any, needed: Sequence[bool], grad: Tensor) -> tuple[Tensor | None, ...]:
    """dX = dOut @ W, dW = dOut^T @ X, dBias = the sum of dOut over all rows."""
    x, weight = ctx.saved_tensors
    rows = compute.as_rows(grad)
    grad_x = grad_weight = grad_bias = None
    if needed[0]:
        grad_x = _fitted_mm(
            rows.to(ctx.dtypes[1]), weight, ctx.bundle, ctx.dtypes[0], ctx.accumulator, "gradient of x"
        ).reshape(ctx.shape)
    if needed[1]:
        grad_weight = _fitted_mm(
            rows.to(ctx.dtypes[0]).mT,
            compute.as_rows(x),
            ctx.bundle,
            ctx.dtypes[1],
            ctx.accumulator,
            "gradient of weight",
        )
    if needed[2]:
        grad_bias = rows.sum(0)
    return grad_x, grad_weight, grad_bias


linear = _define(
    "linear",
    "Tensor x, Tensor weight, Tensor? bias, str bundle, ScalarType? out_dtype=None, str? accumulator=None",
    "Tensor",
    _linear_implementation,
    _linear_fake,
)
_with_gradients("linear", 3, linear, _linear_implementation, _save_linear, _linear_backward)
linear_out = _define(
    "linear.out",
    "Tensor x, Tensor weight, Tensor? bias, str bundle, str? accumulator=None, *, Tensor(a!) out",
    "()",
    _linear_out_implementation,
    _linear_out_fake,
)
_without_gradients("linear.out", linear_out, "gives no gradients")
_writes_out("linear.out", linear_out)


# -- scaled_mm ----------------------------------------------------------------------------------------------


def _scaled_implementation(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bundle: str,
    out_dtype: torch.dtype,
    accumulator: str | None = None,
    accumulation: RequestedAccumulation = EXACT,
) -> Tensor:
    return compute.scaled_product(
        a, b, scale_a, scale_b, bundle_of(bundle), out_dtype, accumulator, accumulation
    )


def _scaled_fake(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    bundle: str,
    out_dtype: torch.dtype,
    accumulator: str | None = None,
    accumulation: RequestedAccumulation = EXACT,
) -> Tensor:
    shape = checks.output_shape(2, a, b)
    checks.check_scales(a, b, scale_a, scale_b, out_dtype)
    checks.check_devices(a=a, b=b, scale_a=scale_a, scale_b=scale_b)
    return a.new_empty(shape, dtype=out_dtype)


scaled_mm = _define(
    "scaled_mm",
    "Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, str bundle, ScalarType out_dtype, "
    'str? accumulator=None, str accumulation="exact"',
    "Tensor",
    _scaled_implementation,
    _scaled_fake,
)
_without_gradients("scaled_mm", scaled_mm, "gives no gradients")

"""Have torch's compiler inductor call a bundle directly, instead of through torch's dispatcher.

Each call through the dispatcher into Python costs more than the launch itself. This registers how inductor
lowers the operators ``linear`` and ``mm``: to a call of a function with memory for the output, as for torch's
own products. Inductor's interface for this is not public. The operators go through the dispatcher, with the
same results, where torch has another interface and where C++ is generated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cutlass_aot.torch import checks, compute
from cutlass_aot.torch.registry import bundle_of

_registered = False


def register() -> None:
    """Register with inductor, if a program uses it; to be called whenever an operator is traced.

    At each trace and not only when inductor lowers a graph: it may load one from its cache, which calls the
    registered functions too.
    """
    global _registered
    if _registered or "torch._inductor" not in sys.modules:
        return
    _registered = True
    try:
        _register("linear", _linear, lambda x, weight: (*x[:-1], weight[0]))
        _register("mm", _mm, lambda a, b: (a[0], b[1]))
    except (AttributeError, ImportError, TypeError):
        # Another release of torch.
        return


def _linear(x: Tensor, weight: Tensor, *, bundle: str, accumulator: str | None, out: Tensor) -> None:
    compute.linear_unchecked(x, weight, None, out, bundle_of(bundle), accumulator)


def _mm(a: Tensor, b: Tensor, *, bundle: str, accumulator: str | None, out: Tensor) -> None:
    compute.gemm_unchecked(a, b, out, bundle_of(bundle), accumulator)


def _register(
    name: str, function: Callable[..., None], shape: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]
) -> None:
    """Have inductor call a function for an operator.

    ``shape`` gives the output's extents for those of the two operands.
    """
    from torch._inductor import ir
    from torch._inductor.lowering import fallback_handler, register_lowering
    from torch._inductor.select_algorithm import ExternKernelChoice
    from torch._inductor.virtualized import V

    operator = getattr(torch.ops.cutlass_aot, name).default
    choice = ExternKernelChoice(function, name=f"cutlass_aot_{name}")
    dispatched = fallback_handler(operator, add_to_fallback_set=False)

    def lowered(left: Any, right: Any, *arguments: Any, **named: Any) -> Any:
        given = {
            argument.name: argument.default_value
            for argument in operator._schema.arguments[2:]
            if argument.has_default_value()
        }
        given.update(zip((item.name for item in operator._schema.arguments[2:]), arguments, strict=False))
        given.update(named)
        if V.graph.cpp_wrapper or given.get("bias") is not None:
            return dispatched(left, right, *arguments, **named)
        dtype = checks.output_dtype(left.get_dtype(), given["out_dtype"])
        layout = ir.FixedLayout(left.get_device(), dtype, list(shape(left.get_size(), right.get_size())))
        operands = [ir.ExternKernel.realize_input(operand) for operand in (left, right)]
        bound = choice.bind(operands, layout, bundle=given["bundle"], accumulator=given["accumulator"])
        return bound.output_node()

    register_lowering(operator, type_promotion_kind=None)(lowered)

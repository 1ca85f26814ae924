"""Have torch's compiler inductor call a bundle directly, instead of through torch's dispatcher.

Each call through the dispatcher into Python costs more than the launch itself. This registers how inductor
lowers the operators ``linear`` and ``mm``: to a call of a function with memory for the output, as for torch's
own products. Inductor's interface for this is not public. The operators go through the dispatcher, with the
same results, where torch has another interface and where C++ is generated.

Generated code imports this module and calls :func:`linear` and :func:`mm`. Inductor keeps that code in caches
and in files, which other processes load without lowering anything: the names and arguments of the two have to
stay.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cutlass_aot.torch import checks, compute
from cutlass_aot.torch.registry import bundle_of

_IMPORT = "from cutlass_aot.torch import inductor as cutlass_aot_inductor"
_registered = False


def linear(x: Tensor, weight: Tensor, *, bundle: str, accumulator: str | None, out: Tensor) -> None:
    """Compute ``out = x @ weight.T`` for generated code."""
    compute.linear_unchecked(x, weight, None, out, bundle_of(bundle), accumulator)


def mm(a: Tensor, b: Tensor, *, bundle: str, accumulator: str | None, out: Tensor) -> None:
    """Compute ``out = a @ b`` for generated code."""
    compute.gemm_unchecked(a, b, out, bundle_of(bundle), accumulator)


def register() -> None:
    """Register with inductor, if it is at work; to be called whenever an operator is traced.

    Inductor traces a graph's operators once more before it lowers them.
    """
    global _registered
    if _registered or "torch._inductor.lowering" not in sys.modules:
        return
    _registered = True
    try:
        _register("linear", lambda x, weight: (*x[:-1], weight[0]))
        _register("mm", lambda a, b: (a[0], b[1]))
    except (AttributeError, ImportError, TypeError):
        # Another release of torch.
        return


def _register(name: str, shape: Callable[[Sequence[Any], Sequence[Any]], Sequence[Any]]) -> None:
    """Have inductor call the function of an operator's name.

    ``shape`` gives the output's extents for those of the two operands.
    """
    from torch._inductor import ir
    from torch._inductor.lowering import fallback_handler, register_lowering
    from torch._inductor.virtualized import V

    class Call(ir.ExternKernelOut):  # type: ignore[misc]
        """A call in generated code, which imports this module for it."""

        def codegen(self, wrapper: Any) -> None:
            wrapper.add_import_once(_IMPORT)
            super().codegen(wrapper)

    operator = getattr(torch.ops.cutlass_aot, name).default
    dispatched = fallback_handler(operator, add_to_fallback_set=False)
    parameters = operator._schema.arguments[2:]

    def lowered(left: Any, right: Any, *arguments: Any, **named: Any) -> Any:
        given = {item.name: item.default_value for item in parameters if item.has_default_value()}
        given.update(zip((item.name for item in parameters), arguments, strict=False))
        given.update(named)
        if V.graph.cpp_wrapper or given.get("bias") is not None:
            return dispatched(left, right, *arguments, **named)
        dtype = checks.output_dtype(left.get_dtype(), given["out_dtype"])
        call = Call(
            layout=ir.FixedLayout(left.get_device(), dtype, list(shape(left.get_size(), right.get_size()))),
            inputs=[ir.ExternKernel.realize_input(operand) for operand in (left, right)],
            python_kernel_name=f"cutlass_aot_inductor.{name}",
            kwargs={"bundle": given["bundle"], "accumulator": given["accumulator"]},
        )
        return ir.TensorBox.create(call)

    register_lowering(operator, type_promotion_kind=None)(lowered)

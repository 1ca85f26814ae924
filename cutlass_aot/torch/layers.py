"""A linear layer that is computed by a bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cutlass_aot.errors import OperandError
from cutlass_aot.torch.functions import linear
from cutlass_aot.torch.registry import handle_of

if TYPE_CHECKING:
    from cutlass_aot.runtime.bundle import Bundle


class PrebuiltLinear(torch.nn.Linear):  # type: ignore[misc]
    """A torch.nn.Linear whose product a bundle computes; made by :func:`replace_linear` or by ``of``.

    Its parameters and the keys of its state are those of torch.nn.Linear, and it trains like one. Under
    autocast its operands are cast as torch.nn.Linear's are.

    It holds the bundle's handle, not the bundle, so it can be copied and pickled like any module. Before a
    layer that was loaded can be called, open the same bundle and pass it to
    :func:`cutlass_aot.torch.register`; without that, BundleError is raised. To use another bundle (such as
    another build of it), call ``register(bundle, handle=layer.bundle)``.

    Attributes:
        bundle: the bundle's handle.
    """

    bundle: str

    @classmethod
    def of(cls, layer: torch.nn.Linear, bundle: Bundle | str) -> PrebuiltLinear:
        """A layer that shares the parameters of ``layer``, and its other attributes except hooks.

        Raises:
            OperandError: if ``layer`` has buffers or modules of its own.
        """
        if layer._buffers or layer._modules:
            raise OperandError(
                "expected a layer with parameters alone, got one with buffers or modules of its own: "
                f"{', '.join((*layer._buffers, *layer._modules))}. Keep it as it is"
            )
        made: PrebuiltLinear = cls.__new__(cls)
        torch.nn.Module.__init__(made)
        for name, value in vars(layer).items():
            if name not in vars(made):
                setattr(made, name, value)
        for name, parameter in layer.named_parameters(recurse=False, remove_duplicate=False):
            made.register_parameter(name, parameter)
        for name in ("weight", "bias"):
            if name not in made._parameters:
                made.register_parameter(name, None)
        made.training = layer.training
        made.bundle = handle_of(bundle)
        return made

    def forward(self, input: Tensor) -> Tensor:
        """``input @ weight.T + bias``, (..., in_features) to (..., out_features).

        Raises:
            KernelNotFound: if the bundle has no kernel for the input.
            OperandError: if the input does not fit the weight.
            BundleError: if no bundle is registered under the layer's handle in this process.
        """
        weight, bias = self.weight, self.bias
        kind = input.device.type
        if torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
            input, weight = input.to(dtype), weight.to(dtype)
            bias = None if bias is None else bias.to(dtype)
        return linear(input, weight, bias, bundle=self.bundle)

    def extra_repr(self) -> str:
        """The text that ``print`` shows for it."""
        return f"{super().extra_repr()}, bundle={self.bundle}"

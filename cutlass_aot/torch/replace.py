"""Replace a model's linear layers by ones that a bundle computes, and report which were not, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from cutlass_aot.errors import DeviceError, Incompatible, KernelNotFound, MisplacedOperand, OperandError
from cutlass_aot.runtime.launching.tensors import describe_operand
from cutlass_aot.schema.kernels.operands import OperandDescription, describe
from cutlass_aot.torch.layers import PrebuiltLinear
from cutlass_aot.torch.registry import register

if TYPE_CHECKING:
    from cutlass_aot.runtime.bundle import Bundle

ROWS = (1, 3, 4096)
"""Numbers of rows that a bundle must have kernels for to serve a layer: one, an odd number and many."""

_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_state_dict_pre_hooks",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


@dataclass(frozen=True, slots=True)
class LayerReport:
    """The outcome for one linear layer, with n output and k input features.

    ``name`` is its path in the model; ``reason`` is empty if it was replaced.
    """

    name: str
    n: int
    k: int
    dtype: str
    replaced: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome for a model's linear layers, in the order of its modules; ``str`` of it is a table.

    ``bundle`` is the bundle's handle.
    """

    bundle: str
    layers: tuple[LayerReport, ...]

    @property
    def replaced(self) -> tuple[LayerReport, ...]:
        """Layers that the bundle computes now."""
        return tuple(layer for layer in self.layers if layer.replaced)

    @property
    def refused(self) -> tuple[LayerReport, ...]:
        """Layers that were left as they are, each with its reason."""
        return tuple(layer for layer in self.layers if not layer.replaced)

    def __str__(self) -> str:
        rows = [
            (layer.name or "(the model itself)", f"{layer.n} x {layer.k}", layer.dtype,
             "yes" if layer.replaced else f"no: {layer.reason}")
            for layer in self.layers
        ]  # fmt: skip
        header = ("layer", "n x k", "dtype", "replaced")
        widths = [max(len(row[column]) for row in (header, *rows)) for column in range(3)]
        lines = [
            "  ".join([*(cell.ljust(width) for cell, width in zip(row[:3], widths, strict=True)), row[3]])
            for row in (header, *rows)
        ]
        count = f"{len(self.replaced)} of {len(self.layers)} linear layers are computed by {self.bundle}"
        return "\n".join([*lines, count])


def replace_linear(
    module: torch.nn.Module,
    bundle: Bundle,
    *,
    filter: Callable[[str, torch.nn.Linear], bool] | None = None,
) -> Report:
    """Replace the torch.nn.Linear layers of a model, in place, by :class:`PrebuiltLinear` ones.

    Parameters are shared, so optimizers and state dictionaries stay valid. A layer is replaced if the bundle
    describes kernels for it for any number of rows; nothing is launched to find out. Left as they are:
    subclasses, layers with hooks, or with buffers, modules or a ``forward`` of their own, and layers that the
    bundle has no kernel for.

    Args:
        module: the model, on the device it is to run on.
        bundle: an open bundle; it is registered, and so kept open.
        filter: takes a layer's path and the layer; if it returns false, the layer is left as it is.

    Returns:
        The outcome for each layer, to be printed.

    Raises:
        OperandError: if ``bundle`` is not an open bundle.
    """
    handle = register(bundle)
    made: dict[torch.nn.Linear, PrebuiltLinear] = {}
    layers = []
    # A layer that is in the model twice is visited twice, and replaced by one and the same layer.
    for name, layer in list(module.named_modules(remove_duplicate=False)):
        if not isinstance(layer, torch.nn.Linear):
            continue
        reason = "" if layer in made else _refusal(name, layer, bundle, filter)
        if not reason:
            if layer not in made:
                made[layer] = PrebuiltLinear.of(layer, handle)
            parent, _, attribute = name.rpartition(".")
            setattr(module.get_submodule(parent), attribute, made[layer])
        layers.append(
            LayerReport(
                name,
                layer.out_features,
                layer.in_features,
                str(layer.weight.dtype).removeprefix("torch."),
                not reason,
                reason,
            )
        )
    return Report(handle, tuple(layers))


def _refusal(
    name: str,
    layer: torch.nn.Linear,
    bundle: Bundle,
    filter: Callable[[str, torch.nn.Linear], bool] | None,
) -> str:
    if isinstance(layer, PrebuiltLinear):
        return f"already computed by {layer.bundle}"
    if type(layer) is not torch.nn.Linear:
        return f"a subclass of Linear ({type(layer).__module__}.{type(layer).__qualname__})"
    if not name:
        return "the model itself, which cannot be swapped in place: use PrebuiltLinear.of"
    if filter is not None and not filter(name, layer):
        return "left out by the filter"
    if "forward" in vars(layer):
        return "has a forward of its own"
    if layer._buffers or layer._modules:
        return "has buffers or modules of its own"
    hooks = [hook.strip("_") for hook in _HOOKS if getattr(layer, hook, None)]
    if hooks:
        return f"has {', '.join(hooks)}"
    if type(layer.weight) is not torch.nn.Parameter or type(layer.weight.data) is not torch.Tensor:
        return f"its weight is a {type(layer.weight).__module__}.{type(layer.weight).__qualname__}"
    if layer.bias is not None and layer.bias.dtype != layer.weight.dtype:
        return f"its bias is {layer.bias.dtype}, its weight {layer.weight.dtype}"
    return _no_kernel(layer.weight, bundle)


def _no_kernel(weight: torch.Tensor, bundle: Bundle) -> str:
    """Why the bundle has no kernel for a weight; empty if it has one for any number of rows."""
    if weight.is_meta:
        return "its weight is on the meta device"
    try:
        b = describe_operand(weight.detach().t())
    except OperandError as error:
        return str(error)
    (k, n), dtype, device = b.shape, b.dtype, b.device
    for m in ROWS:
        operands: tuple[OperandDescription, ...] = (
            describe((m, k), dtype, device=device),
            b,
            describe((m, n), dtype, device=device),
        )
        try:
            bundle.choose(*operands)
        except MisplacedOperand:
            return f"its weight is on {weight.device}: move the model to its GPU first"
        except KernelNotFound:
            if not bundle.groups.with_dtypes("gemm", (dtype, dtype, dtype)):
                return f"no kernel of the bundle takes {dtype} and gives {dtype}"
            return bundle.explain(*operands)[0][1].reason
        except (Incompatible, DeviceError) as error:
            return str(error)
    return ""

"""Bundles in torch: differentiable operators that torch.compile keeps in its graph, and ``replace_linear``.

Importing this module imports torch and registers the operators ``torch.ops.cutlass_aot.*``, once.
"""

from cutlass_aot.torch.functions import bmm, linear, mm, scaled_mm
from cutlass_aot.torch.layers import PrebuiltLinear
from cutlass_aot.torch.registry import register
from cutlass_aot.torch.replace import LayerReport, Report, replace_linear

__all__ = [
    "LayerReport",
    "PrebuiltLinear",
    "Report",
    "bmm",
    "linear",
    "mm",
    "register",
    "replace_linear",
    "scaled_mm",
]

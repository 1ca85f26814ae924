"""The CUTLASS Operator API with prebuilt kernels: operators from a bundle, and bundles of chosen operators.

It works on objects of the package nvidia-cutlass-operators, which whoever has operators has installed.
"""

from __future__ import annotations

from cutlass_aot.operators.building import build
from cutlass_aot.operators.compile import compile
from cutlass_aot.operators.prebuilt import PrebuiltFunction, artifact, find_kernel

__all__ = ["PrebuiltFunction", "artifact", "build", "compile", "find_kernel"]

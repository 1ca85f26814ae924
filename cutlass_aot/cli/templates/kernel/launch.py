"""Launch what was built. It needs a GPU, torch, cutlass-aot and axpy_kernels; no DSL.

Where the bundle's wheel is installed: ``cutlass_aot.open_installed("axpy")``.
"""

import torch
from axpy_kernels.declared import axpy

import cutlass_aot

if not torch.cuda.is_available():
    raise SystemExit(
        f"torch {torch.__version__} finds no GPU: expected one, and a torch that is built for CUDA"
    )

bundle = cutlass_aot.open("build/bundles/axpy")
x = torch.randn(1_000_000, device="cuda")
y = torch.randn(1_000_000, device="cuda")
out = torch.empty_like(x)

axpy(dtype="f32")(x, y, out, 2.0)
torch.testing.assert_close(out, 2 * x + y)
print(bundle.choose(x, y, out, 2.0, operation="axpy", parameters={"dtype": "f32"}))

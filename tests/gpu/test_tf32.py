"""On a GPU: TF32 GEMMs.

cutlass-aot build manifests/tf32.toml && python -m pytest -m gpu tests/gpu/test_tf32.py
"""

from __future__ import annotations

import pytest

from cutlass_aot import view_as
from cutlass_aot.runtime.machine.compatibility import runnable_targets
from tests.gpu.conftest import opened

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
ROUNDING = {"f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11}


@pytest.fixture(scope="module")
def tf32(capability):
    return opened("tf32", capability)


def matrix(values, letter):
    """The values, row-major or column-major."""
    return values if letter == "t" else values.mT.contiguous().mT


@pytest.mark.parametrize("shape", [(1, 8, 8), (136, 264, 100), (1000, 520, 4096), (3, 96, 160, 72)])
def test_every_kernel_multiplies(tf32, capability, shape):
    target = runnable_targets(tf32.targets, capability)[0]
    kernels = tf32.kernels(target=target)
    assert kernels
    torch.manual_seed(0)
    *batch, m, n, k = shape
    for kernel in kernels:
        layouts = kernel.group.layouts
        out_dtype = kernel.group.operands[2].dtype
        # M is the contiguous extent of what is column-major, and is loaded and stored in 16 bytes.
        if "n" in (layouts[0], layouts[2]) and m % 8:
            continue
        for whole in (True, False):
            if whole:
                # Whole numbers that TF32, and the sum that f32, hold exactly.
                a, b = (torch.randint(-8, 9, (*batch, *s), device="cuda").float() for s in ((m, k), (k, n)))
            else:
                a, b = (torch.randn(*batch, *s, device="cuda") for s in ((m, k), (k, n)))
            a, b = matrix(a, layouts[0]), matrix(b, layouts[1])
            blank = torch.full((*batch, m, n), torch.nan, device="cuda", dtype=DTYPES[out_dtype])
            out = matrix(blank, layouts[2])
            kernel.launch(view_as(a, "tf32"), view_as(b, "tf32"), out)
            exact = a.double() @ b.double()
            error = ((out.double() - exact).norm() / exact.norm()).item()
            if whole:
                assert error <= ROUNDING[out_dtype], kernel.name
            else:
                # Operands keep ten bits of mantissa: half a unit in the last place of each.
                assert error < 2.0**-11 + ROUNDING[out_dtype], kernel.name


def test_a_bundle_serves_it_where_it_is_asked_for(tf32):
    a, b = torch.randn(64, 128, device="cuda"), torch.randn(96, 128, device="cuda").T
    out = torch.empty(64, 96, device="cuda")
    tf32.gemm(view_as(a, "tf32"), view_as(b, "tf32"), out)
    exact = a.double() @ b.double()
    assert ((out.double() - exact).norm() / exact.norm()).item() < 2.0**-11

"""On a GPU: the SM90 GEMM of our own, with and without epilogues, against torch.

cutlass-aot build manifests/sm90.toml; cutlass-aot build manifests/sm90_fused.toml; python -m pytest -m gpu
"""

from __future__ import annotations

import pytest

from tests.gpu.conftest import opened

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["sm90", "sm90-fused"])
def test_every_kernel_computes_what_it_should_and_the_same_bits_again(name, capability):
    from tools.check_sm90_gemm import main

    assert main([str(opened(name, capability).path)]) == 0


def test_an_epilogue_in_one_call(capability):
    bundle = opened("sm90-fused", capability)
    x, weight = (torch.randn(size, 1024, device="cuda").bfloat16() for size in (300, 512))
    bias = torch.randn(512, device="cuda").bfloat16()
    out = torch.empty(300, 512, device="cuda", dtype=torch.bfloat16)
    bundle.gemm(x, weight.T, out, bias=bias, epilogue="D = gelu(accum + bias)")
    expected = torch.nn.functional.gelu(x.float() @ weight.float().T + bias.float(), approximate="tanh")
    assert (out.float() - expected).norm() / expected.norm() < 2.0**-8


def test_launches_that_depend_on_each_other_wait_for_each_other(capability):
    """Launches begin to set up before the one before has ended: what it wrote must be there."""
    bundle = opened("sm90", capability)
    chain = [torch.eye(256, device="cuda").bfloat16() * 2]
    buffers = [torch.zeros(256, 256, device="cuda").bfloat16() for _ in range(2)]
    kernels = bundle.kernels(family="Sm90ClusterGemm", dtypes="bf16.bf16.bf16", layouts="tnt")
    for kernel in kernels:
        buffers[0].copy_(torch.eye(256, device="cuda"))
        for step in range(40):
            source, target = buffers[step % 2], buffers[(step + 1) % 2]
            kernel.launch(source, chain[0].T, target)
        # Powers of two are exact in bf16.
        assert torch.equal(buffers[0], torch.eye(256, device="cuda").bfloat16() * 2.0**40), kernel.name

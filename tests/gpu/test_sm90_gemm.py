"""On a GPU: the SM90 GEMM of our own, with and without epilogues, against torch.

cutlass-aot build manifests/sm90.toml; cutlass-aot build manifests/sm90_fused.toml; python -m pytest -m gpu
"""

from __future__ import annotations

import re

import pytest

from tests.gpu.conftest import REPOSITORY, opened

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", ["sm90", "sm90-fused"])
def test_every_kernel_computes_what_it_should_and_the_same_bits_again(name, capability):
    from tools.check.sm90_gemm import main

    assert main([str(opened(name, capability).path)]) == 0


def test_the_page_runs(capability, monkeypatch):
    opened("sm90-fused", capability)
    (block,) = re.findall(
        r"^```python gpu\n(.*?)^```$",
        (REPOSITORY / "docs" / "reference" / "sm90-gemm.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    monkeypatch.chdir(REPOSITORY)
    names: dict[str, object] = {}
    exec(block, names)
    x, weight, bias, out = (names[name].float() for name in ("x", "weight", "bias", "out"))
    expected = torch.nn.functional.gelu(x @ weight.T + bias, approximate="tanh")
    assert (out - expected).norm() / expected.norm() < 2.0**-8


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

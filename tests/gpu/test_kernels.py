"""On a GPU: the kernels that come with this package, against torch in double precision.

cutlass-aot build manifests/kernels.toml && python -m pytest -m gpu tests/gpu/test_kernels.py
"""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

import cutlass_aot
from cutlass_aot.kernels.gather_reduce import gather_reduce
from cutlass_aot.kernels.rms_norm import rms_norm
from cutlass_aot.kernels.swiglu import swiglu_fp8
from tests.gpu.conftest import REPOSITORY, opened

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

ROWS = (1, 7, 1000)
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11}


@pytest.fixture(scope="module")
def kernels(capability):
    """The bundle kernels: declared functions find it because it is open."""
    return opened("kernels", capability)


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def padded(rows, columns, dtype=torch.bfloat16):
    """A matrix whose rows do not follow each other."""
    return random(rows, columns + 8, dtype=dtype)[:, :columns]


def relative_error(found, exact):
    return ((found.double() - exact).norm() / exact.norm()).item()


def cosine(found, exact):
    return torch.nn.functional.cosine_similarity(found.double().flatten(), exact.flatten(), dim=0).item()


def swiglu_reference(x):
    gate, up = x.double().chunk(2, dim=1)
    y = torch.nn.functional.silu(gate) * up
    largest = y.unflatten(1, (-1, 128)).abs().amax(dim=2)
    return y, largest.clamp(min=2.0**-100) / 448


@pytest.mark.parametrize("n", [2048, 4096, 14336])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("make", [random, padded])
def test_swiglu_is_silu_times_up_in_fp8(kernels, n, rows, make):
    torch.manual_seed(0)
    x = make(rows, 2 * n)
    y, scale_reference = swiglu_reference(x)
    out = torch.empty(rows, n, device="cuda", dtype=torch.float8_e4m3fn)
    scale = torch.full((rows, n // 128), torch.nan, device="cuda")
    swiglu_fp8(n=n, dtype="f8e4m3")(x, out, scale)
    torch.testing.assert_close(scale.double(), scale_reference, rtol=1e-5, atol=0)
    found = out.float().unflatten(1, (-1, 128)) * scale[:, :, None]
    # Three bits of mantissa: 2^-4 of an element at worst, and a third of that or so of all of them.
    assert relative_error(found.flatten(1), y) < 0.04
    assert cosine(found, y) > 0.999

    as_bytes = torch.empty(rows, n, device="cuda", dtype=torch.uint8)
    swiglu_fp8(n=n, dtype="u8")(x, as_bytes, scale)
    assert torch.equal(as_bytes, out.view(torch.uint8))


def test_swiglu_of_zeros_is_zero(kernels):
    out = torch.empty(3, 2048, device="cuda", dtype=torch.float8_e4m3fn)
    scale = torch.empty(3, 16, device="cuda")
    swiglu_fp8(n=2048, dtype="f8e4m3")(torch.zeros(3, 4096, device="cuda", dtype=torch.bfloat16), out, scale)
    assert not out.float().any()
    assert torch.equal(scale, torch.full_like(scale, 2.0**-100 / 448))


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("tokens", ROWS)
@pytest.mark.parametrize("columns", [8, 1032, 7168])
def test_gather_reduce_sums_the_weighted_rows(kernels, k, tokens, columns):
    torch.manual_seed(0)
    expert_out = padded(2 * tokens + 1, columns)
    # Row 0 is nobody's: an index below 0 stands for no expert, whatever lies anywhere.
    expert_out[0] = torch.inf
    index = torch.randint(1, 2 * tokens + 1, (tokens, k), device="cuda", dtype=torch.int32)
    index[torch.rand(tokens, k, device="cuda") < 0.2] = -1
    weight = torch.rand(tokens, k, device="cuda")
    out = torch.full((tokens, columns), torch.nan, device="cuda", dtype=torch.bfloat16)
    gather_reduce(k=k, dtype="bf16")(expert_out, index, weight, out)
    chosen = expert_out.double()[index.clamp(min=0).long()]
    chosen[index < 0] = 0
    exact = (chosen * weight.double()[:, :, None]).sum(dim=1)
    assert torch.equal(out.isfinite(), torch.ones_like(out, dtype=torch.bool))
    assert (out.double() - exact).norm() <= ROUNDING["bf16"] * exact.norm()


@pytest.mark.parametrize("n", [128, 2048, 4096, 7168])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("make", [random, padded])
def test_rms_norm_divides_by_the_root_mean_square(kernels, n, rows, make):
    torch.manual_seed(0)
    x, weight = make(rows, n), random(n)
    out = torch.full_like(x, torch.nan)
    normalise = rms_norm(n=n, dtype="bf16")
    for eps in (1e-6, 0.5):
        normalise(x, weight, out, eps)
        exact = x.double() / (x.double().pow(2).mean(dim=1, keepdim=True) + eps).sqrt() * weight.double()
        assert relative_error(out, exact) < ROUNDING["bf16"]
    again = torch.empty_like(out)
    normalise(x, weight, eps=0.5, out=again)
    assert torch.equal(again, out)


def test_a_bundle_runs_them_by_their_names(kernels):
    x, weight = random(5, 4096), random(4096)
    out, again = torch.empty_like(x), torch.empty_like(x)
    rms_norm(n=4096, dtype="bf16")(x, weight, out, 1e-5)
    for _ in range(2):
        kernels.run("rms_norm", x, weight, again, 1e-5, parameters={"n": 4096, "dtype": "bf16"})
        assert torch.equal(out, again)
    kernels.run("rms_norm", x, weight, again, eps=1e-5, parameters={"n": 4096, "dtype": "bf16"})
    assert torch.equal(out, again)


def test_a_graph_replays_one(kernels):
    x, weight = random(5, 4096), random(4096)
    out = torch.empty_like(x)
    normalise = rms_norm(n=4096, dtype="bf16")
    normalise(x, weight, out, 1e-5)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        normalise(x, weight, out, 1e-5)
    x.copy_(random(5, 4096))
    graph.replay()
    replayed = out.clone()
    normalise(x, weight, out, 1e-5)
    assert torch.equal(replayed, out)


def test_rms_norm_can_write_over_its_input(kernels):
    x, weight = random(1000, 7168), random(7168)
    out = torch.empty_like(x)
    normalise = rms_norm(n=7168, dtype="bf16")
    normalise(x, weight, out, 1e-5)
    normalise(x, weight, x, 1e-5)
    assert torch.equal(x, out)


@pytest.mark.parametrize("page", ["kernels", "tf32"])
def test_what_a_page_calls_runs(page, capability, monkeypatch):
    bundle = opened(page, capability)
    monkeypatch.setattr(cutlass_aot, "open", lambda _: bundle)
    text = (REPOSITORY / "docs" / "reference" / f"{page}.md").read_text()
    names = {}
    for block in re.findall(r"^```python gpu\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(block, names)
        torch.cuda.synchronize()
        if "out" in names:
            assert names["out"].float().isfinite().all()


def test_what_does_not_fit_is_refused(kernels):
    normalise = rms_norm(n=4096, dtype="bf16")
    x = random(5, 4096)
    with pytest.raises(cutlass_aot.OperandError, match="operand `weight` is unsupported: expected an extent"):
        normalise(x, random(4095), torch.empty_like(x), 1e-5)
    with pytest.raises(cutlass_aot.KernelNotFound, match=r"no kernel rms_norm\(n=512, dtype='bf16'\)"):
        rms_norm(n=512, dtype="bf16")


@pytest.mark.skipif(find_spec("cutlass") is None, reason="the DSL is not installed")
def test_policy_jit_compiles_what_no_bundle_has(kernels):
    x, weight = random(3, 512), random(512)
    out = torch.empty_like(x)
    with cutlass_aot.policy.use("jit"), pytest.warns(cutlass_aot.policy.MissWarning):
        rms_norm(n=512, dtype="bf16")(x, weight, out, 1e-5)
    exact = torch.nn.functional.rms_norm(x.double(), (512,), weight.double(), 1e-5)
    assert relative_error(out, exact) < ROUNDING["bf16"]

"""On a GPU: the kernels that come with this package, against torch in double precision.

cutlass-aot build manifests/kernels.toml && python -m pytest -m gpu tests/gpu/test_kernels.py
"""

from __future__ import annotations

import re
from importlib.util import find_spec

import pytest

import cutlass_aot
from cutlass_aot.kernels.expert_rows import expert_rows
from cutlass_aot.kernels.gather_reduce import gather_reduce
from cutlass_aot.kernels.gather_rows import gather_rows
from cutlass_aot.kernels.layer_norm import layer_norm
from cutlass_aot.kernels.quantize import quantize_fp8
from cutlass_aot.kernels.rms_norm import fused_rms_norm, rms_norm, rms_norm_fp8
from cutlass_aot.kernels.softmax import softmax
from cutlass_aot.kernels.swiglu import fused_swiglu_fp8, swiglu_fp8
from cutlass_aot.kernels.top_k_gate import top_k_gate
from cutlass_aot.runtime.machine.compatibility import runnable_targets
from tests.gpu.conftest import REPOSITORY, opened

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

ROWS = (1, 7, 1000)
ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11}
LENGTHS = (8, 136, 1000, 1024, 2560, 4096, 5120, 7168, 12288, 16384, 18432, 32768, 40960)
"""Elements of a row, which each design keeps, or reads again in part."""


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


@pytest.mark.parametrize("n", [2048, 4096, 14336])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("make", [random, padded])
def test_swiglu_is_silu_times_up_in_fp8(kernels, n, rows, make):
    torch.manual_seed(0)
    x = make(rows, 2 * n)
    gate, up = x.double().chunk(2, dim=1)
    out = torch.empty(rows, n, device="cuda", dtype=torch.float8_e4m3fn)
    scale = torch.full((rows, n // 128), torch.nan, device="cuda")
    swiglu_fp8(n=n, dtype="f8e4m3")(x, out, scale)
    check_fp8(out, scale, torch.nn.functional.silu(gate) * up)

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


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("make", [random, padded])
def test_rms_norm_of_any_length(kernels, n, rows, make):
    torch.manual_seed(0)
    x, weight, residual = make(rows, n), random(n), make(rows, n)
    out = torch.full_like(x, torch.nan)
    rms_norm(n="any", dtype="bf16")(x, weight, out, 1e-5)
    exact = torch.nn.functional.rms_norm(x.double(), (n,), weight.double(), 1e-5)
    assert relative_error(out, exact) < ROUNDING["bf16"]

    total = torch.full_like(x, torch.nan)
    function = fused_rms_norm(dtype="bf16", weight="bf16", residual=True)
    function(x, residual, weight, out, total, 1e-5)
    assert torch.equal(total, x + residual)
    exact = torch.nn.functional.rms_norm(total.double(), (n,), weight.double(), 1e-5)
    assert relative_error(out, exact) < ROUNDING["bf16"]
    function(x, residual, weight, x, residual, 1e-5)
    assert torch.equal(x, out)
    assert torch.equal(residual, total)


@pytest.mark.parametrize("n", [128, 1024, 2176, 4096, 7168, 16384, 18432, 32768, 40960])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm_to_fp8(kernels, n, rows, with_residual):
    torch.manual_seed(0)
    x, weight = random(rows, n), random(n)
    residual = random(rows, n) if with_residual else None
    total = torch.empty_like(x) if with_residual else None
    out = torch.empty(rows, n, device="cuda", dtype=torch.float8_e4m3fn)
    # With a gap between the blocks of columns.
    scale = torch.full((n // 128, rows + 3), torch.nan, device="cuda").T[:rows]
    function = rms_norm_fp8(
        dtype="bf16", weight="bf16", residual=with_residual, out_dtype="f8e4m3", scales="columns"
    )
    function(x, residual, weight, out, total, scale, 1e-5)
    if with_residual:
        assert torch.equal(total, x + residual)
        x = total
    exact = torch.nn.functional.rms_norm(x.double(), (n,), weight.double(), 1e-5)
    check_fp8(out, scale, exact)


def check_fp8(out, scale, exact):
    """Every element is within half a step of e4m3: 2^-4 of itself, or 2^-10 of the scale near zero."""
    blocks = exact.unflatten(-1, (-1, 128))
    largest = blocks.abs().amax(dim=-1)
    torch.testing.assert_close(scale.double(), largest.clamp(min=2.0**-100) / 448, rtol=1e-5, atol=0)
    factor = scale.double()[..., None]
    found = out.double().unflatten(-1, (-1, 128)) * factor
    assert ((found - blocks).abs() <= 1.001 * (blocks.abs() * 2.0**-4 + factor * 2.0**-10)).all()


@pytest.mark.parametrize("n", [384, 2176, 6144, 12288, 18432, 40960])
@pytest.mark.parametrize("rows", [3, 300])
def test_every_design_of_rows(kernels, capability, n, rows):
    """Also those that the cost formula does not take for these extents."""
    torch.manual_seed(0)
    x, weight, bias = random(rows, n), random(n), random(n)
    residual = random(rows, n)
    total = x + residual
    out, sums = torch.empty_like(x), torch.empty_like(x)
    narrow = torch.empty(rows, n, device="cuda", dtype=torch.float8_e4m3fn)
    scale = torch.empty(n // 128, rows, device="cuda").T
    normalised = torch.nn.functional.rms_norm(total.double(), (n,), weight.double(), 1e-5)
    to_fp8 = {"out_dtype": "f8e4m3", "scales": "columns"}
    for function, operands, exact in (
        (
            rms_norm_fp8(dtype="bf16", weight="bf16", residual=True, **to_fp8),
            (x, residual, weight, narrow, sums, scale, 1e-5),
            normalised,
        ),
        (
            fused_rms_norm(dtype="bf16", weight="bf16", residual=True),
            (x, residual, weight, out, sums, 1e-5),
            normalised,
        ),
        (
            layer_norm(dtype="bf16", weight="bf16", bias=True),
            (x, weight, bias, out, 1e-5),
            torch.nn.functional.layer_norm(x.double(), (n,), weight.double(), bias.double(), 1e-5),
        ),
        (softmax(dtype="bf16"), (x, out), x.double().softmax(dim=1)),
    ):
        designs = function.kernels()
        (target,) = runnable_targets({kernel.target for kernel in designs}, capability)[:1]
        designs = [kernel for kernel in designs if kernel.target == target]
        assert len(designs) >= 14
        for kernel in designs:
            for written in (out, sums, narrow, scale):
                written.fill_(torch.nan)
            kernel.launch(*operands)
            if any(operand is narrow for operand in operands):
                check_fp8(narrow, scale, exact)
            else:
                assert relative_error(out, exact) < ROUNDING["bf16"], kernel.name
            if any(operand is sums for operand in operands):
                assert torch.equal(sums, total), kernel.name


@pytest.mark.parametrize("n", [128, 1536, 7168, 18432])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("make", [random, padded])
def test_rounding_to_fp8(kernels, n, rows, make):
    torch.manual_seed(0)
    x = make(rows, n)
    out = torch.empty(rows, n, device="cuda", dtype=torch.float8_e4m3fn)
    for scales, scale in (
        ("rows", torch.full((rows, n // 128), torch.nan, device="cuda")),
        ("columns", torch.full((n // 128, rows), torch.nan, device="cuda").mT),
    ):
        quantize_fp8(dtype="bf16", out_dtype="f8e4m3", scales=scales)(x, out, scale)
        check_fp8(out, scale, x.double())


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("make", [random, padded])
def test_layer_norm(kernels, n, rows, make):
    torch.manual_seed(0)
    x, weight, bias = make(rows, n) + 5, random(n), random(n)
    out = torch.full_like(x, torch.nan)
    layer_norm(dtype="bf16", weight="bf16", bias=True)(x, weight, bias, out, 1e-5)
    exact = torch.nn.functional.layer_norm(x.double(), (n,), weight.double(), bias.double(), 1e-5)
    assert relative_error(out, exact) < ROUNDING["bf16"]


@pytest.mark.parametrize("n", [*LENGTHS, 65536, 128256, 151936, 262144, 270008])
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_softmax(kernels, n, rows, dtype):
    torch.manual_seed(0)
    x = padded(rows, n, torch.bfloat16 if dtype == "bf16" else torch.float32) * 4
    x[0, : n // 2] = -torch.inf
    out = torch.full_like(x, torch.nan)
    softmax(dtype=dtype)(x, out)
    assert relative_error(out, x.double().softmax(dim=1)) < (ROUNDING["bf16"] if dtype == "bf16" else 1e-6)


@pytest.mark.parametrize("n", [128, 768, 2048, 2176, 14336])
@pytest.mark.parametrize("gate", ["halves", "alternating"])
@pytest.mark.parametrize("masked", [False, True])
def test_swiglu_for_experts(kernels, n, gate, masked):
    torch.manual_seed(0)
    counts = torch.tensor([500, 0, 17, 1], device="cuda", dtype=torch.int32) if masked else None
    shape = (4, 500) if masked else (500,)
    x = random(*shape, 2 * n)
    out = torch.zeros(*shape, n, device="cuda", dtype=torch.float8_e4m3fn)
    scale = torch.full((*shape[:-1], n // 128, 500), -1.0, device="cuda").mT
    fused_swiglu_fp8(dtype="bf16", gate=gate, out_dtype="f8e4m3", scales="columns", masked=masked)(
        x, out, scale, counts
    )
    halves = (
        x.double().chunk(2, dim=-1) if gate == "halves" else (x[..., ::2].double(), x[..., 1::2].double())
    )
    y = torch.nn.functional.silu(halves[0]) * halves[1]
    if not masked:
        check_fp8(out, scale, y)
        return
    for group, count in enumerate(counts.tolist()):
        assert not out[group, count:].float().any()
        assert (scale[group, count:] == -1).all()
        if count:
            check_fp8(out[group, :count], scale[group, :count], y[group, :count])


@pytest.mark.parametrize("tokens", [*ROWS, 8192])
def test_an_expert_layer_s_rows_go_to_experts_and_back(kernels, tokens):
    torch.manual_seed(0)
    experts, k, n = 256, 8, 7168
    logits, bias = torch.randn(tokens, experts, device="cuda"), torch.randn(experts, device="cuda")
    weight = torch.empty(tokens, k, device="cuda")
    index = torch.empty(tokens, k, device="cuda", dtype=torch.int32)
    gate = {"experts": experts, "k": k, "dtype": "f32", "normalised": True}
    top_k_gate(**gate, scoring="softmax", bias=False, groups="none")(logits, None, weight, index, 1.0)
    found = logits.double().softmax(dim=1).topk(k)
    torch.testing.assert_close(
        weight.double(), found.values / found.values.sum(dim=1, keepdim=True), rtol=1e-5, atol=0
    )
    assert (index == found.indices).float().mean() > 0.999

    top_k_gate(**gate, scoring="sigmoid", bias=True, groups="8x4")(logits, bias, weight, index, 2.5)
    score = logits.double().sigmoid()
    choice = (score + bias).unflatten(1, (8, -1))
    groups = choice.topk(2, dim=2).values.sum(dim=2).topk(4).indices
    kept = torch.zeros(tokens, 8, device="cuda", dtype=torch.bool).scatter_(1, groups, True)
    chosen = choice.masked_fill(~kept[:, :, None], -torch.inf).flatten(1).topk(k).indices
    assert (index == chosen).float().mean() > 0.999
    own = score.gather(1, index.long())
    torch.testing.assert_close(weight.double(), 2.5 * own / own.sum(dim=1, keepdim=True), rtol=1e-5, atol=0)

    offsets = torch.empty(experts, device="cuda", dtype=torch.int32)
    destination, source = torch.empty_like(index), torch.empty(tokens * k, device="cuda", dtype=torch.int32)
    expert_rows(k=k)(index, offsets, destination, source)
    order = index.flatten().long().sort(stable=True).indices
    assert torch.equal(offsets.long(), index.flatten().long().bincount(minlength=experts).cumsum(0))
    assert torch.equal(source.long(), order // k)
    assert torch.equal(destination.flatten().long()[order], torch.arange(tokens * k, device="cuda"))

    x, scale = random(tokens, n).to(torch.float8_e4m3fn), torch.rand(tokens, n // 128, device="cuda")
    rows = torch.empty(tokens * k, n, device="cuda", dtype=torch.float8_e4m3fn)
    factors = torch.empty(n // 128, tokens * k, device="cuda").T
    gather_rows(dtype="f8e4m3", scales="rows")(x, scale, source, rows, factors)
    assert torch.equal(rows.view(torch.uint8), x.view(torch.uint8)[source.long()])
    assert torch.equal(factors, scale[source.long()])
    back, out = random(tokens, n), torch.empty(tokens, n, device="cuda", dtype=torch.bfloat16)
    gathered = torch.empty(tokens * k, n, device="cuda", dtype=torch.bfloat16)
    gather_rows(dtype="bf16", scales="none")(back, None, source, gathered, None)
    gather_reduce(k=k, dtype="bf16")(gathered, destination, weight, out)
    exact = back.double() * weight.double().sum(dim=1, keepdim=True)
    assert relative_error(out, exact) < ROUNDING["bf16"]


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

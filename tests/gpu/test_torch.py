"""On a GPU: cutlass_aot.torch with real kernels. Needs torch and the bundle of manifests/sm90.toml.

cutlass-aot build manifests/sm90.toml && python -m pytest -m gpu tests/gpu/test_torch.py
"""

from __future__ import annotations

import copy
import importlib.util
import threading

import pytest

from cutlass_aot.errors import KernelNotFound, OperandError

torch = pytest.importorskip("torch")

import cutlass_aot.torch as aot  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    # Warnings of torch's own about itself, while it compiles or checks.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

OPERATORS = torch.ops.cutlass_aot
BOUNDS = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-16}
"""Of the relative Frobenius norm of an error: the unit roundoff of the result, or of the accumulation."""
HALVES = [torch.bfloat16, torch.float16]
COMPILERS = ["aot_eager", *(["inductor"] if importlib.util.find_spec("triton") else [])]


@pytest.fixture(scope="module")
def handle(bundle):
    return aot.register(bundle)


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def random(*shape, dtype=torch.bfloat16, requires_grad=False):
    values = torch.randn(shape, device="cuda", dtype=torch.float32)
    return values.to(dtype).requires_grad_(requires_grad)


def assert_near(result, reference, bound=None):
    error = (result.double() - reference.double()).norm() / reference.double().norm()
    assert error.item() <= (BOUNDS[result.dtype] if bound is None else bound)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("m", [1, 100, 2048])
def test_products(bundle, dtype, m):
    a, weight, bias = random(m, 512, dtype=dtype), random(256, 512, dtype=dtype), random(256, dtype=dtype)
    reference = a.double() @ weight.double().t()
    assert_near(aot.mm(a, weight.t(), bundle=bundle), reference)
    assert_near(aot.mm(a, weight.t().contiguous(), bundle=bundle), reference)
    assert_near(aot.mm(a, weight.t(), bundle=bundle, out_dtype=torch.float32), reference)
    assert_near(aot.linear(a, weight, bias, bundle=bundle), reference + bias.double(), 2 * BOUNDS[dtype])
    batched = a.expand(3, -1, -1), weight.t().expand(3, -1, -1)
    assert_near(aot.bmm(*batched, bundle=bundle), reference.expand(3, -1, -1))


def test_out(bundle):
    a, weight = random(64, 512), random(256, 512)
    wide = torch.full((64, 512), torch.nan, device="cuda", dtype=torch.bfloat16)
    out = wide[:, :256]
    assert aot.mm(a, weight.t(), bundle=bundle, out=out) is out
    assert_near(out, a.double() @ weight.double().t())
    assert wide[:, 256:].isnan().all()


def test_scaled_mm(bundle):
    a, b = random(64, 512, dtype=torch.float8_e4m3fn), random(256, 512, dtype=torch.float8_e4m3fn).t()
    scales = torch.rand(64, 1, device="cuda") + 0.5, torch.rand(1, 256, device="cuda") + 0.5
    reference = a.double() @ b.double() * scales[0] * scales[1]
    result = aot.scaled_mm(a, b, *scales, bundle=bundle, out_dtype=torch.bfloat16)
    # The tensor cores keep about 13 bits of a sum of FP8 products.
    assert_near(result, reference, 2.0**-8 + 2.0**-10)
    assert_near(aot.scaled_mm(a, b, *scales, bundle=bundle, out_dtype=torch.float32), reference, 2.0**-10)


def test_empty_products(bundle):
    assert aot.mm(random(0, 64), random(64, 8), bundle=bundle).shape == (0, 8)
    assert not aot.mm(random(16, 0), random(0, 8), bundle=bundle).any()


def test_errors(bundle):
    with pytest.raises(KernelNotFound, match="is on cpu: kernels run on CUDA devices"):
        aot.mm(torch.ones(8, 8).bfloat16(), torch.ones(8, 8).bfloat16(), bundle=bundle)
    with pytest.raises(OperandError, match="expected b on cuda:0 as a is, got cpu"):
        aot.mm(random(8, 8), torch.ones(8, 8).bfloat16(), bundle=bundle)
    with pytest.raises(OperandError, match="expected the k of a and b to agree"):
        aot.mm(random(8, 16), random(8, 16), bundle=bundle)


@pytest.mark.parametrize("operator", ["mm", "bmm", "linear", "fitted_mm"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_opcheck(handle, operator, requires_grad):
    a, weight = (random(*shape).requires_grad_(requires_grad) for shape in ((16, 64), (32, 64)))
    arguments = {
        "mm": (a, weight.t(), handle),
        "bmm": (a.expand(2, -1, -1), weight.t().expand(2, -1, -1), handle),
        "linear": (a.reshape(4, 4, 64), weight, random(32).requires_grad_(requires_grad), handle),
        "fitted_mm": (a, weight.t(), handle, torch.bfloat16, None, "test"),
    }[operator]
    # Sums of other lengths, and so in another order, are compared: what bf16 gives.
    torch.library.opcheck(getattr(OPERATORS, operator).default, arguments, rtol=2e-2, atol=2e-1)


@pytest.mark.parametrize("operator", ["mm", "bmm", "linear"])
def test_opcheck_of_out(handle, operator):
    a, weight, out = random(16, 64), random(32, 64), random(16, 32)
    arguments, out = {
        "mm": ((a, weight.t(), handle), out),
        "bmm": ((a.expand(2, -1, -1), weight.t().expand(2, -1, -1), handle), out.repeat(2, 1, 1)),
        "linear": ((a, weight, random(32), handle), out),
    }[operator]
    torch.library.opcheck(getattr(OPERATORS, operator).out, arguments, {"out": out})


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("m", [5, 64])
def test_gradients(bundle, dtype, m):
    """Also with m = 5, which no kernel takes as k, the extent it is in the gradient of the weight."""
    x, weight, bias = (
        random(*shape, dtype=dtype).requires_grad_() for shape in ((m, 512), (256, 512), (256,))
    )
    upstream = random(m, 256, dtype=dtype)
    ours = torch.autograd.grad(aot.linear(x, weight, bias, bundle=bundle), (x, weight, bias), upstream)
    wide = [operand.detach().double().requires_grad_() for operand in (x, weight, bias)]
    reference = torch.autograd.grad(torch.nn.functional.linear(*wide), wide, upstream.double())
    for gradient, expected in zip(ours, reference, strict=True):
        assert gradient.dtype == dtype
        assert_near(gradient, expected)
    for b in (weight.t(), weight.t().contiguous()):
        product = aot.mm(x, b, bundle=bundle)
        for gradient, expected in zip(
            torch.autograd.grad(product, (x, weight), upstream), reference[:2], strict=True
        ):
            assert_near(gradient, expected)
    batched = aot.bmm(x.expand(3, -1, -1), weight.t().expand(3, -1, -1), bundle=bundle)
    (gradient,) = torch.autograd.grad(batched, weight, upstream.expand(3, -1, -1))
    # Three gradients, each rounded, and their sum.
    assert_near(gradient, 3 * reference[1], 2 * BOUNDS[dtype])


def test_second_gradients(bundle):
    x, weight = random(64, 128, requires_grad=True), random(64, 128, requires_grad=True)

    def penalty(product, x, weight):
        (gradient,) = torch.autograd.grad(product.square().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), weight)[0]

    ours = penalty(aot.linear(x, weight, bundle=bundle), x, weight)
    wide = [operand.detach().double().requires_grad_() for operand in (x, weight)]
    assert_near(ours, penalty(torch.nn.functional.linear(*wide), *wide), 2.0**-5)


@pytest.mark.parametrize("backend", COMPILERS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_fullgraph(bundle, backend, dynamic):
    def block(x, weight, bias, b):
        return aot.mm(aot.linear(x, weight, bias, bundle=bundle).relu(), b, bundle=bundle)

    compiled = torch.compile(block, fullgraph=True, backend=backend, dynamic=dynamic)
    weight, bias, b = (random(*shape).requires_grad_() for shape in ((256, 512), (256,), (256, 64)))
    for m in (16, 40, 100):
        x = random(m, 512, requires_grad=True)
        operands = (x, weight, bias, b)
        result, expected = compiled(*operands), block(*operands)
        assert_near(result, expected, 2.0**-7)
        for ours, theirs in zip(
            torch.autograd.grad(result.sum(), operands),
            torch.autograd.grad(expected.sum(), operands),
            strict=True,
        ):
            assert_near(ours, theirs, 2.0**-6)


@pytest.mark.parametrize("backend", COMPILERS)
def test_fullgraph_out(bundle, backend):
    def write(a, b, out):
        aot.mm(a, b, bundle=bundle, out=out)
        return out + 1

    a, b, out = random(64, 512), random(256, 512).t(), random(64, 256)
    compiled = torch.compile(write, fullgraph=True, backend=backend)
    with torch.no_grad():
        result = compiled(a, b, out)
    assert_near(out, a.double() @ b.double())
    torch.testing.assert_close(result, out + 1)


def test_cuda_graph(bundle):
    a, weight, bias = random(64, 512), random(256, 512), random(256)

    def work():
        hidden = aot.linear(a, weight, bias, bundle=bundle)
        return aot.bmm(hidden.expand(2, -1, -1), weight.expand(2, -1, -1), bundle=bundle)

    with torch.no_grad():
        # The first launch maps a library, which a capture does not allow.
        work()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = work()
        for _ in range(3):
            a.copy_(random(64, 512))
            graph.replay()
            torch.testing.assert_close(captured, work(), rtol=0, atol=0)


def test_a_training_step_in_a_cuda_graph(bundle):
    x, weight, upstream = random(64, 512), random(256, 512, requires_grad=True), random(64, 256)

    def work():
        return torch.autograd.grad(aot.linear(x, weight, bundle=bundle), weight, upstream)[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    x.copy_(random(64, 512))
    graph.replay()
    torch.testing.assert_close(captured, work(), rtol=0, atol=0)


def test_streams(bundle):
    """The launch is ordered on the stream that is current: it sees what was written there before it."""
    weight = random(256, 512)
    x, expected = torch.zeros(64, 512, device="cuda", dtype=torch.bfloat16), random(64, 512)
    aot.mm(x, weight.t(), bundle=bundle)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)
        x.copy_(expected)
        late = aot.mm(x, weight.t(), bundle=bundle)
        late_by_operator = OPERATORS.mm(x, weight.t(), aot.register(bundle))
    # The main stream waits for nothing: it is done while the other one sleeps.
    aot.mm(expected, weight.t(), bundle=bundle)
    torch.cuda.current_stream().synchronize()
    assert not side.query()
    side.synchronize()
    assert_near(late, expected.double() @ weight.double().t())
    torch.testing.assert_close(late, late_by_operator, rtol=0, atol=0)


def test_threads(bundle):
    failures = []

    def work(number):
        try:
            torch.cuda.set_device(0)
            with torch.cuda.stream(torch.cuda.Stream()):
                m, n, k = 16 * (number + 1) + number, 64 * (number + 1), 128 + 64 * number
                x = torch.randn(m, k, device="cuda").bfloat16()
                weight = torch.randn(n, k, device="cuda").bfloat16().requires_grad_()
                for _ in range(50):
                    result = aot.linear(x, weight, bundle=bundle)
                    (gradient,) = torch.autograd.grad(result.sum(), weight)
                    assert_near(result.detach(), x.double() @ weight.detach().double().t())
                    assert_near(gradient, x.double().sum(0).expand(n, -1))
        except BaseException as error:
            failures.append((number, error))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def model():
    return torch.nn.Sequential(
        torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512, bias=False)
    )


def test_replace_linear(bundle):
    stock = model().cuda().bfloat16()
    ours = copy.deepcopy(stock)
    ours.append(torch.nn.Linear(512, 12).cuda().bfloat16())
    ours.append(torch.nn.Linear(12, 8).cuda())
    report = aot.replace_linear(ours, bundle)
    assert [layer.name for layer in report.replaced] == ["0", "2"]
    assert [layer.reason for layer in report.refused] == [
        "operand `out` is unsupported: expected extent N divisible by 8, got 12",
        "no kernel of the bundle takes f32 and gives f32",
    ]
    ours = ours[:3]
    x = random(4, 33, 512)
    assert_near(ours(x), stock(x), 2.0**-6)
    for trained in (ours, stock):
        trained(x).float().square().mean().backward()
    for parameter, expected in zip(ours.parameters(), stock.parameters(), strict=True):
        assert_near(parameter.grad, expected.grad, 2.0**-5)
    with torch.autocast("cuda", dtype=torch.bfloat16), torch.no_grad():
        assert_near(ours(x.float()), stock(x.float()), 2.0**-6)


@pytest.mark.skipif("inductor" not in COMPILERS, reason="inductor needs triton")
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_replaced_model_under_inductor(bundle, mode):
    stock = model().cuda().bfloat16()
    ours = copy.deepcopy(stock)
    aot.replace_linear(ours, bundle)
    compiled = torch.compile(ours, fullgraph=True, mode=mode)
    with torch.no_grad():
        for _ in range(4):
            x = random(64, 512)
            assert_near(compiled(x), stock(x), 2.0**-6)

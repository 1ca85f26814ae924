"""The operators of cutlass_aot.torch in torch's own machinery: opcheck, torch.compile, torch.export."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

import cutlass_aot.torch as aot  # noqa: E402
from cutlass_aot.errors import OperandError  # noqa: E402
from cutlass_aot.torch import registry  # noqa: E402
from tests.support.torch_bundles import bundle  # noqa: E402

# Warnings of torch's own about itself, while it compiles.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*not a leaf Tensor:UserWarning"),
]

F64 = torch.float64
OPERATORS = torch.ops.cutlass_aot
# With names of their own: of equal bundles, the first that is registered computes.
BUNDLE = bundle(name="compiled")
OTHER = bundle(name="compiled-other")


@pytest.fixture(autouse=True)
def fresh():
    BUNDLE.launched.clear()
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.fixture(scope="module")
def handle():
    return aot.register(BUNDLE)


def random(*shape, dtype=F64, requires_grad=False):
    return torch.randn(shape, dtype=torch.float32).to(dtype).requires_grad_(requires_grad)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("operator", ["mm", "bmm", "linear", "linear-bias", "fitted_mm"])
def test_opcheck(operator, requires_grad, handle):
    a, b = random(5, 4, requires_grad=requires_grad), random(6, 4, requires_grad=requires_grad)
    bias = random(6, requires_grad=requires_grad)
    arguments = {
        "mm": (a, b.t(), handle),
        "bmm": (a.expand(3, -1, -1), b.t().expand(3, -1, -1), handle),
        "linear": (a.reshape(5, 1, 4), b, None, handle),
        "linear-bias": (a, b, bias, handle),
        "fitted_mm": (a, b.t(), handle, F64, None, "test"),
    }[operator]
    torch.library.opcheck(getattr(OPERATORS, operator.removesuffix("-bias")).default, arguments)


@pytest.mark.parametrize("operator", ["mm", "bmm", "linear"])
def test_opcheck_of_out(operator, handle):
    a, b, out = random(5, 4), random(6, 4), torch.zeros(5, 6, dtype=F64)
    arguments, out = {
        "mm": ((a, b.t(), handle), out),
        "bmm": ((a.expand(3, -1, -1), b.t().expand(3, -1, -1), handle), out.repeat(3, 1, 1)),
        "linear": ((a, b, random(6), handle), out),
    }[operator]
    torch.library.opcheck(getattr(OPERATORS, operator).out, arguments, {"out": out})


def test_opcheck_of_scaled_mm(handle):
    a, b = random(4, 8, dtype=torch.float8_e4m3fn), random(6, 8, dtype=torch.float8_e4m3fn).t()
    scales = torch.rand(4, 1), torch.rand(1, 6)
    # All but test_schema, which itself does arithmetic that torch's CPU side does not have for FP8.
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    arguments = (a, b, *scales, handle, torch.bfloat16)
    torch.library.opcheck(OPERATORS.scaled_mm.default, arguments, test_utils=checks)


def assert_same(ours, theirs, operands):
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(result.square().sum(), operands) for result in (ours, theirs)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dynamic", [False, True])
def test_fullgraph_with_gradients(dynamic):
    def block(x, weight, bias, b):
        hidden = aot.linear(x, weight, bias, bundle=BUNDLE).relu()
        return aot.mm(hidden.flatten(0, -2), b, bundle=BUNDLE)

    def reference(x, weight, bias, b):
        return torch.nn.functional.linear(x, weight, bias).relu().flatten(0, -2) @ b

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    weight, bias = random(6, 4, requires_grad=True), random(6, requires_grad=True)
    b = random(6, 8, requires_grad=True)
    for rows in (3, 5, 7):
        x = random(2, rows, 4, requires_grad=True)
        operands = (x, weight, bias, b)
        assert_same(compiled(*operands), reference(*operands), operands)
    assert BUNDLE.launched


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_graph_serves_all_sizes_when_dynamic(dynamic):
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(
        lambda a, b: aot.bmm(a, b, bundle=BUNDLE), fullgraph=True, backend=counter, dynamic=dynamic
    )
    for m in (3, 5, 7):
        a, b = random(2, m, 4), random(2, 4, 6)
        torch.testing.assert_close(compiled(a, b), a @ b)
    # Static graphs become dynamic by themselves at the second size.
    assert counter.frame_count == (1 if dynamic else 3)


@pytest.mark.parametrize("dynamic", [False, True])
def test_fullgraph_out(dynamic):
    def write(a, b, out):
        aot.mm(a, b, bundle=BUNDLE, out=out)
        return out * 2

    compiled = torch.compile(write, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for m in (3, 5):
        a, b, out = random(m, 4), random(4, 6), torch.zeros(m, 6, dtype=F64)
        torch.testing.assert_close(compiled(a, b, out), 2 * (a @ b))
        torch.testing.assert_close(out, a @ b)


def test_fullgraph_scaled_mm():
    a, b = random(4, 8, dtype=torch.float8_e4m3fn), random(6, 8, dtype=torch.float8_e4m3fn).t()
    scale = torch.tensor(0.25)

    def call(a, b, scale):
        return aot.scaled_mm(a, b, scale, scale, bundle=BUNDLE, out_dtype=torch.bfloat16)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(a, b, scale), call(a, b, scale))


def test_a_bundle_that_is_first_seen_while_tracing(monkeypatch):
    unseen = bundle(name="unseen")
    monkeypatch.setattr(registry, "opened_bundles", lambda: [unseen])
    compiled = torch.compile(lambda a, b: aot.mm(a, b, bundle=unseen), fullgraph=True, backend="aot_eager")
    a, b = random(5, 4), random(4, 6)
    gc.freeze()  # as servers do once they have started
    torch.testing.assert_close(compiled(a, b), a @ b)
    assert len(unseen.launched) == 1


def test_another_bundle_is_another_graph(monkeypatch):
    monkeypatch.setattr(registry, "opened_bundles", lambda: [BUNDLE, OTHER])
    holder = {"bundle": BUNDLE}
    compiled = torch.compile(
        lambda a, b: aot.mm(a, b, bundle=holder["bundle"]), fullgraph=True, backend="aot_eager"
    )
    a, b = random(5, 4), random(4, 6)
    compiled(a, b)
    holder["bundle"] = OTHER
    OTHER.launched.clear()
    compiled(a, b)
    assert len(BUNDLE.launched) == len(OTHER.launched) == 1


def test_wrong_operands_are_refused_while_tracing():
    compiled = torch.compile(lambda a, b: aot.mm(a, b, bundle=BUNDLE), fullgraph=True, backend="aot_eager")
    with pytest.raises(Exception, match="expected the k of a and b to agree, got 4 and 6") as caught:
        compiled(random(5, 4), random(6, 4))
    assert not BUNDLE.launched
    assert "OperandError" in str(caught.value) or isinstance(caught.value, OperandError)


def test_an_exported_program_finds_the_bundle_by_its_handle(handle):
    class Model(torch.nn.Module):
        def forward(self, a, b):
            return aot.mm(a, b, bundle=handle)

    a, b = random(5, 4), random(4, 6)
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(Model(), (a, b), dynamic_shapes=({0: rows}, None))
    assert OPERATORS.mm.default in {node.target for node in program.graph.nodes}
    longer = random(9, 4)
    torch.testing.assert_close(program.module()(longer, b), longer @ b)

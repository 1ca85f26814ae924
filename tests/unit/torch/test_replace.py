"""Swapping a model's linear layers: which, why not the others, and what the new ones do."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

torch = pytest.importorskip("torch")

import cutlass_aot.torch as aot  # noqa: E402
from cutlass_aot.errors import BundleError, Incompatible, OperandError  # noqa: E402
from tests.support.torch_bundles import CpuBundle, bundle, kernels  # noqa: E402

nn = torch.nn


class Subclass(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


class Mlp(nn.Module):
    def __init__(self, dtype=torch.float64):
        super().__init__()
        self.up = nn.Linear(4, 8, dtype=dtype)
        self.blocks = nn.ModuleList([nn.Linear(8, 8, bias=False, dtype=dtype) for _ in range(2)])
        self.down = nn.Linear(8, 4, dtype=dtype)

    def forward(self, x):
        x = self.up(x).relu()
        for block in self.blocks:
            x = x + block(x)
        return self.down(x)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Mlp()


@pytest.fixture
def fake(request):
    return bundle(name=request.node.name)


def test_layers_are_swapped_and_their_parameters_kept(model, fake):
    stock, parameters = copy.deepcopy(model), dict(model.named_parameters())
    model.up.note = "mine"
    model.eval()
    report = aot.replace_linear(model, fake)
    assert [layer.name for layer in report.replaced] == ["up", "blocks.0", "blocks.1", "down"]
    assert not report.refused
    assert all(isinstance(m, aot.PrebuiltLinear) for m in (model.up, *model.blocks, model.down))
    assert isinstance(model.up, nn.Linear)
    assert model.up.note == "mine"
    assert not model.up.training
    assert list(model.state_dict()) == list(stock.state_dict())
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name]
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(model(x), stock(x))
    assert len(fake.launched) == 4
    assert f"bundle={aot.register(fake)}" in repr(model)


def test_a_swapped_model_trains_as_the_stock_one_does(model, fake):
    stock = copy.deepcopy(model)
    aot.replace_linear(model, fake)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, stock)]
    for _ in range(3):
        x = torch.randn(5, 4, dtype=torch.float64)
        for trained, optimizer in zip((model, stock), optimizers, strict=True):
            optimizer.zero_grad()
            trained(x).square().mean().backward()
            optimizer.step()
    for ours, theirs in zip(model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert fake.launched


def test_reasons(fake):
    model = nn.ModuleDict(
        {
            "good": nn.Linear(4, 6, dtype=torch.float64),
            "subclass": Subclass(4, 6, dtype=torch.float64),
            "dtype": nn.Linear(4, 6, dtype=torch.float16),
            "n": nn.Linear(4, 5, dtype=torch.float64),
            "k": nn.Linear(5, 4, dtype=torch.float64),
            "alignment": nn.Linear(4, 6, dtype=torch.float32),
            "hook": nn.Linear(4, 6, dtype=torch.float64),
            "normed": nn.utils.parametrizations.weight_norm(nn.Linear(4, 6, dtype=torch.float64)),
            "patched": nn.Linear(4, 6, dtype=torch.float64),
            "buffer": nn.Linear(4, 6, dtype=torch.float64),
            "module": nn.Linear(4, 6, dtype=torch.float64),
            "lazy": nn.LazyLinear(4, dtype=torch.float64),
            "meta": nn.Linear(4, 6, dtype=torch.float64, device="meta"),
            "frozen": nn.Linear(4, 6, dtype=torch.float64).requires_grad_(False),
            "bias": nn.Linear(4, 6, dtype=torch.float64),
            "filtered": nn.Linear(4, 6, dtype=torch.float64),
            "other": nn.Conv1d(4, 6, 1),
        }
    )
    model["hook"].register_forward_hook(lambda *_: None)
    model["patched"].forward = lambda x: x
    model["buffer"].register_buffer("scale", torch.ones(1))
    model["module"].extra = nn.PReLU()
    keys = list(model.state_dict())
    model["bias"].bias.data = model["bias"].bias.data.float()
    memory = torch.empty(6 * 4 + 1)
    model["alignment"].weight.data = memory[1:].view(6, 4)
    report = aot.replace_linear(model, fake, filter=lambda name, layer: name != "filtered")
    assert list(model.state_dict()) == keys
    reasons = {layer.name: layer.reason for layer in report.layers}
    assert [layer.name for layer in report.replaced] == ["good", "frozen"]
    assert reasons == {
        "good": "",
        "frozen": "",
        "subclass": "a subclass of Linear (tests.unit.torch.test_replace.Subclass)",
        "dtype": "no kernel of the bundle takes f16 and gives f16",
        "n": "operand `out` is unsupported: expected extent N divisible by 2, got 5",
        "k": "operand `a` is unsupported: expected extent K divisible by 2, got 5",
        "alignment": "operand `b` is unsupported: expected data aligned to 16 bytes, got 4 bytes off",
        "hook": "has forward_hooks",
        "normed": "a subclass of Linear (torch.nn.utils.parametrize.ParametrizedLinear)",
        "patched": "has a forward of its own",
        "buffer": "has buffers or modules of its own",
        "module": "has buffers or modules of its own",
        "lazy": "a subclass of Linear (torch.nn.modules.linear.LazyLinear)",
        "meta": "its weight is on the meta device",
        "bias": "its bias is torch.float32, its weight torch.float64",
        "filtered": "left out by the filter",
    }
    text = str(report)
    assert text.splitlines()[0].split() == ["layer", "n", "x", "k", "dtype", "replaced"]
    assert "dtype      6 x 4  float16  no: no kernel of the bundle takes f16 and gives f16" in text
    assert text.splitlines()[-1].startswith("2 of 16 linear layers are computed by ")


def test_a_second_time_and_the_model_itself(fake):
    model = nn.Sequential(nn.Linear(4, 6, dtype=torch.float64))
    aot.replace_linear(model, fake)
    (again,) = aot.replace_linear(model, fake).layers
    assert again.reason == f"already computed by {aot.register(fake)}"
    layer = nn.Linear(4, 6, dtype=torch.float64)
    (itself,) = aot.replace_linear(layer, fake).layers
    assert "use PrebuiltLinear.of" in itself.reason
    assert "(the model itself)" in str(aot.replace_linear(layer, fake))
    x = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(aot.PrebuiltLinear.of(layer, fake)(x), layer(x))


@pytest.mark.parametrize("what", ["buffer", "module"])
def test_of_refuses_what_it_would_lose(fake, what):
    layer = nn.Linear(4, 6, dtype=torch.float64)
    layer.register_buffer("mine", torch.ones(1)) if what == "buffer" else layer.add_module("mine", nn.ReLU())
    with pytest.raises(OperandError, match=r"buffers or modules of its own: mine\. "):
        aot.PrebuiltLinear.of(layer, fake)


def test_a_shared_layer_stays_shared(fake):
    layer = nn.Linear(4, 4, dtype=torch.float64)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    assert len(aot.replace_linear(model, fake).replaced) == 2
    assert model[0] is model[2]


def test_tied_weights_stay_tied(fake):
    model = nn.ModuleDict({"embed": nn.Embedding(6, 4, dtype=torch.float64)})
    model["head"] = nn.Linear(4, 6, bias=False, dtype=torch.float64)
    model["head"].weight = model["embed"].weight
    aot.replace_linear(model, fake)
    assert model["head"].weight is model["embed"].weight


def test_a_gpu_that_the_bundle_is_not_for(model, fake):
    def choose(*operands, **options):
        raise Incompatible("bundle fake cannot be used here: built for sm_90a")

    fake.choose = choose
    report = aot.replace_linear(model, fake)
    assert {layer.reason for layer in report.layers} == {"bundle fake cannot be used here: built for sm_90a"}


def test_only_an_open_bundle_will_do(model, fake):
    with pytest.raises(OperandError, match="expected an open bundle"):
        aot.replace_linear(model, "build/bundles/sm90")


def test_copies_and_pickles_hold_the_handle_alone(model, fake):
    aot.replace_linear(model, fake)
    x = torch.randn(3, 4, dtype=torch.float64)
    expected = model(x)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert b"CpuBundle" not in file.getvalue()
    for copied in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ):
        assert copied.up.weight is not model.up.weight
        torch.testing.assert_close(copied(x), expected)


def test_a_layer_whose_bundle_is_not_open_says_so(fake):
    layer = aot.PrebuiltLinear.of(nn.Linear(4, 6, dtype=torch.float64), fake)
    layer.bundle = "absent-1.0.0-0123456789abcdef"
    x = torch.randn(3, 4, dtype=torch.float64)
    with pytest.raises(BundleError, match="no bundle is registered as 'absent-"):
        layer(x)
    aot.register(fake, layer.bundle)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias))


def test_autocast_casts_as_the_stock_layer_does():
    fake = CpuBundle(kernels(("bf16", "bf16", "bf16")), name="autocast")
    layer = nn.Linear(8, 6)
    ours = aot.PrebuiltLinear.of(layer, fake)
    x = torch.randn(3, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result, expected = ours(x), layer(x)
    assert result.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)
    result.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("training", [False, True])
def test_a_swapped_model_compiles_into_one_graph(model, fake, training):
    stock = copy.deepcopy(model)
    aot.replace_linear(model, fake)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    if not training:
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), stock(x))
        return
    compiled(x).square().sum().backward()
    stock(x).square().sum().backward()
    for ours, theirs in zip(model.parameters(), stock.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    torch.compiler.reset()

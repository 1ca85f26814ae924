"""The operators of cutlass_aot.torch, on a bundle that computes on the CPU."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import warnings
import weakref

import pytest

torch = pytest.importorskip("torch")

from torch.autograd import forward_ad, gradcheck, gradgradcheck  # noqa: E402

import cutlass_aot.torch as aot  # noqa: E402
from cutlass_aot.errors import BundleError, KernelNotFound, OperandError  # noqa: E402
from cutlass_aot.runtime import policy  # noqa: E402
from cutlass_aot.torch import eager, registry  # noqa: E402
from tests.support.torch_bundles import CpuBundle, bundle, kernels  # noqa: E402

F64, F32 = torch.float64, torch.float32


@pytest.fixture
def fake():
    return bundle()


def random(*shape, dtype=F64, requires_grad=False):
    generator = torch.Generator().manual_seed(sum(shape))
    values = torch.randn(shape, generator=generator, dtype=torch.float32)
    return values.to(dtype).requires_grad_(requires_grad)


# -- values -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weight_layout", ["n", "t"])
@pytest.mark.parametrize("m", [1, 5])
def test_mm(fake, m, weight_layout):
    a = random(m, 4)
    b = random(6, 4).t() if weight_layout == "n" else random(4, 6)
    result = aot.mm(a, b, bundle=fake)
    torch.testing.assert_close(result, a @ b)
    assert result.stride() == (6, 1)
    assert len(fake.launched) == 1
    operator = torch.ops.cutlass_aot.mm(a, b, aot.register(fake))
    torch.testing.assert_close(operator, result, rtol=0, atol=0)


def test_bmm_and_a_broadcast_batch(fake):
    a, b = random(3, 5, 4), random(1, 6, 4).mT.expand(3, -1, -1)
    torch.testing.assert_close(aot.bmm(a, b, bundle=fake), a @ b)


@pytest.mark.parametrize("shape", [(4,), (5, 4), (2, 3, 4), (2, 1, 3, 4)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(fake, shape, with_bias):
    x, weight = random(*shape), random(6, 4)
    bias = random(6) if with_bias else None
    expected = torch.nn.functional.linear(x, weight, bias)
    result = aot.linear(x, weight, bias, bundle=fake)
    torch.testing.assert_close(result, expected)
    assert result.is_contiguous()
    out = torch.empty_like(expected)
    assert aot.linear(x, weight, bias, bundle=fake, out=out) is out
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x.t().contiguous().t(),
        lambda x: x[:, ::2],
        lambda x: x[:, 1:5],
        lambda x: x[:, :4].as_strided((6, 4), (0, 1)),
    ],
    ids=["column-major", "strided", "misaligned", "broadcast"],
)
def test_linear_copies_activations_that_no_kernel_takes(fake, view):
    x, weight = view(random(6, 8, dtype=torch.float32)), None
    weight = random(6, x.shape[1], dtype=torch.float32)
    torch.testing.assert_close(aot.linear(x, weight, bundle=fake), x @ weight.t())
    assert fake.launched[-1][1].data_ptr() == weight.data_ptr()


def test_element_types(fake):
    a, b = random(4, 8, dtype=torch.bfloat16), random(6, 8, dtype=torch.bfloat16).t()
    assert aot.mm(a, b, bundle=fake).dtype == torch.bfloat16
    wide = aot.mm(a, b, bundle=fake, out_dtype=torch.float32, accumulator="f32")
    torch.testing.assert_close(wide, a.float() @ b.float())
    integers = torch.ones(4, 8, dtype=torch.int8)
    assert aot.mm(integers, integers.t(), bundle=fake).tolist() == [[8] * 4] * 4
    assert aot.mm(integers, integers.t(), bundle=fake).dtype == torch.int32


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(0, 6, 4), (5, 0, 4), (5, 6, 0), (0, 0, 0)])
def test_empty_products_launch_nothing(fake, m, n, k, requires_grad):
    a, b = random(m, k, requires_grad=requires_grad), random(k, n, requires_grad=requires_grad)
    x, weight, bias = random(2, m, k), random(n, k), random(n)
    for ours, theirs in (
        (aot.mm(a, b, bundle=fake), torch.mm(a, b)),
        (aot.bmm(a.expand(2, -1, -1), b.expand(2, -1, -1), bundle=fake), torch.mm(a, b).expand(2, -1, -1)),
        (aot.bmm(random(0, m, k), random(0, k, n), bundle=fake), torch.empty(0, m, n, dtype=F64)),
        (aot.linear(x, weight, bias, bundle=fake), torch.nn.functional.linear(x, weight, bias)),
    ):
        torch.testing.assert_close(ours, theirs)
    out = torch.full((m, n), torch.nan, dtype=F64)
    aot.mm(a.detach(), b.detach(), bundle=fake, out=out)
    torch.testing.assert_close(out, torch.zeros(m, n, dtype=F64))
    if requires_grad:
        aot.mm(a, b, bundle=fake).sum().backward()
        assert a.grad.shape == a.shape
        assert b.grad.shape == b.shape
    assert all(operand.numel() for launch in fake.launched for operand in launch)


def test_scaled_mm(fake):
    a = random(4, 8, dtype=torch.float8_e4m3fn)
    b = random(6, 8, dtype=torch.float8_e4m3fn).t()
    product = a.float() @ b.float()
    one = torch.tensor(0.5)
    rows, columns = random(4, 1, dtype=torch.float32), random(1, 6, dtype=torch.float32)
    for left, right in ((one, one), (rows, columns), (one.reshape(1, 1), columns), (rows, one)):
        for dtype in (torch.float32, torch.bfloat16):
            ours = aot.scaled_mm(a, b, left, right, bundle=fake, out_dtype=dtype)
            torch.testing.assert_close(ours, ((product * left) * right).to(dtype), rtol=0, atol=0)
    with pytest.raises(OperandError, match="pass out_dtype"):
        aot.mm(a, b, bundle=fake)


def test_scaled_mm_with_fast_sums_has_to_permit_them():
    fast = CpuBundle(kernels(("f8e4m3", "f8e4m3", "bf16"), ("tnt",), accumulation="fast"))
    a = random(4, 8, dtype=torch.float8_e4m3fn)
    b = random(6, 8, dtype=torch.float8_e4m3fn).t()
    one = torch.tensor(1.0)
    with pytest.raises(KernelNotFound, match="permit them by accumulation='fast'"):
        aot.scaled_mm(a, b, one, one, bundle=fast, out_dtype=torch.float32)
    ours = aot.scaled_mm(a, b, one, one, bundle=fast, out_dtype=torch.float32, accumulation="fast")
    torch.testing.assert_close(ours, (a.float() @ b.float()).bfloat16().float(), rtol=0, atol=0)


def test_scaled_mm_where_the_product_is_bf16(fake):
    a = random(4, 8, dtype=torch.float8_e5m2)
    b = random(6, 8, dtype=torch.float8_e5m2).t()
    scale = torch.tensor([3.0])
    ours = aot.scaled_mm(a, b, scale, scale, bundle=fake, out_dtype=torch.float32)
    rounded = (a.float() @ b.float()).bfloat16().float()
    torch.testing.assert_close(ours, rounded * 3 * 3, rtol=0, atol=0)


# -- out ----------------------------------------------------------------------------------------------------


def test_out_is_written_and_returned(fake):
    a, b = random(5, 4), random(6, 4).t()
    wide = torch.zeros(5, 12, dtype=F64)
    view = wide[:, :6]
    assert aot.mm(a, b, bundle=fake, out=view) is view
    torch.testing.assert_close(view, a @ b)
    assert not wide[:, 6:].any()
    batched = torch.empty(3, 5, 6, dtype=F64)
    aot.bmm(a.expand(3, -1, -1), b.expand(3, -1, -1), bundle=fake, out=batched)
    torch.testing.assert_close(batched, (a @ b).expand(3, -1, -1))


def test_autograd_sees_that_out_was_written(fake):
    a, b = random(5, 4), random(6, 4).t()
    for write in (
        lambda out: aot.mm(a, b, bundle=fake, out=out),
        lambda out: torch.ops.cutlass_aot.mm.out(a, b, aot.register(fake), out=out),
        lambda out: aot.linear(a, b.t(), bundle=fake, out=out),
    ):
        x, buffer = random(5, 6, requires_grad=True), torch.ones(5, 6, dtype=F64)
        product = (x * buffer).sum()
        write(buffer)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


@pytest.mark.parametrize("which", ["a", "out"])
def test_out_refuses_gradients(fake, which):
    a, b = random(5, 4, requires_grad=which == "a"), random(6, 4).t()
    out = torch.zeros(5, 6, dtype=F64, requires_grad=which == "out")
    with pytest.raises(OperandError, match="gives no gradients"):
        aot.mm(a, b, bundle=fake, out=out)
    with torch.no_grad():
        aot.mm(a, b, bundle=fake, out=out)
    torch.testing.assert_close(out.detach(), (a @ b).detach())


# -- gradients ----------------------------------------------------------------------------------------------

LAYOUTS = {
    "tnt": lambda rows, columns: random(columns, rows).t(),
    "ttt": lambda rows, columns: random(rows, columns),
}


@pytest.mark.parametrize("m", [4, 5])
@pytest.mark.parametrize(
    ("built", "layout"),
    [
        (("tnt",), "tnt"),
        (("ttt",), "ttt"),
        (("tnt", "ttt"), "tnt"),
        (("tnt", "ttt"), "ttt"),
        (("ntt", "nnt", "tnt", "ttt"), "tnt"),
        (("ntt", "nnt", "tnt", "ttt"), "ttt"),
    ],
)
def test_gradients(built, layout, m):
    """With every set of layouts the bundle could have: it copies, and fills up with zeros, where it must."""
    fake = CpuBundle(kernels(("f64", "f64", "f64"), built, accumulator="f64"))
    a = random(m, 4).requires_grad_()
    b = LAYOUTS[layout](4, 6).detach().requires_grad_()

    def function(a, b):
        return aot.mm(a, b, bundle=fake)

    assert gradcheck(function, (a, b))
    assert gradgradcheck(function, (a, b))
    grad_a, grad_b = torch.autograd.grad(function(a, b).sum(), (a, b))
    assert grad_a.stride() == a.stride()
    assert grad_b.stride() == b.stride()


def test_gradients_of_bmm(fake):
    a = random(3, 5, 4, requires_grad=True)
    b = random(3, 6, 4).mT.requires_grad_()
    assert gradcheck(lambda a, b: aot.bmm(a, b, bundle=fake), (a, b))
    assert gradgradcheck(lambda a, b: aot.bmm(a, b, bundle=fake), (a, b))


@pytest.mark.parametrize("shape", [(4,), (5, 4), (2, 3, 4)])
def test_gradients_of_linear(fake, shape):
    x, weight, bias = (random(*s, requires_grad=True) for s in (shape, (6, 4), (6,)))
    assert gradcheck(lambda *operands: aot.linear(*operands, bundle=fake), (x, weight, bias))
    assert gradgradcheck(lambda *operands: aot.linear(*operands, bundle=fake), (x, weight, bias))


@pytest.mark.parametrize("position", [0, 1, 2])
def test_a_gradient_of_one_operand_alone(fake, position):
    operands = [random(5, 4), random(6, 4), random(6)]
    operands[position].requires_grad_()
    (ours,) = torch.autograd.grad(aot.linear(*operands, bundle=fake).square().sum(), operands[position])
    (theirs,) = torch.autograd.grad(torch.nn.functional.linear(*operands).square().sum(), operands[position])
    torch.testing.assert_close(ours, theirs)


def test_gradients_of_a_wider_output_come_in_the_operands_type(fake):
    a = random(8, 8, dtype=torch.bfloat16).requires_grad_()
    b = random(6, 8, dtype=torch.bfloat16).t().requires_grad_()
    aot.mm(a, b, bundle=fake, out_dtype=torch.float32).sum().backward()
    assert a.grad.dtype == b.grad.dtype == torch.bfloat16
    torch.testing.assert_close(a.grad, b.detach().float().sum(1).bfloat16().expand(8, -1))


def test_a_gradient_may_be_computed_in_f32_and_rounded():
    fake = CpuBundle(kernels(("bf16", "bf16", "f32")))
    a = random(8, 8, dtype=torch.bfloat16).requires_grad_()
    b = random(6, 8, dtype=torch.bfloat16).t()
    aot.mm(a, b, bundle=fake, out_dtype=torch.float32).sum().backward()
    torch.testing.assert_close(a.grad, b.float().sum(1).bfloat16().expand(8, -1))


def test_a_gradient_without_a_kernel_is_an_error_that_names_it():
    fake = CpuBundle(kernels(("bf16", "f32", "f32"), ("ttt",)))
    a = random(8, 8, dtype=torch.bfloat16).requires_grad_()
    result = aot.mm(a, random(8, 6, dtype=torch.float32), bundle=fake, out_dtype=torch.float32)
    with pytest.raises(KernelNotFound, match=r"no kernel for the gradient of a, \(8, 6\) x \(6, 8\)"):
        result.sum().backward()


def test_no_gradient_of_fp8(fake):
    a = random(4, 8, dtype=torch.float8_e4m3fn).requires_grad_()
    b = random(6, 8, dtype=torch.float8_e4m3fn).t()
    with pytest.raises(OperandError, match=r"no gradient with a of torch\.float8_e4m3fn"):
        aot.mm(a, b, bundle=fake, out_dtype=torch.float32)
    one = torch.tensor(1.0)
    with pytest.raises(OperandError, match="scaled_mm gives no gradients"):
        aot.scaled_mm(a, b, one, one, bundle=fake, out_dtype=torch.float32)
    with torch.no_grad():
        aot.scaled_mm(a, b, one, one, bundle=fake, out_dtype=torch.float32)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_other_kinds_of_gradients_are_refused(fake):
    a, b = random(5, 4), random(6, 4).t()
    with forward_ad.dual_level(), pytest.raises(OperandError, match="no forward-mode gradients"):
        aot.mm(forward_ad.make_dual(a, a), b, bundle=fake)
    with pytest.raises(OperandError, match="no forward-mode gradients"):
        torch.func.jvp(lambda a: aot.mm(a, b, bundle=fake), (a,), (a,))
    with pytest.raises(OperandError, match=r"torch\.func has no gradients"):
        torch.func.grad(lambda a: aot.mm(a, b, bundle=fake).sum())(a)


def test_vmap_is_a_loop_with_right_gradients(fake):
    a, b = random(3, 5, 4), random(6, 4).t().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = torch.func.vmap(lambda a: aot.mm(a, b, bundle=fake))(a)
    torch.testing.assert_close(result, a @ b)
    (ours,) = torch.autograd.grad(result.square().sum(), b)
    (theirs,) = torch.autograd.grad((a @ b).square().sum(), b)
    torch.testing.assert_close(ours, theirs)


def test_under_no_grad_a_parameter_is_no_obstacle(fake):
    weight = torch.nn.Parameter(random(6, 4))
    with torch.no_grad():
        assert not aot.linear(random(5, 4), weight, bundle=fake).requires_grad
    with torch.inference_mode():
        out = torch.empty(5, 6, dtype=F64)
        aot.linear(random(5, 4), weight, bundle=fake, out=out)
    torch.testing.assert_close(out.clone(), random(5, 4) @ weight.detach().t())


# -- errors -------------------------------------------------------------------------------------------------

META = {"device": "meta", "dtype": F64}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f, b: aot.mm(f(5), f(4, 6), bundle=b), r"expected shapes \(m, k\) and \(k, n\)"),
        (lambda f, b: aot.mm(f(5, 4), f(6, 4), bundle=b), "expected the k of a and b to agree, got 4 and 6"),
        (lambda f, b: aot.bmm(f(5, 4), f(4, 6), bundle=b), r"expected shapes \(batch, m, k\)"),
        (lambda f, b: aot.bmm(f(2, 5, 4), f(3, 4, 6), bundle=b), "expected the batch of a and b to agree"),
        (lambda f, b: aot.linear(f(5, 4), f(4, 6), bundle=b), r"weight of shape \(n, k\)"),
        (lambda f, b: aot.linear(f(5, 4), f(6, 4), f(4), bundle=b), r"expected bias of shape \(6,\)"),
        (lambda f, b: aot.linear(f(5, 4), f(6, 4), f(6).float(), bundle=b), "bias of the output's element"),
        (lambda f, b: aot.mm(f(5, 4), f(4, 6), bundle=b, out=f(6, 5)), r"expected out of shape \(5, 6\)"),
        (lambda f, b: aot.linear(f(5, 4), f(6, 4), bundle=b, out=f(6, 5)), r"expected out of shape \(5, 6\)"),
        (
            lambda f, b: aot.mm(f(5, 4), f(4, 6), bundle=b, out=f(5, 6), out_dtype=torch.float32),
            "expected out of out_dtype",
        ),
        (
            lambda f, b: aot.scaled_mm(f(5, 4), f(4, 6), f(1), f(1).float(), bundle=b, out_dtype=F32),
            "expected scale_a of torch.float32",
        ),
        (
            lambda f, b: aot.scaled_mm(f(5, 4), f(4, 6), f(5).float(), f(1).float(), bundle=b, out_dtype=F32),
            r"expected scale_a of one element or of shape \(5, 1\)",
        ),
        (
            lambda f, b: aot.scaled_mm(f(5, 4), f(4, 6), f(1).float(), f(1).float(), bundle=b, out_dtype=F64),
            "expected out_dtype to be one of torch.float32, torch.float16",
        ),
    ],
)
def test_wrong_operands_are_refused_alike_by_the_kernel_and_its_fake(fake, call, message):
    with pytest.raises(OperandError, match=message):
        call(lambda *shape: random(*shape), fake)
    with pytest.raises(OperandError, match=message):
        call(lambda *shape: torch.empty(shape, **META), fake)
    assert not fake.launched


def test_operands_on_several_devices(fake):
    elsewhere = torch.empty(4, 6, **META)
    for here in (random(5, 4), torch.empty(5, 4, device="cpu", dtype=F64)):
        with pytest.raises(OperandError, match="expected b on cpu as a is, got meta"):
            aot.mm(here, elsewhere, bundle=fake)


def test_what_the_bundle_has_not_is_said_in_its_words(fake):
    with pytest.raises(KernelNotFound, match="expected row-major"):
        aot.mm(random(4, 6).t(), random(4, 6), bundle=fake)
    with pytest.raises(KernelNotFound, match="bundle fake has no kernel for gemm on f16"):
        aot.mm(random(4, 4, dtype=torch.float16), random(4, 4, dtype=torch.float16), bundle=fake)
    with pytest.raises(KernelNotFound, match="expected accumulator f64"):
        aot.mm(random(4, 4), random(4, 4), bundle=fake, accumulator="f32")
    strided = random(8, 16, dtype=torch.float16)[:, ::2]
    with pytest.raises(KernelNotFound, match="in any layout that a copy of x could have"):
        aot.linear(strided, random(4, 8, dtype=torch.float16), bundle=fake)


@pytest.mark.parametrize("contiguous", [True, False])
def test_a_miss_is_the_policys_however_the_operands_lie(fake, contiguous, monkeypatch):
    monkeypatch.setattr(policy, "_process", policy._Process())
    monkeypatch.delenv(policy.ENVIRONMENT_VARIABLE, raising=False)
    weight = random(4, 8, dtype=torch.float16)
    x = random(6, 16, dtype=torch.float16)[:, ::2]
    x = (x.contiguous() if contiguous else x).requires_grad_()
    with pytest.raises(KernelNotFound):
        aot.linear(x, weight, bundle=fake)
    assert policy.misses().total == 1
    policy.set("warn")
    with pytest.warns(policy.MissWarning, match="computed by torch instead"):
        result = aot.linear(x, weight, bundle=fake)
    torch.testing.assert_close(result, torch.nn.functional.linear(x, weight))
    # The gradient's product is a miss in every layout too.
    with pytest.warns(policy.MissWarning, match="computed by torch instead"):
        (grad,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(grad, weight.sum(0).expand(6, -1))
    assert policy.misses().total == 3
    assert not fake.launched


def test_out_that_cannot_be_viewed_as_rows(fake):
    out = torch.empty(3, 2, 6, dtype=F64).transpose(0, 1)
    with pytest.raises(OperandError, match="can be viewed as one"):
        aot.linear(random(2, 3, 4), random(6, 4), bundle=fake, out=out)


# -- handles ------------------------------------------------------------------------------------------------


def test_equal_bundles_share_a_handle_and_others_do_not():
    first, second, other = bundle(), bundle(), bundle(name="other")
    assert aot.register(first) == aot.register(second)
    assert aot.register(first) != aot.register(other)
    assert aot.register(first).startswith("fake-1.0.0-")


def test_a_bundle_without_its_rankings_has_a_handle_of_its_own():
    ranked, unranked = bundle(name="rank"), bundle(name="rank", uses_rankings=False)
    assert aot.register(unranked) == f"{aot.register(ranked)}-unranked"
    for one in (ranked, unranked):
        aot.mm(random(5, 4), random(4, 6), bundle=aot.register(one))
        assert len(one.launched) == 1
    aot.register(ranked, "rank's kernels")
    with pytest.raises(OperandError, match=r"stands for the bundle rank-.*, not for rank-.*-unranked"):
        aot.register(unranked, "rank's kernels")


def test_a_handle_of_ones_own():
    first, other = bundle(name="mine"), bundle(name="other")
    assert aot.register(first, "model's kernels") == "model's kernels"
    assert aot.register(first, "model's kernels") == "model's kernels"
    with pytest.raises(OperandError, match="already stands for the bundle mine"):
        aot.register(other, "model's kernels")
    result = aot.mm(random(5, 4), random(4, 6), bundle="model's kernels")
    torch.testing.assert_close(result, random(5, 4) @ random(4, 6))
    assert len(first.launched) == 1


def test_a_forked_child_is_not_stopped_by_a_lock_of_its_parent():
    code = (
        "import os, threading\n"
        "import cutlass_aot.torch as aot\n"
        "from cutlass_aot.torch import registry\n"
        "from tests.support.torch_bundles import bundle\n"
        "held = threading.Event()\n"
        "def hold():\n"
        "    with registry._lock:\n"
        "        held.set()\n"
        "        threading.Event().wait()\n"
        "threading.Thread(target=hold, daemon=True).start()\n"
        "held.wait()\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    aot.register(bundle())\n"
        "    aot.register(bundle(), 'by name')\n"
        "    os._exit(len(registry._bundles) - 2)\n"
        "os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


def test_what_is_no_bundle():
    with pytest.raises(BundleError, match="no bundle is registered as 'build/bundles/sm90'"):
        aot.mm(random(5, 4), random(4, 6), bundle="build/bundles/sm90")
    with pytest.raises(OperandError, match="expected an open bundle"):
        aot.register(Exception())


# -- the fast path ------------------------------------------------------------------------------------------


def test_a_plain_call_skips_the_dispatcher_and_no_other_does():
    a = random(4, 4)
    assert eager.is_plain(a, None, torch.nn.Parameter(a, requires_grad=False))
    assert not eager.is_plain(a, random(4, 4, requires_grad=True))
    assert not eager.is_plain(torch.empty(4, 4, device="meta").as_subclass(type("T", (torch.Tensor,), {})))
    assert not eager.is_plain(torch._neg_view(a))
    with torch.no_grad():
        assert eager.is_plain(random(4, 4, requires_grad=True))
    with torch.device("cpu"):
        assert not eager.is_plain(a)
    with forward_ad.dual_level():
        assert not eager.is_plain(a)
    with torch.autograd.profiler.profile():
        assert not eager.is_plain(a)
    with torch._subclasses.FakeTensorMode():
        assert not eager.is_plain(a)
    seen = []
    torch.func.vmap(lambda a: (seen.append(eager.is_plain(a)), a)[1])(a)
    assert seen == [False]


def test_tracers_see_the_operator(fake):
    a, b = random(4, 4), random(4, 4)
    graph = torch.fx.experimental.proxy_tensor.make_fx(lambda a, b: aot.mm(a, b, bundle=fake))(a, b)
    assert torch.ops.cutlass_aot.mm.default in {node.target for node in graph.graph.nodes}
    with torch.autograd.profiler.profile() as profile:
        aot.mm(a, b, bundle=fake)
    assert "cutlass_aot::mm" in {event.name for event in profile.function_events}


def test_a_negated_view_is_not_taken_as_it_lies(fake):
    a, b = random(4, 4), random(4, 4)
    torch.testing.assert_close(aot.mm(torch._neg_view(a), b, bundle=fake), -a @ b)


def test_threads(fake):
    failures = []

    def work(seed):
        a = torch.randn(seed, 4, dtype=F64, requires_grad=True)
        b = torch.randn(4, 2 * seed, dtype=F64, requires_grad=True)
        for _ in range(20):
            result = aot.mm(a, b, bundle=fake)
            (grad,) = torch.autograd.grad(result.sum(), a)
            if not torch.allclose(result, a @ b) or not torch.allclose(grad, b.sum(1).expand(seed, -1)):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_bundles_that_are_only_looked_at_are_not_kept():
    before = len(registry._bundles)
    aot.mm(random(4, 4), random(4, 4), bundle=bundle(name="passing"))
    assert len(registry._bundles) == before


class Counting(CpuBundle):
    requested = 0

    def choose(self, *operands, **options):
        self.requested += 1
        return super().choose(*operands, **options)


def test_what_is_remembered_of_a_bundle_does_not_keep_it():
    both = [
        *kernels(("f8e4m3", "f8e4m3", "f32"), ("tnt",)),
        *kernels(("f64", "f64", "f64"), accumulator="f64"),
    ]
    passing = Counting(both)
    a = random(4, 8, dtype=torch.float8_e4m3fn)
    one = torch.tensor(1.0)
    for _ in range(2):
        aot.scaled_mm(a, a.t(), one, one, bundle=passing, out_dtype=torch.bfloat16)
    # Each launch asks; whether there is a kernel into f32 was asked once.
    assert passing.requested == 3
    aot.linear(random(4, 8)[:, ::2], random(6, 4), bundle=passing)
    gone = weakref.ref(passing)
    del passing
    gc.collect()
    assert gone() is None


IMPORTS = """
import sys
import cutlass_aot
assert "torch" not in sys.modules
import cutlass_aot.torch
ours = {name.split(".")[1] for name in sys.modules if name.startswith("cutlass_aot.")}
assert ours == {"errors", "runtime", "schema", "torch"}, ours
foreign = {"cutlass", "tvm_ffi", "torch._dynamo", "torch._inductor"} & set(sys.modules)
assert not foreign, foreign
"""


def test_importing_it_imports_neither_the_build_side_nor_a_compiler():
    result = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr

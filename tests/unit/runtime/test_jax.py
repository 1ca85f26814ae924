"""GEMMs inside jax.jit: what is lowered for a GPU, and real calls with functions that run on the CPU."""

from __future__ import annotations

import subprocess
import sys

import numpy
import pytest

import cutlass_aot
from cutlass_aot.errors import DeviceError, KernelNotFound, OperandError
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from tests.support.bundles import write_bundle
from tests.support.kernels import gemm as record

jax = pytest.importorskip("jax")
pytest.importorskip("jax_tvm_ffi")
tvm_ffi = pytest.importorskip("tvm_ffi")
jnp = jax.numpy

import cutlass_aot.jax as adapter  # noqa: E402


@pytest.fixture
def bundle(tmp_path):
    f32 = {"dtypes": ("f32",) * 3}
    kernels = [
        record(layouts="ttt", **f32), record(layouts="tnt", **f32),
        record(dtypes=("bf16",) * 3), record(dtypes=("bf16", "bf16", "f32")),
    ]  # fmt: skip
    return cutlass_aot.open(write_bundle(tmp_path / "bundle", kernels))


def lowered(function, *arguments):
    """The program for a GPU, without one."""
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


def test_a_kernel_is_lowered_to_a_call_of_its_symbol(bundle):
    a, w = jnp.ones((64, 128), jnp.bfloat16), jnp.ones((32, 128), jnp.bfloat16)

    def layer(a, w):
        hidden = adapter.gemm(a, w, bundle=bundle, b_transposed=True, target="sm_90a")
        return hidden + adapter.gemm(
            a, w, bundle=bundle, b_transposed=True, target="sm_90a", out_dtype=jnp.float32
        )

    text = lowered(layer, a, w)
    for dtype, type_ in (("bf16", "bf16"), ("f32", "f32")):
        (kernel,) = bundle.kernels(dtypes=f"bf16.bf16.{dtype}")
        name = f"@{kernel.kernel.symbol}_{kernel.entry.object_sha256[:16]}_b_transposed("
        (call,) = [line for line in text.splitlines() if name in line]
        assert f"(tensor<64x128xbf16>, tensor<32x128xbf16>) -> tensor<64x32x{type_}>" in call
    assert "transpose" not in text.replace("_b_transposed", "")


def test_shapes_and_types_follow_from_the_operands(bundle):
    def shape(*shapes, **how):
        operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        out = jax.eval_shape(lambda *ab: adapter.gemm(*ab, bundle=bundle, target="sm_90a", **how), *operands)
        return out.shape, str(out.dtype)

    assert shape((64, 128), (128, 32)) == ((64, 32), "float32")
    assert shape((5, 64, 128), (5, 128, 32)) == ((5, 64, 32), "float32")
    assert shape((64, 128), (32, 128), b_transposed=True) == ((64, 32), "float32")
    assert shape((5, 64, 128), (5, 32, 128), b_transposed=True) == ((5, 64, 32), "float32")


@pytest.mark.parametrize(
    ("shapes", "how", "error", "message"),
    [
        (((64, 128), (64, 32)), {}, KernelNotFound, "expected extent K = 128 as `a` has, got 64"),
        (((64, 126), (126, 32)), {}, KernelNotFound, "expected extent K divisible by 8, got 126"),
        (((64, 128), (5, 128, 32)), {}, OperandError, r"both with a batch first or both without, got \(64, "),
        (((128,), (128,)), {}, OperandError, "expected matrices"),
        (
            ((64, 128), (128, 32)),
            {"out_dtype": "complex64"},
            OperandError,
            "operand `out`: element type complex64",
        ),
        (((64, 128), (128, 32)), {"out_dtype": "float16"}, KernelNotFound, "no kernel for gemm on f32"),
        (((64, 128), (128, 32)), {"accumulator": "f64"}, KernelNotFound, "expected accumulator f32, got f64"),
        (((64, 128), (128, 32)), {"target": "sm_100a"}, KernelNotFound, "nothing for target sm_100a"),
    ],
)
def test_what_the_bundle_cannot_serve_is_refused_while_jax_traces(bundle, shapes, how, error, message):
    operands = [jnp.zeros(shape) for shape in shapes]
    with pytest.raises(error, match=message):
        jax.jit(lambda a, b: adapter.gemm(a, b, bundle=bundle, **{"target": "sm_90a", **how}))(*operands)


def test_without_a_gpu_a_target_has_to_be_named(bundle, monkeypatch):
    from cutlass_aot.runtime.machine import cuda_driver

    def absent(_):
        raise DeviceError("there is no NVIDIA driver on this machine")

    monkeypatch.setattr(cuda_driver, "compute_capability", absent)
    with pytest.raises(DeviceError, match="no NVIDIA driver on this machine; to trace for a GPU that is not"):
        adapter.gemm(jnp.zeros((64, 128)), jnp.zeros((128, 32)), bundle=bundle)


# -- real calls -------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """Kernels that compute on the CPU, and what they were called with."""
    calls = []

    def native_function(self, device):
        def compute(a, b, out):
            calls.append([(tuple(tensor.shape), tuple(tensor.strides)) for tensor in (a, b, out)])
            a, b, out = (numpy.from_dlpack(tensor) for tensor in (a, b, out))
            numpy.matmul(a, b, out=out)

        return tvm_ffi.convert(compute)

    monkeypatch.setattr(KernelHandle, "native_function", native_function)
    monkeypatch.setattr(adapter, "_PLATFORM", "cpu")
    return calls


def random(*shape):
    return jax.random.normal(jax.random.key(sum(shape)), shape, jnp.float32)


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("b_transposed", [False, True])
def test_a_call_has_the_kernels_operands_over_the_buffers_of_xla(bundle, calls, batch, b_transposed):
    a = random(*batch, 16, 64)
    b = random(*batch, 24, 64) if b_transposed else random(*batch, 64, 24)
    target = {"target": "sm_90a", "b_transposed": b_transposed}
    result = jax.jit(lambda a, b: adapter.gemm(a, b, bundle=bundle, **target) * 2.0)(a, b)
    expected = 2.0 * a @ (b.mT if b_transposed else b)
    numpy.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
    ((_, (shape, strides), _),) = calls
    assert shape == (*batch, 64, 24)
    assert strides[-2:] == ((1, 64) if b_transposed else (24, 1))


def test_several_calls_in_one_program_and_none_without_jit_are_lost(bundle, calls):
    a, w = random(16, 64), random(64, 64)

    @jax.jit
    def network(a, w):
        for _ in range(3):
            a = adapter.gemm(a, w, bundle=bundle, b_transposed=True, target="sm_90a")
        return a

    numpy.testing.assert_allclose(network(a, w), a @ w.T @ w.T @ w.T, rtol=1e-3, atol=1e-2)
    network(a, w).block_until_ready()
    assert len(calls) == 6
    direct = adapter.gemm(a, w, bundle=bundle, b_transposed=True, target="sm_90a")
    numpy.testing.assert_allclose(direct, a @ w.T, rtol=1e-4, atol=1e-4)


def test_what_a_kernel_refuses_reaches_the_caller(bundle, calls, monkeypatch):
    def native_function(self, device):
        raise DeviceError("the GPU driver answered CUDA_ERROR_INVALID_DEVICE")

    monkeypatch.setattr(KernelHandle, "native_function", native_function)
    with pytest.raises(Exception, match="is on cpu: kernels run on CUDA devices"):
        jax.jit(lambda a, b: adapter.gemm(a, b, bundle=bundle, target="sm_90a"))(
            random(16, 64), random(64, 24)
        ).block_until_ready()


def test_a_gradient_is_refused_and_not_wrong(bundle, calls):
    def loss(a, b):
        return adapter.gemm(a, b, bundle=bundle, target="sm_90a").sum()

    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(loss)(random(16, 64), random(64, 24))


@pytest.mark.parametrize("b_transposed", [False, True])
@pytest.mark.parametrize(("m", "n", "k"), [(0, 24, 64), (16, 0, 64), (16, 24, 0)])
def test_products_without_elements_and_empty_sums_need_no_kernel(bundle, m, n, k, b_transposed):
    b = jnp.zeros((n, k) if b_transposed else (k, n))
    found = adapter.gemm(
        jnp.zeros((m, k)), b, bundle=bundle, target="sm_90a", b_transposed=b_transposed, out_dtype="bfloat16"
    )
    assert found.dtype == jnp.bfloat16
    assert (found == jnp.zeros((m, n))).all()
    with pytest.raises(KernelNotFound):
        adapter.gemm(jnp.zeros((m, k + 1)), b, bundle=bundle, target="sm_90a", b_transposed=b_transposed)


def test_where_jax_is_not_installed_the_import_says_how_to():
    code = (
        "import sys\nfor name in ('jax', 'jax_tvm_ffi'): sys.modules[name] = None\n"
        "import cutlass_aot\n"
        "try: import cutlass_aot.jax\nexcept ImportError as error: print(error)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.endswith(": pip install 'jax>=0.9.1'\n")

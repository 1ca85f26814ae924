"""On a GPU with jax[cuda13] and jax-tvm-ffi: kernels of a bundle inside jax.jit.

cutlass-aot build manifests/sm90.toml && python -m pytest -m gpu tests/gpu/test_jax.py
"""

from __future__ import annotations

import numpy
import pytest

jax = pytest.importorskip("jax")
pytest.importorskip("jax_tvm_ffi")
jnp = jax.numpy

from cutlass_aot.jax import gemm  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def jax_has_a_gpu():
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU support")


def random(*shape):
    return jax.random.normal(jax.random.key(sum(shape)), shape, jnp.bfloat16)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_linear_layer_inside_jit(bundle, batch):
    x, w = random(*batch, 384, 256), random(*batch, 512, 256)

    @jax.jit
    def layer(x, w):
        # Work of XLA's own before and after, on the same stream.
        return gemm(x * 2, w, bundle=bundle, b_transposed=True) + 1

    found = numpy.asarray(layer(x, w), numpy.float64)
    expected = 2 * numpy.asarray(x, numpy.float64) @ numpy.asarray(w, numpy.float64).swapaxes(-1, -2) + 1
    assert numpy.linalg.norm(found - expected) / numpy.linalg.norm(expected) < 2.0**-7


def test_many_layers_in_one_program(bundle):
    x, w = random(256, 256), random(256, 256) / 16

    @jax.jit
    def network(x, w):
        for _ in range(8):
            x = gemm(x, w, bundle=bundle, b_transposed=True)
        return x

    found = numpy.asarray(network(x, w), numpy.float64)
    for _ in range(3):
        assert numpy.array_equal(numpy.asarray(network(x, w), numpy.float64), found)
    expected = numpy.asarray(x, numpy.float64)
    for _ in range(8):
        expected = expected @ numpy.asarray(w, numpy.float64).T
    assert numpy.linalg.norm(found - expected) / numpy.linalg.norm(expected) < 2.0**-4

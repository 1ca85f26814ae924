"""On a GPU with CuPy: its arrays as operands, on its current stream.

cutlass-aot build manifests/sm90.toml && python -m pytest -m gpu tests/gpu/test_cupy.py
"""

from __future__ import annotations

import pytest

cupy = pytest.importorskip("cupy")

pytestmark = pytest.mark.gpu


def operands():
    cupy.random.seed(0)
    a = cupy.random.standard_normal((96, 256), dtype=cupy.float32).astype(cupy.float16)
    weight = cupy.random.standard_normal((128, 256), dtype=cupy.float32).astype(cupy.float16)
    return a, weight.T, cupy.full((96, 128), cupy.nan, dtype=cupy.float16)


def check(a, b, out):
    exact = a.astype(cupy.float64) @ b.astype(cupy.float64)
    error = cupy.linalg.norm(out.astype(cupy.float64) - exact) / cupy.linalg.norm(exact)
    assert float(error) < 2.0**-11


@pytest.mark.parametrize("non_blocking", [None, False, True])
def test_arrays_go_to_the_current_stream(bundle, non_blocking):
    a, b, out = operands()
    kernel = bundle.choose(a, b, out).kernel
    stream = cupy.cuda.Stream.null if non_blocking is None else cupy.cuda.Stream(non_blocking=non_blocking)
    cupy.cuda.Device().synchronize()
    with stream:
        for launch in (kernel.launch, bundle.gemm, bundle.gemm):
            # Before it on this stream, and so in time only if the launch goes to it.
            out.fill(cupy.nan)
            launch(a, b, out)
            result = out.copy()
        stream.synchronize()
        check(a, b, result)


def test_an_explicit_stream(bundle):
    a, b, out = operands()
    cupy.cuda.Device().synchronize()
    stream = cupy.cuda.Stream(non_blocking=True)
    bundle.gemm(a, b, out, stream=stream)
    stream.synchronize()
    check(a, b, out)

"""On a GPU: FP8 with exact sums and no factors of blocks, against torch in f64 and against cuBLAS.

cutlass-aot build manifests/sm90_scaled.toml; python -m pytest -m gpu
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.gpu.conftest import REPOSITORY, opened
from tests.gpu.test_sm90_scaled import BOUNDS, DENSE, error, fp8

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

EPILOGUE = "D = accum * scale_a * scale_b"
ROWS = (1, 7, 37, 333, 1500)
DEPTHS = (512, 2048, 8192, 32768, 65536)
COLUMNS = 2048
SLACK = 1.05
"""How many times cuBLAS's an error may be."""

FLAT = 1.1
"""How many times that of the shortest sums; it is of 2048 numbers alone where there is one row."""


@pytest.fixture(scope="module")
def bundle(capability):
    return opened("sm90-scaled", capability)


def scales(m: int, n: int) -> tuple[Any, Any]:
    return torch.rand(m, device="cuda") + 0.5, torch.rand(n, device="cuda") + 0.5


def cublas(x: Any, w: Any, scale_a: Any, scale_b: Any, dtype: Any) -> Any:
    return torch._scaled_mm(x, w.T, scale_a, scale_b, out_dtype=dtype, use_fast_accum=False)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_every_kernel_without_factors(bundle, dtype):
    kernels = bundle.kernels(accumulation="exact", dtypes=f"f8e4m3.f8e4m3.{dtype}", epilogue="")
    assert len(kernels) > 15
    for batch, m, n, k in DENSE:
        x, w = fp8(batch, m, k), fp8(batch, n, k)
        expected = x.double() @ w.double().transpose(1, 2)
        for kernel in kernels:
            outs = []
            for _ in range(2):
                out = torch.full((batch, m, n), torch.nan, device="cuda")
                out = out.bfloat16() if dtype == "bf16" else out
                kernel.launch(x, w.transpose(1, 2), out)
                outs.append(out)
            assert error(outs[0], expected) < BOUNDS[dtype], (kernel.name, batch, m, n, k)
            assert torch.equal(*outs), kernel.name


def test_every_kernel_with_a_factor_for_each_row_and_column(bundle):
    kernels = bundle.kernels(accumulation="exact", epilogue=EPILOGUE)
    assert len(kernels) > 15
    for batch, m, n, k in DENSE:
        x, w, (scale_a, scale_b) = fp8(batch, m, k), fp8(batch, n, k), scales(m, n)
        expected = x.double() @ w.double().transpose(1, 2) * scale_a[:, None] * scale_b
        for kernel in kernels:
            out = torch.full((batch, m, n), torch.nan, device="cuda").bfloat16()
            kernel.launch(x, w.transpose(1, 2), out, scale_a, scale_b)
            assert error(out, expected) < BOUNDS["bf16"], (kernel.name, batch, m, n, k)


@pytest.mark.parametrize("m", ROWS)
def test_the_error_is_that_of_cublas_and_does_not_grow_with_k(bundle, m):
    one = torch.ones((), device="cuda")
    found = []
    for k in DEPTHS:
        x, w = fp8(m, k), fp8(COLUMNS, k)
        expected = x.double() @ w.double().T
        out = torch.full((m, COLUMNS), torch.nan, device="cuda")
        bundle.gemm(x, w.T, out)
        found.append(error(out, expected))
        assert found[-1] < SLACK * error(cublas(x, w, one, one, torch.float32), expected), k
    assert max(found) < FLAT * found[0], found


@pytest.mark.parametrize("m", ROWS)
def test_with_a_factor_for_each_row_and_column_the_error_is_that_of_cublas(bundle, m):
    for k in DEPTHS:
        x, w, (scale_a, scale_b) = fp8(m, k), fp8(COLUMNS, k), scales(m, COLUMNS)
        expected = x.double() @ w.double().T * scale_a[:, None] * scale_b
        out = torch.full((m, COLUMNS), torch.nan, device="cuda").bfloat16()
        bundle.gemm(x, w.T, out, epilogue=EPILOGUE, scale_a=scale_a, scale_b=scale_b)
        theirs = cublas(x, w, scale_a[:, None], scale_b[None], torch.bfloat16)
        assert error(out, expected) < SLACK * error(theirs, expected), k


def test_the_page_runs(bundle, monkeypatch):
    page = (REPOSITORY / "docs" / "reference" / "sm90-gemm.md").read_text()
    (block,) = re.findall(r"^```python gpu exact\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(REPOSITORY)
    names: dict[str, Any] = {}
    exec(block, names)
    rows, columns = names["scales"]["scale_a"], names["scales"]["scale_b"]
    expected = names["x"].double() @ names["weight"].double().T * rows[:, None] * columns
    assert error(names["out"], expected) < BOUNDS["bf16"]


def test_fast_sums_are_served_by_exact_kernels_where_there_are_no_others(bundle):
    x, w = fp8(64, 512), fp8(256, 512)
    outs = [torch.empty(64, 256, device="cuda") for _ in range(2)]
    bundle.gemm(x, w.T, outs[0])
    bundle.gemm(x, w.T, outs[1], accumulation="fast")
    assert torch.equal(*outs)


def test_exact_and_fast_kernels_of_one_bundle(capability):
    bundle = opened("sm90", capability)
    x, w = fp8(333, 32768), fp8(COLUMNS, 32768)
    expected = x.double() @ w.double().T
    found = {}
    for accumulation in ("exact", "fast", "exact"):
        out = torch.empty(333, COLUMNS, device="cuda")
        bundle.gemm(x, w.T, out, accumulation=accumulation)
        found[accumulation] = error(out, expected)
    assert found["exact"] < found["fast"] / 2

"""On a GPU: FP8 with scale factors, and groups, against torch in f64.

cutlass-aot build manifests/sm90_scaled.toml; python -m pytest -m gpu
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.gpu.conftest import REPOSITORY, opened
from tools.bench.experts import wide

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

BOUNDS = {"bf16": 4e-3, "f16": 5e-4, "f32": 2e-4}
"""Largest relative error (Frobenius norm) by element type of the output.

Rounding to bf16 alone is 1.7e-3; sums of 128 products on tensor cores have errors of 1e-4."""

DENSE = (
    (1, 1, 16, 16), (1, 7, 576, 400), (2, 333, 2112, 528), (1, 64, 4096, 7168), (3, 130, 48, 4096),
    (1, 1000, 328, 2048), (1, 3000, 2320, 144), (1, 37, 7168, 16384),
)  # fmt: skip
"""Batch, m, n, k: single rows, tails along each extent, batches; at the end more tiles than fit at once."""

MANY = [500, 700, 613, 581, 650, 512, 499, 677]
"""Rows of groups with more tiles of 2312 columns than blocks run at once, also of the largest tile."""

SIZES = (MANY, [5], [100, 0, 37, 263], [0, 0, 512], [1] * 40, [0, 1000, 3, 0], [129, 128, 127, 64, 65, 256])
"""Rows of each group: empty ones first, last and between; more than 32 groups; one group with all."""


@pytest.fixture(scope="module")
def bundle(capability):
    return opened("sm90-scaled", capability)


def fp8(*shape: int) -> Any:
    return torch.rand(shape, device="cuda").sub_(0.5).to(torch.float8_e4m3fn)


def factors_of_rows(*shape: int) -> Any:
    """Factors (..., rows, blocks) of which those of a block lie together, with padding."""
    *outer, rows, blocks = shape
    memory = torch.rand(*outer, blocks, rows + 3, device="cuda") + 0.5
    return memory[..., :rows].transpose(-1, -2)


def operands(m: int, n: int, k: int, *, a: Sequence[int] = (), b: Sequence[int] = ()) -> tuple[Any, ...]:
    blocks = -(-k // 128)
    weight = fp8(*b, n, k)
    return (
        fp8(*a, m, k),
        weight,
        factors_of_rows(*a, m, blocks),
        torch.rand(*b, -(-n // 128), blocks, device="cuda") + 0.5,
    )


def error(found: Any, expected: Any) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_every_dense_kernel(bundle, dtype):
    kernels = bundle.kernels(operation="gemm", dtypes=f"f8e4m3.f8e4m3.{dtype}.f32.f32", epilogue="")
    assert len(kernels) > 15
    for batch, m, n, k in DENSE:
        x, w, x_factors, w_factors = operands(m, n, k, a=(batch,), b=(batch,))
        expected = wide(torch, x, x_factors).double() @ wide(torch, w, w_factors).double().transpose(1, 2)
        for kernel in kernels:
            outs = []
            for _ in range(2):
                out = torch.full((batch, m, n), torch.nan, device="cuda")
                out = out.bfloat16() if dtype == "bf16" else out
                kernel.launch(x, w.transpose(1, 2), out, x_factors, w_factors)
                outs.append(out)
            assert error(outs[0], expected) < BOUNDS[dtype], (kernel.name, batch, m, n, k)
            assert torch.equal(*outs), kernel.name


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", ["f8e4m3", "bf16", "f16"])
def test_every_kernel_of_groups_one_after_the_other(bundle, kind, sizes):
    n, k, behind = 2312 if sizes == MANY else 328, 592, 9
    total = sum(sizes)
    ends = torch.tensor(sizes).cumsum(0).int().cuda()
    x, w, *factors = operands(total + behind, n, k, b=(len(sizes),))
    values = wide(torch, x, factors[0]).double(), wide(torch, w, factors[1]).double()
    if kind != "f8e4m3":
        narrow = torch.bfloat16 if kind == "bf16" else torch.float16
        x, w, factors = x.to(narrow), w.to(narrow), []
        values = x.double(), w.double()
    parts = values[0][:total].split(sizes)
    expected = torch.cat([a @ b.T for a, b in zip(parts, values[1], strict=True)])
    kernels = bundle.kernels(operation="grouped_gemm", dtypes=f"{kind}.{kind}.*")
    assert len(kernels) > 5
    for kernel in kernels:
        out = torch.full((total + behind, n), torch.nan, device="cuda").to(
            torch.float16 if kind == "f16" else torch.bfloat16
        )
        kernel.launch(x, w.transpose(1, 2), out, *factors, ends)
        assert error(out[:total], expected) < BOUNDS["bf16" if kind == "f8e4m3" else kind], kernel.name
        assert out[total:].isnan().all(), kernel.name


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("kind", ["f8e4m3", "bf16", "f16"])
def test_every_kernel_of_groups_in_a_matrix_each(bundle, kind, sizes):
    n, k, most = 2312 if sizes == MANY else 200, 528, max(sizes) + 5
    counts = torch.tensor(sizes, device="cuda").int()
    x, w, *factors = operands(most, n, k, a=(len(sizes),), b=(len(sizes),))
    values = wide(torch, x, factors[0]).double(), wide(torch, w, factors[1]).double()
    if kind != "f8e4m3":
        narrow = torch.bfloat16 if kind == "bf16" else torch.float16
        x, w, factors = x.to(narrow), w.to(narrow), []
        values = x.double(), w.double()
    for kernel in bundle.kernels(operation="masked_grouped_gemm", dtypes=f"{kind}.{kind}.*"):
        out = torch.full((len(sizes), most, n), torch.nan, device="cuda")
        out = out.half() if kind == "f16" else out.bfloat16()
        kernel.launch(x, w.transpose(1, 2), out, *factors, counts)
        for found, a, b, size in zip(out, *values, sizes, strict=True):
            assert not size or error(found[:size], a[:size] @ b.T) < BOUNDS["bf16"], kernel.name
            assert found[size:].isnan().all(), kernel.name


def test_counts_that_are_no_counts_stay_within_the_operands(bundle):
    """What is in the GPU's memory is not checked; it must not lead out of the operands."""
    x, w, *factors = operands(64, 256, 512, b=(3,))
    guarded = torch.full((96, 256), torch.nan, device="cuda").bfloat16()
    wrong = torch.tensor([-5, 1 << 30, 7], device="cuda").int()
    for kernel in bundle.kernels(operation="grouped_gemm", dtypes="f8e4m3*"):
        kernel.launch(x, w.transpose(1, 2), guarded[:64], *factors, wrong)
        torch.cuda.synchronize()
        assert guarded[64:].isnan().all(), kernel.name


def test_as_many_rows_as_are_taken(bundle):
    """The last group begins 100 rows before the largest number of a 32-bit integer."""
    rows, n, k, last, tail = 2**31 - 1, 8, 16, 100, 400
    if torch.cuda.mem_get_info()[0] < rows * (k + 4 + 2 * n) + (1 << 30):
        pytest.skip("needs 78 GB of memory")
    x = torch.zeros(rows, k, dtype=torch.uint8, device="cuda").view(torch.float8_e4m3fn)
    factors = torch.ones(1, rows, device="cuda").T
    out = torch.empty(rows, n, dtype=torch.bfloat16, device="cuda")
    ends = torch.tensor([rows - last, rows], device="cuda").int()
    x[-tail:], w, factors[-tail:], w_factors = operands(tail, n, k, b=(2,))
    values = wide(torch, x[-tail:], factors[-tail:]).double(), wide(torch, w, w_factors).double()
    parts = values[0].split((tail - last, last))
    expected = torch.cat([a @ b.T for a, b in zip(parts, values[1], strict=True)])
    for kernel in bundle.kernels(operation="grouped_gemm", dtypes="f8e4m3*"):
        out[-tail:] = torch.nan
        kernel.launch(x, w.transpose(1, 2), out, factors, w_factors, ends)
        assert error(out[-tail:], expected) < BOUNDS["bf16"], kernel.name


def test_no_rows_are_no_launch(bundle):
    x, w, *factors = operands(0, 256, 512)
    bundle.gemm(x, w.T, torch.empty(0, 256, device="cuda").bfloat16(), a_scale=factors[0], b_scale=factors[1])


def test_the_error_does_not_grow_with_k(bundle):
    found = []
    for k in (512, 65536):
        x, w, *factors = operands(128, 256, k)
        out = torch.empty(128, 256, device="cuda")
        bundle.gemm(x, w.T, out, a_scale=factors[0], b_scale=factors[1])
        expected = wide(torch, x, factors[0]).double() @ wide(torch, w, factors[1]).double().T
        found.append(error(out, expected))
    assert found[1] < 1.5 * found[0]


def test_the_page_runs(bundle, monkeypatch):
    page = (REPOSITORY / "docs" / "reference" / "sm90-gemm.md").read_text()
    (block,) = re.findall(r"^```python gpu scaled\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(REPOSITORY)
    names: dict[str, Any] = {}
    exec(block, names)
    x, weight = (wide(torch, names[name], names[f"{name}_factors"]).double() for name in ("x", "weight"))
    assert error(names["out"], x @ weight.T) < BOUNDS["bf16"]


def test_the_page_of_groups_runs(bundle, monkeypatch):
    page = (REPOSITORY / "docs" / "reference" / "grouped-gemm.md").read_text()
    blocks = re.findall(r"^```python (?:gpu )?sm_90a\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    monkeypatch.chdir(REPOSITORY)
    # The bundle of the page has some of these kernels.
    exec("".join(blocks).replace("build/bundles/experts", "build/bundles/sm90-scaled"), {})

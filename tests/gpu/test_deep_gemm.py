"""On a GPU: DeepGEMM's functions against torch in f64, and in CUDA graphs.

cutlass-aot build manifests/sm90_scaled.toml; cutlass-aot build manifests/sm90.toml; python -m pytest -m gpu
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.gpu.conftest import REPOSITORY, opened
from tools.bench.experts import wide

torch = pytest.importorskip("torch")
from cutlass_aot import deep_gemm  # noqa: E402 - which needs torch

pytestmark = pytest.mark.gpu

N, K = 2112, 7168


@pytest.fixture(scope="module", autouse=True)
def bundles(capability):
    return opened("sm90", capability), opened("sm90-scaled", capability)


def rows(*shape: int) -> tuple[Any, Any]:
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    values, factors = deep_gemm.per_token_cast_to_fp8(x.flatten(0, -2), use_ue8m0=False)
    return values.view(shape), factors.view(*shape[:-1], -1)


def weights(groups: int) -> tuple[Any, Any]:
    cast = (
        deep_gemm.per_block_cast_to_fp8(torch.randn(N, K, device="cuda"), use_ue8m0=False)
        for _ in range(groups)
    )
    values, factors = map(torch.stack, zip(*cast, strict=True))
    return values, factors


def exact(a: tuple[Any, Any], b: tuple[Any, Any]) -> Any:
    return wide(torch, *a).double() @ wide(torch, *b).double().mT


def close(found: Any, expected: Any) -> None:
    assert deep_gemm.testing.calc_diff(found, expected) < 1e-5


def layout_of(sizes: list[int], total: int) -> Any:
    """The group of each row, as vLLM writes it."""
    layout = [row for group, size in enumerate(sizes) for row in [group] * size + [-1] * (-size % 128)]
    return torch.tensor([*layout, *[-1] * (total - len(layout))], dtype=torch.int32, device="cuda")


def check_groups(layout: Any, d: Any, a: tuple[Any, Any], b: tuple[Any, Any]) -> None:
    for group in range(len(b[0])):
        own = layout == group
        if own.any():
            close(d[own], exact((a[0][own], a[1][own]), (b[0][group], b[1][group])))


@pytest.mark.parametrize("m", [1, 7, 64, 333, 4096])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("aligned", [False, True])
def test_dense(m, dtype, aligned):
    a, (values, factors) = rows(m, K), weights(1)
    b = values[0], factors[0]
    given = (a[0], deep_gemm.get_mn_major_tma_aligned_tensor(a[1])) if aligned else a
    d = torch.full((m, N), torch.nan, device="cuda").to(dtype)
    deep_gemm.fp8_gemm_nt(given, b, d)
    close(d, exact(a, b))
    before = d.double()
    deep_gemm.fp8_gemm_nt(given, b, d, c=d)
    close(d, before + exact(a, b))


@pytest.mark.parametrize("layout", ["nt", "nn"])
def test_bf16(layout):
    a, b = (torch.randn(extent, K, device="cuda", dtype=torch.bfloat16) for extent in (333, N))
    d = torch.empty(333, N, device="cuda", dtype=torch.bfloat16)
    getattr(deep_gemm, f"bf16_gemm_{layout}")(a, b if layout == "nt" else b.T.contiguous(), d)
    close(d, a.double() @ b.double().T)


@pytest.mark.parametrize("sizes", [[100, 0, 37, 263], [0, 0, 1], [128, 129, 0]], ids=str)
@pytest.mark.parametrize("by_ends", [False, True])
def test_groups_one_after_the_other(sizes, by_ends):
    a, b = rows(1024, K), weights(len(sizes))
    layout = layout_of(sizes, 1024)
    d = torch.full((1024, N), torch.nan, device="cuda").bfloat16()
    if by_ends:
        ends, start = [], 0
        for size in sizes:
            ends.append(start + size)
            start = deep_gemm.align(start + size, 128)
        given = torch.tensor(ends, dtype=torch.int32, device="cuda")
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, given, use_psum_layout=True)
    else:
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, layout)
    check_groups(layout, d, a, b)


def test_graphs_follow_the_rows_that_are_there():
    """Captured once, replayed with other groups and other counts, down to none."""
    cases = [[100, 0, 37, 263], [0, 0, 0, 0], [1, 1, 1, 1], [0, 700, 0, 0], [256, 128, 0, 64]]
    a, b, d = rows(1024, K), weights(4), torch.empty(1024, N, device="cuda", dtype=torch.bfloat16)
    masked_a, masked_d = rows(4, 704, K), torch.empty(4, 704, N, device="cuda", dtype=torch.bfloat16)
    layout, counts = layout_of(cases[0], 1024), torch.tensor(cases[0], dtype=torch.int32, device="cuda")

    def launch() -> None:
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, d, layout)
        deep_gemm.fp8_m_grouped_gemm_nt_masked(masked_a, b, masked_d, counts, 64)

    launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for sizes in cases:
        layout.copy_(layout_of(sizes, 1024))
        counts.copy_(torch.tensor(sizes))
        d.fill_(torch.nan)
        masked_d.fill_(torch.nan)
        graph.replay()
        check_groups(layout, d, a, b)
        for group, size in enumerate(sizes):
            assert masked_d[group, size:].isnan().all()
            if size:
                part = masked_a[0][group, :size], masked_a[1][group, :size]
                close(masked_d[group, :size], exact(part, (b[0][group], b[1][group])))


def test_multiprocessors():
    count = torch.cuda.get_device_properties(0).multi_processor_count
    assert deep_gemm.get_num_sms() == count
    deep_gemm.set_num_sms(count)


def test_the_guide_runs(monkeypatch):
    page = (REPOSITORY / "docs" / "guides" / "deep-gemm.md").read_text()
    blocks = re.findall(r"^```python gpu\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(REPOSITORY)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    # Both operands were rounded to FP8.
    expected = names["x"].double() @ names["weight"].double().T
    assert deep_gemm.testing.calc_diff(names["d"], expected) < 2e-3

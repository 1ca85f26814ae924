"""Casts, layouts of scale factors, and the ends of groups, against f64 and plain Python."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cutlass_aot.errors import OperandError

torch = pytest.importorskip("torch")
from cutlass_aot import deep_gemm  # noqa: E402 - which needs torch
from cutlass_aot.deep_gemm.utils.layout import ends_of_groups  # noqa: E402 - which needs torch

EXTENT = st.integers(1, 40)
GRANULARITY = st.sampled_from([4, 16, 128])


def matrix(m: int, n: int, seed: int, dtype: Any = torch.float32) -> Any:
    """Numbers of many magnitudes, a row of zeros among them."""
    generator = torch.Generator().manual_seed(seed)
    magnitudes = torch.exp2(torch.randint(-20, 20, (m, n), generator=generator).double())
    found = torch.randn(m, n, generator=generator).double() * magnitudes
    found[seed % m] = 0
    return found.to(dtype)


def check_cast(x: Any, values: Any, factors: Any, shape: tuple[int, int], use_ue8m0: bool) -> None:
    """``shape`` is that of a block."""
    rows, columns = (math.ceil(extent / block) for extent, block in zip(x.shape, shape, strict=True))
    assert factors.dtype == torch.float32
    assert values.dtype == torch.float8_e4m3fn
    assert factors.shape == (rows, columns)
    assert values.shape == x.shape
    assert values.is_contiguous()
    assert factors.is_contiguous()
    for i in range(rows):
        for j in range(columns):
            place = tuple(slice(at * of, (at + 1) * of) for at, of in zip((i, j), shape, strict=True))
            block, found, factor = x[place].double(), values[place].double(), factors[i, j].item()
            exact = max(block.abs().max().item(), 1e-4) / 448
            if use_ue8m0:
                assert math.frexp(factor)[0] == 0.5
                assert exact * (1 - 1e-6) <= factor < 2 * exact * (1 + 1e-6)
            else:
                assert factor == pytest.approx(exact, rel=1e-6)
            # Half a unit in the last of three places of the mantissa, or half the least number, 2^-9.
            bound = (block.abs() * 2**-4 * (1 + 1e-5)).clamp(min=factor * 2**-10 * (1 + 1e-5))
            assert ((found * factor - block).abs() <= bound).all()


@settings(max_examples=25)
@given(EXTENT, EXTENT, GRANULARITY, st.booleans(), st.integers(0, 99))
def test_casts(m: int, n: int, block: int, use_ue8m0: bool, seed: int) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        x = matrix(m, n, seed, dtype)
        check_cast(x, *deep_gemm.per_token_cast_to_fp8(x, use_ue8m0, block), (1, block), use_ue8m0)
        check_cast(x, *deep_gemm.per_block_cast_to_fp8(x, use_ue8m0, block), (block, block), use_ue8m0)
        tall = matrix(2 * block, n, seed, dtype)
        check_cast(tall, *deep_gemm.per_channel_cast_to_fp8(tall, use_ue8m0, block), (block, 1), use_ue8m0)


def test_casts_of_no_rows() -> None:
    values, factors = deep_gemm.per_token_cast_to_fp8(torch.zeros(0, 200), False)
    assert (values.shape, factors.shape) == ((0, 200), (0, 2))


def test_casts_that_are_refused() -> None:
    x = torch.zeros(3, 200)
    with pytest.raises(OperandError, match="packed UE8M0 factors are for sm_100"):
        deep_gemm.per_token_cast_to_fp8(x, True, use_packed_ue8m0=True)
    with pytest.raises(OperandError, match="expected rows that 128 divides, got 3"):
        deep_gemm.per_channel_cast_to_fp8(x, False)
    with pytest.raises(OperandError, match=r"expected a matrix \(m, n\), got shape \(2, 3, 200\)"):
        deep_gemm.per_block_cast_to_fp8(x.expand(2, 3, 200), False)


@given(st.floats(width=32, allow_nan=False))
def test_powers_of_two(number: float) -> None:
    found = deep_gemm.ceil_to_ue8m0(torch.tensor([number])).item()
    mantissa, exponent = math.frexp(abs(number)) if math.isfinite(number) else (1.0, 1024)
    exponent -= mantissa == 0.5
    assert found == 2.0 ** min(max(exponent if number else -1024, -126), 127)


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 20))
def test_rounding_up(x: int, y: int) -> None:
    assert deep_gemm.ceil_div(x, y) == (x + y - 1) // y
    assert deep_gemm.align(x, y) % y == 0
    assert 0 <= deep_gemm.align(x, y) - x < y


@pytest.mark.parametrize("shape", [(1, 1), (1, 56), (7, 3), (8, 3), (3, 5, 2), (1, 5, 2), (4, 8, 1)])
def test_factors_with_those_of_all_rows_together(shape: tuple[int, ...]) -> None:
    sf = torch.rand(shape)
    found = deep_gemm.get_mn_major_tma_aligned_tensor(sf)
    step = -(-shape[-2] // 4) * 4
    assert found.stride() == (step * shape[-1], 1, step)[-len(shape) :]
    assert torch.equal(found, sf)
    assert deep_gemm.get_mn_major_tma_aligned_tensor(found) is found
    strided = sf.mT.contiguous().mT
    assert torch.equal(deep_gemm.get_mn_major_tma_aligned_tensor(strided), sf)
    with pytest.raises(OperandError, match="factors packed as UE8M0 are for sm_100"):
        deep_gemm.get_mn_major_tma_aligned_tensor(sf.int())


@pytest.mark.parametrize("groups", [None, 3])
def test_transforms(groups: int | None) -> None:
    outer = () if groups is None else (groups,)
    rows, blocks = torch.rand(*outer, 9, 3), torch.rand(*outer, 2, 3)
    transform = deep_gemm.transform_sf_into_required_layout
    for recipe, how in (((1, 128, 128), {"is_sfa": True}), ((1, 128), {})):
        found = transform(rows, 9, 300, recipe, num_groups=groups, **how)
        assert torch.equal(found, rows)
        assert found.stride() == deep_gemm.get_mn_major_tma_aligned_tensor(rows).stride()
    for recipe, how in (((1, 128, 128), {"is_sfa": False}), ([128, 128], {})):
        assert transform(blocks, 200, 300, recipe, num_groups=groups, **how) is blocks
    with pytest.raises(OperandError, match="expected is_sfa"):
        transform(rows, 9, 300, (1, 128, 128), groups)
    with pytest.raises(OperandError, match="expected a factor for 1 x 128 or for 128 x 128 elements"):
        transform(rows, 9, 300, (1, 1, 32), groups, True)
    for wrong in (rows.int(), rows[..., :2]):
        with pytest.raises(OperandError, match="scale factors: expected"):
            transform(wrong, 9, 300, (1, 128), groups)


def test_alignments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deep_gemm.utils.layout, "_alignment", 128)
    assert deep_gemm.get_mk_alignment_for_contiguous_layout() == 128
    assert deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout(5) == 128
    assert [deep_gemm.get_tma_aligned_size(x, 4) for x in (1, 4, 5)] == [4, 4, 8]
    assert [deep_gemm.get_tma_aligned_size(x, 2) for x in (1, 8, 9)] == [8, 8, 16]
    for wrong in (0, -128, 1.5):
        with pytest.raises(OperandError, match="expected an alignment of 1 row or more"):
            deep_gemm.set_mk_alignment_for_contiguous_layout(wrong)
    assert deep_gemm.get_mk_alignment_for_contiguous_layout() == 128


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=12),
    st.sampled_from([1, 16, 64, 128]),
    st.integers(0, 3),
    st.booleans(),
)
def test_ends_of_groups(sizes: list[int], alignment: int, behind: int, named_padding: bool) -> None:
    """Padding may be of none, as vLLM marks it, or of its group, as SGLang does."""
    layout: list[int] = []
    expected = []
    for group, size in enumerate(sizes):
        padding = -size % alignment
        layout += [group] * size + [group if named_padding else -1] * padding
        expected.append(len(layout))
    layout += [-1] * behind * alignment
    assume(layout)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deep_gemm.utils.layout, "_alignment", alignment)
        found = ends_of_groups(torch.tensor(layout, dtype=torch.int32), len(sizes))
    assert found.dtype == torch.int32
    assert found.tolist() == expected


def test_blocks_of_no_group_between_groups() -> None:
    layout = torch.tensor([-1] * 128 + [0] * 128 + [-1] * 256 + [2] * 100, dtype=torch.int32)
    # A last block that is not full ends behind the rows, where kernels cut it off.
    assert ends_of_groups(layout, 4).tolist() == [256, 256, 640, 640]
    # The same for other numbers that no group has.
    for number in (4, 5, -2, -5, 2**31 - 1, -(2**31)):
        strange = torch.where(layout < 0, number, layout)
        assert ends_of_groups(strange, 4).tolist() == [256, 256, 640, 640]


def test_how_far_results_are_apart() -> None:
    x = torch.randn(50)
    assert deep_gemm.testing.calc_diff(torch.zeros(5), torch.zeros(5)) == 0.0
    assert abs(deep_gemm.testing.calc_diff(x, x)) < 1e-12
    assert deep_gemm.testing.calc_diff(x, -x) == pytest.approx(2)
    assert deep_gemm.testing.calc_diff(x, 2 * x) == pytest.approx(1 - 4 / 5)

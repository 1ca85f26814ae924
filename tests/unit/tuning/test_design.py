"""The problems that ``tune --design`` draws."""

from __future__ import annotations

from cutlass_aot.schema.kernels.operands import packed, supports
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.tuning.design import MOST_K, MOST_M, MOST_N, design
from tests.support.kernels import gemm
from tests.support.replace import replace


def test_problems_are_allowed_by_the_operands_and_none_comes_twice() -> None:
    for kernel in (gemm(), gemm(dtypes=("f8e4m3", "f8e4m3", "bf16")), gemm(layouts="nnn")):
        found = design(kernel.operands, 300)
        assert len(found) == len(set(found)) == 300
        assert all(supports(kernel.operands, packed(kernel.operands, one.by_name)) for one in found)


def test_the_sequence_is_the_same_each_time_and_goes_on() -> None:
    operands = gemm().operands
    assert design(operands, 50) == design(operands, 100)[:50]
    assert design(operands, 50, seed=1) != design(operands, 50)


def test_operands_that_allow_few_problems_get_few() -> None:
    coarse = tuple(replace(operand, divisibility=2048) for operand in gemm(layouts="ttn").operands)
    assert 0 < len(design(coarse, 5000)) < 5000


def test_they_are_what_lists_of_layers_lack() -> None:
    found = design(gemm().operands, 1000)
    assert sum(one.m < 512 for one in found) > 500
    assert sum(one.m & (one.m - 1) == 0 for one in found) < 250
    assert sum(one.n < 1024 for one in found) > 200
    assert 300 < sum(one.k % 128 != 0 for one in found) < 600
    assert max(one.m for one in found) <= MOST_M
    assert max(one.n for one in found) <= MOST_N
    assert max(one.k for one in found) <= MOST_K
    assert len({(one.n, one.k) for one in found}) > 900


def test_a_share_of_them_has_few_tiles_and_long_sums() -> None:
    operands = gemm().operands
    all_of_them = design(operands, 100, few_tiles=1)
    assert all(128 <= one.m <= 2048 and 128 <= one.n <= 2048 and one.k >= 4096 for one in all_of_them)
    many, none = (
        sum(one.m >= 128 and 128 <= one.n <= 2048 and one.m <= 2048 and one.k >= 4096 for one in found)
        for found in (design(operands, 1000), design(operands, 1000, few_tiles=0))
    )
    assert 50 < many - none < 200


def test_a_share_of_them_has_about_as_many_tiles_as_a_gpu_computes_at_once() -> None:
    operands = gemm().operands

    def in_the_kind(one: Extents) -> bool:
        return 30 <= one.m * one.n / 128**2 <= 340 and one.m >= 64 and one.k >= 768

    all_of_them = design(operands, 200, few_tiles=0, about_a_wave=1)
    assert len(all_of_them) == 200
    assert all(map(in_the_kind, all_of_them))
    many, none = (sum(map(in_the_kind, design(operands, 1000, about_a_wave=share))) for share in (0.25, 0))
    assert 100 < many - none < 300


def test_a_share_of_them_has_many_rows_and_few_columns() -> None:
    operands = gemm().operands
    all_of_them = design(operands, 200, few_tiles=0, about_a_wave=0, few_columns=1)
    assert len(all_of_them) == 200
    assert all(one.m >= 512 and 8 <= one.n <= 256 for one in all_of_them)
    assert any(one.n > 128 for one in all_of_them)
    many, none = (
        sum(one.m >= 512 and one.n <= 256 for one in design(operands, 1000, few_columns=share))
        for share in (0.0625, 0)
    )
    assert 30 < many - none < 100


def test_a_share_of_them_has_short_sums_and_large_outputs() -> None:
    def in_the_kind(one: Extents) -> bool:
        return one.m >= 1024 and one.n >= 8192 and one.k <= 1024

    operands = gemm().operands
    all_of_them = design(operands, 200, few_tiles=0, about_a_wave=0, few_columns=0, large_outputs=1)
    assert len(all_of_them) == 200
    assert all(map(in_the_kind, all_of_them))
    many, none = (sum(map(in_the_kind, design(operands, 1000, large_outputs=share))) for share in (0.0625, 0))
    assert 30 < many - none < 100

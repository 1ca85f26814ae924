"""Which kernels serve where some have exact sums and some fast ones; without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

import cutlass_aot
from cutlass_aot import describe
from cutlass_aot.errors import KernelNotFound, OperandError, ParameterError
from cutlass_aot.runtime.bundle import Bundle
from tests.support.bundles import designs, write_bundle

FP8 = ("f8e4m3", "f8e4m3", "bf16")


def operands(dtype: str = "f8e4m3") -> tuple:
    return (
        describe((64, 512), dtype),
        describe((512, 256), dtype, strides=(1, 512)),
        describe((64, 256), "bf16"),
    )


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    kernels = [
        *designs(dtypes=FP8, accumulation="fast"),
        *designs(dtypes=FP8, accumulation="exact", cost="M * tile_shape_0"),
        *designs(dtypes=("f8e5m2", "f8e5m2", "bf16"), accumulation="fast"),
        *designs(dtypes=("bf16", "bf16", "bf16")),
    ]
    return cutlass_aot.open(write_bundle(tmp_path / "bundle", kernels))


def test_sums_are_exact_unless_fast_ones_are_permitted(bundle: Bundle) -> None:
    assert bundle.choose(*operands()).kernel.kernel.accumulation == "exact"
    assert {kernel.kernel.accumulation for kernel in bundle.find(*operands())} == {"exact"}
    assert bundle.choose(*operands(), accumulation="exact") == bundle.choose(*operands())
    assert bundle.choose(*operands(), accumulation="fast").kernel.kernel.accumulation == "fast"
    assert {k.kernel.accumulation for k in bundle.find(*operands(), accumulation="fast")} == {"fast"}


def test_exact_kernels_serve_where_fast_sums_are_permitted_and_there_are_none(bundle: Bundle) -> None:
    (given,) = {kernel.kernel.accumulation for kernel in bundle.find(*operands("bf16"), accumulation="fast")}
    assert given == ""


def test_kernels_with_fast_sums_alone_are_named_with_what_to_do(bundle: Bundle) -> None:
    with pytest.raises(KernelNotFound) as caught:
        bundle.find(*operands("f8e5m2"))
    assert str(caught.value).endswith(
        "Nearest is gemm-f8e5m2.f8e5m2.bf16-f32-tnt-sm_90a: its sums are fast, with fewer bits than its "
        "accumulator: permit them by accumulation='fast', or build kernels with accumulation = 'exact'; "
        "explain() has the reason for each group"
    )
    assert bundle.find(*operands("f8e5m2"), accumulation="fast")


def test_a_query_that_permits_fast_sums_says_so(bundle: Bundle) -> None:
    with pytest.raises(KernelNotFound, match="accumulator any, accumulation fast; any target"):
        bundle.find(*operands("f16"), accumulation="fast")


def test_other_words_are_refused(bundle: Bundle) -> None:
    with pytest.raises(OperandError, match="accumulation: expected 'exact' or 'fast', got 'exakt'"):
        bundle.find(*operands(), accumulation="exakt")  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="`acumulation`; did you mean 'accumulation'"):
        bundle.find(*operands(), acumulation="fast")


def test_a_listing_tells_them_apart(bundle: Bundle) -> None:
    assert len(bundle.kernels(accumulation="exact")) == 3
    assert len(bundle.kernels(accumulation="fast")) == 6
    assert len(bundle.kernels(accumulation="")) == 3


def test_each_kind_is_explained(bundle: Bundle) -> None:
    reasons = {group.name: verdict.reason for group, verdict in bundle.explain(*operands())}
    assert not reasons["gemm-f8e4m3.f8e4m3.bf16-f32-exact-tnt-sm_90a"]
    assert "its sums are fast" in reasons["gemm-f8e4m3.f8e4m3.bf16-f32-tnt-sm_90a"]
    permitted = bundle.explain(*operands(), accumulation="fast")
    assert [bool(verdict) for group, verdict in permitted if "e4m3" in group.name] == [True, True]

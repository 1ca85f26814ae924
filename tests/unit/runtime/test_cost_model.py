"""The default order of kernels: what the estimate says, and what breaks ties."""

from __future__ import annotations

import random
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.runtime.selection import cost_model
from cutlass_aot.runtime.selection.cost_model import (
    ADDING_UP,
    TRAFFIC,
    Candidate,
    Candidates,
    candidate_of,
    sort_key,
    usual_sm_count,
)
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.tuning.ranking import Extents
from tests.support.kernels import gemm


def default_order(kernels, extents, sm_count=None):
    return sorted(kernels, key=lambda kernel: sort_key(kernel, extents, sm_count))


def estimate(of: Kernel, extents: Extents, sm_count: int | None = None) -> float:
    return cost_model.estimate(candidate_of(of), extents, sm_count or usual_sm_count(of.target))


def kernel(tile: tuple[int, ...], target: str = "sm_100a", **design: Any) -> Kernel:
    return gemm(target=target, design={"family": "F", "tile_shape": tile, **design})


def test_the_estimate_is_what_the_description_says() -> None:
    # 4 * 2 tiles of 128x256 on 132 SMs: one wave.
    wave = 128 * 256 + 64 * (128 + 256)
    assert estimate(kernel((128, 256)), Extents(1, 512, 512, 64), 132) == wave
    # 33 * 4 = 132 fill the GPU; one row more is a second wave.
    assert estimate(kernel((128, 256)), Extents(1, 33 * 128, 1024, 64), 132) == wave
    assert estimate(kernel((128, 256)), Extents(1, 33 * 128 + 1, 1024, 64), 132) == 2 * wave


def test_batches_count_as_tiles() -> None:
    assert estimate(kernel((128, 128)), Extents(133, 128, 128, 64), 132) == 2 * estimate(
        kernel((128, 128)), Extents(1, 128, 128, 64), 132
    )


def test_a_pair_of_blocks_halves_the_tile_of_each() -> None:
    pair = estimate(kernel((256, 128), use_2cta_mma=True), Extents(1, 256, 128, 64), 148)
    assert pair == estimate(kernel((128, 128)), Extents(1, 256, 128, 64), 148)


def test_blocks_are_rounded_up_to_the_cluster() -> None:
    one = Extents(148, 128, 128, 64)
    single = estimate(kernel((128, 128), cluster_shape=(1, 1)), one, 148)
    assert estimate(kernel((128, 128), cluster_shape=(4, 1)), one, 148) == 4 * single


def test_clusters_run_as_the_device_profile_says_or_as_many_as_fit() -> None:
    def waves(clusters: int, **constants: int) -> float:
        design = {"family": "F", "tile_shape": (128, 128), "cluster_shape": (5, 1)}
        one = gemm(target="sm_100a", design=design, constants=constants)
        found = estimate(one, Extents(clusters, 5 * 128, 128, 64), 132)
        return found / estimate(one, Extents(1, 1, 1, 64), 132)

    # 26 clusters of five on 132 SMs; two SMs stay idle.
    assert [waves(clusters) for clusters in (26, 27, 52, 53)] == [1, 2, 2, 3]
    assert [waves(clusters, max_active_clusters_5=20) for clusters in (20, 21, 40)] == [1, 2, 2]
    # What the profile says of clusters of another size does not matter.
    assert waves(26, max_active_clusters_4=1) == 1


def test_a_cluster_larger_than_the_gpu_is_a_wave_of_its_own() -> None:
    large = kernel((64, 64), cluster_shape=(16, 1))
    assert estimate(large, Extents(3, 16 * 64, 64, 64), 8) == 3 * estimate(large, Extents(1, 1, 1, 1), 8)


def test_blocks_along_k_share_a_wave_and_take_time_to_add_up() -> None:
    split = kernel((128, 128), cluster_shape=(1, 1, 4))
    whole = kernel((128, 128), cluster_shape=(1, 1, 1))
    deep, shallow = Extents(1, 128, 128, 8000), Extents(1, 128, 128, 800)
    assert estimate(split, deep, 132) == pytest.approx(estimate(whole, deep, 132) * (1 / 4 + 1000 / 8000))
    assert estimate(split, shallow, 132) > estimate(whole, shallow, 132)
    # 33 such clusters run at once, and four times as many whole tiles.
    many = Extents(1, 34 * 128, 128, 8000)
    assert estimate(split, many, 132) == 2 * estimate(split, deep, 132)
    assert estimate(whole, many, 132) == estimate(whole, deep, 132)


def test_the_low_latency_family_swaps_its_tile() -> None:
    tall = Extents(1, 8, 128 * 64, 64)
    swapped = gemm(design={"family": "TgvGemm", "tile_shape": (64, 8, 128)})
    straight = gemm(design={"family": "F", "tile_shape": (64, 8, 128)})
    assert estimate(swapped, tall, 132) < estimate(straight, tall, 132)


def test_few_rows_take_a_narrow_tile_and_large_problems_a_large_one() -> None:
    kernels = [kernel((64, 64)), kernel((128, 128)), kernel((128, 256))]
    assert default_order(kernels, Extents(1, 16, 4096, 4096), 132)[0] == kernels[0]
    assert default_order(kernels, Extents(1, 8192, 8192, 4096), 132)[0] == kernels[2]


def test_ties_take_the_larger_tile_the_smaller_cluster_then_the_dynamic_scheduler() -> None:
    base = {"use_2cta_mma": False}
    order = [
        kernel((128, 128), cluster_shape=(1, 1), tile_scheduler="clc", **base),
        kernel((128, 128), cluster_shape=(1, 1), tile_scheduler="static", **base),
        kernel((128, 128), cluster_shape=(2, 1), tile_scheduler="clc", **base),
        kernel((128, 128), cluster_shape=(2, 1), tile_scheduler="static", **base),
    ]
    problem = Extents(1, 256, 128, 64)
    for seed in range(5):
        shuffled = random.Random(seed).sample(order, len(order))
        assert default_order(shuffled, problem, 148) == order


def test_the_order_does_not_depend_on_the_order_given() -> None:
    kernels = [kernel((m, n, k)) for m in (64, 128) for n in (64, 128, 256) for k in (32, 64)]
    expected = default_order(kernels, Extents(2, 1000, 3000, 500))
    for seed in range(5):
        shuffled = random.Random(seed).sample(kernels, len(kernels))
        assert default_order(shuffled, Extents(2, 1000, 3000, 500)) == expected


@pytest.mark.parametrize(
    "design", [{}, {"tile_shape": "large"}, {"tile_shape": (128,)}, {"cluster_shape": (0, 1)}]
)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_103f", "sm_120a"])
def test_a_design_without_these_names_is_ordered_too(design: dict[str, Any], target: str) -> None:
    unknown = gemm(target=target, design={"family": "mine", **design})
    assert estimate(unknown, Extents(1, 100, 100, 100)) > 0
    assert set(default_order([unknown, kernel((128, 128), target)], Extents(1, 1, 1, 1))) == {
        unknown,
        kernel((128, 128), target),
    }


EXTENT = st.one_of(st.integers(1, 300), st.sampled_from([512, 4096, 8192, 2**31 - 1]))
CANDIDATES = st.builds(
    lambda tile, pair, cluster, swapped, at_once, scheduler: Candidate(
        tile[0], tile[1], pair, cluster[0], cluster[1], swapped, cluster[0] * cluster[1] * cluster[2],
        at_once, scheduler,
    ),
    st.tuples(st.sampled_from([64, 128, 192, 256]), st.sampled_from([8, 64, 128, 256])),
    st.sampled_from([1, 2]),
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    st.booleans(),
    st.sampled_from([0, 0, 20, 64]),
    st.integers(0, 2),
)  # fmt: skip


def as_the_module_says(of: Candidate, extents: Extents, sm_count: int) -> float:
    rows, columns = (extents.n, extents.m) if of.swapped else (extents.m, extents.n)
    along_m = ceil(ceil(rows / of.tile_m) * of.pair / of.cluster_m)
    along_n = ceil(ceil(columns / of.tile_n) / of.cluster_n)
    at_once = of.at_once or max(1, sm_count // of.cluster)
    waves = -(-extents.batch * along_m * along_n // at_once)
    tile_m = of.tile_m / of.pair
    parts = of.cluster / (of.cluster_m * of.cluster_n)
    split = 1.0 if parts == 1 else 1 / parts + ADDING_UP / extents.k
    return waves * (tile_m * of.tile_n + TRAFFIC * (tile_m + of.tile_n)) * split


@given(
    st.lists(CANDIDATES, min_size=1, max_size=20),
    st.lists(st.builds(Extents, st.integers(1, 9), EXTENT, EXTENT, EXTENT), min_size=1, max_size=4),
    st.lists(st.integers(1, 200), min_size=1, max_size=3),
)
def test_many_are_estimated_as_each_alone(
    members: list[Candidate], problems: list[Extents], sm_counts: list[int]
) -> None:
    by_digest = {f"{number:03}": member for number, member in enumerate(members)}
    ready = Candidates(by_digest)
    assert sorted(ready.digests) == sorted(by_digest)
    assert [ready.digests[position] for position in ready.alphabetical] == sorted(by_digest)
    for extents in problems:
        for sm_count in sm_counts:
            found = dict(zip(ready.digests, ready.estimates(extents, sm_count), strict=True))
            for digest, member in by_digest.items():
                assert found[digest] == pytest.approx(as_the_module_says(member, extents, sm_count))
                assert found[digest] == cost_model.estimate(member, extents, sm_count)

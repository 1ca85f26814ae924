"""The cost model: what the estimate says, what it scales with, and what breaks ties."""

from __future__ import annotations

import random
from math import inf, isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.runtime.selection.cost_model import (
    Candidates,
    Work,
    clusters_at_once,
    compute_and_memory,
    estimate,
    microseconds,
    places,
    sort_key,
    work,
)
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.tiling import Tiling, Traffic
from cutlass_aot.schema.tuning.costs import FORMULA, Costs, Machine, check_costs, derived, typical_machine
from cutlass_aot.schema.tuning.ranking import Extents
from tests.support.kernels import gemm

HALF = Traffic(2, 2, 2, 16)
H200 = Machine(132, 1980, 4917)
COSTS = Costs(
    launch=2.0, tile=1.0, step=0.5, crowding=0.3, pairing=0.25, sharing=0.5, misalignment=1.2,
    within_line=0.5, tail=0.9, bandwidth=4000.0, emptiness=0.5, partial_sectors=1.0, partial_lines=0.5,
    overlap=2.0, unevenness=0.4,
)  # fmt: skip
LARGE = Extents(1, 8192, 8192, 4096)


def kernel(tile: tuple[int, ...], target: str = "sm_90a", **design: Any) -> Kernel:
    return gemm(target=target, design={"family": "F", "tile_shape": tile, **design})


def at_once(tiling: Tiling, known: dict[int, int], sm_count: int) -> int:
    return places(tiling, {tiling.blocks: clusters_at_once(tiling.blocks, known, sm_count)})


def todo(of: Kernel, extents: Extents, sm_count: int = 132) -> Work:
    tiling = Tiling.of(of)
    return work(tiling, at_once(tiling, {}, sm_count), extents, HALF)


def time(of: Kernel, extents: Extents, sm_count: int = 132, costs: Costs = COSTS) -> float:
    return microseconds(costs, todo(of, extents, sm_count))


def default_order(kernels: list[Kernel], extents: Extents, sm_count: int | None = None) -> list[Kernel]:
    return sorted(kernels, key=lambda of: sort_key(of, extents, sm_count))


# -- the work of a kernel -----------------------------------------------------------------------------------


def test_clusters_run_in_waves() -> None:
    # 33 * 4 = 132 fill the GPU; one row more is a second wave.
    full, more = (todo(kernel((128, 256, 64)), Extents(1, m, 1024, 640)) for m in (33 * 128, 33 * 128 + 1))
    assert (full.waves, full.filled, full.at_work) == (1, 1, 1)
    assert (more.waves, more.filled) == (2, 136 / 132)
    assert full.steps == 10


def test_batches_count_as_tiles() -> None:
    assert todo(kernel((128, 128, 64)), Extents(133, 128, 128, 64)).waves == 2


def test_a_pair_of_blocks_shares_a_tile() -> None:
    pair = Tiling.of(kernel((256, 128, 64), use_2cta_mma=True))
    assert (pair.block_m, pair.block_n, pair.cluster_m, pair.blocks) == (128, 128, 256, 2)
    four = Tiling.of(kernel((256, 128, 64), use_2cta_mma=True, cluster_shape=(4, 1)))
    assert (four.block_m, four.cluster_m, four.blocks) == (128, 512, 4)


def test_the_output_is_rounded_up_to_the_clusters() -> None:
    found = todo(kernel((128, 128, 64), cluster_shape=(4, 2)), Extents(1, 500, 300, 64))
    # One cluster down and two across.
    assert found.empty == pytest.approx(2 * 64 * ((512 - 500) * 2 + (512 - 300) * 1) / 1e6)
    assert todo(kernel((128, 128, 64)), Extents(1, 512, 512, 64)).empty == 0


def test_a_family_whose_last_tile_begins_early_has_empty_rows_only_where_the_output_is_smaller() -> None:
    within = kernel((128, 128, 64), family="Sm90ClusterGemm")
    assert todo(within, Extents(1, 129, 200, 64)).empty == 0
    assert todo(within, Extents(1, 100, 256, 64)).empty == pytest.approx(2 * 64 * 28 * 2 / 1e6)


def test_both_sms_of_a_pair_are_at_work_if_more_than_half_of_all_are() -> None:
    half, more = (todo(kernel((128, 128, 64)), Extents(1, 128 * blocks, 128, 64)) for blocks in (66, 67))
    assert (half.paired, more.paired) == (0, 1)


@pytest.mark.parametrize(
    ("k", "misaligned", "within_line"), [(1024, 0, 0), (1088, 0, 0), (1040, 0, 1), (1032, 1, 0)]
)
def test_rows_may_begin_within_a_sector_or_a_line(k: int, misaligned: float, within_line: float) -> None:
    found = todo(kernel((128, 128, 64)), Extents(1, 256, 384, k))
    assert (found.misaligned, found.within_line) == (misaligned, within_line)


def test_of_misaligned_rows_those_that_are_there_are_loaded() -> None:
    two_blocks = kernel((128, 192, 64), cluster_shape=(2, 1, 1))
    assert todo(two_blocks, Extents(1, 256, 384, 1032)).misaligned == 1
    # Of 256 rows and 192 columns, on average of two tiles along N.
    assert todo(two_blocks, Extents(1, 64, 288, 1032)).misaligned == (64 + 144) / (256 + 192)
    # Tiles that begin early are full.
    early = Tiling.of(two_blocks)._replace(within=True)
    assert work(early, 66, Extents(1, 200, 288, 1032), HALF).misaligned == 1
    assert work(early, 66, Extents(1, 64, 288, 1032), HALF).misaligned == (128 + 192) / (256 + 192)


def test_a_step_takes_as_long_as_loading_misaligned_rows() -> None:
    tall, problem = kernel((128, 128, 64)), Extents(1, 128, 128, 8 * 8191)
    aligned = time(tall, problem, costs=COSTS._replace(misalignment=1e-6))
    assert time(tall, problem, costs=COSTS._replace(misalignment=0.3)) == pytest.approx(aligned, rel=0.01)
    assert time(tall, problem, costs=COSTS._replace(misalignment=3.0)) == pytest.approx(3 * aligned, rel=0.01)
    in_lines = problem._replace(k=8 * 8190)
    for share, expected in ((1e-6, aligned), (0.5, 3 * aligned)):
        costs = COSTS._replace(misalignment=6.0, within_line=share)
        assert time(tall, in_lines, costs=costs) == pytest.approx(expected, rel=0.01)


def test_clusters_run_as_the_device_profile_says_or_as_many_as_fit() -> None:
    five = Tiling.of(kernel((128, 128, 64), cluster_shape=(5, 1)))
    assert at_once(five, {}, 132) == 23
    assert at_once(Tiling.of(kernel((128, 128, 64), cluster_shape=(2, 1))), {}, 132) == 66
    assert at_once(five._replace(active_clusters=20), {}, 132) == 20
    assert at_once(five._replace(blocks_per_sm=2), {}, 132) == 46
    # What is known of clusters that this one can be divided into bounds it.
    eight = Tiling.of(kernel((128, 128, 64), cluster_shape=(8, 1)))
    assert at_once(eight, {}, 132) == 15
    assert at_once(eight, {4: 28}, 132) == 14
    assert at_once(eight, {8: 16}, 132) == 16
    assert at_once(eight, {3: 1, 16: 7}, 132) == 15
    # A cluster larger than the GPU is a wave of its own.
    assert at_once(eight, {}, 4) == 1


@pytest.mark.parametrize(
    ("tiles", "waves"),
    [(60, 1), (64, 1), (100, 2), (132, 3), (264, 6), (300, 7), (1320, 30)],
)
def test_clusters_of_a_persistent_kernel_take_turns_on_a_smaller_gpu(tiles: int, waves: int) -> None:
    # It launches up to 132, of which 64 run at once.
    persistent = gemm(
        target="sm_90a",
        design={"family": "F", "tile_shape": (128, 128, 64), "persistent": True},
        constants={"max_active_clusters_1": 132},
    )
    found = todo(persistent, Extents(1, 128 * tiles, 128, 64), sm_count=64)
    assert (found.waves, found.filled) == (waves, max(1, tiles / 64) if waves > 1 else 1)
    assert todo(persistent, Extents(1, 128 * tiles, 128, 64), sm_count=148).waves == -(-tiles // 132)


def test_what_a_device_profile_says_does_not_hold_for_fewer_sms() -> None:
    assert clusters_at_once(4, {1: 132, 4: 30}, 132) == 30
    assert clusters_at_once(4, {1: 132, 4: 30}, 112) == 25
    assert clusters_at_once(4, {1: 132, 4: 30}, 120) == 27
    assert clusters_at_once(1, {1: 132, 4: 30}, 64) == 64


def test_kernels_of_one_group_know_how_many_clusters_run() -> None:
    design = {"family": "F", "tile_shape": (128, 128, 64), "cluster_shape": (4, 1)}
    known = Tiling.of(gemm(target="sm_90a", design=design, constants={"max_active_clusters_4": 28}))
    unknown = Tiling.of(kernel((64, 128, 64), cluster_shape=(4, 1)))
    alone = Candidates.of({"aa": unknown}, HALF, "sm_90a").work(LARGE, 132)
    together = Candidates.of({"aa": unknown, "bb": known}, HALF, "sm_90a")
    assert alone[0].waves == -(-32 * 64 // 30)
    assert together.work(LARGE, 132)[together.digests.index("aa")].waves == -(-32 * 64 // 28)


def test_blocks_along_k_share_a_sum() -> None:
    split = todo(kernel((128, 128, 64), cluster_shape=(1, 1, 4)), Extents(1, 128, 128, 8192))
    whole = todo(kernel((128, 128, 64)), Extents(1, 128, 128, 8192))
    assert (split.steps, whole.steps) == (32, 128)
    # Of 30 clusters of four, and of 132 blocks.
    assert (split.at_work, whole.at_work) == (1 / 30, 1 / 132)


def test_the_low_latency_family_swaps_its_tile() -> None:
    swapped = Tiling.of(gemm(design={"family": "TgvGemm", "tile_shape": (64, 8, 128)}))
    assert (swapped.cluster_m, swapped.cluster_n, swapped.block_m, swapped.block_n) == (8, 64, 8, 64)


@pytest.mark.parametrize(("n", "sectors", "lines"), [(384, 0, 0), (400, 0, 1), (392, 1, 0)])
def test_what_is_written_counts_for_more_and_apart_where_rows_begin_within_a_sector_or_a_line(
    n: int, sectors: int, lines: int
) -> None:
    found = todo(kernel((128, 128, 64)), Extents(2, 256, n, 1000))
    a, b, out = 2 * 256 * 1000 * 2, 2 * n * 1000 * 2, 2 * 256 * n * 2
    assert found.megabytes == pytest.approx((a + b + 1.5 * out) / 1e6)
    assert found.partial_sectors == pytest.approx(sectors * out / 1e6)
    assert found.partial_lines == pytest.approx(lines * out / 1e6)


def test_traffic_counts_every_matrix_of_a_gemm() -> None:
    plain = gemm(dtypes=("f8e4m3", "f8e4m3", "bf16"))
    assert Traffic.of(plain.operands) == Traffic(1, 1, 2, 8)


def test_a_malformed_design_does_not_change_a_sound_one_that_equals_it() -> None:
    sound = [(96, 160, 32), (2, 1), None, "F", "clc", 1, None, None]
    malformed: list[Any] = [(96.0, 160, 32), (2, True), None, "F", "clc", True, None, None]
    assert Tiling.make(malformed, {"max_active_clusters_2": True}).block_m == 64
    assert Tiling.make(sound, {"max_active_clusters_2": 1}) == Tiling.of(
        gemm(
            target="sm_90a",
            design={
                "family": "F", "tile_shape": (96, 160, 32), "cluster_shape": (2, 1),
                "tile_scheduler": "clc", "blocks_per_sm": 1,
            },
            constants={"max_active_clusters_2": 1},
        )
    )  # fmt: skip
    assert Tiling.make(sound, {}).block_m == 96


# -- the estimate -------------------------------------------------------------------------------------------


def test_the_estimate_is_what_the_description_says() -> None:
    # 64 of 132 SMs have one block, tiles fit, 10 steps.
    found = todo(kernel((128, 128, 64)), Extents(1, 1024, 1024, 640))
    step = 0.5 * ((64 / 132 + 0.15) / 1.15) ** 0.3
    compute, memory = compute_and_memory(COSTS, found)
    assert compute == pytest.approx(1.0 + 10 * step)
    assert memory == pytest.approx(found.megabytes / 4000 * 1e3)
    assert microseconds(COSTS, found) == pytest.approx(2 + (compute**2 + memory**2) ** 0.5)


def test_another_formula_has_another_version() -> None:
    """Constants that were fitted by one are wrong for another: raise FORMULA with these times."""
    problems = (Extents(1, 1024, 1024, 1032), Extents(2, 1, 4097, 100), LARGE)
    found = [time(kernel((128, 128, 64), cluster_shape=(2, 1, 1)), problem) for problem in problems]
    assert (FORMULA, found) == (4, pytest.approx([12.579023228236792, 4.410978849981005, 1312.7113691378738]))


def test_pairs_misalignment_and_empty_rows_take_time() -> None:
    # Two tiles an SM, of which some are at an edge, and rows of 2 * 4104 and 2 * 4008 bytes.
    tall, problem = kernel((128, 128, 64)), Extents(1, 1000, 4008, 4104)
    for cause in ("pairing", "misalignment", "emptiness", "partial_sectors"):
        assert time(tall, problem, costs=COSTS._replace(**{cause: 1e-6})) < time(tall, problem)
    in_lines = problem._replace(n=4016)
    assert time(tall, in_lines, costs=COSTS._replace(partial_lines=1e-6)) < time(tall, in_lines)


def test_two_blocks_on_one_sm_take_longer_for_a_step() -> None:
    double = kernel((64, 128, 64), blocks_per_sm=2)
    few, many = Extents(1, 64, 132 * 128, 4096), Extents(1, 64, 264 * 128, 4096)
    assert todo(double, few).shared == 0
    assert todo(double, many).shared == 1
    assert todo(double, many).waves == 1
    # No sharing is no more than what the crowd takes.
    assert time(double, many) > time(double, many, costs=COSTS._replace(sharing=1e-6))


def test_moving_operands_takes_longer_where_some_sms_have_two_blocks_and_others_one() -> None:
    double, single = kernel((8, 64, 64), blocks_per_sm=2), kernel((8, 64, 64))

    def uneven(blocks: int, of: Kernel = double) -> float:
        return todo(of, Extents(1, 8, 64 * blocks, 8192)).uneven

    # 33 of 132 SMs have two of 165 blocks, which are 1.25 an SM.
    assert uneven(165) == pytest.approx(2 / 1.25 - 1)
    assert [uneven(blocks) for blocks in (100, 132, 264, 300)] == [0, 0, 0, 0]
    assert uneven(165, single) == 0
    # Of 66 pairs of SMs, 22 have two of 88 blocks, which are 4/3 a pair. Blocks of a cluster fill pairs.
    assert uneven(88, single) == pytest.approx(2 / (88 / 66) - 1)
    assert [uneven(blocks, single) for blocks in (60, 66, 132, 150)] == [0, 0, 0, 0]
    assert uneven(88, kernel((8, 64, 64), cluster_shape=(1, 2))) == 0
    few = Extents(1, 8, 64 * 165, 8192)
    assert time(double, few) > time(double, few, costs=COSTS._replace(unevenness=1e-6))


@pytest.mark.parametrize(
    ("extents", "bound"),
    [(Extents(1, 1, 64, 64), "launch"), (LARGE, "compute"), (Extents(1, 64, 132 * 128, 64 * 9), "memory")],
)
def test_the_estimate_says_what_takes_most_of_the_time(extents: Extents, bound: str) -> None:
    fast = COSTS._replace(step=0.01, tile=0.01) if bound == "memory" else COSTS
    assert estimate(fast, todo(kernel((64, 128, 64)), extents)).bound == bound


def test_constants_scale_to_another_gpu_by_its_clock_and_bandwidth() -> None:
    other = Machine(132, 990, 2458)
    scaled = COSTS.on(H200, other)
    assert (scaled.step, scaled.tile) == (1.0, 2.0)
    assert scaled.bandwidth == pytest.approx(4000 * 2458 / 4917)
    assert (scaled.launch, scaled.tail) == (COSTS.launch, COSTS.tail)
    assert COSTS.on(H200, H200) is COSTS


EXTENT = st.one_of(st.integers(1, 300), st.sampled_from([512, 4096, 8192, 2**31 - 1]))
EXTENTS = st.builds(Extents, st.integers(1, 9), EXTENT, EXTENT, EXTENT)
DESIGNS = st.fixed_dictionaries(
    {
        "family": st.sampled_from(["F", "TgvGemm", "Sm90ClusterGemm"]),
        "tile_shape": st.tuples(*map(st.sampled_from, ([64, 128, 256], [8, 64, 256], [32, 64]))),
        "cluster_shape": st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
        "use_2cta_mma": st.booleans(),
        "blocks_per_sm": st.integers(1, 2),
    }
)


@given(DESIGNS, EXTENTS, st.integers(1, 200))
def test_every_design_has_a_time_and_more_work_takes_no_less(
    design: dict[str, Any], extents: Extents, sm_count: int
) -> None:
    # Twice as many elements may be aligned where as many are not.
    one, aligned = gemm(target="sm_90a", design=design), COSTS._replace(misalignment=1e-6)
    found = time(one, extents, sm_count, aligned)
    assert 0 < found < inf
    assert isfinite(found)
    assert time(one, extents._replace(k=2 * extents.k), sm_count, aligned) >= found * (1 - 1e-5)
    assert time(one, extents._replace(batch=2 * extents.batch), sm_count, aligned) >= found * (1 - 1e-9)


@given(st.lists(DESIGNS, min_size=1, max_size=6), EXTENTS)
def test_many_are_estimated_as_each_alone(designs: list[dict[str, Any]], extents: Extents) -> None:
    members = {f"{number:03}": Tiling.of(gemm(target="sm_90a", design=d)) for number, d in enumerate(designs)}
    candidates = Candidates.of(members, HALF, "sm_90a")
    assert sorted(candidates.digests) == sorted(members)
    for digest, found in zip(candidates.digests, candidates.work(extents, 132), strict=True):
        tiling = members[digest]
        assert found == work(tiling, at_once(tiling, {}, 132), extents, HALF)


# -- derived constants, and the order that they give ---------------------------------------------------------


def test_few_rows_take_a_narrow_tile_and_large_problems_a_large_one() -> None:
    kernels = [kernel((64, 64, 64)), kernel((128, 128, 64)), kernel((128, 256, 64))]
    assert default_order(kernels, Extents(1, 16, 4096, 4096), 132)[0] == kernels[0]
    assert default_order(kernels, Extents(1, 8192, 8192, 4096), 132)[0] == kernels[2]


def test_few_tiles_with_a_long_sum_are_split() -> None:
    kernels = [kernel((64, 64, 64)), kernel((64, 64, 64), cluster_shape=(1, 1, 8))]
    assert default_order(kernels, Extents(1, 16, 512, 16384), 132)[0] == kernels[1]
    assert default_order(kernels, Extents(1, 8192, 8192, 256), 132)[0] == kernels[0]


def test_ties_take_the_larger_tile_the_smaller_cluster_then_the_dynamic_scheduler() -> None:
    base = {"use_2cta_mma": False}
    order = [
        kernel((128, 128), cluster_shape=(1, 1), tile_scheduler="clc", **base),
        kernel((128, 128), cluster_shape=(1, 1), tile_scheduler="static", **base),
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
    key = sort_key(unknown, Extents(1, 100, 100, 100))
    assert 0 < key[0] < inf
    assert set(default_order([unknown, kernel((128, 128), target)], Extents(1, 1, 1, 1))) == {
        unknown,
        kernel((128, 128), target),
    }


@pytest.mark.parametrize("extents", [Extents(1, 4096, 4096, 4096), Extents(1, 128, 256, 8192)])
def test_instructions_of_ampere_take_longer_on_newer_gpus_that_have_others(extents: Extents) -> None:
    """Their name comes first in the alphabet, so that they were taken of equals."""
    for target, slower in (("sm_80", False), ("sm_90a", True), ("sm_100a", True), ("sm_120a", False)):
        ampere, hopper = (
            gemm(target=target, design={"family": family, "tile_shape": (128, 128, 64)})
            for family in ("Sm80TensorOpGemm", "Sm90StaticPersistentGemm")
        )
        times = [sort_key(one, extents)[0] for one in (ampere, hopper)]
        assert (times[0] > 1.1 * times[1]) is slower
        assert (times[0] == times[1]) is not slower


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_103f", "sm_120a"])
@pytest.mark.parametrize("bits", [4, 8, 16, 32, 64])
def test_a_large_problem_is_expected_below_the_peak_of_the_gpu(target: str, bits: int) -> None:
    """No derived estimate promises more than the tensor cores can do, or less than a tenth of it."""
    machine = typical_machine(target)
    tiling = Tiling.of(kernel((128, 256, 64), target))
    costs = derived(tiling, bits, target, machine)
    found = microseconds(costs, work(tiling, machine.sm_count, LARGE, Traffic(2, 2, 2, bits)))
    peaks = {"sm_80": 312, "sm_90a": 990, "sm_100a": 2300, "sm_103f": 2300, "sm_120a": 210}
    peak = peaks[target] * (16 / bits if bits <= 32 else 1 / 16)
    achieved = 2 * LARGE.m * LARGE.n * LARGE.k / found / 1e6
    assert 0.1 * peak < achieved < 1.1 * peak


@given(
    st.builds(
        Costs,
        *[st.sampled_from([1e-6, 1.0, 1e6])] * 8,
        st.sampled_from([1e-3, 0.5, 1.0]),
        *[st.sampled_from([1e-6, 1.0, 1e6])] * 4,
        st.sampled_from([1.0, 2.5, 32.0]),
        st.sampled_from([1e-6, 1.0, 1e6]),
    ),
    st.builds(Extents, *[st.sampled_from([1, 4096, 2**31, 2**62])] * 4),
)
def test_the_constants_that_a_file_may_have_give_a_time_for_every_problem(
    costs: Costs, extents: Extents
) -> None:
    check_costs([costs])
    found = time(kernel((128, 128, 64), cluster_shape=(2, 1, 4), blocks_per_sm=2), extents, costs=costs)
    assert 0 < found < inf

"""The tiers of a choice, each a pure function: what it says, and that nothing but its facts decides."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.runtime.selection.cost_model import Candidates
from cutlass_aot.runtime.selection.tiers import (
    DOUBT,
    KnownSpeeds,
    Preference,
    Ranked,
    default_order,
    estimates,
    estimating,
    fitted,
    modelled,
    prefer,
    tuned,
)
from cutlass_aot.schema.kernels.tiling import Tiling, Traffic
from cutlass_aot.schema.tuning.costs import Costs, Machine
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblem, RankedProblems, Ranking

TILES = {"aa": (64, 64), "bb": (128, 128), "cc": (128, 256), "dd": (256, 128), "ee": (64, 256)}
TILINGS = {
    digest: Tiling.make([(*tile, 64), (1, 1), False, "F", "clc", None, None, None], {})
    for digest, tile in sorted(TILES.items())
}
HALF = Traffic(2, 2, 2, 16)
ALL = Candidates.of(TILINGS, HALF, "sm_90a")
H200, H100 = Machine(132, 1980, 4917), Machine(132, 1980, 3352)
SQUARE = Extents(1, 4096, 4096, 4096)
OTHER = Extents(1, 333, 3584, 3584)
COSTS = {
    digest: Costs(
        2.0, 1.0, 0.01 * m * n / 1024, 0.3, 0.2, 0.5, 0.1, 0.5, 0.9, 4000.0, 0.5, 1.0, 0.2, 2.0, 0.4
    )
    for digest, (m, n) in TILES.items()
}


def ranked(extents: Extents, *kernels: str, seconds: tuple[float, ...] | None = None) -> RankedProblem:
    times = tuple(1e-5 * (position + 1) for position in range(len(kernels)))
    return RankedProblem(extents, kernels, times if seconds is None else seconds)


def ranking_of(
    *problems: RankedProblem, gpu: str = "NVIDIA H200", costs: Sequence[str] = (), machine: Machine = H200
) -> Ranked:
    """A ranking, with a fitted cost model for the kernels of ``costs``."""
    fit = tuple((digest, COSTS[digest]) for digest in sorted(costs))
    return Ranked(
        Ranking("g", gpu, True, "for a test", RankedProblems(problems), machine if fit else None, fit)
    )


def known(
    measured: Ranked | None = None, elsewhere: Sequence[Ranked] = (), models: Sequence[Ranked] = ()
) -> KnownSpeeds:
    return KnownSpeeds(measured, {item.gpu: (lambda item=item: item) for item in elsewhere}, lambda: models)


def choice(speeds: KnownSpeeds, extents: Extents = SQUARE, gpu: str | None = "NVIDIA H200") -> Preference:
    return prefer(speeds, lambda: ALL, extents, gpu, H200)


def never() -> Candidates:
    raise AssertionError("the candidates are not needed")


# -- tuned --------------------------------------------------------------------------------------------------


def test_a_problem_that_was_measured_is_decided_by_its_times() -> None:
    found = tuned(ranking_of(ranked(SQUARE, "bb", "aa", seconds=(1.25e-5, 2e-5))), never, SQUARE, H200)
    assert found is not None
    assert (found.tier, found.digests) == ("tuned", ("bb", "aa"))
    assert found.reason == "4096x4096x4096 was measured: 12.5 µs, the best of 2"
    assert found.expected == pytest.approx((12.5, 20.0))


def test_only_the_very_problem_is_tuned() -> None:
    ranking = ranking_of(ranked(SQUARE, "aa"))
    for other in (
        Extents(2, 4096, 4096, 4096),
        Extents(1, 4097, 4096, 4096),
        Extents(1, 4096, 4095, 4096),
        Extents(1, 4096, 4096, 4104),
    ):
        assert tuned(ranking, never, other, H200) is None
    assert tuned(ranking_of(), never, SQUARE, H200) is None


def test_a_kernel_that_was_not_measured_is_not_a_slow_one() -> None:
    """It stands where the cost model says, corrected by what the model gives for those that were measured."""
    expected = {digest: found.microseconds for digest, found in estimates_of(SQUARE).items()}
    fastest = min(expected, key=expected.__getitem__)
    slower = sorted(set(expected) - {fastest}, key=expected.__getitem__)
    twice = tuple(2e-6 * expected[digest] for digest in slower)
    found = tuned(
        ranking_of(ranked(SQUARE, *slower, seconds=twice), costs=list(TILES)), lambda: ALL, SQUARE, H200
    )
    assert found is not None
    assert set(found.digests) == set(TILES)
    assert found.expected[found.digests.index(fastest)] == pytest.approx(2 * expected[fastest])
    assert (found.digests[0] == fastest) == (expected[fastest] * DOUBT < expected[slower[0]])
    assert found.reason.startswith(f"{SQUARE} was measured: ")


def test_a_kernel_that_is_expected_a_little_faster_does_not_go_before_a_measured_one() -> None:
    times = {digest: found.microseconds for digest, found in estimates_of(SQUARE).items()}
    best = min(times, key=times.__getitem__)
    others = sorted(set(times) - {best}, key=times.__getitem__)
    # All but one as the model says, so that it needs no correction; the first of them nearly as fast.
    seconds = (1e-6 * times[best] * 1.01, *(1e-6 * times[digest] for digest in others[1:]))
    found = tuned(
        ranking_of(ranked(SQUARE, *others, seconds=seconds), costs=list(TILES)), lambda: ALL, SQUARE, H200
    )
    assert found is not None
    # Others may be so near that they stand between the two.
    assert found.digests.index(best) > found.digests.index(others[0]) == 0
    assert "expected" not in found.reason


def test_the_fastest_that_were_measured_correct_the_estimates_of_others() -> None:
    tilings = {
        f"{n:04}": Tiling.make([(128, n, 64), (1, 1), False, "F", "clc", None, None, None], {})
        for n in range(32, 256, 8)
    }
    candidates = Candidates.of(tilings, HALF, "sm_90a")
    costs = tuple((digest, COSTS["cc"]) for digest in sorted(tilings))
    times = {
        digest: found.microseconds
        for digest, found in estimates(
            known(Ranked(Ranking("g", "x", True, "", RankedProblems(()), H200, costs))),
            candidates,
            SQUARE,
            H200,
        ).items()
    }
    unmeasured, *others = sorted(times, key=times.__getitem__)
    # Eight take twice as long as the model says; most, which are slower, ten times.
    factors = [2.0] * 8 + [10.0] * (len(others) - 8)
    seconds = tuple(1e-6 * times[d] * factor for d, factor in zip(others, factors, strict=True))
    problem = ranked(SQUARE, *others, seconds=seconds)
    ranking = Ranked(Ranking("g", "x", True, "", RankedProblems([problem]), H200, costs))
    found = tuned(ranking, lambda: candidates, SQUARE, H200)
    assert found is not None
    assert factors.count(10.0) > factors.count(2.0)
    assert found.expected[found.digests.index(unmeasured)] == pytest.approx(2 * times[unmeasured])


def test_kernels_that_were_slower_come_after_those_with_a_time() -> None:
    """In the model's order, for which a launch does not wait."""
    problem = ranked(SQUARE, "ee", "cc", seconds=(1e-5, 2e-5))._replace(slower=frozenset(("aa", "bb", "dd")))
    ranking = ranking_of(problem, costs=list(TILES))
    found = tuned(ranking, lambda: ALL, SQUARE, H200)
    assert found is not None
    times = {digest: item.microseconds for digest, item in estimates_of(SQUARE).items()}
    assert found.digests == ("ee", "cc", *sorted(("aa", "bb", "dd"), key=times.__getitem__))
    assert found.reason == "4096x4096x4096 was measured: 10.0 µs, the best of 5"
    assert all(one <= other for one, other in pairwise(found.expected))
    first = tuned(ranking, never, SQUARE, H200, first=True)
    assert first is not None
    assert (first.digests, first.reason) == (("ee", "cc"), found.reason)
    # One that was not measured may be faster.
    problem = problem._replace(slower=frozenset(("aa", "bb")))
    several = tuned(ranking_of(problem, costs=list(TILES)), lambda: ALL, SQUARE, H200, first=True)
    assert several is not None
    assert set(several.digests) == set(TILES)
    # Without a cost model, nothing more is known of them.
    unfitted = tuned(ranking_of(problem), never, SQUARE, H200)
    assert unfitted is not None
    assert unfitted.digests == ("ee", "cc")


def test_times_of_other_kernels_are_named() -> None:
    problems = RankedProblems((ranked(SQUARE, "aa"),))
    ranking = Ranking("g", "NVIDIA H200", True, "", problems, measured_as="gemm-bf16")
    found = tuned(Ranked(ranking), never, SQUARE, H200)
    assert found is not None
    assert found.reason == "4096x4096x4096 was measured as gemm-bf16: 10.0 µs, the best of 1"


def test_only_the_group_that_has_the_problem_is_named() -> None:
    own = Ranking("g", "NVIDIA H200", True, "", RankedProblems((ranked(SQUARE, "aa"),)))
    other = Ranking(
        "h", "NVIDIA H200", True, "", RankedProblems((ranked(OTHER, "bb"),)), measured_as="gemm-x"
    )
    both = Ranked(own, other)
    reasons = [found.reason for e in (SQUARE, OTHER) if (found := tuned(both, never, e, H200)) is not None]
    assert ["as gemm-x" in reason for reason in reasons] == [False, True]
    assert both.has_own_times
    assert not Ranked(other).has_own_times


def test_times_of_all_groups_are_compared() -> None:
    first = ranking_of(ranked(SQUARE, "aa", "bb", seconds=(3e-5, 9e-5)), costs=["aa", "bb"])
    second = ranking_of(ranked(SQUARE, "cc", "dd", seconds=(1e-5, 5e-5)), costs=["cc", "dd"])
    found = tuned(Ranked.merged([first, second]), never, SQUARE, H200)
    assert found is not None
    assert found.digests == ("cc", "aa", "dd", "bb")
    assert found.reason == "4096x4096x4096 was measured: 10.0 µs, the best of 4"
    assert tuned(Ranked.merged([second, first]), never, SQUARE, H200) == found
    assert Ranked.merged([first]) is first


def test_equal_times_of_several_groups_are_ordered_by_digest() -> None:
    groups = [ranking_of(ranked(SQUARE, name, seconds=(1e-5,))) for name in ("cc", "aa", "bb")]
    found = tuned(Ranked.merged(groups), never, SQUARE, H200)
    assert found is not None
    assert found.digests == ("aa", "bb", "cc")


# -- fitted and scaled --------------------------------------------------------------------------------------


def estimates_of(extents: Extents) -> dict[str, object]:
    return estimates(known(ranking_of(costs=list(TILES))), ALL, extents, H200)


def test_a_problem_that_was_not_measured_is_chosen_by_the_fitted_model() -> None:
    found = choice(known(ranking_of(costs=list(TILES))), OTHER)
    assert (found.tier, found.reason) == (
        "fitted",
        "the least time by the cost model fitted on NVIDIA H200 to kernels of other operands",
    )
    times = {digest: item.microseconds for digest, item in estimates_of(OTHER).items()}
    assert found.digests == tuple(sorted(times, key=times.__getitem__))
    assert found.expected == tuple(sorted(times.values()))


def test_an_estimate_is_corrected_by_the_problems_near_it() -> None:
    times = {digest: item.microseconds for digest, item in estimates_of(OTHER).items()}
    first, second = sorted(times, key=times.__getitem__)[:2]
    near = OTHER._replace(m=330)
    there = {digest: item.microseconds for digest, item in estimates_of(near).items()}
    slow = 1.5 * there[first], there[second]
    problem = ranked(near, second, first, seconds=(1e-6 * min(slow), 1e-6 * max(slow)))
    found = choice(known(ranking_of(problem, costs=list(TILES))), OTHER)
    assert found.tier == "fitted"
    assert found.reason == (
        "the least time by the cost model fitted on NVIDIA H200 and corrected by the measured problems near "
        "it"
    )
    assert (found.digests[0], set(found.digests)) == (second, set(TILES))
    assert found.expected[0] < times[first]
    assert list(found.expected) == sorted(found.expected)
    # A group of which only constants are known changes nothing; where two have times, none correct.
    bare, timed = ranking_of(costs=["aa"]), ranking_of(ranked(SQUARE, "aa"), costs=["aa"])
    own = ranking_of(problem, costs=list(TILES))
    assert choice(known(Ranked.merged([own, bare])), OTHER).digests[0] == second
    assert "corrected" not in choice(known(Ranked.merged([own, timed])), OTHER).reason
    # What was measured on a GPU with other numbers of multiprocessors corrects nothing.
    other = ranking_of(problem, costs=list(TILES), machine=H200._replace(sm_count=78))
    assert "corrected" not in choice(known(other), OTHER).reason


def test_a_kernel_that_the_fit_does_not_know_has_derived_constants() -> None:
    found = fitted(ranking_of(costs=["aa", "bb"]), ALL, OTHER, H200, here=True)
    assert set(found.digests) == set(TILES)
    derived = default_order(ALL, OTHER, H200)
    by_digest = dict(zip(derived.digests, derived.expected, strict=True))
    mixed = dict(zip(found.digests, found.expected, strict=True))
    assert {digest for digest in TILES if mixed[digest] == by_digest[digest]} == {"cc", "dd", "ee"}


def test_a_model_of_another_gpu_is_scaled_to_this_one() -> None:
    there = ranking_of(ranked(SQUARE, "aa"), gpu="NVIDIA H100", costs=list(TILES), machine=H100)
    found = choice(known(None, [there]))
    assert found.tier == "scaled"
    assert found.reason == (
        "the least time by the cost model fitted on NVIDIA H100, scaled to 132 SMs at 1980 MHz and 4917 GB/s"
        "; measured on NVIDIA H100, not on 'NVIDIA H200'"
    )
    # More bandwidth, so no kernel is slower than where it was fitted.
    own = fitted(there, ALL, SQUARE, H100, here=True)
    before = dict(zip(own.digests, own.expected, strict=True))
    assert all(time < before[digest] for digest, time in zip(found.digests, found.expected, strict=True))
    assert choice(known(None, [there]), gpu=None).reason.endswith("measured on NVIDIA H100, no GPU was named")


def test_each_group_is_scaled_from_the_gpu_that_it_was_fitted_on() -> None:
    slow = H200._replace(sm_mhz=990)
    both = Ranked.merged([ranking_of(costs=["aa"]), ranking_of(costs=["bb"], machine=slow)])
    two = Candidates.of({name: TILINGS[name] for name in ("aa", "bb")}, HALF, "sm_90a")
    found = dict(zip(two.digests, both.costs_on(two, H200), strict=True))
    assert found["aa"] == COSTS["aa"]
    assert found["bb"].step == COSTS["bb"].step / 2


def test_of_several_gpus_the_most_similar_is_taken() -> None:
    small = Machine(78, 1980, 4000)
    a, b = (
        ranking_of(ranked(SQUARE, "aa"), gpu=name, costs=list(TILES), machine=machine)
        for name, machine in (("NVIDIA A", small), ("NVIDIA B", H100))
    )
    assert "fitted on NVIDIA B, scaled" in choice(known(None, [a, b])).reason


def test_the_first_fitted_model_elsewhere_is_taken() -> None:
    bare = ranking_of(ranked(SQUARE, "aa"), gpu="NVIDIA A100")
    there = ranking_of(ranked(SQUARE, "bb"), gpu="NVIDIA H100", costs=list(TILES), machine=H100)
    assert "fitted on NVIDIA H100, scaled" in choice(known(None, [bare, there])).reason
    # Times of this GPU without a model are used for their problems, and another's model for the others.
    here = ranking_of(ranked(SQUARE, "aa"))
    assert choice(known(here, [there])).tier == "tuned"
    assert choice(known(here, [there]), OTHER).tier == "scaled"
    assert choice(known(here), OTHER).tier == "default order"


def test_what_is_not_needed_is_not_read() -> None:
    def refuse() -> Ranked:
        raise AssertionError("read")

    here = ranking_of(ranked(SQUARE, "aa"), costs=["aa"])
    speeds = KnownSpeeds(here, {"NVIDIA H100": refuse}, refuse)  # type: ignore[arg-type]
    assert choice(speeds).tier == "tuned"
    assert choice(speeds, OTHER).tier == "fitted"


# -- modelled -----------------------------------------------------------------------------------------------


def model(gpu: str, *problems: RankedProblem) -> Ranked:
    return Ranked(Ranking("g", gpu, False, "for a test", RankedProblems(problems)))


def test_constants_of_the_model_that_chooses_for_all_that_was_not_measured() -> None:
    here, there = ranking_of(ranked(SQUARE, "aa"), costs=TILES), ranking_of(gpu="NVIDIA H100", costs=["aa"])
    assert estimating(known(here, [there]), ALL, H200) == [COSTS[digest] for digest in ALL.digests]
    assert estimating(known(elsewhere=[there]), ALL, H200) == there.costs_on(ALL, H200)
    assert estimating(known(), ALL, H200) == ALL.unmeasured(H200)
    assert estimating(known(ranking_of(ranked(SQUARE, "aa"))), ALL, H200) == ALL.unmeasured(H200)


def test_no_model_chooses_for_all_where_the_build_ranked_or_the_model_knows_nothing() -> None:
    ranked_by_build = model("B200", ranked(SQUARE, "aa"))
    assert estimating(known(models=[ranked_by_build]), ALL, H200) is None
    fitted = ranking_of(ranked(SQUARE, "aa"), costs=["aa"])
    assert estimating(known(fitted, models=[ranked_by_build]), ALL, H200) is not None
    others = Candidates.of(TILINGS, Traffic(0, 0, 2, 16), "sm_90a")
    assert estimating(known(), others, H200) is None


def test_a_modelled_ranking_gives_its_order() -> None:
    found = modelled([model("b200", ranked(SQUARE, "dd", "aa", seconds=()))], SQUARE)
    assert found is not None
    assert (found.tier, found.digests, found.expected) == ("modelled", ("dd", "aa"), ())
    assert found.reason == "4096x4096x4096 was ranked for b200"


def test_the_nearest_modelled_problem_stands_in() -> None:
    sums = [Extents(1, 4096, 4096, k) for k in (1500, 3000, 6000)]
    ranking = model(
        "b200", *(ranked(e, name, seconds=()) for e, name in zip(sums, ("aa", "bb", "cc"), strict=True))
    )
    found = modelled([ranking], SQUARE)
    assert found is not None
    assert found.digests == ("bb",)
    assert found.reason == "4096x4096x3000, near 4096x4096x4096, was ranked for b200"


@pytest.mark.parametrize("name", ["batch", "m", "n", "k"])
@pytest.mark.parametrize(("factor", "near"), [(2, True), (4, True), (4.01, False), (8, False)])
@pytest.mark.parametrize("up", [True, False])
def test_near_is_within_two_octaves_in_every_extent(name: str, factor: float, near: bool, up: bool) -> None:
    extents = {"batch": 1000, "m": 1000, "n": 1000, "k": 1000}
    moved = {**extents, name: round(1000 * factor)}
    requested, other = (
        (Extents(**moved), Extents(**extents)) if up else (Extents(**extents), Extents(**moved))
    )
    found = modelled([model("b200", ranked(other, "aa", seconds=()))], requested)
    assert (found is not None) == near


def test_the_first_ranking_that_knows_an_answer_decides() -> None:
    far = model("b200", ranked(Extents(1, 1, 1, 1), "aa", seconds=()))
    near = model("gb300", ranked(SQUARE, "bb", seconds=()))
    found = modelled([far, near], SQUARE)
    assert found is not None
    assert found.reason == "4096x4096x4096 was ranked for gb300"
    assert modelled([far], SQUARE) is None
    assert modelled([], SQUARE) is None
    assert choice(known(models=[near])).tier == "modelled"


# -- default order ------------------------------------------------------------------------------------------


def test_the_default_order_is_by_the_estimate() -> None:
    found = default_order(ALL, SQUARE, H200)
    assert found.tier == "default order"
    assert found.reason == (
        "the least time by the cost model, which only compares kernels since nothing was measured, "
        "on 132 SMs at 1980 MHz and 4917 GB/s"
    )
    assert list(found.expected) == sorted(found.expected)
    assert choice(known()) == found


def test_equals_stay_in_the_order_given() -> None:
    same = Candidates.of(dict.fromkeys(("zz", "aa", "mm"), TILINGS["bb"]), HALF, "sm_90a")
    assert default_order(same, SQUARE, H200).digests == ("zz", "aa", "mm")


def test_what_is_not_a_gemm_has_no_expected_time() -> None:
    others = Candidates.of(TILINGS, Traffic(0, 0, 2, 16), "sm_90a")
    found = default_order(others, SQUARE, H200)
    assert found.expected == ()
    assert found.digests == others.digests
    assert (
        found.reason == "the first by its tile, cluster and name: neither times nor a cost formula are known"
    )
    assert estimates(known(), others, SQUARE, H200) == {}


# -- properties ---------------------------------------------------------------------------------------------

EXTENT = st.one_of(st.integers(1, 300), st.sampled_from([512, 4096, 8192, 2**31 - 1]))
EXTENTS = st.builds(Extents, st.integers(1, 9), EXTENT, EXTENT, EXTENT)


@st.composite
def rankings(draw: st.DrawFn) -> list[list[RankedProblem]]:
    """Problems of several groups, each with kernels of its own."""
    names = draw(st.permutations(list(TILINGS)))
    cut = draw(st.integers(1, len(names) - 1))
    found = []
    for own in (names[:cut], names[cut:]):
        problems = []
        for extents in draw(st.lists(EXTENTS, max_size=6, unique=True)):
            kernels = draw(st.lists(st.sampled_from(own), min_size=1, unique=True))
            times = sorted(draw(st.floats(1e-7, 1.0)) for _ in kernels)
            problems.append(ranked(extents, *kernels, seconds=tuple(times)))
        found.append(problems)
    return found


@given(rankings(), EXTENTS, st.randoms())
def test_tiers_do_not_depend_on_the_order_of_what_they_are_given(
    groups: list[list[RankedProblem]], extents: Extents, chance: random.Random
) -> None:
    def answers(given_: list[list[RankedProblem]], tilings: dict[str, Tiling]) -> Preference:
        candidates = Candidates.of(tilings, HALF, "sm_90a")
        measured = Ranked.merged([ranking_of(*problems, costs=list(TILES)) for problems in given_])
        return prefer(known(measured), lambda: candidates, extents, "NVIDIA H200", H200)

    turned = [chance.sample(problems, len(problems)) for problems in reversed(groups)]
    members = list(TILINGS.items())
    chance.shuffle(members)
    expected = answers([sorted(problems, key=lambda p: p.extents) for problems in groups], TILINGS)
    found = answers(turned, dict(members))
    assert (found.tier, found.reason) == (expected.tier, expected.reason)
    assert sorted(found.digests) == sorted(expected.digests) == sorted(TILES)
    assert found.expected == expected.expected


@given(rankings(), st.data())
def test_the_exact_problem_wins(groups: list[list[RankedProblem]], data: st.DataObject) -> None:
    extents_known = sorted({problem.extents for problems in groups for problem in problems})
    if not extents_known:
        return
    extents = data.draw(st.sampled_from(extents_known))
    found = tuned(Ranked.merged([ranking_of(*problems) for problems in groups]), never, extents, H200)
    assert found is not None
    times = {
        digest: time
        for problems in groups
        for problem in problems
        if problem.extents == extents
        for digest, time in zip(problem.kernels, problem.seconds, strict=True)
    }
    assert set(found.digests) == set(times)
    assert all(times[one] <= times[other] for one, other in pairwise(found.digests))


@given(st.lists(st.sampled_from(sorted(TILINGS)), unique=True, min_size=1), EXTENTS, st.integers(1, 500))
def test_the_default_order_has_every_candidate_once(names: list[str], extents: Extents, sms: int) -> None:
    machine = H200._replace(sm_count=sms)
    found = default_order(Candidates.of({n: TILINGS[n] for n in names}, HALF, "sm_90a"), extents, machine)
    again = default_order(
        Candidates.of({n: TILINGS[n] for n in reversed(names)}, HALF, "sm_90a"), extents, machine
    )
    assert sorted(found.digests) == sorted(names)
    assert found.expected == again.expected

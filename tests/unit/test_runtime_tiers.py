"""The tiers of a choice, each a pure function: what it says, and that nothing but its facts decides."""

from __future__ import annotations

import random
from itertools import pairwise
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.runtime.select import (
    NEAR,
    NEIGHBOURS,
    Candidate,
    default_order,
    estimate_of,
    modelled,
    nearest_tuned,
    tuned,
)
from cutlass_aot.schema.ranking import Extents, RankedProblem

TILES = {"aa": (64, 64), "bb": (128, 128), "cc": (128, 256), "dd": (256, 128), "ee": (64, 256)}
CANDIDATES = {
    digest: Candidate.make(digest, {"tile_shape": (*tile, 64)}) for digest, tile in sorted(TILES.items())
}
SMS = 132
SQUARE = Extents(1, 4096, 4096, 4096)


def ranked(extents: Extents, *kernels: str, seconds: tuple[float, ...] | None = None) -> RankedProblem:
    times = tuple(1e-5 * (position + 1) for position in range(len(kernels)))
    return RankedProblem(extents, kernels, times if seconds is None else seconds)


def by_extents(*problems: RankedProblem) -> dict[Extents, RankedProblem]:
    return {problem.extents: problem for problem in problems}


# -- tuned --------------------------------------------------------------------------------------------------


def test_a_problem_that_was_measured_is_decided_by_its_times() -> None:
    found = tuned([by_extents(ranked(SQUARE, "bb", "aa", seconds=(1.25e-5, 2e-5)))], SQUARE)
    assert found is not None
    assert (found.tier, found.digests) == ("tuned", ("bb", "aa"))
    assert found.reason == "4096x4096x4096 was measured: 12.5 µs, the best of 2"


def test_only_the_very_problem_is_tuned() -> None:
    ranking = by_extents(ranked(SQUARE, "aa"))
    for other in (
        Extents(2, 4096, 4096, 4096),
        Extents(1, 4097, 4096, 4096),
        Extents(1, 4096, 4095, 4096),
        Extents(1, 4096, 4096, 4104),
    ):
        assert tuned([ranking], other) is None
    assert tuned([], SQUARE) is None
    assert tuned([{}], SQUARE) is None


def test_times_of_all_groups_are_compared() -> None:
    first = by_extents(ranked(SQUARE, "aa", "bb", seconds=(3e-5, 9e-5)))
    second = by_extents(ranked(SQUARE, "cc", "dd", seconds=(1e-5, 5e-5)))
    found = tuned([first, second], SQUARE)
    assert found is not None
    assert found.digests == ("cc", "aa", "dd", "bb")
    assert tuned([second, first], SQUARE) == found


def test_equal_times_are_ordered_by_digest() -> None:
    found = tuned([by_extents(ranked(SQUARE, "cc", "aa", seconds=(1e-5, 1e-5)))], SQUARE)
    assert found is not None
    assert found.digests == ("aa", "cc")


# -- nearest tuned ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["batch", "m", "n", "k"])
@pytest.mark.parametrize(("factor", "near"), [(2, True), (4, True), (4.01, False), (8, False)])
@pytest.mark.parametrize("up", [True, False])
def test_near_is_within_two_octaves_in_every_extent(name: str, factor: float, near: bool, up: bool) -> None:
    extents = {"batch": 1000, "m": 1000, "n": 1000, "k": 1000}
    moved = {**extents, name: round(1000 * factor)}
    asked, known = (Extents(**moved), Extents(**extents)) if up else (Extents(**extents), Extents(**moved))
    found = nearest_tuned([by_extents(ranked(known, "aa"))], asked, CANDIDATES, SMS)
    assert (found is not None) == near
    if found is not None:
        assert found.tier == "nearest tuned"
        assert found.reason == f"measured near {asked}: {known}"


def test_all_candidates_are_ordered_and_nothing_else() -> None:
    ranking = by_extents(ranked(SQUARE, "bb", "foreign", "cc"))
    found = nearest_tuned([ranking], Extents(1, 4096, 4096, 2048), CANDIDATES, SMS)
    assert found is not None
    assert sorted(found.digests) == sorted(CANDIDATES)


def test_the_best_of_a_near_problem_of_the_same_waves_is_the_best() -> None:
    # K alone differs: the estimates for both problems are equal.
    ranking = by_extents(ranked(SQUARE, "dd", "aa", "cc", "bb", "ee"))
    found = nearest_tuned([ranking], Extents(1, 4096, 4096, 4000), CANDIDATES, SMS)
    assert found is not None
    assert found.digests == ("dd", "aa", "cc", "bb", "ee")


def test_kernels_without_a_time_rank_behind_those_with_one() -> None:
    ranking = by_extents(ranked(SQUARE, "ee", "aa", seconds=(1e-5, 1.2e-5)))
    found = nearest_tuned([ranking], Extents(1, 4096, 4096, 4000), CANDIDATES, SMS)
    assert found is not None
    assert found.digests == ("ee", "aa", "bb", "cc", "dd")


def test_times_are_carried_over_by_the_estimate() -> None:
    # One wave of 128 x 128 tiles fits exactly; a row more is a second wave, for 256 x 128 it is none.
    known, asked = Extents(1, 12 * 128, 11 * 128, 4096), Extents(1, 12 * 128 + 1, 11 * 128, 4096)
    assert estimate_of(CANDIDATES["bb"], asked, SMS) == 2 * estimate_of(CANDIDATES["bb"], known, SMS)
    assert estimate_of(CANDIDATES["dd"], asked, SMS) == estimate_of(CANDIDATES["dd"], known, SMS)
    two = {digest: CANDIDATES[digest] for digest in ("bb", "dd")}
    ranking = by_extents(ranked(known, "bb", "dd", seconds=(1e-5, 1.3e-5)))
    found = nearest_tuned([ranking], asked, two, SMS)
    assert found is not None
    assert found.digests == ("dd", "bb")


def test_the_nearer_problem_weighs_more() -> None:
    near, far = Extents(1, 4096, 4096, 3800), Extents(1, 4096, 4096, 1100)
    rankings = [by_extents(ranked(near, "aa", "bb"), ranked(far, "bb", "aa"))]
    two = {digest: CANDIDATES[digest] for digest in ("aa", "bb")}
    found = nearest_tuned(rankings, SQUARE, two, SMS)
    assert found is not None
    assert found.digests == ("aa", "bb")
    assert found.reason == f"measured near {SQUARE}: {far}, {near}"


def test_no_more_than_the_nearest_are_asked() -> None:
    known = [Extents(1, 4096, 4096, 4096 - 64 * step) for step in range(1, 10)]
    found = nearest_tuned([by_extents(*(ranked(e, "aa") for e in known))], SQUARE, CANDIDATES, SMS)
    assert found is not None
    named = found.reason.partition(": ")[2].split(", ")
    assert sorted(named) == sorted(map(str, known[:NEIGHBOURS]))


def test_a_faster_group_wins_though_the_other_does_not_know_its_kernels() -> None:
    near = Extents(1, 4096, 4096, 4000)
    slow = by_extents(ranked(near, "aa", "bb", seconds=(1e-5, 2e-5)))
    fast = by_extents(ranked(near, "cc", "dd", seconds=(5e-6, 6e-6)))
    for rankings in ([slow, fast], [fast, slow]):
        found = nearest_tuned(rankings, SQUARE, CANDIDATES, SMS)
        assert found is not None
        assert found.digests[:4] == ("cc", "dd", "aa", "bb")


def test_nothing_near_is_no_answer() -> None:
    assert nearest_tuned([], SQUARE, CANDIDATES, SMS) is None
    assert nearest_tuned([{}], SQUARE, CANDIDATES, SMS) is None
    assert nearest_tuned([by_extents(ranked(Extents(1, 1, 1, 1), "aa"))], SQUARE, CANDIDATES, SMS) is None


# -- modelled -----------------------------------------------------------------------------------------------


def test_a_modelled_ranking_gives_its_order() -> None:
    found = modelled([("b200", by_extents(ranked(SQUARE, "dd", "aa", seconds=())))], SQUARE)
    assert found is not None
    assert (found.tier, found.digests) == ("modelled", ("dd", "aa"))
    assert found.reason == "4096x4096x4096 was ranked for b200"


def test_the_nearest_modelled_problem_stands_in() -> None:
    known = [Extents(1, 4096, 4096, k) for k in (1500, 3000, 6000)]
    ranking = by_extents(
        *(ranked(e, name, seconds=()) for e, name in zip(known, ("aa", "bb", "cc"), strict=True))
    )
    found = modelled([("b200", ranking)], SQUARE)
    assert found is not None
    assert found.digests == ("bb",)
    assert found.reason == "4096x4096x3000 was ranked for b200, near 4096x4096x4096"


def test_the_first_ranking_that_knows_an_answer_decides() -> None:
    far, near = (
        by_extents(ranked(Extents(1, 1, 1, 1), "aa", seconds=())),
        by_extents(ranked(SQUARE, "bb", seconds=())),
    )
    found = modelled([("b200", far), ("gb300", near)], SQUARE)
    assert found is not None
    assert found.reason == "4096x4096x4096 was ranked for gb300"
    assert modelled([("b200", far)], SQUARE) is None
    assert modelled([], SQUARE) is None


# -- default order ------------------------------------------------------------------------------------------


def test_the_default_order_is_by_the_estimate() -> None:
    found = default_order(list(CANDIDATES.values()), SQUARE, SMS)
    assert found.tier == "default order"
    assert found.reason == "the least estimated time on 132 SMs"
    estimates = [estimate_of(CANDIDATES[digest], SQUARE, SMS) for digest in found.digests]
    assert estimates == sorted(estimates)


def test_equals_stay_in_the_order_given() -> None:
    same = [Candidate.make(digest, {"tile_shape": (128, 128)}) for digest in ("zz", "aa", "mm")]
    assert default_order(same, SQUARE, SMS).digests == ("zz", "aa", "mm")


# -- properties ---------------------------------------------------------------------------------------------

EXTENT = st.one_of(st.integers(1, 300), st.sampled_from([512, 4096, 8192, 2**31 - 1]))
EXTENTS = st.builds(Extents, st.integers(1, 9), EXTENT, EXTENT, EXTENT)


@st.composite
def rankings(draw: st.DrawFn) -> list[dict[Extents, RankedProblem]]:
    """Rankings of several groups, each with kernels of its own, some of them unknown."""
    names = draw(st.permutations([*CANDIDATES, "f1", "f2"]))
    cut = draw(st.integers(1, len(names) - 1))
    found = []
    for own in (names[:cut], names[cut:]):
        problems = []
        for extents in draw(st.lists(EXTENTS, max_size=6, unique=True)):
            kernels = draw(st.lists(st.sampled_from(own), min_size=1, unique=True))
            times = sorted(draw(st.floats(1e-7, 1.0)) for _ in kernels)
            problems.append(ranked(extents, *kernels, seconds=tuple(times)))
        found.append(by_extents(*problems))
    return found


@given(rankings(), EXTENTS, st.randoms())
def test_tiers_do_not_depend_on_the_order_of_what_they_are_given(
    given_: list[dict[Extents, RankedProblem]], extents: Extents, chance: random.Random
) -> None:
    turned = []
    for ranking in reversed(given_):
        items = list(ranking.items())
        chance.shuffle(items)
        turned.append(dict(items))
    members = list(CANDIDATES.items())
    chance.shuffle(members)
    assert tuned(turned, extents) == tuned(given_, extents)
    assert nearest_tuned(turned, extents, dict(members), SMS) == nearest_tuned(
        given_, extents, CANDIDATES, SMS
    )


@given(rankings(), st.data())
def test_the_exact_problem_wins(given_: list[dict[Extents, RankedProblem]], data: st.DataObject) -> None:
    known = sorted({extents for ranking in given_ for extents in ranking})
    if not known:
        return
    extents = data.draw(st.sampled_from(known))
    found = tuned(given_, extents)
    assert found is not None
    times = {
        digest: time
        for ranking in given_
        if extents in ranking
        for digest, time in zip(ranking[extents].kernels, ranking[extents].seconds, strict=True)
    }
    assert set(found.digests) == set(times)
    assert all(times[one] <= times[other] for one, other in pairwise(found.digests))


@given(rankings(), EXTENTS)
def test_near_answers_name_candidates_alone_and_problems_that_are_near(
    given_: list[dict[Extents, RankedProblem]], extents: Extents
) -> None:
    def far(other: Extents) -> float:
        pairs = (
            (extents.batch, other.batch),
            (extents.m, other.m),
            (extents.n, other.n),
            (extents.k, other.k),
        )
        return max(abs(log2(one / two)) for one, two in pairs)

    near = {other for ranking in given_ for other in ranking if far(other) <= NEAR}
    found = nearest_tuned(given_, extents, CANDIDATES, SMS)
    assert (found is not None) == bool(near)
    if found is not None:
        assert sorted(found.digests) == sorted(CANDIDATES)
        named = found.reason.partition(": ")[2].split(", ")
        assert set(named) <= set(map(str, near))
        assert len(named) == min(len(near), NEIGHBOURS) or extents in near


@given(st.lists(st.sampled_from(sorted(CANDIDATES)), unique=True, min_size=1), EXTENTS, st.integers(1, 500))
def test_the_default_order_has_every_candidate_once(names: list[str], extents: Extents, sms: int) -> None:
    found = default_order([CANDIDATES[name] for name in names], extents, sms)
    assert sorted(found.digests) == sorted(names)
    again = default_order([CANDIDATES[name] for name in reversed(names)], extents, sms)
    estimates = {name: estimate_of(CANDIDATES[name], extents, sms) for name in names}
    for one, other in zip(found.digests, again.digests, strict=True):
        assert estimates[one] == estimates[other]

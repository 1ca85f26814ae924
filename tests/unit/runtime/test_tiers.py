"""The tiers of a choice, each a pure function: what it says, and that nothing but its facts decides."""

from __future__ import annotations

import random
from itertools import pairwise
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.runtime.selection.cost_model import Candidate, Candidates, estimate
from cutlass_aot.runtime.selection.tiers import (
    NEAR,
    NEIGHBOURS,
    Ranked,
    default_order,
    merged,
    modelled,
    nearest_tuned,
    tuned,
)
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblem

TILES = {"aa": (64, 64), "bb": (128, 128), "cc": (128, 256), "dd": (256, 128), "ee": (64, 256)}
CANDIDATES = {
    digest: Candidate.make([(*tile, 64), (1, 1), False, "F", "clc"], {})
    for digest, tile in sorted(TILES.items())
}
ALL = Candidates(CANDIDATES)
SMS = 132
SQUARE = Extents(1, 4096, 4096, 4096)


def ranked(extents: Extents, *kernels: str, seconds: tuple[float, ...] | None = None) -> RankedProblem:
    times = tuple(1e-5 * (position + 1) for position in range(len(kernels)))
    return RankedProblem(extents, kernels, times if seconds is None else seconds)


def ranking_of(*problems: RankedProblem) -> Ranked:
    return Ranked(problems)


# -- tuned --------------------------------------------------------------------------------------------------


def test_a_problem_that_was_measured_is_decided_by_its_times() -> None:
    found = tuned(ranking_of(ranked(SQUARE, "bb", "aa", seconds=(1.25e-5, 2e-5))), SQUARE)
    assert found is not None
    assert (found.tier, found.digests) == ("tuned", ("bb", "aa"))
    assert found.reason == "4096x4096x4096 was measured: 12.5 µs, the best of 2"


def test_only_the_very_problem_is_tuned() -> None:
    ranking = ranking_of(ranked(SQUARE, "aa"))
    for other in (
        Extents(2, 4096, 4096, 4096),
        Extents(1, 4097, 4096, 4096),
        Extents(1, 4096, 4095, 4096),
        Extents(1, 4096, 4096, 4104),
    ):
        assert tuned(ranking, other) is None
    assert tuned(ranking_of(), SQUARE) is None
    assert tuned(merged([]), SQUARE) is None


def test_times_of_all_groups_are_compared() -> None:
    first = ranking_of(ranked(SQUARE, "aa", "bb", seconds=(3e-5, 9e-5)))
    second = ranking_of(ranked(SQUARE, "cc", "dd", seconds=(1e-5, 5e-5)))
    found = tuned(merged([first, second]), SQUARE)
    assert found is not None
    assert found.digests == ("cc", "aa", "dd", "bb")
    assert found.reason == "4096x4096x4096 was measured: 10.0 µs, the best of 4"
    assert tuned(merged([second, first]), SQUARE) == found
    assert merged([first]) is first


def test_equal_times_of_several_groups_are_ordered_by_digest() -> None:
    groups = [ranking_of(ranked(SQUARE, name, seconds=(1e-5,))) for name in ("cc", "aa", "bb")]
    found = tuned(merged(groups), SQUARE)
    assert found is not None
    assert found.digests == ("aa", "bb", "cc")


# -- nearest tuned ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["batch", "m", "n", "k"])
@pytest.mark.parametrize(("factor", "near"), [(2, True), (4, True), (4.01, False), (8, False)])
@pytest.mark.parametrize("up", [True, False])
def test_near_is_within_two_octaves_in_every_extent(name: str, factor: float, near: bool, up: bool) -> None:
    extents = {"batch": 1000, "m": 1000, "n": 1000, "k": 1000}
    moved = {**extents, name: round(1000 * factor)}
    requested, known = (
        (Extents(**moved), Extents(**extents)) if up else (Extents(**extents), Extents(**moved))
    )
    found = nearest_tuned(ranking_of(ranked(known, "aa")), requested, ALL, SMS)
    assert (found is not None) == near
    if found is not None:
        assert found.tier == "nearest tuned"
        assert found.reason == f"measured near {requested}: {known}"


def test_all_candidates_are_ordered_and_nothing_else() -> None:
    ranking = ranking_of(ranked(SQUARE, "bb", "foreign", "cc"))
    found = nearest_tuned(ranking, Extents(1, 4096, 4096, 2048), ALL, SMS)
    assert found is not None
    assert sorted(found.digests) == sorted(CANDIDATES)


def test_the_best_of_a_near_problem_of_the_same_waves_is_the_best() -> None:
    # K alone differs: the estimates for both problems are equal.
    ranking = ranking_of(ranked(SQUARE, "dd", "aa", "cc", "bb", "ee"))
    found = nearest_tuned(ranking, Extents(1, 4096, 4096, 4000), ALL, SMS)
    assert found is not None
    assert found.digests == ("dd", "aa", "cc", "bb", "ee")


def test_kernels_without_a_time_rank_behind_those_with_one() -> None:
    ranking = ranking_of(ranked(SQUARE, "ee", "aa", seconds=(1e-5, 1.2e-5)))
    found = nearest_tuned(ranking, Extents(1, 4096, 4096, 4000), ALL, SMS)
    assert found is not None
    assert found.digests == ("ee", "aa", "bb", "cc", "dd")


def test_times_are_carried_over_by_the_estimate() -> None:
    # One wave of 128 x 128 tiles fits exactly; a row more is a second wave, for 256 x 128 it is none.
    known, requested = Extents(1, 12 * 128, 11 * 128, 4096), Extents(1, 12 * 128 + 1, 11 * 128, 4096)
    assert estimate(CANDIDATES["bb"], requested, SMS) == 2 * estimate(CANDIDATES["bb"], known, SMS)
    assert estimate(CANDIDATES["dd"], requested, SMS) == estimate(CANDIDATES["dd"], known, SMS)
    two = Candidates({digest: CANDIDATES[digest] for digest in ("bb", "dd")})
    ranking = ranking_of(ranked(known, "bb", "dd", seconds=(1e-5, 1.3e-5)))
    found = nearest_tuned(ranking, requested, two, SMS)
    assert found is not None
    assert found.digests == ("dd", "bb")


def test_the_nearer_problem_weighs_more() -> None:
    near, far = Extents(1, 4096, 4096, 3800), Extents(1, 4096, 4096, 1100)
    ranking = ranking_of(ranked(far, "bb", "aa"), ranked(near, "aa", "bb"))
    two = Candidates({digest: CANDIDATES[digest] for digest in ("aa", "bb")})
    found = nearest_tuned(ranking, SQUARE, two, SMS)
    assert found is not None
    assert found.digests == ("aa", "bb")
    assert found.reason == f"measured near {SQUARE}: {near}, {far}"


def test_no_more_than_the_nearest_are_asked() -> None:
    known = [Extents(1, 4096, 4096, 4096 - 8 * step) for step in range(1, NEIGHBOURS + 3)]
    ranking = ranking_of(*(ranked(extents, "aa", "bb") for extents in known[:NEIGHBOURS]))
    more = ranking_of(
        *(ranked(extents, "aa", "bb") for extents in known[:NEIGHBOURS]),
        *(ranked(extents, "bb", "aa", seconds=(1e-9, 1.0)) for extents in known[NEIGHBOURS:]),
    )
    assert [problem.extents for _, problem in more.near(SQUARE)] == known[:NEIGHBOURS]
    # What is farther has no say, whatever it says.
    found = nearest_tuned(more, SQUARE, ALL, SMS)
    assert found == nearest_tuned(ranking, SQUARE, ALL, SMS)
    assert found is not None
    assert found.reason == f"measured near {SQUARE}: {', '.join(map(str, known[:3]))}"


def test_a_faster_group_wins_though_the_other_does_not_know_its_kernels() -> None:
    near = Extents(1, 4096, 4096, 4000)
    slow = ranking_of(ranked(near, "aa", "bb", seconds=(1e-5, 2e-5)))
    fast = ranking_of(ranked(near, "cc", "dd", seconds=(5e-6, 6e-6)))
    for rankings in ([slow, fast], [fast, slow]):
        found = nearest_tuned(merged(rankings), SQUARE, ALL, SMS)
        assert found is not None
        assert found.digests[:4] == ("cc", "dd", "aa", "bb")


def test_one_ranking_is_asked_about_several_sets_of_candidates() -> None:
    """Shapes decide which groups serve: the same ranking then has more candidates, fewer, or others."""
    problem = ranked(Extents(1, 4096, 4096, 4000), "ee", "aa", "dd")
    ranking = ranking_of(problem)
    for names in (("aa", "bb"), ("aa", "bb", "cc"), ("aa", "dd"), ("dd", "ee"), ("aa", "bb")):
        some = Candidates({name: CANDIDATES[name] for name in names})
        found = nearest_tuned(ranking, SQUARE, some, SMS)
        assert found is not None
        assert found == nearest_tuned(ranking_of(problem), SQUARE, some, SMS)
        assert sorted(found.digests) == sorted(names)


def test_nothing_near_is_no_answer() -> None:
    for ranking in (ranking_of(), ranking_of(ranked(Extents(1, 1, 1, 1), "aa"))):
        assert nearest_tuned(ranking, SQUARE, ALL, SMS) is None


# -- modelled -----------------------------------------------------------------------------------------------


def test_a_modelled_ranking_gives_its_order() -> None:
    found = modelled([("b200", ranking_of(ranked(SQUARE, "dd", "aa", seconds=())))], SQUARE)
    assert found is not None
    assert (found.tier, found.digests) == ("modelled", ("dd", "aa"))
    assert found.reason == "4096x4096x4096 was ranked for b200"


def test_the_nearest_modelled_problem_stands_in() -> None:
    known = [Extents(1, 4096, 4096, k) for k in (1500, 3000, 6000)]
    ranking = ranking_of(
        *(ranked(e, name, seconds=()) for e, name in zip(known, ("aa", "bb", "cc"), strict=True))
    )
    found = modelled([("b200", ranking)], SQUARE)
    assert found is not None
    assert found.digests == ("bb",)
    assert found.reason == "4096x4096x3000, near 4096x4096x4096, was ranked for b200"


def test_the_first_ranking_that_knows_an_answer_decides() -> None:
    far, near = (
        ranking_of(ranked(Extents(1, 1, 1, 1), "aa", seconds=())),
        ranking_of(ranked(SQUARE, "bb", seconds=())),
    )
    found = modelled([("b200", far), ("gb300", near)], SQUARE)
    assert found is not None
    assert found.reason == "4096x4096x4096 was ranked for gb300"
    assert modelled([("b200", far)], SQUARE) is None
    assert modelled([], SQUARE) is None


# -- default order ------------------------------------------------------------------------------------------


def test_the_default_order_is_by_the_estimate() -> None:
    found = default_order(ALL, SQUARE, SMS)
    assert found.tier == "default order"
    assert found.reason == "the least estimated time on 132 SMs"
    estimates = [estimate(CANDIDATES[digest], SQUARE, SMS) for digest in found.digests]
    assert estimates == sorted(estimates)


def test_equals_stay_in_the_order_given() -> None:
    same = Candidates(dict.fromkeys(("zz", "aa", "mm"), CANDIDATES["bb"]))
    assert default_order(same, SQUARE, SMS).digests == ("zz", "aa", "mm")


# -- properties ---------------------------------------------------------------------------------------------

EXTENT = st.one_of(st.integers(1, 300), st.sampled_from([512, 4096, 8192, 2**31 - 1]))
EXTENTS = st.builds(Extents, st.integers(1, 9), EXTENT, EXTENT, EXTENT)


@st.composite
def rankings(draw: st.DrawFn) -> list[list[RankedProblem]]:
    """Problems of several groups, each with kernels of its own, some of them unknown."""
    names = draw(st.permutations([*CANDIDATES, "f1", "f2"]))
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
    def answers(given_: list[list[RankedProblem]], candidates: dict[str, Candidate]) -> list[object]:
        ranking = merged([Ranked(problems) for problems in given_])
        return [
            tuned(ranking, extents),
            nearest_tuned(ranking, extents, Candidates(candidates), SMS),
            *(modelled([("b200", Ranked(problems))], extents) for problems in sorted(given_, key=str)),
        ]

    turned = [chance.sample(problems, len(problems)) for problems in reversed(groups)]
    members = list(CANDIDATES.items())
    chance.shuffle(members)
    expected = answers([sorted(problems, key=lambda p: p.extents) for problems in groups], CANDIDATES)
    found = answers(turned, dict(members))
    assert found[:2] == expected[:2]
    assert sorted(map(str, found[2:])) == sorted(map(str, expected[2:]))


@given(rankings(), st.data())
def test_the_exact_problem_wins(groups: list[list[RankedProblem]], data: st.DataObject) -> None:
    known = sorted({problem.extents for problems in groups for problem in problems})
    if not known:
        return
    extents = data.draw(st.sampled_from(known))
    found = tuned(merged([Ranked(problems) for problems in groups]), extents)
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


def octaves(one: Extents, other: Extents) -> list[float]:
    pairs = ((one.batch, other.batch), (one.m, other.m), (one.n, other.n), (one.k, other.k))
    return [abs(log2(first / second)) for first, second in pairs]


@given(rankings(), EXTENTS)
def test_near_answers_name_candidates_alone_and_the_nearest_problems(
    groups: list[list[RankedProblem]], extents: Extents
) -> None:
    ranking = merged([Ranked(problems) for problems in groups])
    known = {problem.extents for problems in groups for problem in problems}
    steps = {other: octaves(extents, other) for other in known}
    # Not too close to the bound, where roundings decide.
    near = {other for other in known if max(steps[other]) <= NEAR - 1e-9}
    maybe = {other for other in known if max(steps[other]) <= NEAR + 1e-9}
    found = nearest_tuned(ranking, extents, ALL, SMS)
    assert (found is not None) == bool(maybe) or near != maybe
    requested = [(far, problem.extents) for far, problem in ranking.near(extents)]
    assert near <= {other for _, other in requested} <= maybe or len(requested) == NEIGHBOURS
    for far, other in requested:
        assert far == pytest.approx(sum(steps[other]))
    assert [far for far, _ in requested] == sorted(far for far, _ in requested)
    if found is not None:
        assert sorted(found.digests) == sorted(CANDIDATES)


@given(st.lists(st.sampled_from(sorted(CANDIDATES)), unique=True, min_size=1), EXTENTS, st.integers(1, 500))
def test_the_default_order_has_every_candidate_once(names: list[str], extents: Extents, sms: int) -> None:
    found = default_order(Candidates({name: CANDIDATES[name] for name in names}), extents, sms)
    assert sorted(found.digests) == sorted(names)
    again = default_order(Candidates({name: CANDIDATES[name] for name in reversed(names)}), extents, sms)
    estimates = {name: estimate(CANDIDATES[name], extents, sms) for name in names}
    for one, other in zip(found.digests, again.digests, strict=True):
        assert estimates[one] == estimates[other]

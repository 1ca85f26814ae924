"""How estimates are corrected by the times of problems near the one that is chosen for."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.runtime.selection.correction import (
    DRAW,
    LEADING,
    MOST,
    NEAREST,
    WITHIN,
    NearProblem,
    corrected,
    nearest,
)
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblem, RankedProblems

ESTIMATES = {"aa": 10.0, "bb": 10.5, "cc": 11.0, "dd": 30.0}


def estimate(digest: str, _: Extents) -> float:
    return ESTIMATES[digest]


def near(distance: float, m: int = 64, **times: float) -> NearProblem:
    """A problem with times in microseconds."""
    order = sorted(times, key=times.__getitem__)
    seconds = tuple(times[digest] * 1e-6 for digest in order)
    return NearProblem(distance, RankedProblem(Extents(1, m, 512, 512), tuple(order), seconds))


def test_the_nearest_are_those_with_the_least_octaves_between_the_extents() -> None:
    extents = Extents(1, 100, 1000, 1000)
    others = [Extents(batch, m, 1000, k) for batch in (1, 4) for m in (100, 200, 3200) for k in (500, 8000)]
    found = nearest(RankedProblems(RankedProblem(o, ("aa",), (1e-5,)) for o in others), extents)
    assert [item.distance for item in found] == pytest.approx([1, 2, 3, 3, 4, 4, 5, 6, 6, 8, 8, 10])
    assert [item.problem.extents for item in found[:2]] == [others[0], others[2]]
    many = RankedProblems(RankedProblem(Extents(1, m, 8, 8), ("aa",), (1e-5,)) for m in range(1, 100))
    assert [item.problem.extents.m for item in nearest(many, Extents(1, 1, 8, 8))] == [*range(1, NEAREST + 1)]


def test_without_a_time_the_leading_estimates_stay() -> None:
    leading = {digest: time for digest, time in ESTIMATES.items() if time < WITHIN * ESTIMATES["aa"]}
    assert leading.keys() == {"aa", "bb", "cc"}
    assert corrected(ESTIMATES, [], estimate) == leading
    # Neither does a time of a kernel that does not lead say anything, nor one that is compared to none.
    assert corrected(ESTIMATES, [near(0.1, dd=5.0), near(0.1, aa=50.0)], estimate) == pytest.approx(leading)
    many = {f"{number:02}": 10 + number / 1000 for number in range(LEADING + 3)}
    assert list(corrected(many, [], estimate)) == list(many)[:LEADING]


def test_a_kernel_that_took_longer_than_estimated_nearby_falls_behind() -> None:
    found = corrected(ESTIMATES, [near(0.5, aa=13.0, bb=10.5)], estimate)
    assert list(found) == ["bb", "cc", "aa"]
    assert list(found.values()) == sorted(found.values())
    # By half of the difference of their residuals, as the other half is of the other, with this weight.
    weight = 1 / (1 + 0.5**2)
    assert found["aa"] == pytest.approx(10 * 1.3 ** (weight / (DRAW + weight) / 2))
    assert found["bb"] == pytest.approx(10.5 / 1.3 ** (weight / (DRAW + weight) / 2))


def test_what_one_problem_alone_has_counts_no_more_than_a_bound() -> None:
    much, more = (corrected(ESTIMATES, [near(0.5, aa=10 * by, bb=10.5)], estimate) for by in (2, 5))
    assert much == pytest.approx(more)
    assert much["aa"] / 10 == pytest.approx(math.exp(MOST * 0.8 / (DRAW + 0.8)))


def test_a_problem_counts_the_less_the_farther_it_is() -> None:
    first, second = near(0.5, aa=13.0, bb=10.5), near(3, aa=10.0, bb=13.65)
    assert next(iter(corrected(ESTIMATES, [first, second], estimate))) == "bb"
    first, second = first._replace(distance=3), second._replace(distance=0.5)
    assert next(iter(corrected(ESTIMATES, [first, second], estimate))) == "aa"


@given(
    st.dictionaries(st.sampled_from(["aa", "bb", "cc", "dd"]), st.floats(1, 100)),
    st.floats(0, 9),
    st.floats(0.1, 10),
)
def test_what_made_all_kernels_slower_alike_corrects_nothing(
    times: Mapping[str, float], distance: float, slower: float
) -> None:
    alike = {digest: time * slower for digest, time in times.items()}
    found = corrected(ESTIMATES, [near(distance, **times)], estimate)
    assert found == pytest.approx(corrected(ESTIMATES, [near(distance, **alike)], estimate))

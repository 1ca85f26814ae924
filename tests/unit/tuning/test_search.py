"""Ranking by time, on a stopwatch whose times are given."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.tuning.search import Effort, rank


class Watch:
    """Every candidate takes its time; a candidate timed in a round takes longer by that round's drift."""

    def __init__(self, seconds, drifts=()):
        self.seconds = seconds
        self.drifts = list(drifts)
        self.rounds = []
        self.now = 0.0

    def time(self, candidates):
        drift = self.drifts[len(self.rounds)] if len(self.rounds) < len(self.drifts) else 1.0
        self.rounds.append(list(candidates))
        self.now += 1.0
        return [self.seconds[candidate] * drift for candidate in candidates]


def ranked(watch, clock=lambda: 0.0, candidates=None, **effort):
    return rank(sorted(watch.seconds) if candidates is None else candidates, watch, clock, Effort(**effort))


def test_the_fastest_is_first_and_what_is_far_behind_does_not_go_on():
    watch = Watch({0: 1.4, 1: 1.0, 2: 1.6, 3: 1.49})
    found = ranked(watch)
    assert found.ranked == ((1, 1.0), (0, 1.4), (3, 1.49))
    assert found.stopped == ((2, 1.6),)
    # Two looks over all of them, then eleven rounds over those that go on, there and back.
    assert watch.rounds[:4] == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 3], [3, 1, 0]]
    assert len(watch.rounds) == 2 + 11


def test_with_exhaustive_nobody_is_dropped():
    watch = Watch({0: 1.0, 1: 500.0})
    assert ranked(watch, exhaustive=True).ranked == ((0, 1.0), (1, 500.0))


def test_the_time_of_a_candidate_is_the_median_of_the_rounds():
    watch = Watch({0: 1.0, 1: 1.2}, [1, 1, 1, 1, 9, 9, 1])
    assert ranked(watch, most_rounds=5).ranked == ((0, 1.0), (1, 1.2))


def test_a_first_look_that_was_disturbed_drops_nobody():
    watch = Watch({0: 1.0, 1: 1.2}, [100.0])
    assert ranked(watch).stopped == ()


def test_rounds_end_when_the_time_is_up_but_not_before_the_least():
    watch = Watch({0: 1.0, 1: 1.1})
    ranked(watch, clock=lambda: watch.now, seconds=0.0)
    assert len(watch.rounds) == 2 + 3
    watch = Watch({0: 1.0, 1: 1.1})
    ranked(watch, clock=lambda: watch.now, seconds=7.0)
    # The last round begins at the seventh second, the two looks counted.
    assert len(watch.rounds) == 8


def test_equal_times_keep_the_order_of_the_candidates():
    watch = Watch({2: 1.0, 0: 1.0, 1: 1.0})
    assert [candidate for candidate, _ in ranked(watch, candidates=[2, 0, 1]).ranked] == [0, 1, 2]


def test_no_candidates_are_no_ranking():
    assert ranked(Watch({})) == rank([], Watch({}), lambda: 0.0, Effort())
    assert ranked(Watch({})).ranked == ()


@given(st.lists(st.floats(1e-7, 1.0), min_size=1, max_size=20))
def test_everyone_is_ranked_or_stopped(seconds):
    found = ranked(Watch(dict(enumerate(seconds))))
    numbers = [candidate for candidate, _ in (*found.ranked, *found.stopped)]
    assert sorted(numbers) == list(range(len(seconds)))
    assert found.ranked[0][1] == min(seconds)
    assert [time for _, time in found.ranked] == sorted(time for _, time in found.ranked)
    assert all(time > 1.5 * found.ranked[0][1] for _, time in found.stopped)
    assert all(time <= 1.5 * found.ranked[0][1] for _, time in found.ranked)

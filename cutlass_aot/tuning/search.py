"""Rank candidates by time: a first look that drops the slow ones, then rounds over the rest.

Each round times every candidate once, one after the other, so that drifting or throttled clocks affect all of
them alike; every second round goes backwards, so that no candidate always follows the same neighbour. The
time of a candidate is the median over the rounds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

Standing = tuple[tuple[int, float], ...]
"""Candidates with their seconds a launch, best first."""


class Stopwatch(Protocol):
    """Times the candidates of one problem, which are identified by numbers."""

    def time(self, candidates: Sequence[int]) -> Sequence[float]:
        """Time one batch of launches of each candidate in this order; seconds a launch, in the same order."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    Attributes:
        first_looks: rounds over all candidates, whose best times decide which of them continue.
        stop_ratio: a candidate that is slower than the fastest by more than this factor is dropped.
        least_rounds: rounds over the rest, however long they take.
        most_rounds: rounds, however short they are.
        seconds: after the least rounds, no round begins later than this.
        exhaustive: no candidate is dropped.
    """

    first_looks: int = 2
    stop_ratio: float = 1.5
    least_rounds: int = 3
    most_rounds: int = 11
    seconds: float = 0.15
    exhaustive: bool = False


@dataclass(frozen=True, slots=True)
class Ranked:
    """The outcome of one problem: candidates measured to the end, by the median of their times.

    ``stopped`` are those that were dropped after the first looks, by the best of their times.
    """

    ranked: Standing
    stopped: Standing


def rank(
    candidates: Sequence[int], stopwatch: Stopwatch, clock: Callable[[], float], effort: Effort
) -> Ranked:
    """Rank candidates; ``clock`` gives the seconds that ``effort`` limits."""
    if not candidates:
        return Ranked((), ())
    begin = clock()
    looks = [stopwatch.time(candidates) for _ in range(effort.first_looks)]
    best = {c: min(look[index] for look in looks) for index, c in enumerate(candidates)}
    bound = min(best.values()) * (float("inf") if effort.exhaustive else effort.stop_ratio)
    kept = [candidate for candidate in candidates if best[candidate] <= bound]
    times: dict[int, list[float]] = {candidate: [] for candidate in kept}
    for number in range(effort.most_rounds):
        if number >= effort.least_rounds and clock() - begin > effort.seconds:
            break
        order = kept[::-1] if number % 2 else kept
        for candidate, seconds in zip(order, stopwatch.time(order), strict=True):
            times[candidate].append(seconds)
    return Ranked(
        _standing({candidate: statistics.median(found) for candidate, found in times.items()}),
        _standing({candidate: best[candidate] for candidate in candidates if candidate not in times}),
    )


def _standing(times: dict[int, float]) -> Standing:
    return tuple(sorted(times.items(), key=lambda item: (item[1], item[0])))

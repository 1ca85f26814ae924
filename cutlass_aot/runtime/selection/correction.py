"""Correct estimated times for a problem by measured times of problems near it.

What the cost model gets wrong about a kernel, it gets wrong alike for similar problems. So the estimates of
the kernels that it expects to be the fastest are multiplied by a weighted mean of how much longer each took
than was estimated, at the measured problems that are nearest::

    distance = sum of the octaves between the extents: batch, m, n and k
    weight   = 1 / (1 + distance^2)
    residual = log(time / estimate), less its mean over all of these kernels that have a time there,
               and not beyond MOST either way
    factor   = exp(sum(weight * residual) / (DRAW + sum(weight))), over the problems where the kernel has one

This is inverse distance weighting (D. Shepard, "A two-dimensional interpolation function for irregularly
spaced data", 1968) of residuals, drawn towards no correction. ``builder/native/select.c`` computes the same.
The numbers are those by which left-out problems of ``manifests/tuning/nvidia-h200.json`` and
``nvidia-h100.json`` have about the least regret; ``cutlass-aot tune --fit`` prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from math import exp, log, log2

from cutlass_aot.schema.named_tuple import NamedTuple
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblem, RankedProblems

NEAREST = 12
"""How many problems correct an estimate."""

LEADING = 8
"""How many kernels are corrected, at most."""

WITHIN = 1.2
"""A kernel is corrected if its estimate is less than so many times the least."""

MOST = 0.15
"""A larger residual is of what that problem alone has, and counts as this."""

DRAW = 0.3
"""The weight of no correction; that of a problem with the same extents would be 1."""


class NearProblem(NamedTuple):
    """A measured problem, and how many octaves its extents are from those of another."""

    distance: float
    problem: RankedProblem


def nearest(problems: RankedProblems, extents: Extents) -> list[NearProblem]:
    """The nearest measured problems, of equals those that come first."""
    batch, m, n, k = map(log2, extents)
    # Written out, as there can be thousands of problems.
    distances = [
        (abs(own[0] - batch) + abs(own[1] - m) + abs(own[2] - n) + abs(own[3] - k), number)
        for number, own in enumerate(problems.logarithms)
    ]
    return [NearProblem(distance, problems[number]) for distance, number in nsmallest(NEAREST, distances)]


def corrected(
    estimates: Mapping[str, float],
    near: Sequence[NearProblem],
    estimate: Callable[[str, Extents], float],
) -> dict[str, float]:
    """The corrected times of the kernels with the least estimates, in microseconds, by digest; best first.

    Args:
        estimates: of each kernel by digest, in microseconds; of equals the first is preferred.
        near: measured problems near the one that the estimates are of.
        estimate: gives a kernel's estimate for another problem.
    """
    leading = sorted(estimates, key=estimates.__getitem__)[:LEADING]
    limit = WITHIN * estimates[leading[0]]
    leading = [digest for digest in leading if estimates[digest] < limit]
    sums, weights = dict.fromkeys(leading, 0.0), dict.fromkeys(leading, DRAW)
    for distance, problem in near:
        residuals = {
            digest: log(seconds * 1e6 / estimate(digest, problem.extents))
            for digest, seconds in zip(problem.kernels, problem.seconds, strict=True)
            if digest in sums
        }
        mean = sum(residuals.values()) / max(1, len(residuals))
        weight = 1 / (1 + distance * distance)
        for digest, residual in residuals.items():
            sums[digest] += weight * max(-MOST, min(MOST, residual - mean))
            weights[digest] += weight
    times = {digest: estimates[digest] * exp(sums[digest] / weights[digest]) for digest in leading}
    return {digest: times[digest] for digest in sorted(leading, key=times.__getitem__)}

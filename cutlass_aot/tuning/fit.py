"""Fit the cost model's constants to measured times, and say how well it then chooses.

Each kernel has constants of its own, but no kernel is measured often enough to tell all of them: they are
drawn towards what a regression over all kernels of the group says of its design. The fit goes back and forth
between the two. Each problem may besides be slower or faster for all kernels alike, as clocks change while
one measures. The constants are fitted on logarithmic scales by the Levenberg-Marquardt method, for all
kernels at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cutlass_aot.errors import TuningError
from cutlass_aot.runtime.optional_packages import optional
from cutlass_aot.runtime.selection.correction import corrected, nearest
from cutlass_aot.runtime.selection.cost_model import Candidates, Work, microseconds
from cutlass_aot.schema.kernels.tiling import Tiling, Traffic
from cutlass_aot.schema.tuning.costs import (
    FEATURES,
    Costs,
    Machine,
    Regression,
    features,
    from_logarithms,
    to_logarithms,
)
from cutlass_aot.schema.tuning.ranking import RankedProblems
from cutlass_aot.schema.tuning.tuned import ranked
from cutlass_aot.schema.tuning.tuning import Accuracy, FittedModel, TunedGroup, TunedProblem, Tuning

if TYPE_CHECKING:
    import numpy as np

    from cutlass_aot.schema.kernels.kernel import Kernel

    Array = np.ndarray[Any, np.dtype[np.float64]]

NOISE = 0.03
"""Standard deviation of the logarithm of a time that was measured to the end."""

NOISE_STOPPED = 0.08
"""That of a measurement that was stopped early."""

FOLDS = 3
"""Parts of the problems that :func:`accuracy` leaves out in turn."""

_SWEEPS = 3
_FIRST_STEPS, _STEPS = 12, 8
_MOST_OFFSET = 0.1
"""By how much, as a logarithm, a problem may be slower for all kernels alike."""

_SPREAD = Costs(
    launch=0.1, tile=0.3, step=0.12, crowding=0.15, pairing=0.3, sharing=0.2, misalignment=0.3,
    within_line=0.3, tail=0.5, bandwidth=0.12, emptiness=0.3, partial_sectors=0.3, partial_lines=0.5,
    overlap=0.15, unevenness=0.3,
)  # fmt: skip
"""Standard deviations of a kernel's constants, on their logarithmic scales, around the regression."""

_FIRST_SPREAD = Costs(
    launch=0.5, tile=1.0, step=1.0, crowding=1.0, pairing=1.0, sharing=1.0, misalignment=1.0,
    within_line=1.0, tail=1.0, bandwidth=0.3, emptiness=1.0, partial_sectors=1.0, partial_lines=1.0,
    overlap=0.7, unevenness=1.0,
)  # fmt: skip
"""The same around what is derived from the design alone, before there is a regression."""

_BY_DESIGN = ("tile", "step", "bandwidth")
"""Constants whose regression has slopes; of the others a kernel's kind alone decides."""

_RIDGE = 0.5
"""Draws slopes and differences between kinds towards zero; in kernels."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The result of a fit: the constants of each candidate, in their order, and the regression."""

    costs: tuple[Costs, ...]
    regression: Regression


@dataclass(frozen=True, slots=True)
class _Times:
    """Measured times as arrays with a row for each kernel and a column for each problem.

    Where a kernel has no time, its weight is 0. ``logarithms`` are of microseconds, ``weights`` reciprocal
    variances, and ``ended`` tells which were measured to the end.
    """

    logarithms: Array
    weights: Array
    ended: Array


def fit_tuning(tuning: Tuning, kernels: Iterable[Kernel]) -> Tuning:
    """A tuning file with the cost model fitted to its times; ``kernels`` are those of the bundle."""
    by_digest = {kernel.digest: kernel for kernel in kernels}
    groups = []
    for group in tuning.groups:
        members = [by_digest[kernel.digest] for kernel in group.kernels]
        tilings = {kernel.digest: Tiling.of(kernel) for kernel in members}
        traffic = Traffic.of(members[0].operands)
        if not traffic.of_gemm:
            # The model knows no others; their problems are chosen for by the nearest that was measured.
            groups.append(group)
            continue
        groups.append(fit_group(group, tilings, traffic, members[0].target, tuning.machine))
    return replace(tuning, groups=tuple(groups))


def fit_group(
    group: TunedGroup, tilings: Mapping[str, Tiling], traffic: Traffic, target: str, machine: Machine
) -> TunedGroup:
    """A group with the constants of its kernels, the regression, and the accuracy of such fits.

    Args:
        group: measured on ``machine``; one without a time comes back as it is.
        tilings: of its kernels, by digest.
        traffic: of its operands.
        target: of its kernels.
        machine: the GPU.
    """
    if not any(problem.ranked for problem in group.problems):
        return group
    candidates = Candidates.of(
        {kernel.digest: tilings[kernel.digest] for kernel in group.kernels}, traffic, target
    )
    found = fit(candidates, group.problems, machine)
    costs = dict(zip(candidates.digests, found.costs, strict=True))
    return replace(
        group,
        kernels=tuple(replace(kernel, costs=costs[kernel.digest]) for kernel in group.kernels),
        model=FittedModel(found.regression, accuracy(candidates, group.problems, machine)),
        other_formula=None,
    )


def fit(candidates: Candidates, problems: Sequence[TunedProblem], machine: Machine) -> Fit:
    """Fit the constants of ``candidates`` to measurements on ``machine``.

    Raises:
        TuningError: if no problem has a time, or numpy is not installed.
    """
    np = import_numpy()
    if not any(problem.ranked for problem in problems):
        raise TuningError("no kernel was measured: there is nothing to fit the cost model to")
    todo = _work(candidates, problems, machine)
    times = _times(candidates.digests, problems)
    base = np.array([to_logarithms(costs) for costs in candidates.derived(machine)])
    design = _Design.of(candidates.tilings)
    values, prior, spread = base, base, np.array(_FIRST_SPREAD)
    offsets = np.zeros(len(problems))
    regression = design.regression(np.zeros_like(base))
    for sweep in range(_SWEEPS):
        values = _least_squares(
            lambda logarithms: _predicted(logarithms, todo),
            values,
            prior,
            spread,
            times.logarithms - offsets,
            times.weights,
            _STEPS if sweep else _FIRST_STEPS,
        )
        regression = design.regression(values - base)
        prior = base + np.array([regression.differences(tiling) for tiling in candidates.tilings])
        spread = np.array(_SPREAD)
        residuals = np.where(times.ended, times.logarithms - _predicted(values, todo), np.nan)
        offsets = np.clip(np.nan_to_num(_median(residuals)), -_MOST_OFFSET, _MOST_OFFSET)
    # Of a kernel without a time, the last regression knows more than the last but one, which it was drawn to.
    values = np.where((times.weights > 0).sum(1)[:, None] > 0, values, prior)
    return Fit(tuple(from_logarithms(row) for row in values.tolist()), regression)


def accuracy(candidates: Candidates, problems: Sequence[TunedProblem], machine: Machine) -> Accuracy | None:
    """The regret of the choice on problems whose (n, k) the fit did not know; None if there are too few.

    Regret is the time of the kernel that the model takes over that of the fastest. Estimates are corrected by
    the problems that the fit knew. Kernels without a time at a problem are left out there.
    """
    pairs = sorted({(problem.extents.n, problem.extents.k) for problem in problems})
    if len(pairs) < 2 * FOLDS:
        return None
    regrets = []
    for fold in range(FOLDS):
        left_out = set(pairs[fold::FOLDS])
        known = [p for p in problems if (p.extents.n, p.extents.k) not in left_out]
        unknown = [p for p in problems if (p.extents.n, p.extents.k) in left_out and p.ranked]
        if not any(problem.ranked for problem in known):
            return None
        costs = fit(candidates, known, machine).costs
        times = RankedProblems(ranked(problem) for problem in known if problem.ranked)
        regrets += [regret(candidates, costs, problem, machine, times) for problem in unknown]
    return Accuracy.of(regrets, FOLDS)


def regret(
    candidates: Candidates,
    costs: Sequence[Costs],
    problem: TunedProblem,
    machine: Machine,
    known: RankedProblems | None = None,
) -> float:
    """The time of the kernel that the model takes over the fastest, among those with a time.

    Estimates are corrected by the times of the problems that are ``known``, of which this one is none.
    """
    times = dict((*problem.stopped, *problem.ranked))
    estimate = candidates.estimator(costs, machine.sm_count)
    estimates = {d: estimate(d, problem.extents) for d in candidates.digests if d in times}
    if known:
        estimates = corrected(estimates, nearest(known, problem.extents), estimate)
    return times[min(estimates, key=estimates.__getitem__)] / problem.ranked[0][1]


def import_numpy() -> Any:
    """Import numpy; refuse to go on without it."""
    return optional("numpy", TuningError, "fitting the cost model")


# -- measurements -------------------------------------------------------------------------------------------


def _work(candidates: Candidates, problems: Sequence[TunedProblem], machine: Machine) -> Work:
    """The work of every kernel for every problem, each field an array."""
    np = import_numpy()
    columns = [candidates.work(problem.extents, machine.sm_count) for problem in problems]
    stacked = np.array(columns, dtype=float).transpose(2, 1, 0)
    return Work(*stacked)


def _times(digests: Sequence[str], problems: Sequence[TunedProblem]) -> _Times:
    np = import_numpy()
    position = {digest: row for row, digest in enumerate(digests)}
    shape = (len(digests), len(problems))
    logarithms, weights, ended = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=bool)
    for column, problem in enumerate(problems):
        best = problem.ranked[0][1] if problem.ranked else None
        for times, noise in ((problem.stopped, NOISE_STOPPED), (problem.ranked, NOISE)):
            for digest, time in times:
                row = position.get(digest)
                if row is not None:
                    logarithms[row, column] = np.log(time)
                    # What is far slower than the fastest kernel is never chosen, and may be less well known.
                    weights[row, column] = 1 / noise**2 / max(1.0, time / (best or time)) ** 2
                    ended[row, column] = noise == NOISE
    return _Times(logarithms, weights, ended)


# -- least squares ------------------------------------------------------------------------------------------


def _predicted(logarithms: Array, todo: Work) -> Array:
    """Logarithms of the estimates, by kernel and problem."""
    np = import_numpy()
    values = {name: np.exp(logarithms[:, at : at + 1]) for at, name in enumerate(Costs._fields)}
    values["tail"] = values["tail"] / (1 + values["tail"])
    values["overlap"] = 1 + values["overlap"]
    found: Array = np.log(microseconds(Costs(**values), todo))
    return found


def _least_squares(
    predict: Callable[[Array], Array],
    values: Array,
    prior: Array,
    spread: Array,
    measured: Array,
    weights: Array,
    steps: int,
) -> Array:
    """The constants of each kernel that explain its times best, drawn towards ``prior``.

    Every kernel is a problem of its own; the damping of its steps is, too.
    """
    np = import_numpy()
    count = values.shape[1]
    damping = np.full(len(values), 1e-2)

    def loss(predicted: Array, values: Array) -> Array:
        data: Array = (weights * (predicted - measured) ** 2).sum(1)
        drawn: Array = (((values - prior) / spread) ** 2).sum(1)
        return data + drawn

    predicted = predict(values)
    current = loss(predicted, values)
    for _ in range(steps):
        slopes = np.empty((*predicted.shape, count))
        for constant in range(count):
            moved = values.copy()
            moved[:, constant] += 1e-4
            slopes[:, :, constant] = (predict(moved) - predicted) / 1e-4
        weighted = slopes * weights[:, :, None]
        curvature = slopes.transpose(0, 2, 1) @ weighted + np.diag(1 / spread**2)
        gradient = (weighted * (measured - predicted)[:, :, None]).sum(1) + (prior - values) / spread**2
        diagonal = np.einsum("kii->ki", curvature)[:, :, None] * np.eye(count)
        step = np.linalg.solve(curvature + damping[:, None, None] * diagonal, gradient[:, :, None])[:, :, 0]
        moved = values + np.clip(step, -1, 1)
        moved_predicted = predict(moved)
        moved_loss = loss(moved_predicted, moved)
        better = moved_loss < current
        values = np.where(better[:, None], moved, values)
        predicted = np.where(better[:, None], moved_predicted, predicted)
        current = np.where(better, moved_loss, current)
        damping = np.where(better, damping / 3, damping * 4)
    return values


def _median(residuals: Array) -> Array:
    """The median of each column, ignoring what is not a number; not a number for an empty column."""
    np = import_numpy()
    found: Array = np.full(residuals.shape[1], np.nan)
    for column in range(residuals.shape[1]):
        known = residuals[~np.isnan(residuals[:, column]), column]
        if len(known):
            found[column] = np.median(known)
    return found


# -- regression ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Design:
    """The matrix of the regression: for each kernel a one, its features, and a one for its kind."""

    matrix: Array
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, tilings: Sequence[Tiling]) -> _Design:
        np = import_numpy()
        kinds = tuple(sorted({tiling.kind for tiling in tilings}))
        rows = [[1.0, *features(t), *(float(t.kind == kind) for kind in kinds)] for t in tilings]
        return cls(np.array(rows), kinds)

    def regression(self, differences: Array) -> Regression:
        """The regression of constants' differences from what is derived, a row for each kernel."""
        np = import_numpy()
        columns = []
        for constant, name in enumerate(Costs._fields):
            sloped = name in _BY_DESIGN
            used = np.ones(self.matrix.shape[1], dtype=bool)
            used[1 : 1 + FEATURES] = sloped
            matrix = self.matrix[:, used]
            ridge = np.diag([1e-3, *([_RIDGE] * (matrix.shape[1] - 1))])
            found = np.zeros(self.matrix.shape[1])
            found[used] = np.linalg.solve(matrix.T @ matrix + ridge, matrix.T @ differences[:, constant])
            columns.append(found)
        table = np.array(columns).round(5)
        kinds = table[:, 1 + FEATURES :] + table[:, :1]
        return Regression(
            {kind: tuple(kinds[:, at].round(5).tolist()) for at, kind in enumerate(self.kinds)},
            tuple(table[:, 0].tolist()),
            tuple(tuple(row) for row in table[:, 1 : 1 + FEATURES].tolist()),
        )

"""Choose a kernel for a problem: six tiers, each a pure function; :func:`prefer` asks them in order.

1. ``tuned``: this very problem was measured on this model of GPU; or, of what is not a GEMM, one near it.
2. ``fitted``: the cost model (:mod:`~.selection.cost_model`), fitted to measurements on this model of GPU,
   and corrected by the problems that were measured (:mod:`~.selection.correction`).
3. ``scaled``: the same, fitted on another model of GPU and scaled to this one.
4. ``modelled``: a ranking made when the bundle was built has this problem, or one near it.
5. ``declared``: the cost formula of the kernels' author.
6. ``default order``: the cost model with constants that are derived from the design alone. It knows GEMMs; of
   other kernels it takes the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import log2

from cutlass_aot.runtime.selection.correction import corrected, nearest
from cutlass_aot.runtime.selection.cost_model import (
    Candidates,
    Estimate,
    estimate,
    microseconds,
)
from cutlass_aot.schema.named_tuple import NamedTuple
from cutlass_aot.schema.tuning.costs import Costs, Derivation, Machine
from cutlass_aot.schema.tuning.ranking import Extents, OwnExtents, RankedProblem, RankedProblems, Ranking

NEAR = 2.0
"""Largest distance of near problems of a modelled ranking: octaves, in the extent that differs most."""

DOUBT = 1.02
"""A kernel that was not measured at a problem has to be expected faster by this than the best that was.

The less it is, the sooner kernels are chosen that came after the measurement, which tend to be faster; the
more, the less often an estimate wins that is too low.
"""

_CORRECTING = 8
"""The fastest measured kernels of a problem, by which the estimates of the others are corrected: what makes
the slower ones slow is their own."""


Constants = Sequence[Costs] | Derivation
"""The constants of each candidate, or how they are derived."""

Fastest = Callable[[Constants], int]
"""Gives the number of the candidate with the least time by these constants for a problem, in native code."""


class Preference(NamedTuple):
    """A tier's answer for a problem: the tier's name, why in words, and the kernels that it ranks.

    ``digests`` is best first; at least one is a candidate. ``expected`` has the measured or estimated time of
    each in microseconds; it is empty if the tier knows no times.
    """

    tier: str
    reason: str
    digests: tuple[str, ...]
    expected: tuple[float, ...] = ()


class Ranked:
    """The rankings of some groups for one GPU model, indexed to find a problem and the problems near it.

    Attributes:
        gpu: the GPU model.
        problems: how many were measured or ranked.
        machine: what times scale with; None if no cost model was fitted.
        fitted: constants by the kernels' digests, each with the machine that they were fitted on.
        has_own_times: whether a problem was measured with these kernels, and not with others in their place.
    """

    def __init__(self, *rankings: Ranking) -> None:
        self.gpu = rankings[0].gpu if rankings else ""
        self.problems = sum(len(ranking.problems) for ranking in rankings)
        self.has_own_times = any(r.problems and not r.measured_as for r in rankings)
        self.machine: Machine | None = next((r.machine for r in rankings if r.machine is not None), None)
        # Each with the GPU that it was fitted on: of two of one model, one may have a lower clock.
        self.fitted: dict[str, tuple[Costs, Machine]] = {}
        for ranking in rankings:
            if ranking.machine is not None:
                self.fitted.update((digest, (costs, ranking.machine)) for digest, costs in ranking.costs)
        self._rankings = rankings
        self._present: dict[tuple[tuple[str, ...], Machine], list[Costs]] = {}

    @classmethod
    def merged(cls, parts: Sequence[Ranked]) -> Ranked:
        """Rankings of several groups as one, so that kernels compete across groups."""
        return (
            parts[0] if len(parts) == 1 else cls(*(ranking for part in parts for ranking in part._rankings))
        )

    def costs_on(self, candidates: Candidates, machine: Machine) -> list[Costs]:
        """The constants of each candidate on a GPU: fitted ones, scaled to it, or else derived ones."""
        key = (candidates.digests, machine)
        found = self._present.get(key)
        if found is None:
            scaled = {digest: costs.on(fit_on, machine) for digest, (costs, fit_on) in self.fitted.items()}
            if all(digest in scaled for digest in candidates.digests):
                found = [scaled[digest] for digest in candidates.digests]
            else:
                derived = candidates.derived(machine)
                found = [scaled.get(d, other) for d, other in zip(candidates.digests, derived, strict=True)]
            self._present[key] = found
        return found

    def exact(self, extents: tuple[int, ...]) -> RankedProblem | None:
        """The problem of these extents, with the kernels of all groups; None if it is not in the rankings."""
        found = [p for ranking in self._rankings if (p := ranking.problems.find(extents)) is not None]
        if len(found) < 2:
            return found[0] if found else None
        times = {d: t for problem in found for d, t in zip(problem.kernels, problem.seconds, strict=True)}
        kernels = tuple(sorted(times, key=lambda digest: (times[digest], digest)))
        slower = frozenset().union(*(problem.slower for problem in found))
        return RankedProblem(found[0].extents, kernels, tuple(times[digest] for digest in kernels), slower)

    def measured_as(self, extents: tuple[int, ...]) -> str:
        """In words, with which other groups' kernels this problem was measured; ``""`` for none."""
        others = {
            ranking.measured_as
            for ranking in self._rankings
            if ranking.measured_as and ranking.problems.find(extents) is not None
        }
        return f" as {' and '.join(sorted(others))}" if others else ""

    def problems_by_group(self) -> list[RankedProblems]:
        """The problems of each group."""
        return [ranking.problems for ranking in self._rankings]

    def correcting(self, machine: Machine) -> RankedProblems | None:
        """The problems by which estimates for a GPU are corrected; None if there are none.

        The cost model has to be fitted to times of such a GPU. Where several groups have times, none correct:
        each has those of its own kernels alone.
        """
        rankings = [ranking for ranking in self._rankings if ranking.problems]
        if len(rankings) != 1:
            return None
        fit_on, problems = rankings[0].machine, rankings[0].problems
        return problems if fit_on is not None and fit_on.sm_count == machine.sm_count else None

    def nearest(self, extents: Extents) -> RankedProblem | None:
        """The nearest problem by the sum of octaves in all extents; None if none is within :data:`NEAR`."""
        found = []
        for other in set().union(*(ranking.problems.extents for ranking in self._rankings)):
            steps = [abs(log2(one / another)) for one, another in zip(extents, other, strict=True)]
            if max(steps) <= NEAR:
                found.append((sum(steps), other))
        return self.exact(min(found)[1]) if found else None


class KnownSpeeds(NamedTuple):
    """What a bundle knows of the speed of some groups' kernels; what is a function is read when it is needed.

    ``measured`` is of the GPU model that is chosen for, ``elsewhere`` of the other GPU models by their names,
    which are sorted, and ``modelled`` gives the rankings of the build.
    """

    measured: Ranked | None
    elsewhere: Mapping[str, Callable[[], Ranked]]
    modelled: Callable[[], Sequence[Ranked]]

    def fit(self, machine: Machine) -> Ranked | None:
        """The fitted cost model to use: of this GPU model, or else of the most similar; None if none was."""
        if self.measured is not None and self.measured.machine is not None:
            return self.measured
        if not self.elsewhere:
            return None
        found = [
            (_distance(ranking.machine, machine), ranking)
            for read in self.elsewhere.values()
            if (ranking := read()).machine is not None
        ]
        return min(found, key=lambda item: item[0], default=(0.0, None))[1]


def _distance(one: Machine | None, other: Machine) -> float:
    """How different two GPUs are: the sum of octaves between their numbers."""
    return sum(abs(log2(mine / theirs)) for mine, theirs in zip(one or other, other, strict=True))


def prefer(
    known: KnownSpeeds,
    candidates: Callable[[], Candidates],
    extents: Extents,
    gpu: str | None,
    machine: Machine,
    fastest: Fastest | None = None,
    costs: Callable[[], Mapping[str, float]] | None = None,
) -> Preference:
    """The preference of the first tier that has data for the problem.

    ``candidates`` gives the kernels, all of one target, each of which serves the problem; it is called only
    if their estimated times are needed. ``gpu`` is the GPU model that is chosen for, None if none was named,
    and ``machine`` what its times scale with. With ``fastest``, no more than the best kernel is asked for.
    ``costs`` gives the cost of each kernel by its digest, if their author declared a formula.
    """
    if known.measured is not None:
        found = tuned(known.measured, candidates, extents, machine, first=fastest is not None)
        if found is None and isinstance(extents, OwnExtents):
            found = near(known.measured, extents)
        if found is not None:
            return found
    fit = known.fit(machine)
    if fit is not None:
        found = fitted(fit, candidates(), extents, machine, here=fit is known.measured, fastest=fastest)
    else:
        found = (
            modelled(known.modelled(), extents)
            or (costs and declared(costs()))
            or default_order(candidates(), extents, machine, fastest)
        )
    if known.elsewhere and known.measured is None:
        where = "no GPU was named" if gpu is None else f"not on {gpu!r}"
        found = found._replace(reason=f"{found.reason}; measured on {', '.join(known.elsewhere)}, {where}")
    return found


def tuned(
    ranking: Ranked,
    candidates: Callable[[], Candidates],
    extents: Extents,
    machine: Machine,
    *,
    first: bool = False,
) -> Preference | None:
    """The first tier: measured times of this very problem.

    A kernel that was not measured at it is not a slow one: the cost model, corrected by what it gives for the
    fastest of those with a time, says where it stands. It has to be faster by :data:`DOUBT` to go before one
    that was measured. Kernels that were slower than those with a time come after these, in the model's order;
    with ``first``, they are left out where that saves the model.
    """
    problem = ranking.exact(extents)
    if problem is None:
        return None
    times = {digest: seconds * 1e6 for digest, seconds in zip(problem.kernels, problem.seconds, strict=True)}
    best, last = problem.seconds[0] * 1e6, problem.seconds[-1] * 1e6
    measured = len(times) + len(problem.slower)
    reason = f"{extents} was measured{ranking.measured_as(extents)}: {best:.1f} µs, the best of {measured}"
    others = ranking.fitted.keys() - times.keys()
    unmeasured = others - problem.slower
    if not (unmeasured if first else others):
        return Preference("tuned", reason, problem.kernels, tuple(times.values()))
    members = candidates()
    estimates = _estimates(ranking.costs_on(members, machine), members, extents, machine)
    known = [digest for digest in times if digest in estimates]
    ratios = sorted(times[digest] / estimates[digest] for digest in known[:_CORRECTING])
    # The median; importing `statistics` takes longer than everything else that is imported to choose.
    correction = (ratios[len(ratios) // 2] + ratios[(len(ratios) - 1) // 2]) / 2 if ratios else 1.0
    expected = {digest: time * correction for digest, time in estimates.items() if digest in unmeasured}
    if expected and min(expected.values()) * DOUBT < best:
        reason += f", and one of {len(expected)} others is expected to take {min(expected.values()):.1f} µs"
    slower = {
        digest: max(last, time * correction) for digest, time in estimates.items() if digest in problem.slower
    }
    # In this order, of which equals stay: a slower kernel does not go before one with a time.
    places = {**times, **{digest: time * DOUBT for digest, time in expected.items()}, **slower}
    order = tuple(sorted(places, key=places.__getitem__))
    shown = {**times, **expected, **slower}
    return Preference("tuned", reason, order, tuple(shown[digest] for digest in order))


def near(ranking: Ranked, extents: Extents) -> Preference | None:
    """The first tier of what the cost model does not know: measured times of a problem near this one."""
    problem = ranking.nearest(extents)
    if problem is None:
        return None
    what = f"{extents.like(problem.extents)}, near {extents}, was measured"
    return Preference("tuned", what + ranking.measured_as(problem.extents), problem.kernels)


def fitted(
    fit: Ranked,
    candidates: Candidates,
    extents: Extents,
    machine: Machine,
    *,
    here: bool,
    fastest: Fastest | None = None,
) -> Preference:
    """The second and third tier: the cost model, fitted on this model of GPU (``here``) or scaled to it."""
    reason = f"the least time by the cost model fitted on {fit.gpu}"
    if not fit.has_own_times:
        reason += " to kernels of other operands"
    if not here:
        reason += f", scaled to {_in_words(machine)}"
    costs = fit.costs_on(candidates, machine)
    problems = fit.correcting(machine) if here else None
    if problems:
        reason += " and corrected by the measured problems near it"
    tier = "fitted" if here else "scaled"
    return _least(tier, reason, costs, candidates, extents, machine, fastest, problems)


def modelled(rankings: Iterable[Ranked], extents: Extents) -> Preference | None:
    """The fourth tier: a ranking of this problem, or of the nearest, from the first that has one."""
    for ranking in rankings:
        problem = ranking.exact(extents)
        if problem is not None:
            return Preference("modelled", f"{extents} was ranked for {ranking.gpu}", problem.kernels)
        problem = ranking.nearest(extents)
        if problem is not None:
            reason = f"{problem.extents}, near {extents}, was ranked for {ranking.gpu}"
            return Preference("modelled", reason, problem.kernels)
    return None


def declared(costs: Mapping[str, float]) -> Preference:
    """The fifth tier: by the author's formula; equals are in the order given."""
    order = tuple(sorted(costs, key=costs.__getitem__))
    least = costs[order[0]]
    equals = sum(cost == least for cost in costs.values())
    reason = f"the least by its cost formula, {least:.9g}"
    if equals > 1:
        reason += f", the first of {equals} kernels with this value"
    return Preference("declared", reason, order)


def default_order(
    candidates: Candidates, extents: Extents, machine: Machine, fastest: Fastest | None = None
) -> Preference:
    """The last tier: by the cost model with derived constants; equals are in the order of the candidates."""
    if not candidates.traffic.of_gemm:
        reason = "the first by its tile, cluster and name: neither times nor a cost formula are known"
        if len(candidates.digests) == 1:
            reason = "the only one"
        return Preference("default order", reason, candidates.digests)
    model = "the least time by the cost model, which only compares kernels since nothing was measured"
    reason = f"{model}, on {_in_words(machine)}"
    constants = candidates.unmeasured(machine)
    return _least("default order", reason, constants, candidates, extents, machine, fastest)


def estimating(known: KnownSpeeds, candidates: Candidates, machine: Machine) -> Constants | None:
    """The constants by which :func:`prefer` chooses for every problem that was not measured.

    None if it does not choose by the cost model alone.
    """
    if not candidates.traffic.of_gemm:
        return None
    fit = known.fit(machine)
    if fit is not None:
        return fit.costs_on(candidates, machine)
    return None if known.modelled() else candidates.unmeasured(machine)


def estimates(
    known: KnownSpeeds, candidates: Candidates, extents: Extents, machine: Machine
) -> dict[str, Estimate]:
    """The time of each candidate by the cost model that is best for this GPU; none if they are not GEMMs."""
    if not candidates.traffic.of_gemm:
        return {}
    fit = known.fit(machine)
    constants = candidates.derived(machine) if fit is None else fit.costs_on(candidates, machine)
    todo = candidates.work(extents, machine.sm_count)
    return {
        digest: estimate(costs, work)
        for digest, costs, work in zip(candidates.digests, constants, todo, strict=True)
    }


def _estimates(
    costs: Sequence[Costs], candidates: Candidates, extents: Extents, machine: Machine
) -> dict[str, float]:
    """The estimated time of each candidate in microseconds, in their order."""
    return {
        digest: microseconds(own, work)
        for digest, own, work in zip(
            candidates.digests, costs, candidates.work(extents, machine.sm_count), strict=True
        )
    }


def _least(
    tier: str,
    reason: str,
    constants: Constants,
    candidates: Candidates,
    extents: Extents,
    machine: Machine,
    fastest: Fastest | None,
    problems: RankedProblems | None = None,
) -> Preference:
    """Kernels by their estimated time; equals stay in the order of the candidates.

    The leading ones are corrected by ``problems``, and the others are not expected to be faster than these.
    """
    if fastest is not None:
        return Preference(tier, reason, (candidates.digest(fastest(constants)),))
    costs = candidates.derived(machine) if isinstance(constants, Derivation) else constants
    times = _estimates(costs, candidates, extents, machine)
    if problems:
        estimator = candidates.estimator(costs, machine.sm_count)
        leading = corrected(times, nearest(problems, extents), estimator)
        last = max(leading.values())
        times = {**leading, **{d: max(last, time) for d, time in times.items() if d not in leading}}
    order = tuple(sorted(times, key=times.__getitem__))
    return Preference(tier, reason, order, tuple(times[digest] for digest in order))


def _in_words(machine: Machine) -> str:
    return f"{machine.sm_count} SMs at {machine.sm_mhz} MHz and {machine.memory_bandwidth} GB/s"

"""Put the times of a tuning file into a bundle, so that the same kernels are chosen better."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cutlass_aot.bundle.plan import BundlePlan
from cutlass_aot.bundle.verify.directory import require_sound
from cutlass_aot.bundle.write import Outcome, write_bundle
from cutlass_aot.errors import TuningError
from cutlass_aot.schema.tuning.tuned import fits, objects_of, rankings, sound
from cutlass_aot.schema.tuning.tuning import Tuning


def apply_tuning(bundle: Path, tuning: Tuning, output: Path) -> Outcome:
    """Write a copy of ``bundle`` with the rankings of a tuning file to ``output``, which may be the same.

    It is written by :func:`cutlass_aot.bundle.write.write_bundle`. Equal inputs give equal bytes.

    Raises:
        TuningError: as :func:`with_tuning` does.
    """
    return write_bundle(with_tuning(require_sound(bundle).plan(), tuning), output)


def with_tuning(plan: BundlePlan, tuning: Tuning) -> BundlePlan:
    """A plan with the rankings of a tuning file.

    They replace those that were measured for the same groups on the same GPU model. Rankings of other groups
    and other GPU models stay, and so do modelled ones. Groups that were not measured get a cost model from
    those that were, and times if their kernels are alike, unless they were measured before.

    Raises:
        TuningError: if the file has no times, times of other kernels or other code, or kernels that failed.
    """
    kernels = objects_of(entry for group in plan.groups for entry in group.entries)
    fit = fits(
        tuning,
        kernels,
        holder=f"bundle {plan.name}",
        advice="name the bundle that was measured, or measure this one with cutlass-aot tune",
        versions=plan.provenance,
    )
    fit = fit and sound(tuning)
    if not fit:
        raise TuningError(fit.reason)
    new = rankings(tuning, kernels)
    if not new:
        raise TuningError("the tuning file has no problem that was measured: there is nothing to apply")
    found = {(ranking.group, ranking.gpu, ranking.measured): ranking for ranking in plan.rankings}
    for ranking in new:
        key = (ranking.group, ranking.gpu, ranking.measured)
        if key not in found or ranking.precedence >= found[key].precedence:
            found[key] = ranking
    return replace(plan, rankings=tuple(found.values()))

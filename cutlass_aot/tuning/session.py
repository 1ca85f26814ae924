"""Measure groups problem by problem: what remains to be done, saving, and reports of progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from cutlass_aot.errors import TuningError
from cutlass_aot.runtime.bundle import Bundle
from cutlass_aot.runtime.machine.compatibility import runnable_targets
from cutlass_aot.runtime.opened.filters import Filters
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.schema.kernels.constraints import Operands
from cutlass_aot.schema.kernels.operands import extent_names, packed, supports
from cutlass_aot.schema.tuning.ranking import GEMM_NAMES, MOST_NAMES, Extents, problem_names
from cutlass_aot.schema.tuning.tuned import applies, fits, objects_of
from cutlass_aot.schema.tuning.tuning import TunedGroup, TunedKernel, TunedProblem, Tuning
from cutlass_aot.tuning.reference_run import Reference
from cutlass_aot.tuning.rotation import is_gemm

SAVE_SECONDS = 1.0
"""Results are saved after a problem if the last time is longer ago than this; a kill loses no more."""


@dataclass(frozen=True, slots=True)
class Job:
    """One group to be measured, with the problems that its operands allow.

    ``reference`` computes what a group computes that is not a GEMM.
    """

    digest: str
    name: str
    kernels: tuple[KernelHandle, ...]
    problems: tuple[Extents, ...]
    reference: Reference | None = None


@dataclass(frozen=True, slots=True)
class Skipped:
    """A problem that could not be measured on this GPU, and why."""

    reason: str


class Bench(Protocol):
    """Measures the kernels of a group on one problem; implemented by :mod:`cutlass_aot.tuning.gpu`."""

    def measure(self, job: Job, extents: Extents) -> TunedProblem | Skipped:
        """Check and time all kernels of a job."""


class Report(Protocol):
    """Receives the progress."""

    def measured(self, job: Job, problem: TunedProblem) -> None:
        """A problem was measured."""

    def kept(self, job: Job, problem: TunedProblem) -> None:
        """A problem is skipped, as it was measured before."""

    def skipped(self, job: Job, extents: Extents, reason: str) -> None:
        """A problem could not be measured."""


def plan(
    bundle: Bundle,
    filters: Filters,
    problems: Callable[[Operands], Sequence[Extents]],
    capability: tuple[int, int],
    references: Mapping[str, Reference] | None = None,
) -> tuple[list[Job], list[str]]:
    """The groups to measure on a GPU, and notes on what is left out.

    ``problems`` gives those to measure for a group's operands, which may not allow some of them.
    ``references`` are functions that compute what is not a GEMM, by operation.

    A group that the bundle also has for a better target of the GPU is left out, as it would never be chosen.
    ``filters`` are those of :meth:`cutlass_aot.runtime.bundle.Bundle.kernels`.
    """
    targets = runnable_targets(bundle.targets, capability)
    handles: dict[str, list[KernelHandle]] = {}
    for handle in bundle.kernels(**filters):
        handles.setdefault(handle.group.name, []).append(handle)
    jobs, notes, seen = [], [], set()
    entries = {group.name: group for group in bundle.groups}
    order = sorted(handles, key=lambda name: (_index(targets, entries[name].target), name))
    for name in order:
        group = entries[name]
        kind = (
            group.operation, group.operands, group.accumulator, group.epilogue, group.parameters,
            group.accumulation,
        )  # fmt: skip
        reference = (references or {}).get(group.operation)
        own = extent_names(group.operands)
        untold = [extent for extent in own if extent not in problem_names(group.operands)]
        if group.target not in targets:
            notes.append(f"{name}: does not run on compute capability {capability[0]}.{capability[1]}")
        elif reference is not None and untold:
            notes.append(
                f"{name}: tuned times do not tell its problems apart by {', '.join(untold)}, as they do by "
                f"at most {MOST_NAMES} extents, which are M, N, K and L of a GEMM"
            )
        elif reference is None and (
            group.operation != "gemm" or group.epilogue or not is_gemm(group.operands)
        ):
            advice = "; its author can declare a reference function" if group.operation != "gemm" else ""
            notes.append(f"{name}: no plain GEMM, so that its results cannot be checked{advice}")
        elif kind in seen:
            notes.append(f"{name}: this GPU takes {targets[0]} kernels of the same operands instead")
        else:
            seen.add(kind)
            fitting, unfit = [], []
            extents = problems(group.operands)
            if not extents:
                notes.append(f"{name}: no problem has its extents, {', '.join(own)}")
            for problem in extents:
                verdict = supports(group.operands, packed(group.operands, problem.by_name))
                if verdict:
                    fitting.append(problem)
                else:
                    unfit.append(f"{problem}: {verdict.reason}")
            if unfit:
                notes.append(f"{name}: {len(unfit)} of {len(extents)} problems left out, such as {unfit[0]}")
            if fitting:
                members = tuple(handles[name])
                jobs.append(Job(members[0].kernel.group, name, members, tuple(fitting), reference))
    if not jobs:
        reasons = "; ".join(notes[:4]) or "no kernel matches the filters; cutlass-aot ls shows what there is"
        raise TuningError(f"bundle {bundle.name} has nothing to measure: {reasons}")
    return jobs, notes


def unfitting(own: Iterable[Mapping[str, int]], bundle: Bundle) -> list[str]:
    """Notes on problems by name whose names are those of no group of a bundle, as of a misspelt key.

    Where a bundle has GEMMs, those that a list takes for GEMMs are not among them.
    """
    known = [set(extent_names(group.operands)) for group in bundle.groups]
    if any(is_gemm(group.operands) for group in bundle.groups):
        known += [set(GEMM_NAMES), set(GEMM_NAMES[1:])]
    strange = dict.fromkeys(tuple(problem) for problem in own if problem.keys() not in known)
    return [f"no kernel of {bundle.name} has the extents {', '.join(names)}: left out" for names in strange]


def _index(targets: Sequence[str], target: str) -> int:
    return targets.index(target) if target in targets else len(targets)


def resumed(before: Tuning, now: Tuning, bundle: Bundle) -> Tuning:
    """Earlier measurements to continue from, with the date and versions of now.

    ``before`` was read from a file; ``now`` is a tuning without groups, of this GPU, driver and bundle.
    """
    fit = fits(
        before,
        objects_of(handle.entry for handle in bundle.kernels()),
        holder=f"bundle {bundle.name}",
        advice="measure again with --force, or into another file",
        versions=now.versions,
    )
    for verdict in (applies(before, now.gpu), fit):
        if not verdict:
            raise TuningError(verdict.reason)
    if (before.driver, before.cuda) != (now.driver, now.cuda):
        raise TuningError(
            f"the tuning file was measured with driver {before.driver} (CUDA {before.cuda}), expected driver "
            f"{now.driver} (CUDA {now.cuda}), which this machine has: measure again with --force, or into "
            "another file"
        )
    return replace(now, groups=before.groups)


def run(
    jobs: Sequence[Job],
    tuning: Tuning,
    bench: Bench,
    save: Callable[[Tuning], None],
    report: Report,
    clock: Callable[[], float],
    *,
    exhaustive: bool = False,
    seconds: float | None = None,
) -> Tuning:
    """Measure what ``tuning`` lacks, saving after problems (see :data:`SAVE_SECONDS`) and at the end.

    What was measured is also saved on an interrupt or an error of the bench, which is then raised again. The
    result contains all jobs, and everything of ``tuning`` that is in no job. With ``exhaustive``, a problem
    at which some kernels were stopped is measured again. With ``seconds``, no problem is begun later; every
    job has an equal share of what its predecessors leave. ``clock`` gives seconds.
    """
    begun = saved = clock()
    changed = False
    try:
        for number, job in enumerate(jobs):
            end = None
            if seconds is not None:
                now = clock()
                end = now + (begun + seconds - now) / (len(jobs) - number)
            found = {problem.extents: problem for problem in _problems(tuning, job.digest)}
            members = frozenset(handle.digest for handle in job.kernels)
            for extents in job.problems:
                known = found.get(extents)
                if known and known.kernels >= members and not (exhaustive and known.stopped):
                    report.kept(job, known)
                    continue
                if end is not None and clock() >= end:
                    break
                outcome = bench.measure(job, extents)
                if isinstance(outcome, Skipped):
                    report.skipped(job, extents, outcome.reason)
                    continue
                tuning = _with(tuning, job, outcome)
                changed = True
                report.measured(job, outcome)
                if clock() - saved >= SAVE_SECONDS:
                    save(tuning)
                    saved, changed = clock(), False
    finally:
        if changed:
            save(tuning)
    return tuning


def _problems(tuning: Tuning, digest: str) -> tuple[TunedProblem, ...]:
    return next((group.problems for group in tuning.groups if group.digest == digest), ())


def _with(tuning: Tuning, job: Job, problem: TunedProblem) -> Tuning:
    """``tuning`` with a problem of a job's group added or replaced."""
    kernels = {
        handle.digest: TunedKernel(handle.digest, handle.entry.object_sha256, handle.name)
        for handle in job.kernels
    }
    problems = {problem.extents: problem}
    groups = []
    for group in tuning.groups:
        if group.digest == job.digest:
            # Their constants were fitted to other times.
            known = {kernel.digest: replace(kernel, costs=None) for kernel in group.kernels}
            kernels = {**known, **kernels}
            problems = {**{measured.extents: measured for measured in group.problems}, **problems}
        else:
            groups.append(group)
    group = TunedGroup(
        job.digest,
        job.name,
        tuple(sorted(kernels.values(), key=lambda kernel: (kernel.name, kernel.digest))),
        tuple(problems[extents] for extents in sorted(problems)),
    )
    return replace(tuning, groups=tuple(sorted((*groups, group), key=lambda item: (item.name, item.digest))))

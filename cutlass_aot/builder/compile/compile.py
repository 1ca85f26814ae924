"""Compile the kernels that a plan lacks; artifacts, failures and logs go into the store."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cutlass_aot.builder.compile.messages import (
    Alternatives,
    Compile,
    Enumerate,
    Enumerated,
    FindAlternatives,
)
from cutlass_aot.builder.compile.pool import Executor, Job, Pool, Result, ask_generators
from cutlass_aot.builder.compile.schedule import expected_seconds
from cutlass_aot.builder.events import Compiled, Failed, Listener, Shared, Started
from cutlass_aot.builder.records import Enumeration, Failure, PlannedKernel, Sources, headline
from cutlass_aot.errors import GeneratorError, StoreError
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.gemm import scales_of
from cutlass_aot.generators.protocol import ScaleRequest
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.store.artifacts import keep_artifact, keep_failure, read_artifact
from cutlass_aot.store.durations import durations, remember_durations
from cutlass_aot.store.store import Store

MAX_EXPLAINED = 4
"""Most questions without an answer for which it is found out what there is instead."""


@dataclass(frozen=True, slots=True)
class Compilation:
    """The result of compiling.

    ``artifacts`` are by key, including those that the store had; ``compiled`` counts the kernels compiled
    now.
    """

    artifacts: dict[str, Artifact]
    failures: tuple[Failure, ...]
    compiled: int


def enumerate_kernels(
    pool: Pool, questions: Sequence[Enumeration], devices: Mapping[str, DeviceProfile]
) -> list[tuple[Enumeration, Sequence[Kernel]]]:
    """Have workers ask the generators; returns each question with its answer, in the order of the questions.

    ``devices`` maps a target to its device profile, where the manifest names one.
    """
    jobs = [
        Job(item.name, Enumerate(item.generator, item.problem, item.target, devices.get(item.target)))
        for item in questions
    ]
    answers = ask_generators(pool, jobs, Enumerated)
    for question, answer in zip(questions, answers, strict=True):
        _check_answer(question, answer)
    return [(question, answer.kernels) for question, answer in zip(questions, answers, strict=True)]


def find_alternatives(
    pool: Pool,
    answers: Sequence[tuple[Enumeration, Sequence[Kernel]]],
    devices: Mapping[str, DeviceProfile],
) -> dict[Enumeration, str]:
    """What the generators have instead, for questions of tables for which they have no kernel at all.

    It asks them for many other problems, and only of the first :data:`MAX_EXPLAINED` questions.
    """
    served = {question.table for question, kernels in answers if kernels}
    questions = [question for question, _ in answers if question.table not in served][:MAX_EXPLAINED]
    jobs = [
        Job(item.name, FindAlternatives(item.generator, item.problem, item.target, devices.get(item.target)))
        for item in questions
    ]
    found = ask_generators(pool, jobs, Alternatives) if jobs else []
    return {question: answer.words for question, answer in zip(questions, found, strict=True)}


def _check_answer(question: Enumeration, answer: Enumerated) -> None:
    """Refuse kernels that are not what was asked for, or whose records are equal."""
    problem = question.problem
    count = len(problem.dtypes)
    expected = (
        problem.operation, question.target, problem.dtypes, problem.layouts, problem.accumulator,
        problem.epilogue.formula if problem.epilogue else "", _scales(*problem.scales),
    )  # fmt: skip
    for kernel in answer.kernels:
        # A problem describes the first operands, or none of an operation that fixes them itself.
        dtypes = tuple(operand.dtype for operand in kernel.operands[:count])
        layouts = kernel.layouts[:count]
        accumulator = kernel.accumulator if count else problem.accumulator
        found = (
            kernel.operation, kernel.target, dtypes, layouts, accumulator, kernel.epilogue,
            scales_of(kernel) if count else expected[-1],
        )  # fmt: skip
        if found != expected or kernel.accumulation not in ("", problem.accumulation):
            raise GeneratorError(
                f"generator {question.generator.name!r} answered {question.name} with a kernel for something "
                f"else: {kernel.name}"
            )
        if not kernel.name.isprintable():
            raise GeneratorError(
                f"generator {question.generator.name!r} answered {question.name} with a kernel whose name "
                f"has control characters, {kernel.name!r}: expected none in operation, design and parameters"
            )
        unknown = sorted(name for name, _ in kernel.design if name not in answer.design)
        if unknown:
            raise GeneratorError(
                f"generator {question.generator.name!r} does not declare {', '.join(unknown)} in its "
                f"`design`, and {kernel.name} has it"
            )
    if len({kernel.digest for kernel in answer.kernels}) != len(answer.kernels):
        raise GeneratorError(
            f"generator {question.generator.name!r} answered {question.name} with equal records twice: "
            "whatever tells two kernels apart has to be in their `design`"
        )


def _scales(a: ScaleRequest | None, b: ScaleRequest | None) -> dict[str, ScaleRequest]:
    return {name: scale for name, scale in (("a", a), ("b", b)) if scale is not None}


def compile_missing(
    executor: Executor,
    planned: Sequence[PlannedKernel],
    sources: Sources,
    store: Store,
    workspace: Path,
    tell: Listener,
    versions: Mapping[str, str],
) -> Compilation:
    """Compile the kernels that a plan has no artifact for; a failure does not stop the others.

    A kernel whose lock another builder holds is left to it while there is other work, for as long as
    compiling a kernel may take; then it is compiled here as well. Both would store the same artifact.

    The kernels that took longest before are started first, and their durations are recorded for the next
    build.

    Args:
        planned: every kernel of the plan.
        store: takes artifacts and logs.
        workspace: a private directory on the store's file system, for objects.
        versions: package to version of what is installed, recorded with each failure.
    """
    missing = [item for item in planned if item.artifact is None]
    present = [item for item in planned if item.artifact is not None]
    known = {item.kernel.digest: item.artifact.seconds for item in planned if item.artifact is not None}
    known.update(durations(store))
    seconds = expected_seconds([item.kernel for item in missing], known, [item.kernel for item in present])
    work = _Work(sources, store, workspace, tell, versions)
    jobs = [work.job(item, expected) for item, expected in zip(missing, seconds, strict=True)]
    try:
        for result in executor.run(jobs, work.admit):
            work.settle(result)
    finally:
        store.unlock_all()
        # Durations are only a hint for the next build: a full disk must not hide this one's result.
        with contextlib.suppress(StoreError):
            if work.seconds:
                remember_durations(store, work.seconds)
    failures = tuple(work.failures[item.key] for item in planned if item.key in work.failures)
    return Compilation(work.artifacts, failures, work.compiled)


@dataclass(slots=True)
class _Work:
    """The results of compiling so far."""

    sources: Sources
    store: Store
    workspace: Path
    tell: Listener
    versions: Mapping[str, str]
    seconds: dict[str, float] = field(default_factory=dict)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    compiled: int = 0
    _locked: set[str] = field(default_factory=set)

    def job(self, item: PlannedKernel, seconds: float) -> Job:
        kernel = item.kernel
        reference = self.sources.references[kernel.generator]
        return Job(
            name=kernel.name,
            request=Compile(reference, kernel, str(self._object(item))),
            tag=item,
            group=f"{kernel.group_name} {kernel.generator}",
            seconds=seconds,
        )

    def admit(self, job: Job, now: bool) -> bool | None:
        """Decide whether to compile a kernel here, as an :data:`~cutlass_aot.builder.compile.pool.Admit`."""
        item: PlannedKernel = job.tag
        if self.store.try_lock(item.key):
            self._locked.add(item.key)
        elif not now:
            return None
        # Another builder may have stored it between the plan and the lock.
        artifact, _ = read_artifact(self.store, item.key, item.kernel)
        if artifact is None:
            self.tell(Started(item.kernel))
            return True
        self._unlock(item.key)
        self.artifacts[item.key] = artifact
        self.tell(Shared(item.kernel, artifact))
        return False

    def settle(self, result: Result) -> None:
        """Store the artifact or the failure of a kernel."""
        item: PlannedKernel = result.job.tag
        if isinstance(result.answer, Artifact):
            keep_artifact(self.store, item.key, item.kernel, result.answer, self._object(item))
            self.artifacts[item.key] = result.answer
            self.seconds[item.kernel.digest] = result.answer.seconds
            self.compiled += 1
            self.tell(Compiled(item.kernel, result.answer))
        else:
            failure = keep_what_failed(
                self.store, item.key, item.kernel, result.error, result.log, self.versions, result.machine
            )
            self.failures[item.key] = failure
            self.tell(Failed(failure))
        self._unlock(item.key)

    def _object(self, item: PlannedKernel) -> Path:
        return self.workspace / f"{item.key}.o"

    def _unlock(self, key: str) -> None:
        if key in self._locked:
            self._locked.remove(key)
            self.store.unlock(key)


def keep_what_failed(
    store: Store, key: str, kernel: Kernel, reason: str, log: str, versions: Mapping[str, str], machine: bool
) -> Failure:
    """Keep the log of a kernel that did not compile, and a record of it unless the machine is to blame."""
    text = f"{kernel.name}\nkey {key}\n{headline(reason)}\n\n{log.rstrip()}\n"
    path = store.put_log(key, text) if machine else keep_failure(store, key, kernel, reason, text, versions)
    return Failure(kernel, reason, path, machine)

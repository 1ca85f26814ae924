"""Compile what a plan is missing: workers in, artifacts into the store, failures with their logs out."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cutlass_aot.builder.compile.estimates import expected_seconds
from cutlass_aot.builder.compile.messages import problem_record
from cutlass_aot.builder.compile.pool import Executor, Job, Pool, Result
from cutlass_aot.builder.events import Compiled, Failed, Listener, Shared, Started
from cutlass_aot.builder.records import Enumeration, Failure, PlannedKernel, Sources
from cutlass_aot.errors import CorruptFile, GeneratorError, StoreError
from cutlass_aot.generators.device_profiles import DeviceProfile, device_record
from cutlass_aot.generators.protocol import ScaleRequest
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import decode
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.store.artifacts import keep_artifact, keep_failure, read_artifact
from cutlass_aot.store.durations import durations, remember_durations
from cutlass_aot.store.store import Store


@dataclass(frozen=True, slots=True)
class Compilation:
    """What came of compiling.

    Attributes:
        artifacts: by key; what was compiled, and what another builder had stored by then.
        failures: in the plan's order.
        compiled: number of kernels compiled here.
    """

    artifacts: dict[str, Artifact]
    failures: list[Failure]
    compiled: int


def enumerate_kernels(
    pool: Pool, questions: Sequence[Enumeration], devices: Mapping[str, DeviceProfile]
) -> list[tuple[Enumeration, list[Kernel]]]:
    """Ask the generators, in workers; answers in the order of the questions.

    Args:
        pool: the workers.
        questions: what to ask.
        devices: target to device profile.
    """
    jobs = [
        Job(
            name=question.name,
            request={
                "do": "enumerate",
                "generator": [question.generator.name, question.generator.location],
                "problem": problem_record(question.problem),
                "target": question.target,
                "device": device_record(devices[question.target]),
            },
            tag=index,
        )
        for index, question in enumerate(questions)
    ]
    answers: dict[int, list[Kernel]] = {}
    for result in pool.run(jobs):
        if result.error:
            question = questions[result.job.tag]
            raise GeneratorError(
                f"generator {question.generator.name!r} failed on {question.name}: {result.error}\n"
                + result.log.rstrip()
            )
        answers[result.job.tag] = _answer(
            questions[result.job.tag], result.reply["kernels"], result.reply["design"]
        )
    return [(question, answers[index]) for index, question in enumerate(questions)]


def _answer(question: Enumeration, records: Sequence[bytes], declared: Container[str]) -> list[Kernel]:
    """The kernels of an answer, checked against the question."""
    problem = question.problem
    count = len(problem.dtypes)
    asked = (
        problem.operation, question.target, problem.dtypes, problem.layouts, problem.accumulator,
        problem.epilogue.formula if problem.epilogue else "", _scales(*problem.scales),
    )  # fmt: skip
    kernels = []
    for record in records:
        try:
            kernel = from_plain(Kernel, decode(record, "a kernel's record"), "a kernel record")
        except CorruptFile as error:
            raise GeneratorError(
                f"generator {question.generator.name!r} on {question.name}: {error}"
            ) from None
        # A problem describes the first operands, or none of an operation that fixes them itself.
        dtypes = tuple(operand.dtype for operand in kernel.operands[:count])
        layouts = kernel.layouts[:count]
        accumulator = kernel.accumulator if count else problem.accumulator
        answered = (
            kernel.operation, kernel.target, dtypes, layouts, accumulator, kernel.epilogue,
            _scales_of(kernel) if count else asked[-1],
        )  # fmt: skip
        if answered != asked:
            raise GeneratorError(
                f"generator {question.generator.name!r} answered {question.name} with a kernel for something "
                f"else: {kernel.name}"
            )
        unknown = sorted(name for name, _ in kernel.design if name not in declared)
        if unknown:
            raise GeneratorError(
                f"generator {question.generator.name!r} does not declare {', '.join(unknown)} in its "
                f"`design`, and {kernel.name} has it"
            )
        kernels.append(kernel)
    if len(set(records)) != len(kernels):
        raise GeneratorError(
            f"generator {question.generator.name!r} answered {question.name} with equal records twice: "
            "whatever tells two kernels apart has to be in their `design`"
        )
    return kernels


def _scales(a: ScaleRequest | None, b: ScaleRequest | None) -> dict[str, ScaleRequest]:
    """Scale factors by the operand that they are of."""
    return {name: scale for name, scale in (("a", a), ("b", b)) if scale is not None}


def _scales_of(kernel: Kernel) -> dict[str, ScaleRequest]:
    return {
        operand.scale.of: ScaleRequest(operand.dtype, operand.scale.block)
        for operand in kernel.operands
        if operand.scale is not None
    }


def compile_missing(
    executor: Executor,
    planned: Sequence[PlannedKernel],
    sources: Sources,
    store: Store,
    workspace: Path,
    tell: Listener,
    versions: Mapping[str, str],
) -> Compilation:
    """Compile the kernels that a plan has no artifact for; one that fails stops no other.

    A kernel that another builder holds the lock of is left to it, as long as there is other work and for the
    time that compiling one may take; then it is compiled here as well. Both would store the same.

    Args:
        executor: who compiles.
        planned: every kernel of the plan.
        sources: the generators.
        store: takes artifacts and logs.
        workspace: a private directory on the store's file system, for objects.
        tell: called with every event.
        versions: what is installed, package to version: recorded with what fails.

    The kernels that took the longest before are started first, and what each takes now is remembered.
    """
    missing = [item for item in planned if item.artifact is None]
    present = [item for item in planned if item.artifact is not None]
    known = {item.kernel.digest: item.artifact.seconds for item in planned if item.artifact is not None}
    known.update(durations(store))
    seconds = expected_seconds([item.kernel for item in missing], known, [item.kernel for item in present])
    jobs = [
        _job(item, sources, workspace / f"{index}.o", seconds[index]) for index, item in enumerate(missing)
    ]
    work = _Work(store, tell, versions)
    try:
        for result in executor.run(jobs, work.admit):
            work.settle(result)
    finally:
        store.unlock_all()
        # A hint for the next build: a disk that is full must not hide what came of this one.
        with contextlib.suppress(StoreError):
            if work.seconds:
                remember_durations(store, work.seconds)
    ordered = [work.failures[item.key] for item in planned if item.key in work.failures]
    return Compilation(work.artifacts, ordered, work.compiled)


@dataclass(slots=True)
class _Work:
    """What has come of compiling so far."""

    store: Store
    tell: Listener
    versions: Mapping[str, str]
    seconds: dict[str, float] = field(default_factory=dict)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    compiled: int = 0
    _locked: set[str] = field(default_factory=set)

    def admit(self, job: Job, now: bool) -> bool | None:
        """Whether a kernel is to be compiled here; see :data:`~cutlass_aot.builder.compile.pool.Admit`."""
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
        """Keep what came of a kernel."""
        item: PlannedKernel = result.job.tag
        if result.error:
            text = _log_text(item, result.error, result.log)
            if result.machine:
                log = self.store.put_log(item.key, text)
            else:
                log = keep_failure(self.store, item.key, item.kernel, result.error, text, self.versions)
            failure = Failure(item.kernel, result.error, log, result.machine)
            self.failures[item.key] = failure
            self.tell(Failed(failure))
        else:
            artifact = from_plain(Artifact, result.reply, "the answer of a worker")
            file = Path(result.job.request["object"])
            keep_artifact(self.store, item.key, item.kernel, artifact, file)
            self.artifacts[item.key] = artifact
            self.seconds[item.kernel.digest] = artifact.seconds
            self.compiled += 1
            self.tell(Compiled(item.kernel, artifact))
        self._unlock(item.key)

    def _unlock(self, key: str) -> None:
        if key in self._locked:
            self._locked.remove(key)
            self.store.unlock(key)


def _job(item: PlannedKernel, sources: Sources, object_path: Path, seconds: float) -> Job:
    kernel = item.kernel
    reference = sources.references[kernel.generator]
    return Job(
        name=kernel.name,
        request={
            "do": "compile",
            "generator": [reference.name, reference.location],
            "kernel": to_plain(kernel),
            "object": str(object_path),
        },
        tag=item,
        group=f"{kernel.group_name} {kernel.generator}",
        seconds=seconds,
    )


def _log_text(item: PlannedKernel, error: str, log: str) -> str:
    return f"{item.kernel.name}\nkey {item.key}\n{error}\n\n{log.rstrip()}\n"

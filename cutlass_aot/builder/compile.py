"""Compile what a plan is missing: workers in, artifacts into the store, failures with their logs out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import filelock

from cutlass_aot.builder.pool import Job, Pool
from cutlass_aot.builder.records import Enumeration, Failure, PlannedKernel, Sources
from cutlass_aot.errors import CorruptFile, GeneratorError
from cutlass_aot.generators.device import DeviceProfile, device_record
from cutlass_aot.schema.artifact import Artifact, Facts
from cutlass_aot.schema.kernel import Kernel
from cutlass_aot.store.artifacts import keep_artifact, read_artifact
from cutlass_aot.store.store import Store


class Progress(Protocol):
    """What is told of a compilation as it goes."""

    def compiled(self, kernel: Kernel, seconds: float) -> None:
        """A kernel was compiled and stored."""

    def shared(self, kernel: Kernel) -> None:
        """Another builder has stored a kernel that this one was about to compile."""

    def failed(self, failure: Failure) -> None:
        """A kernel failed; the others go on."""


def enumerate_kernels(
    pool: Pool, questions: Sequence[Enumeration], device: DeviceProfile
) -> list[tuple[Enumeration, list[Kernel]]]:
    """Ask the generators, in workers; answers in the order of the questions.

    Raises:
        GeneratorError: if a generator raises, with its traceback.
    """
    profile = device_record(device)
    jobs = [
        Job(
            name=question.name,
            target=question.target,
            request={
                "do": "enumerate",
                "generator": [question.generator.name, question.generator.location],
                "problem": {
                    "operation": question.problem.operation,
                    "dtypes": question.problem.dtypes,
                    "layouts": question.problem.layouts,
                    "accumulator": question.problem.accumulator,
                },
                "target": question.target,
                "device": profile,
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
        answers[result.job.tag] = _answer(questions[result.job.tag], result.reply["kernels"])
    return [(question, answers[index]) for index, question in enumerate(questions)]


def _answer(question: Enumeration, records: Sequence[dict[str, Any]]) -> list[Kernel]:
    """The kernels of an answer, held against the question."""
    problem = question.problem
    asked = (problem.operation, question.target, problem.dtypes, problem.layouts, problem.accumulator)
    kernels = []
    for record in records:
        try:
            kernel = Kernel.from_record(record)
        except CorruptFile as error:
            raise GeneratorError(
                f"generator {question.generator.name!r} on {question.name}: {error}"
            ) from None
        dtypes = tuple(operand.dtype for operand in kernel.operands)
        if (kernel.operation, kernel.target, dtypes, kernel.layouts, kernel.accumulator) != asked:
            raise GeneratorError(
                f"generator {question.generator.name!r} answered {question.name} with a kernel for something "
                f"else: {kernel.name}"
            )
        kernels.append(kernel)
    return kernels


def compile_missing(
    pool: Pool,
    planned: Sequence[PlannedKernel],
    sources: Sources,
    store: Store,
    workspace: Path,
    progress: Progress,
) -> tuple[dict[str, Artifact], list[Failure]]:
    """Compile the kernels that a plan has no artifact for.

    Returns:
        artifacts by key, and failures in the plan's order.
    """
    artifacts: dict[str, Artifact] = {}
    failures: dict[str, Failure] = {}
    locks: dict[str, filelock.BaseFileLock] = {}

    def admit(job: Job) -> bool | None:
        item: PlannedKernel = job.tag
        lock = store.try_lock(item.key)
        if lock is None:
            return None
        # Another builder may have stored it between the plan and the lock.
        artifact, _ = read_artifact(store, item.key, item.kernel)
        if artifact is not None:
            store.unlock(lock)
            artifacts[item.key] = artifact
            progress.shared(item.kernel)
            return False
        locks[item.key] = lock
        return True

    jobs = [
        _job(item, sources, workspace / f"{index}.o")
        for index, item in enumerate(planned)
        if item.artifact is None
    ]
    try:
        for result in pool.run(jobs, admit):
            item = result.job.tag
            if result.error:
                log = store.put_log(item.key, _log_text(item, result.error, result.log))
                failures[item.key] = Failure(item.kernel, result.error, log)
                progress.failed(failures[item.key])
            else:
                artifact = _artifact(result.reply)
                file = Path(result.job.request["object"])
                keep_artifact(store, item.key, item.kernel, artifact, file)
                artifacts[item.key] = artifact
                progress.compiled(item.kernel, artifact.seconds)
            store.unlock(locks.pop(item.key))
    finally:
        for lock in locks.values():
            store.unlock(lock)
    return artifacts, [failures[item.key] for item in planned if item.key in failures]


def _job(item: PlannedKernel, sources: Sources, object_path: Path) -> Job:
    reference = sources.references[item.kernel.generator]
    return Job(
        name=item.kernel.name,
        target=item.kernel.target,
        request={
            "do": "compile",
            "generator": [reference.name, reference.location],
            "kernel": item.kernel.to_record(),
            "object": str(object_path),
        },
        tag=item,
    )


def _artifact(reply: dict[str, Any]) -> Artifact:
    return Artifact(
        object_sha256=str(reply["sha256"]),
        object_bytes=int(reply["size"]),
        facts=Facts.from_record(reply["facts"]),
        seconds=float(reply["seconds"]),
    )


def _log_text(item: PlannedKernel, error: str, log: str) -> str:
    return f"{item.kernel.name}\nkey {item.key}\n{error}\n\n{log.rstrip()}\n"

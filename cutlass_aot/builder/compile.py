"""Compile what a plan is missing: workers in, artifacts into the store, failures with their logs out."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cutlass_aot.builder.events import Compiled, Failed, Listener, Shared
from cutlass_aot.builder.messages import problem_record
from cutlass_aot.builder.pool import Job, Pool
from cutlass_aot.builder.records import Enumeration, Failure, PlannedKernel, Sources
from cutlass_aot.errors import CorruptFile, GeneratorError
from cutlass_aot.generators.device import DeviceProfile, device_record
from cutlass_aot.schema.artifact import Artifact, Facts
from cutlass_aot.schema.kernel import Kernel
from cutlass_aot.store.artifacts import keep_artifact, read_artifact
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

    Raises:
        GeneratorError: if a generator raises, with its traceback.
    """
    jobs = [
        Job(
            name=question.name,
            target=question.target,
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


def _answer(
    question: Enumeration, records: Sequence[dict[str, Any]], declared: Container[str]
) -> list[Kernel]:
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
        unknown = sorted(name for name, _ in kernel.design if name not in declared)
        if unknown:
            raise GeneratorError(
                f"generator {question.generator.name!r} does not declare {', '.join(unknown)} in its "
                f"`design`, and {kernel.name} has it"
            )
        kernels.append(kernel)
    if len({kernel.digest for kernel in kernels}) != len(kernels):
        raise GeneratorError(
            f"generator {question.generator.name!r} answered {question.name} with equal records twice: "
            "whatever tells two kernels apart has to be in their `design`"
        )
    return kernels


def compile_missing(
    pool: Pool,
    planned: Sequence[PlannedKernel],
    sources: Sources,
    store: Store,
    workspace: Path,
    tell: Listener,
) -> Compilation:
    """Compile the kernels that a plan has no artifact for; one that fails stops no other."""
    artifacts: dict[str, Artifact] = {}
    failures: dict[str, Failure] = {}
    compiled = 0

    def admit(job: Job) -> bool | None:
        item: PlannedKernel = job.tag
        if not store.try_lock(item.key):
            return None
        # Another builder may have stored it between the plan and the lock.
        artifact, _ = read_artifact(store, item.key, item.kernel)
        if artifact is not None:
            store.unlock(item.key)
            artifacts[item.key] = artifact
            tell(Shared(item.kernel, artifact))
            return False
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
                tell(Failed(failures[item.key]))
            else:
                artifact = _artifact(result.reply)
                file = Path(result.job.request["object"])
                keep_artifact(store, item.key, item.kernel, artifact, file)
                artifacts[item.key] = artifact
                compiled += 1
                tell(Compiled(item.kernel, artifact))
            store.unlock(item.key)
    finally:
        store.unlock_all()
    ordered = [failures[item.key] for item in planned if item.key in failures]
    return Compilation(artifacts, ordered, compiled)


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

"""The builder's pool of workers: feeds them, ends those past their time, and replaces them."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, TypeVar

from cutlass_aot.builder.compile import messages
from cutlass_aot.builder.compile.failures import is_machine_failure, reason_of
from cutlass_aot.builder.compile.fork_client import ForkServer, read_log
from cutlass_aot.builder.compile.messages import Answer, Reply, WorkerFailure
from cutlass_aot.builder.compile.schedule import Job, Queue
from cutlass_aot.errors import CorruptFile, DeclarationError, GeneratorError
from cutlass_aot.runtime.files.temporary_folder import temporary_folder

__all__ = ["MAX_RESIDENT_BYTES", "Admit", "Executor", "Job", "Pool", "Result", "ask_generators"]

MAX_RESIDENT_BYTES = 1000 << 20
"""A worker that has held more memory than this is replaced after its job: every compile leaks some. One more
job needs some 50 MB, so that a worker stays below 1.2 GB."""

_POLL_SECONDS = 0.2
_AnswerType = TypeVar("_AnswerType", bound=Answer)

Admit = Callable[[Job, bool], "bool | None"]
"""Called just before a job starts; returns True to run it, False to drop it, None to be called again later.
If the second argument is True, it must not return None."""


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a job.

    Attributes:
        answer: what the worker replied; None if it failed.
        error: why it failed, or ``""``.
        log: what the compiler printed, and the traceback.
        machine: whether the failure is the machine's (memory, disk, time, a signal) and may not come again.
        raised: names of the exception's class and its bases, if the worker raised one.
    """

    job: Job
    answer: Answer | None
    error: str = ""
    log: str = ""
    machine: bool = False
    raised: tuple[str, ...] = ()


class Executor(Protocol):
    """Something that runs jobs, with workers of this machine or of others."""

    def run(self, jobs: Iterable[Job], admit: Admit) -> Iterator[Result]:
        """Run jobs, yielding each result as it comes; see :meth:`Pool.run`."""


@dataclass(slots=True)
class _Worker:
    pid: int
    channel: socket.socket
    log: Path
    job: Job | None = None
    deadline: float = 0.0
    known: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Pool:
    """Workers forked from a process that has imported the modules; a context manager, for one thread.

    Nothing is started before there is work. One pool serves a whole build: imports and what workers keep (the
    operators of a problem) are paid for once.

    Args:
        size: the most workers at once.
        modules: what a worker has to import.
        timeout: seconds a job may take.
        dsl_roots: directories that the DSL may be imported from; empty for anywhere.
        sources: module to the SHA-256 of the source file that keys were made from: workers that import
            another one are refused. Modules not named here are not compared.
        importing: called with None before the modules are imported, and with the seconds that it took after.
    """

    size: int
    modules: tuple[str, ...]
    timeout: float = 600.0
    dsl_roots: tuple[Path, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    importing: Callable[[float | None], None] = lambda _seconds: None
    _fork_server: ForkServer | None = None
    _logs: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _workers: list[_Worker] = field(default_factory=list)
    _started: int = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def end(self) -> None:
        """End every process. The pool can be used again, and then starts and imports again."""
        for worker in self._workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
            worker.channel.close()
        if self._fork_server is not None:
            self._fork_server.end()
        self._logs.close()
        self._workers.clear()
        self._fork_server = None

    def run(self, jobs: Iterable[Job], admit: Admit = lambda _job, _now: True) -> Iterator[Result]:
        """Run jobs in the order of :class:`Queue`, yielding each result as it comes.

        A job that ``admit`` (see :data:`Admit`) puts off is offered again whenever there is nothing else to
        do. Once it has been put off for as long as a job may take, ``admit`` has to decide.
        """
        queue = Queue(jobs, self.size)
        put_off: dict[Job, float] = {}
        while queue or put_off or any(worker.job for worker in self._workers):
            self._fill(queue, put_off, admit)
            done = self._collect()
            # Workers get their next jobs before the caller handles these results.
            self._fill(queue, put_off, admit)
            yield from done

    def _fill(self, queue: Queue, put_off: dict[Job, float], admit: Admit) -> None:
        """Give every idle worker a job; start workers while there are too few."""
        for worker in [worker for worker in self._workers if worker.job is None and _has_ended(worker)]:
            self._retire(worker)
        retried = iter(list(put_off))
        while queue or put_off:
            idle = next((worker for worker in self._workers if worker.job is None), None)
            if idle is None and len(self._workers) >= self.size:
                return
            known = idle.known if idle else set()
            taken = {other.job.group for other in self._workers if other.job is not None}
            job = queue.take(known, taken)
            if job is None and (job := next(retried, None)) is None:
                return
            since = put_off.pop(job, None)
            now = time.monotonic()
            verdict = admit(job, since is not None and now - since > self.timeout)
            if verdict is None:
                put_off[job] = now if since is None else since
            elif verdict:
                self._start(idle or self._new_worker(), job)

    def _start(self, worker: _Worker, job: Job) -> None:
        worker.job = job
        worker.known.add(job.group)
        worker.deadline = time.monotonic() + self.timeout
        # A worker that died while it was idle shows as a closed channel when its answer is awaited.
        with contextlib.suppress(OSError):
            messages.send(worker.channel, job.request)

    def _collect(self) -> list[Result]:
        """Wait a moment for answers, then end workers past their time."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                if worker.job is not None:
                    selector.register(worker.channel, selectors.EVENT_READ, worker)
            if not selector.get_map():
                time.sleep(_POLL_SECONDS)  # Other builders are compiling all jobs that are left.
                return []
            ready = [key.data for key, _ in selector.select(_POLL_SECONDS)]
        done = [self._finish(worker) for worker in ready]
        now = time.monotonic()
        for worker in list(self._workers):
            if worker.job is not None and now > worker.deadline:
                done.append(self._kill(worker, worker.job))
        return done

    def _kill(self, worker: _Worker, job: Job) -> Result:
        """End a worker past its time; its children may keep its channel open, so that is not waited for."""
        os.kill(worker.pid, signal.SIGKILL)
        log = read_log(worker.log)
        status = self._retire(worker)
        if status == -signal.SIGKILL:
            return _failed(job, WorkerFailure(timed_out=self.timeout), log)
        return _failed(job, _crash(status), log)

    def _finish(self, worker: _Worker) -> Result:
        job, worker.job = worker.job, None
        if job is None:
            raise RuntimeError("a worker without a job was collected")
        try:
            reply: Reply | None = messages.receive(worker.channel, Reply)
        except CorruptFile as error:
            # A generator may return kernels that cannot be decoded.
            failure = WorkerFailure(raised=("CorruptFile",), message=str(error))
            return _failed(job, failure, read_log(worker.log))
        log = read_log(worker.log)
        if reply is None:
            return _failed(job, _crash(self._retire(worker)), log)
        if reply.peak_bytes > MAX_RESIDENT_BYTES:
            self._retire(worker)
        if isinstance(reply.result, WorkerFailure):
            return _failed(job, reply.result, log)
        return Result(job, reply.result, log=log)

    def _new_worker(self) -> _Worker:
        begin = time.monotonic() if self._fork_server is None else None
        if begin is not None:
            self.importing(None)
        fork_server = self._started_fork_server()
        self._started += 1
        log = fork_server.directory / f"worker-{self._started}.log"
        worker = _Worker(*fork_server.fork(log), log)
        if begin is not None:
            self.importing(time.monotonic() - begin)
        self._workers.append(worker)
        return worker

    def _started_fork_server(self) -> ForkServer:
        if self._fork_server is None:
            logs = self._logs.enter_context(temporary_folder())
            self._fork_server = ForkServer(self.modules, logs, self.dsl_roots, self.sources)
        self._fork_server.start()
        return self._fork_server

    def _retire(self, worker: _Worker) -> int:
        """End a worker; returns its exit status, negative for a signal."""
        self._workers.remove(worker)
        worker.channel.close()
        return self._started_fork_server().reap(worker.pid)


def ask_generators(pool: Pool, jobs: Sequence[Job], expected: type[_AnswerType]) -> list[_AnswerType]:
    """Have workers do jobs that must not fail; answers in the order of the jobs."""
    answers: dict[int, _AnswerType] = {}
    for result in pool.run([replace(job, tag=index) for index, job in enumerate(jobs)]):
        if not isinstance(result.answer, expected):
            if DeclarationError.__name__ in result.raised:
                # It names the kernel, its file and its line.
                raise DeclarationError(result.error)
            # An error that names its line needs no traceback.
            words = "" if "\n" in result.error else f"\n{result.log}".rstrip()
            raise GeneratorError(
                f"generator {result.job.request.generator.name!r} failed on {result.job.name}: "
                f"{result.error}{words}"
            )
        answers[result.job.tag] = result.answer
    return [answers[index] for index in range(len(jobs))]


def _failed(job: Job, failure: WorkerFailure, log: str) -> Result:
    return Result(job, None, reason_of(failure), log, is_machine_failure(failure, log), failure.raised)


def _crash(status: int) -> WorkerFailure:
    """The failure of a worker that ended by itself; the status is negative for a signal."""
    return WorkerFailure(signal=max(0, -status), status=max(0, status))


def _has_ended(worker: _Worker) -> bool:
    """Whether an idle worker is gone: only then is its channel readable."""
    # Not select(), which takes no descriptor from 1024 on.
    poll = select.poll()
    poll.register(worker.channel, select.POLLIN)
    return bool(poll.poll(0))

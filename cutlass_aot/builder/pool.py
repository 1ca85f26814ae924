"""The builder's side of its workers: start, feed, time out, recycle and replace them."""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import cutlass_aot
from cutlass_aot.builder import messages
from cutlass_aot.errors import ToolchainError

MAX_GROWTH_BYTES = 600 << 20
"""A worker that has grown by this much since its fork is replaced: every compile leaves some behind."""

PASSED_ON = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "TMPDIR", "USER")
"""The builder's environment variables that workers see. No other reaches them: the compiler reads many (such
as CUTE_DSL_LINEINFO) that change the code it makes, and none of them is part of a kernel's key."""

_POLL_SECONDS = 0.2
_IMPORT_SECONDS = 300
_LOG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Job:
    """One request for a worker.

    Attributes:
        name: what it is called in messages.
        target: GPU code target; a worker serves one target in its life.
        request: the message, without its log.
        tag: the caller's own, handed back with the result.
    """

    name: str
    target: str
    request: dict[str, Any]
    tag: Any = None


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a job.

    Attributes:
        job: the job.
        reply: the worker's answer; empty if it failed.
        error: why it failed, or ``""``.
        log: what the compiler printed, and the traceback.
    """

    job: Job
    reply: dict[str, Any]
    error: str = ""
    log: str = ""


@dataclass(slots=True)
class _Worker:
    pid: int
    channel: socket.socket
    target: str
    log: Path
    zygote: _Zygote
    job: Job | None = None
    deadline: float = 0.0
    killed: bool = False


@dataclass(slots=True)
class _Zygote:
    process: subprocess.Popen[bytes]
    channel: socket.socket
    ready: bool = False


@dataclass(slots=True)
class Pool:
    """Workers forked from processes that have the imports; use it as a context manager.

    Args:
        size: most workers at once.
        modules: what a worker needs imported.
        directory: a private directory for logs.
        timeout: seconds a job may take.
        dsl_roots: directories that the DSL may be imported from; empty for anywhere.
    """

    size: int
    modules: tuple[str, ...]
    directory: Path
    timeout: float = 600.0
    dsl_roots: tuple[Path, ...] = ()
    _zygotes: dict[str, _Zygote] = field(default_factory=dict)
    _workers: list[_Worker] = field(default_factory=list)
    _started: int = 0

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in list(self._workers):
            self._kill(worker)
        for zygote in self._zygotes.values():
            zygote.channel.close()
            zygote.process.kill()
            zygote.process.wait()
        self._workers.clear()
        self._zygotes.clear()

    def run(
        self, jobs: Iterable[Job], admit: Callable[[Job], bool | None] = lambda _: True
    ) -> Iterator[Result]:
        """Run jobs, yielding each result as it comes.

        Args:
            jobs: in the order wanted.
            admit: asked just before a job starts: True to run it, False to drop it, None to ask later.
        """
        waiting: dict[str, deque[Job]] = {}
        for job in jobs:
            waiting.setdefault(job.target, deque()).append(job)
        while any(waiting.values()) or any(worker.job for worker in self._workers):
            self._fill(waiting, admit)
            yield from self._collect()

    def _fill(self, waiting: dict[str, deque[Job]], admit: Callable[[Job], bool | None]) -> None:
        """Give every idle worker a job; start workers while there are fewer than wanted."""
        for worker in [worker for worker in self._workers if worker.job is None and _has_ended(worker)]:
            self._retire(worker)
        asked = sum(len(queue) for queue in waiting.values())
        while asked and any(waiting.values()):
            idle = next((worker for worker in self._workers if worker.job is None), None)
            if idle is None and len(self._workers) >= self.size:
                return
            target = self._busiest(waiting, idle)
            job = waiting[target].popleft()
            asked -= 1
            verdict = admit(job)
            if verdict is None:
                waiting[target].append(job)
                continue
            if not verdict:
                continue
            if idle is not None and idle.target != target:
                self._retire(idle)
                idle = None
            self._start(idle or self._new_worker(target), job)

    @staticmethod
    def _busiest(waiting: dict[str, deque[Job]], idle: _Worker | None) -> str:
        if idle is not None and waiting.get(idle.target):
            return idle.target
        return max(sorted(waiting), key=lambda target: len(waiting[target]))

    def _start(self, worker: _Worker, job: Job) -> None:
        worker.job = job
        worker.deadline = time.monotonic() + self.timeout
        # A worker that died while it was idle shows as a closed channel when its answer is awaited.
        with contextlib.suppress(OSError):
            messages.send(worker.channel, {**job.request, "log": str(worker.log)})

    def _collect(self) -> Iterator[Result]:
        """Wait for answers for a moment; then look for workers past their time."""
        with selectors.DefaultSelector() as selector:
            for worker in self._workers:
                if worker.job is not None:
                    selector.register(worker.channel, selectors.EVENT_READ, worker)
            if not selector.get_map():
                time.sleep(_POLL_SECONDS)  # All that waits is being compiled by another builder.
                return
            ready = [key.data for key, _ in selector.select(_POLL_SECONDS)]
        for worker in ready:
            yield self._finish(worker)
        now = time.monotonic()
        for worker in self._workers:
            if worker.job is not None and now > worker.deadline and not worker.killed:
                worker.killed = True
                os.kill(worker.pid, signal.SIGKILL)

    def _finish(self, worker: _Worker) -> Result:
        reply = messages.receive(worker.channel)
        job, worker.job = worker.job, None
        if job is None:
            raise RuntimeError("a worker without a job was collected")
        if reply is None:
            status = self._retire(worker)
            log = _text(worker.log)
            if worker.killed:
                return Result(job, {}, f"timed out after {self.timeout:.0f} s", log)
            reason = f"signal {-status}" if status < 0 else f"exit status {status}"
            return Result(job, {}, f"the compiler crashed ({reason})", log)
        log = _text(worker.log)
        # One that answered just as its time was up has been killed all the same.
        if reply.pop("grown_bytes") > MAX_GROWTH_BYTES or worker.killed:
            self._retire(worker)
        if "error" in reply:
            return Result(job, {}, str(reply["error"]), log + str(reply["traceback"]))
        return Result(job, reply, log=log)

    def _new_worker(self, target: str) -> _Worker:
        zygote = self._zygote(target)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(zygote.channel, [b"F"], [theirs.fileno()])
            answer = messages.receive(zygote.channel)
        except OSError:
            answer = None
        if answer is None:
            ours.close()
            raise self._zygote_died(zygote, target)
        self._started += 1
        worker = _Worker(
            pid=int(answer["pid"]),
            channel=ours,
            target=target,
            log=self.directory / f"worker-{self._started}.log",
            zygote=zygote,
        )
        self._workers.append(worker)
        return worker

    def _zygote(self, target: str) -> _Zygote:
        architecture = _foreign_architecture(target)
        if architecture not in self._zygotes:
            self._zygotes[architecture] = self._start_zygote(architecture)
        zygote = self._zygotes[architecture]
        if not zygote.ready:
            self._await_imports(zygote, target)
            zygote.ready = True
        return zygote

    def _await_imports(self, zygote: _Zygote, target: str) -> None:
        zygote.channel.settimeout(_IMPORT_SECONDS)
        try:
            answer = messages.receive(zygote.channel)
        except TimeoutError:
            raise ToolchainError(
                f"importing the build side took longer than {_IMPORT_SECONDS} s; see `cutlass-aot doctor`"
            ) from None
        zygote.channel.settimeout(None)
        if answer is None:
            raise self._zygote_died(zygote, target)
        if "error" in answer:
            raise ToolchainError(
                f"the build side cannot be imported: {answer['error']}\n"
                "see `cutlass-aot doctor`, and install with: pip install 'cutlass-aot[build]'"
            )
        package, dsl = answer["package"], answer["dsl"]
        if Path(package).resolve() != Path(cutlass_aot.__file__).resolve():
            raise ToolchainError(
                f"workers import cutlass_aot from {package}, this is {cutlass_aot.__file__}: kernels would "
                "be kept under the keys of other code; run the cutlass-aot command of this environment"
            )
        if dsl and self.dsl_roots and not _lies_in(Path(dsl), self.dsl_roots):
            raise ToolchainError(
                f"the DSL was imported from {dsl}, which is not the installed one: expected it under "
                f"{', '.join(str(root) for root in self.dsl_roots)}; take the other one off the search path"
            )

    def _start_zygote(self, architecture: str) -> _Zygote:
        ours, theirs = socket.socketpair()
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        environment |= {
            "CUTE_DSL_ARCH": architecture,
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONHASHSEED": "0",
            "PYTHONUNBUFFERED": "1",
        }
        # The builder's own search path, before anything is imported: the interpreter would look into the
        # current directory first, where any package may lie.
        program = (
            f"import sys; sys.path[:] = {[path for path in sys.path if path]!r}; "
            f"from cutlass_aot.builder.zygote import main; main({theirs.fileno()})"
        )
        with theirs, self._zygote_log(architecture).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", program],
                pass_fds=[theirs.fileno()],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        zygote = _Zygote(process, ours)
        messages.send(ours, {"modules": list(self.modules)})
        return zygote

    def _zygote_died(self, zygote: _Zygote, target: str) -> ToolchainError:
        try:
            status: int | str = zygote.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            status = "unknown"
        words = _text(self._zygote_log(_foreign_architecture(target))).strip() or "it said nothing"
        return ToolchainError(
            f"the process that forks workers died (exit status {status}; -9 is often a lack of memory: "
            f"use fewer -j): {words}"
        )

    def _zygote_log(self, architecture: str) -> Path:
        return self.directory / f"zygote-{architecture}.log"

    def _retire(self, worker: _Worker) -> int:
        """End a worker and return its exit status, negative for a signal."""
        self._workers.remove(worker)
        worker.channel.close()
        try:
            worker.zygote.channel.sendall(b"W")
            messages.send(worker.zygote.channel, {"pid": worker.pid})
            answer = messages.receive(worker.zygote.channel)
        except OSError:
            answer = None
        # Workers end with their zygote, which kills them.
        return int(answer["status"]) if answer else -signal.SIGKILL

    def _kill(self, worker: _Worker) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker.pid, signal.SIGKILL)
        worker.channel.close()


def _foreign_architecture(target: str) -> str:
    """An architecture that is not the target's.

    The DSL builds a JIT engine for every kernel that the architecture named in CUTE_DSL_ARCH could run, and
    reads the variable once, at its first import. Naming another one skips the engine: the object is the same
    to the byte and comes 0.1 s sooner.
    """
    return "sm_100a" if target.startswith("sm_8") else "sm_80"


def _lies_in(file: Path, roots: tuple[Path, ...]) -> bool:
    """Whether a file's directory is under one of the roots; the file itself may be a link to elsewhere."""
    folders = (file.parent, file.parent.resolve())
    return any(folder.is_relative_to(root) for folder in folders for root in (*roots, *_resolved(roots)))


def _resolved(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    return tuple(path.resolve() for path in paths)


def _has_ended(worker: _Worker) -> bool:
    """Whether an idle worker is gone: nothing else can make its channel readable."""
    readable, _, _ = select.select([worker.channel], [], [], 0)
    return bool(readable)


def _text(path: Path) -> str:
    """The end of a log: what went wrong stands there."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""

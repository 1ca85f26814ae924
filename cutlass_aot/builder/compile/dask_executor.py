"""Compile on the workers of a dask scheduler; the kernels of a worker that dies go to others.

Objects do not travel through dask: workers write them into the builder's workspace, in a store that all
machines share, or put them into a remote store.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cutlass_aot.builder.compile import messages
from cutlass_aot.builder.compile.dask_worker import compile_on_worker
from cutlass_aot.builder.compile.messages import Compile, CompiledRemotely, CompileRemotely, Refused
from cutlass_aot.builder.compile.pool import Admit, Job, Result
from cutlass_aot.errors import ExecutorError
from cutlass_aot.runtime.optional_packages import optional
from cutlass_aot.store.store import Store
from cutlass_aot.store.upstream.transport import shown_url

_CONNECT_SECONDS = 10
_POLL_SECONDS = 0.5
_WORKERLESS_SECONDS = 120.0
"""How long a scheduler may have no worker, at the start or later."""
_AHEAD = 2
"""Kernels submitted for each thread of a worker: enough for the next one to be there when one is done."""
_LOSSES = 3
"""How often a kernel is submitted again that the cluster has lost, for instance when it was restarted."""
_CLOSE_SECONDS = 10

# Raised by a client that has lost its scheduler or cannot find it. Before Python 3.11, asyncio's TimeoutError
# is not the built-in one.
_NO_SCHEDULER = (OSError, asyncio.TimeoutError, RuntimeError)


@dataclass(slots=True)
class DaskExecutor:
    """Workers of a dask scheduler, with the interface of a pool; use it as a context manager.

    Args:
        address: of the scheduler, such as ``tcp://node1:8786``.
        modules: what a worker has to import.
        toolchain: the compiler's fingerprint, which every worker must have.
        versions: generator to version, which every worker must have.
        timeout: seconds a kernel may take.
        store: the builder's, through which objects are taken from the remote.
        remote: URL of the store that takes objects of workers on other file systems; None if all share the
            builder's.
    """

    address: str
    modules: tuple[str, ...]
    toolchain: str
    versions: Mapping[str, str]
    timeout: float
    store: Store
    remote: str | None = None
    _client: Any = None
    _running: dict[Any, Job] = field(default_factory=dict)
    _losses: dict[Job, int] = field(default_factory=dict)

    def __enter__(self) -> DaskExecutor:
        distributed = optional("distributed", ExecutorError, "compiling on the workers of dask")
        try:
            self._client = distributed.Client(self.address, timeout=_CONNECT_SECONDS, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise ExecutorError(
                f"the dask scheduler {self.address} cannot be reached: {error}; expected an address such as "
                "tcp://node1:8786, as `dask scheduler` prints it"
            ) from None
        return self

    def __exit__(self, *exception: object) -> None:
        with contextlib.suppress(*_NO_SCHEDULER, CancelledError):
            self._client.cancel(list(self._running), force=True)
        self._running.clear()
        with contextlib.suppress(*_NO_SCHEDULER, CancelledError):
            self._client.close(timeout=_CLOSE_SECONDS)

    def run(self, jobs: Iterable[Job], admit: Admit = lambda _job, _now: True) -> Iterator[Result]:
        """Run jobs, the longest first, yielding each result as it comes."""
        waiting = deque(sorted(jobs, key=lambda job: -job.seconds))
        put_off: dict[Job, float] = {}
        workers_seen = time.monotonic()
        while waiting or put_off or self._running:
            with self._asking():
                threads = sum(self._client.nthreads().values())
            if threads:
                workers_seen = time.monotonic()
            elif time.monotonic() - workers_seen > _WORKERLESS_SECONDS:
                raise ExecutorError(
                    f"the dask scheduler {self.address} has had no worker for {_WORKERLESS_SECONDS:.0f} s: "
                    "start some with `dask worker`"
                )
            self._fill(waiting, put_off, threads * _AHEAD, admit)
            yield from self._collect()

    def _fill(self, waiting: deque[Job], put_off: dict[Job, float], capacity: int, admit: Admit) -> None:
        retried = deque(put_off)
        while (waiting or retried) and len(self._running) < capacity:
            job = waiting.popleft() if waiting else retried.popleft()
            since = put_off.setdefault(job, time.monotonic())
            verdict = admit(job, time.monotonic() - since > self.timeout)
            if verdict is None:
                continue
            del put_off[job]
            if verdict:
                self._submit(job)

    def _submit(self, job: Job) -> None:
        compile = _compilation(job)
        request = messages.to_bytes(
            CompileRemotely(
                name=job.name,
                key=job.tag.key,
                # Workers run in other directories.
                compile=replace(compile, object=str(Path(compile.object).absolute())),
                remote=self.remote,
                modules=self.modules,
                timeout=self.timeout,
                toolchain=self.toolchain,
                generator_version=self.versions[compile.generator.name],
            )
        )
        key = f"cutlass-aot-{uuid.uuid4().hex}"
        with self._asking():
            future = self._client.submit(compile_on_worker, request, key=key, pure=False)
        self._running[future] = job

    def _collect(self) -> Iterator[Result]:
        done = [future for future in self._running if future.done()]
        if not done:
            # Polled: waiting for any of many futures would build a list of callbacks each time.
            time.sleep(_POLL_SECONDS if not self._running else _POLL_SECONDS / 10)
        for future in done:
            job = self._running.pop(future)
            result = self._result(job, future)
            with self._asking():
                future.release()
            if result is not None:
                yield result

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn what a client raises without its scheduler into an error that says so."""
        try:
            yield
        except _NO_SCHEDULER as error:
            raise ExecutorError(
                f"the dask scheduler {self.address} is gone: {error}; what was compiled is in the store, "
                "build again"
            ) from error

    def _result(self, job: Job, future: Any) -> Result | None:
        """The result of a job; None if the cluster has lost it and it was submitted again."""
        from distributed.scheduler import KilledWorker

        status = future.status
        if status in ("cancelled", "lost"):
            return self._again(job)
        if status != "finished":
            with self._asking():
                error = future.exception()
            if isinstance(error, KilledWorker):
                return Result(job, None, f"every worker that had it died ({error})", machine=True)
            raise ExecutorError(
                f"a worker of {self.address} could not begin with {job.name}: {error!r}; expected the same "
                "cutlass-aot on every machine"
            )
        try:
            with self._asking():
                data = future.result()
        except CancelledError:
            return self._again(job)
        reply: CompiledRemotely | Refused = messages.from_bytes(data, CompiledRemotely, Refused)
        if isinstance(reply, Refused):
            raise ExecutorError(f"a worker of {self.address} refused {job.name}: {reply.reason}")
        if reply.artifact is not None and reply.pushed:
            self._fetch(job, reply.artifact.object_sha256)
        return Result(job, reply.artifact, reply.error, reply.log, reply.machine)

    def _again(self, job: Job) -> Result | None:
        """Submit a lost job again, or fail it if it was lost too often."""
        self._losses[job] = self._losses.get(job, 0) + 1
        if self._losses[job] > _LOSSES:
            return Result(job, None, f"the dask cluster lost it {_LOSSES + 1} times", machine=True)
        self._submit(job)
        return None

    def _fetch(self, job: Job, sha256: str) -> None:
        """Copy an object that a worker has pushed to the remote to where the job was to write it."""
        self.store.prefetch("kernel", [job.tag.key], anew=True)
        if not self.store.extract_blob(sha256, Path(_compilation(job).object)):
            raise ExecutorError(
                f"{job.name} was compiled and put into {shown_url(str(self.remote))}, and is not to be had "
                "from there: see whether this machine reaches the same place as the workers"
            )


def _compilation(job: Job) -> Compile:
    if not isinstance(job.request, Compile):
        raise TypeError(f"{job.name}: found {type(job.request).__name__}, expected Compile")
    return job.request

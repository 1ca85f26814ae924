"""What a worker of dask does for a build: compile one kernel, in a process of its own.

The request and the answer are msgpack, as between a builder and its own workers. A crash of the compiler
kills neither the worker nor the build. Everything here runs on the worker's machine.
"""

from __future__ import annotations

import importlib
import tempfile
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from cutlass_aot.builder.compile.pool import Job, Pool, Result
from cutlass_aot.builder.inputs.file_digests import Files, Seen
from cutlass_aot.builder.toolchain import detect_compiler
from cutlass_aot.errors import CutlassAotError, ExecutorError, ToolchainError
from cutlass_aot.generators.registry import source_of
from cutlass_aot.schema.codec import from_plain
from cutlass_aot.schema.encoding import decode, encode
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.store.artifacts import keep_artifact
from cutlass_aot.store.store import Store
from cutlass_aot.store.upstream.remote import RemoteStore
from cutlass_aot.store.upstream.transport import shown_url

_IDLE_SECONDS = 300.0
"""A thread's pool ends after so long without work: an idle one keeps up to a gigabyte."""
_ATTEMPTS = 2
"""How often a job is begun, if the process that compiles dies or files change meanwhile."""

_local = threading.local()
_looking = threading.Lock()
_seen: dict[str, Seen] = {}
"""Digests of files that a thread of this process has read, for the others."""
_OWN = ("dask_worker", "fork_client", "messages", "pool")
_own: dict[str, str] = {}
"""Digests of the modules that run in this process, as they were at its first job."""


def compile_on_worker(request: bytes) -> bytes:
    """Compile one kernel into the file that the request names.

    Args:
        request: ``name`` and ``key`` of the kernel; ``compile``, the request to a worker of
            :class:`~cutlass_aot.builder.compile.pool.Pool`; ``modules`` to import; ``timeout`` in seconds;
            ``remote``, the URL of a store or None; ``toolchain`` and ``generator_version``, which have to be
            those of what is installed here.

    Returns:
        ``reply``, ``error``, ``log`` and ``machine`` of the result, and whether the object was ``pushed`` to
        the remote instead of written; or ``refused``, why nothing was compiled.
    """
    message = decode(request, "a request to a worker")
    try:
        reply = _compile(message)
    except CutlassAotError as error:
        reply = {"refused": str(error)}
    except OSError as error:
        reply = _machines(str(error))
    return encode(reply)


def _compile(message: dict[str, Any]) -> dict[str, Any]:
    folder = Path(message["compile"]["object"]).parent
    if folder.is_dir():
        return _run(message, message["compile"])
    if message["remote"] is None:
        raise ExecutorError(
            f"it does not see {folder}: the store has to be a directory that all machines share, by one "
            "path; or name a remote store with --remote"
        )
    with tempfile.TemporaryDirectory(prefix="cutlass-aot-") as own:
        return _compile_and_push(message, Path(own))


def _compile_and_push(message: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Compile, and put the artifact into the remote store, by way of one of this job's own."""
    made = folder / "made.o"
    answer = _run(message, {**message["compile"], "object": str(made)})
    if answer["error"]:
        return answer
    reply = answer["reply"]
    artifact = from_plain(Artifact, reply, "the answer of a worker")
    told: list[str] = []
    pushed = 0
    try:
        remote = RemoteStore(message["remote"], tell=told.append)
        with closing(Store(folder / "store", upstream=[remote])) as store:
            kernel = from_plain(Kernel, message["compile"]["kernel"], "a kernel record")
            keep_artifact(store, message["key"], kernel, artifact, made)
        pushed = remote.pushed
    except (CutlassAotError, OSError) as error:
        told.append(str(error))
    # Nothing is put where it is already, and what is told of need not be a failure.
    if told and not pushed:
        shown = shown_url(message["remote"])
        return _machines(f"compiled, and not put into {shown}: {'; '.join(told)}", answer["log"])
    return {**answer, "pushed": True}


def _run(message: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Compile in this thread's pool; with a new one if it is broken or no longer what is installed."""
    why = ""
    for _ in range(_ATTEMPTS):
        bench: _Bench | None = getattr(_local, "bench", None)
        try:
            if bench is None or bench.modules != tuple(message["modules"]) or not bench.is_current():
                if bench is not None:
                    bench.end()
                bench = _local.bench = _Bench(tuple(message["modules"]))
            result = bench.compile(message, request)
        except (ToolchainError, OSError) as error:
            why = str(error)
            _local.bench = None
            if bench is not None:
                bench.end()
            continue
        return {
            "reply": result.reply,
            "error": result.error,
            "log": result.log,
            "machine": result.machine,
            "pushed": False,
        }
    return _machines(why)


def _machines(error: str, log: str = "") -> dict[str, Any]:
    """The answer for a failure of this machine, which says nothing of the kernel."""
    return {"reply": {}, "error": error, "log": log, "machine": True, "pushed": False}


class _Bench:
    """What a thread compiles with: a pool of one, and the digests of what it has imported.

    Args:
        modules: what a worker needs imported.
    """

    def __init__(self, modules: tuple[str, ...]) -> None:
        self.modules = modules
        self._versions: dict[tuple[str, str], str] = {}
        self._busy = threading.Lock()
        self._idle: threading.Timer | None = None
        with _looking:
            files = Files(_seen)
            try:
                compiler = detect_compiler(files)
            except ToolchainError as error:
                raise ExecutorError(str(error)) from error
            _compare_own(files)
            # What was installed since this process began is found as well.
            importlib.invalidate_caches()
            paths = {module: _source_of(module) for module in modules}
            sources = {module: files.digest(path) for module, path in paths.items()}
            _seen.update(files.used)
        self._files = files
        self._toolchain = compiler.fingerprint
        self._digests = {str(path): sources[module] for module, path in paths.items()}
        self._pool = Pool(1, modules, dsl_roots=compiler.roots, sources=sources)

    def is_current(self) -> bool:
        """Whether every file that the toolchain and the generators consist of is what it was."""
        now = Files(self._files.used)
        same = all(now.digest(Path(name)) == seen.digest for name, seen in self._files.used.items())
        if same:
            # Stamps that could not be trusted yet may be by now.
            self._files = now
        return same

    def compile(self, message: Mapping[str, Any], request: dict[str, Any]) -> Result:
        """Compile a kernel."""
        with self._busy:
            if self._idle is not None:
                self._idle.cancel()
            try:
                self._pool.timeout = float(message["timeout"])
                self._check(message)
                (result,) = self._pool.run([Job(str(message["name"]), request)])
                if not self.is_current():
                    raise ToolchainError("the toolchain or a generator changed while it compiled")
                return result
            finally:
                self._idle = threading.Timer(_IDLE_SECONDS, self.end)
                self._idle.daemon = True
                self._idle.start()

    def end(self) -> None:
        """End the processes, once no job runs; another job starts them again."""
        with self._busy:
            if self._idle is not None:
                self._idle.cancel()
            self._pool.end()

    def _check(self, message: Mapping[str, Any]) -> None:
        """Refuse to make an object that its key would be wrong for."""
        _compare("toolchain", self._toolchain, message["toolchain"])
        _compare("generator version", self._version(message), message["generator_version"])

    def _version(self, message: Mapping[str, Any]) -> str:
        """A generator's version, as the pool's process has imported it: this one may have older code."""
        name, location = message["compile"]["generator"]
        if (name, location) not in self._versions:
            request = {"do": "version", "generator": [name, location], "digests": self._digests}
            (result,) = self._pool.run([Job(f"the version of {name}", request)])
            if result.error and result.machine:
                raise ToolchainError(result.error)
            if result.error:
                raise ExecutorError(f"its generator {name!r} cannot be looked at: {result.error}")
            self._versions[name, location] = str(result.reply["version"])
        return self._versions[name, location]


def _compare(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise ExecutorError(
            f"its {what} is {found[:40]}, the builder's is {expected[:40]}: "
            "install the same cutlass-aot, DSL, operators and plugins on every machine"
        )


def _compare_own(files: Files) -> None:
    """Refuse to go on with code of our own that is no longer what is installed."""
    for name in _OWN:
        sha256 = files.digest(Path(__file__).with_name(f"{name}.py"))
        if _own.setdefault(name, sha256) != sha256:
            raise ExecutorError("cutlass-aot was updated since this dask worker began: restart it")


def _source_of(module: str) -> Path:
    path = source_of(module)
    if path is None:
        raise ExecutorError(
            f"it has no module {module}, which the builder's generators consist of: "
            "install the same cutlass-aot, DSL, operators and plugins on every machine"
        )
    return path

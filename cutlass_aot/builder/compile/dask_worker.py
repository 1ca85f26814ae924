"""The dask worker's side of a build: compile one kernel, in a process of its own.

A crash of the compiler then kills neither the worker nor the build. Everything here runs on the worker's
machine.
"""

from __future__ import annotations

import importlib
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from cutlass_aot.builder.compile import messages
from cutlass_aot.builder.compile.messages import (
    CompiledRemotely,
    CompileRemotely,
    FindVersion,
    Refused,
    Version,
)
from cutlass_aot.builder.compile.pool import Job, Pool
from cutlass_aot.builder.inputs.file_digests import Files, Seen
from cutlass_aot.builder.toolchain import detect_compiler
from cutlass_aot.errors import CutlassAotError, ExecutorError, ToolchainError
from cutlass_aot.generators.registry import GeneratorReference, source_of
from cutlass_aot.runtime.files.temporary_folder import temporary_folder
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.store.artifacts import keep_artifact
from cutlass_aot.store.store import Store
from cutlass_aot.store.upstream.remote import RemoteStore
from cutlass_aot.store.upstream.transport import shown_url

_IDLE_SECONDS = 300.0
"""A thread's pool ends after so long without work: an idle pool holds up to a gigabyte."""
_ATTEMPTS = 2
"""How often a job is tried if the compiling process dies or files change meanwhile."""

_local = threading.local()
_looking = threading.Lock()
_seen: dict[str, Seen] = {}
"""Digests of files that a thread of this process has read, for the others."""
_OWN = ("dask_worker", "fork_client", "messages", "pool")
_own: dict[str, str] = {}
"""Digests of the modules that run in this process, as they were at its first job."""


def compile_on_worker(request: bytes) -> bytes:
    """Compile one kernel into the file that the request names.

    Takes a :class:`~cutlass_aot.builder.compile.messages.CompileRemotely`, and returns a
    :class:`~cutlass_aot.builder.compile.messages.CompiledRemotely` or a
    :class:`~cutlass_aot.builder.compile.messages.Refused`, all as bytes.
    """
    reply: CompiledRemotely | Refused
    try:
        reply = _compile(messages.from_bytes(request, CompileRemotely))
    except CutlassAotError as error:
        reply = Refused(str(error))
    except OSError as error:
        reply = _machine_failure(str(error))
    return messages.to_bytes(reply)


def _compile(request: CompileRemotely) -> CompiledRemotely:
    folder = Path(request.compile.object).parent
    if folder.is_dir():
        return _run(request)
    if request.remote is None:
        raise ExecutorError(
            f"it does not see {folder}: the store has to be a directory that all machines share, by one "
            "path; or name a remote store with --remote"
        )
    with temporary_folder() as own:
        return _compile_and_push(request, request.remote, own)


def _compile_and_push(request: CompileRemotely, url: str, folder: Path) -> CompiledRemotely:
    """Compile, and push the artifact to the remote store by way of a temporary store."""
    made = folder / "made.o"
    reply = _run(replace(request, compile=replace(request.compile, object=str(made))))
    if reply.artifact is None:
        return reply
    told: list[str] = []
    pushed = 0
    try:
        remote = RemoteStore(url, tell=told.append)
        with closing(Store(folder / "store", upstream=[remote])) as store:
            keep_artifact(store, request.key, request.compile.kernel, reply.artifact, made)
        pushed = remote.pushed
    except (CutlassAotError, OSError) as error:
        told.append(str(error))
    # Both alone are harmless: the object may be there already, and what the store tells may be a warning.
    if told and not pushed:
        return _machine_failure(f"compiled, and not put into {shown_url(url)}: {'; '.join(told)}", reply.log)
    return replace(reply, pushed=True)


def _run(request: CompileRemotely) -> CompiledRemotely:
    """Compile in this thread's pool; in a new one if it is broken or what is installed has changed."""
    why = ""
    for _ in range(_ATTEMPTS):
        bench: _Bench | None = getattr(_local, "bench", None)
        try:
            if bench is None or bench.modules != request.modules or not bench.is_current():
                if bench is not None:
                    bench.end()
                bench = _local.bench = _Bench(request.modules)
            return bench.compile(request)
        except (ToolchainError, OSError) as error:
            why = str(error)
            _local.bench = None
            if bench is not None:
                bench.end()
    return _machine_failure(why)


def _machine_failure(error: str, log: str = "") -> CompiledRemotely:
    """A failure that is this machine's, not the kernel's."""
    return CompiledRemotely(None, error, log, machine=True)


class _Bench:
    """A thread's pool of one worker, and the digests of the files that the worker has imported."""

    def __init__(self, modules: tuple[str, ...]) -> None:
        self.modules = modules
        self._versions: dict[GeneratorReference, str] = {}
        self._busy = threading.Lock()
        self._idle: threading.Timer | None = None
        with _looking:
            files = Files(_seen)
            try:
                compiler = detect_compiler(files)
            except ToolchainError as error:
                raise ExecutorError(str(error)) from error
            _compare_own(files)
            # Finds what was installed since this process began.
            importlib.invalidate_caches()
            paths = {module: _source_of(module) for module in modules}
            sources = {module: files.digest(path) for module, path in paths.items()}
            _seen.update(files.used)
        self._files = files
        self._toolchain = compiler.fingerprint
        self._digests = {str(path): sources[module] for module, path in paths.items()}
        self._pool = Pool(1, modules, dsl_roots=compiler.roots, sources=sources)

    def is_current(self) -> bool:
        """Whether the files of the toolchain and the generators are unchanged."""
        now = Files(self._files.used)
        same = all(now.digest(Path(name)) == seen.digest for name, seen in self._files.used.items())
        if same:
            # By now, stamps may be old enough to be trusted.
            self._files = now
        return same

    def compile(self, request: CompileRemotely) -> CompiledRemotely:
        with self._busy:
            if self._idle is not None:
                self._idle.cancel()
            try:
                self._pool.timeout = request.timeout
                # The key is made from the builder's toolchain and version: the object must be too.
                _compare("toolchain", self._toolchain, request.toolchain)
                version = self._version(request.compile.generator)
                _compare("generator version", version, request.generator_version)
                (result,) = self._pool.run([Job(request.name, request.compile)])
                if not self.is_current():
                    raise ToolchainError("the toolchain or a generator changed while it compiled")
                artifact = result.answer if isinstance(result.answer, Artifact) else None
                return CompiledRemotely(artifact, result.error, result.log, result.machine)
            finally:
                self._idle = threading.Timer(_IDLE_SECONDS, self.end)
                self._idle.daemon = True
                self._idle.start()

    def end(self) -> None:
        """End the processes once no job runs; the next job starts them again."""
        with self._busy:
            if self._idle is not None:
                self._idle.cancel()
            self._pool.end()

    def _version(self, generator: GeneratorReference) -> str:
        """A generator's version as the pool's process has imported it: this process may have older code."""
        if generator not in self._versions:
            request = FindVersion(generator, self._digests)
            (result,) = self._pool.run([Job(f"the version of {generator.name}", request)])
            if not isinstance(result.answer, Version):
                if result.machine:
                    raise ToolchainError(result.error)
                raise ExecutorError(f"its generator {generator.name!r} cannot be looked at: {result.error}")
            for path, sha256 in result.answer.read.items():
                if self._files.digest(Path(path)) != sha256:
                    raise ToolchainError(
                        f"{path} changed while the generator {generator.name!r} was looked at"
                    )
            self._versions[generator] = result.answer.version
        return self._versions[generator]


def _compare(what: str, found: str, expected: str) -> None:
    if found != expected:
        raise ExecutorError(
            f"its {what} is {found[:40]}, the builder's is {expected[:40]}: "
            "install the same cutlass-aot, DSL, operators and plugins on every machine"
        )


def _compare_own(files: Files) -> None:
    """Refuse to go on if the modules that this process runs are not those now installed."""
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

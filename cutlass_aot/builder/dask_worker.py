"""What a worker of dask does for a build: compile one kernel, in a process of its own.

The request and the answer are msgpack, as between a builder and its own workers. A crash of the compiler
kills neither the worker nor the build. Everything here runs on the worker's machine.
"""

from __future__ import annotations

import tempfile
import threading
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import Any

from cutlass_aot.builder.pool import Job, Pool
from cutlass_aot.builder.toolchain import detect_compiler
from cutlass_aot.errors import CutlassAotError, ExecutorError
from cutlass_aot.generators.registry import GeneratorReference, version_of
from cutlass_aot.schema.artifact import Artifact, Facts
from cutlass_aot.schema.encoding import decode, encode
from cutlass_aot.schema.kernel import Kernel
from cutlass_aot.store.artifacts import keep_artifact
from cutlass_aot.store.remote import RemoteStore
from cutlass_aot.store.store import Store

_local = threading.local()


def compile_on_worker(request: bytes) -> bytes:
    """Compile one kernel into the file that the request names.

    Args:
        request: ``name`` and ``key`` of the kernel; ``compile``, the request to a worker of
            :class:`~cutlass_aot.builder.pool.Pool`; ``modules`` to import; ``timeout`` in seconds;
            ``remote``, the URL of a store or None; ``toolchain`` and ``generator_version``, which have to be
            those of what is installed here.

    Returns:
        ``reply``, ``error``, ``log`` and ``machine`` of the result, and whether the object was ``pushed`` to
        the remote instead of written; or ``refused``, why nothing was compiled.
    """
    message = decode(request, "a request to a worker")
    try:
        _check(message)
        reply = _compile(message)
    except CutlassAotError as error:
        reply = {"refused": str(error)}
    return encode(reply)


def _check(message: dict[str, Any]) -> None:
    """Refuse to make an object that its key would be wrong for, or that nobody would find."""
    reference = GeneratorReference(*message["compile"]["generator"])
    found = {"toolchain": _toolchain(), "generator_version": _generator_version(reference)}
    for what, value in found.items():
        if value != message[what]:
            raise ExecutorError(
                f"its {what.replace('_', ' ')} is {value[:16]}, the builder's is {message[what][:16]}: "
                "install the same cutlass-aot, DSL, operators and plugins on every machine"
            )


def _compile(message: dict[str, Any]) -> dict[str, Any]:
    folder = Path(message["compile"]["object"]).parent
    if folder.is_dir():
        return {**_run(message, message["compile"]), "pushed": False}
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
        return {**answer, "pushed": False}
    reply = answer["reply"]
    artifact = Artifact(
        str(reply["sha256"]), int(reply["size"]), Facts.from_record(reply["facts"]), reply["seconds"]
    )
    trouble: list[str] = []
    remote = RemoteStore(message["remote"], tell=trouble.append)
    with closing(Store(folder / "store", behind=[remote])) as store:
        kernel = Kernel.from_record(message["compile"]["kernel"])
        keep_artifact(store, message["key"], kernel, artifact, made)
    if trouble:
        raise ExecutorError(trouble[0])
    return {**answer, "pushed": True}


def _run(message: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    pool = _pool(tuple(message["modules"]), float(message["timeout"]))
    (result,) = pool.run([Job(name=str(message["name"]), request=request)])
    return {
        "reply": result.reply,
        "error": result.error,
        "log": result.log,
        "machine": result.machine,
    }


@lru_cache(maxsize=1)
def _toolchain() -> str:
    return detect_compiler().fingerprint


@lru_cache(maxsize=64)
def _generator_version(reference: GeneratorReference) -> str:
    return version_of(reference.load())


def _pool(modules: tuple[str, ...], timeout: float) -> Pool:
    """This thread's own process to compile in; it ends with the thread, or with the worker."""
    known = getattr(_local, "pool", None)
    if known is not None and (known.modules, known.timeout) == (modules, timeout):
        pool: Pool = known
        return pool
    if known is not None:
        known.__exit__(None, None, None)
    _local.pool = Pool(1, modules, timeout, detect_compiler().roots)
    made: Pool = _local.pool
    return made

"""What a worker does with a request: enumerate or rank kernels, compile or trace one, or tell a version."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import socket
import sys
import time
import traceback
from functools import lru_cache
from pathlib import Path
from typing import cast, get_args

from cutlass_aot.builder.compile import messages
from cutlass_aot.builder.compile.audit import audit, inspect_object
from cutlass_aot.builder.compile.export import export
from cutlass_aot.builder.compile.messages import Answer, Reply, Request
from cutlass_aot.builder.compile.trace import trace
from cutlass_aot.errors import CutlassAotError
from cutlass_aot.generators.alternatives import alternatives
from cutlass_aot.generators.compile_errors import explain
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.protocol import Generator, Ranker
from cutlass_aot.generators.registry import GeneratorReference, version_of
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.kernel import Kernel

_JOBS_A_COLLECTION = 8
"""Python's cycle collector runs after this many jobs, and never during one: a trace leaves only a few
megabytes in cycles, and collecting all the time takes 3 % of the time."""


def serve(channel: socket.socket, log: str) -> None:
    """Answer the builder's requests until the channel closes.

    ``log`` is the file that takes what the compiler prints; each request overwrites it.
    """
    gc.disable()
    done = 0
    request: Request | None
    while (request := messages.receive(channel, *get_args(Request))) is not None:
        with Path(log).open("wb", buffering=0) as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        _reply(channel, request)
        done += 1
        if done % _JOBS_A_COLLECTION == 0:
            del request
            gc.collect()


def _reply(channel: socket.socket, request: Request) -> None:
    try:
        answer = _answer(request)
        _flush()
        messages.send(channel, Reply(answer, _memory_bytes()))
    except BaseException as error:
        raised = tuple(kind.__name__ for kind in type(error).__mro__)
        failure = messages.WorkerFailure(raised=raised, message=explain(error))
        # Errors of this package say what is wrong; where they are raised is of no use to a reader.
        if not isinstance(error, CutlassAotError):
            with contextlib.suppress(OSError, ValueError):
                traceback.print_exc()
        _flush()
        messages.send(channel, Reply(failure, _memory_bytes()))


def _flush() -> None:
    """Write Python's buffers to the log, which is read as soon as the reply is there."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()


def _memory_bytes() -> int:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@lru_cache(maxsize=64)
def _loaded(reference: GeneratorReference) -> Generator:
    return reference.load()


def _answer(request: Request) -> Answer:
    if isinstance(request, messages.Trace):
        return trace(request)
    generator = _loaded(request.generator)
    match request:
        case messages.Enumerate():
            # The plan has refused None for a generator that uses it.
            device = cast(DeviceProfile, request.device)
            kernels = tuple(generator.enumerate(request.problem, request.target, device))
            return messages.Enumerated(kernels, tuple(sorted(generator.design)))
        case messages.FindAlternatives():
            device = cast(DeviceProfile, request.device)
            return messages.Alternatives(alternatives(generator, request.problem, request.target, device))
        case messages.Rank():
            if not isinstance(generator, Ranker):
                raise TypeError(f"generator {generator.name!r} cannot rank its kernels")
            return generator.rank(
                request.problem, request.target, request.kernels, request.shapes,
                heuristic=request.heuristic, gpu=request.gpu,
            )  # fmt: skip
        case messages.Compile():
            return _compile(generator, request.kernel, Path(request.object))
        case messages.FindVersion():
            read: dict[str, str] = {}

            def file_digest(path: Path) -> str:
                known = request.digests.get(str(path))
                return known or read.setdefault(str(path), digest(path.read_bytes()))

            return messages.Version(version_of(generator, file_digest), read)


def _compile(generator: Generator, kernel: Kernel, path: Path) -> Artifact:
    """Compile, export and audit a kernel; the object is written to a file."""
    start = time.monotonic()
    compiled = generator.compile(kernel)
    data = export(compiled, kernel.symbol, path.with_name(f"{path.name}.ll")).to_bytes()
    path.write_bytes(data)
    seconds = time.monotonic() - start
    inspection = inspect_object(data)
    audit(inspection, kernel.target, kernel.symbol)
    return Artifact(digest(data), len(data), inspection.facts, seconds)

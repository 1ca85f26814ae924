"""What a worker does with a request: enumerate kernels, rank them, compile one, or tell a version."""

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
from typing import Any

from cutlass_aot.builder.compile import messages
from cutlass_aot.builder.compile.audit import audit, inspect_object
from cutlass_aot.builder.compile.export import export
from cutlass_aot.generators.device_profiles import device_from_record
from cutlass_aot.generators.protocol import Generator, Ranker
from cutlass_aot.generators.registry import GeneratorReference, version_of
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.tuning.ranking import Extents

_JOBS_A_COLLECTION = 8
"""Python's cycle collector runs after so many jobs, and never within one: what a trace leaves in cycles is a
few megabytes, and looking for it all the time takes 3 % of the time."""


def serve(channel: socket.socket) -> None:
    """Answer requests until the channel closes. Output of the compiler goes to the request's log."""
    gc.disable()
    done = 0
    while (request := messages.receive(channel)) is not None:
        with Path(request["log"]).open("wb", buffering=0) as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        try:
            reply = _DO[request["do"]](request)
            data = messages.pack(reply | {"peak_bytes": _memory_bytes()})
        except BaseException as error:
            reply = {
                "error": _encodable(f"{type(error).__name__}: {error}"),
                "raised": [kind.__name__ for kind in type(error).__mro__],
                "traceback": _encodable("".join(traceback.format_exception(error))),
            }
            data = messages.pack(reply | {"peak_bytes": _memory_bytes()})
        # What a generator printed is in Python's buffers, and the log is read when the answer is there.
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        channel.sendall(data)
        done += 1
        if done % _JOBS_A_COLLECTION == 0:
            del request, reply, data
            gc.collect()


def _encodable(text: str) -> str:
    """Text with what UTF-8 cannot hold, such as the bytes of a file name, written out."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _memory_bytes() -> int:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@lru_cache(maxsize=64)
def _generator(name: str, location: str) -> Generator:
    return GeneratorReference(name, location).load()


def _enumerate(request: dict[str, Any]) -> dict[str, Any]:
    generator = _generator(*request["generator"])
    problem = messages.problem_from_record(request["problem"])
    kernels = generator.enumerate(problem, request["target"], device_from_record(request["device"]))
    # Encoded one by one: the builder tells by the bytes whether two are equal.
    return {
        "kernels": [kernel.encoded() for kernel in kernels],
        "design": sorted(generator.design),
    }


def _rank(request: dict[str, Any]) -> dict[str, Any]:
    generator = _generator(*request["generator"])
    if not isinstance(generator, Ranker):
        raise TypeError(f"generator {generator.name!r} cannot rank its kernels")
    ranked = generator.rank(
        messages.problem_from_record(request["problem"]),
        request["target"],
        [from_plain(Kernel, record, "a kernel record") for record in request["kernels"]],
        [Extents(*extents) for extents in request["shapes"]],
        heuristic=request["heuristic"],
        gpu=request["gpu"],
    )
    return {"modelled": sorted(ranked.modelled), "problems": ranked.problems, "reason": ranked.reason}


def _compile(request: dict[str, Any]) -> dict[str, Any]:
    """Compile, export and audit; the object goes to a file, its facts into the reply."""
    kernel = from_plain(Kernel, request["kernel"], "a kernel record")
    generator = _generator(*request["generator"])
    start = time.monotonic()
    compiled = generator.compile(kernel)
    path = Path(request["object"])
    data = export(compiled, kernel.symbol, path.with_name(f"{path.name}.ll")).to_bytes()
    path.write_bytes(data)
    seconds = time.monotonic() - start
    inspection = inspect_object(data)
    audit(inspection, kernel.target, kernel.symbol)
    answer: dict[str, Any] = to_plain(Artifact(digest(data), len(data), inspection.facts, seconds))
    return answer


def _version(request: dict[str, Any]) -> dict[str, Any]:
    """The version of a generator as it was imported here; the request has its source files' digests."""
    digests = {Path(path): sha256 for path, sha256 in request["digests"].items()}
    return {"version": version_of(_generator(*request["generator"]), digests.__getitem__)}


_DO = {"enumerate": _enumerate, "rank": _rank, "compile": _compile, "version": _version}

"""Compile one request of a program, in a fork of the program's process: trace, export, audit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cutlass_aot.builder.compile.audit import audit, inspect_object
from cutlass_aot.builder.compile.export import export
from cutlass_aot.builder.link.kernel_object import NoGpuCode
from cutlass_aot.errors import ArtifactError
from cutlass_aot.programs.record.watched import compile_watched
from cutlass_aot.programs.start.files import RequestResult
from cutlass_aot.programs.start.packages import known_variables
from cutlass_aot.schema.codec import to_plain
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.requests.request import Request


def compile_request(
    request: Request,
    compile: Callable[[], Any],
    call: tuple[Any, Sequence[Any], Mapping[str, Any]],
    path: Path,
) -> Any:
    """Compile a request, export it and audit the object, which is written to ``path``.

    ``call`` is the compiler, arguments and keywords of the call that made the request. Returns a
    :class:`~cutlass_aot.programs.start.files.RequestResult` as plain data, or None if what was compiled
    launches no kernel; raises whatever the compiler raises.
    """
    start = time.monotonic()
    known = known_variables(request.target, request.device)
    compiled = compile_watched(request, compile, call[1], call[2], known)
    if not hasattr(compiled.function, "export_to_c"):
        kind = type(compiled.function).__qualname__
        raise ArtifactError(f"cute.compile gave a {kind}, which cannot be exported")
    kernel = request.kernel
    try:
        data = export(compiled.function, kernel.symbol, path.with_suffix(".ll")).to_bytes()
    except NoGpuCode:
        return None
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(data)
    seconds = time.monotonic() - start
    inspection = inspect_object(data)
    audit(inspection, kernel.target, kernel.symbol)
    new.replace(path)
    artifact = Artifact(digest(data), len(data), inspection.facts, seconds)
    return to_plain(RequestResult(artifact, compiled.call))

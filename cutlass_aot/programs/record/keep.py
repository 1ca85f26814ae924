"""Keep the requests of a program on a GPU and their compiled objects, for a bundle that answers them.

Each process of the program writes them to a private folder at once, so that nothing is lost however it ends;
:func:`gathered` makes recordings of them.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cutlass_aot.errors import CorruptFile, CutlassAotError, RequestError
from cutlass_aot.programs.describe.profiles import device_numbers, profile_at_hand
from cutlass_aot.programs.describe.request import Surroundings, request_of
from cutlass_aot.programs.record.watched import compile_watched
from cutlass_aot.programs.start.files import note_refusal, read_whole, refusals, write_whole
from cutlass_aot.programs.start.interception import Compile, Interception
from cutlass_aot.programs.start.packages import cache_environment, known_variables
from cutlass_aot.programs.without_tvm_ffi import as_requested
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import MALFORMED, decode, encode
from cutlass_aot.schema.requests.recording import MAX_OBJECT_BYTES, Recording
from cutlass_aot.schema.requests.request import MAX_REQUEST_BYTES, CallByName, CompiledRequest, Request

MODULE = "cutlass_aot.programs.record.keep"
_log = logging.getLogger("cutlass_aot")
# Imported by name: this package is not of the build side, and only a Keeper needs it.
_EXPORT = "cutlass_aot.builder.compile.export"


def begin(plan: Mapping[str, Any]) -> None:
    """Keep what this process compiles, in the ``folder`` of the plan."""
    os.environ.update(cache_environment())
    keeper = Keeper(Path(plan["folder"]))

    @functools.cache
    def device(target: str) -> Mapping[str, int]:
        return device_numbers(profile_at_hand(target))

    surroundings = Surroundings(device, known_variables)

    def answer(compiler: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], compile: Compile) -> Any:
        try:
            request = request_of(compiler, arguments, keywords, surroundings, direct=compile.direct)
        except RequestError as error:
            keeper.refuse(str(error))
            return compile.leave(*arguments, **keywords)
        return keeper.compile(request, arguments, keywords, compile)

    Interception(answer).begin()


class Keeper:
    """Keeps what is compiled in a private folder, which must exist. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._refused: set[str] = set()

    def compile(
        self, request: Request, arguments: Sequence[Any], keywords: Mapping[str, Any], compile: Compile
    ) -> Any:
        """Compile a request and keep it. Only the compiler's errors are raised, other problems noted."""
        if request.digest in self._refused or self._path(request).with_suffix(".result").exists():
            return compile.leave(*arguments, **keywords)
        problems: list[Exception] = []
        known = known_variables(request.target, request.device)
        try:
            compiled = compile_watched(
                request, lambda: compile(*arguments, **keywords), arguments, keywords, known,
                keep_unsound=problems.append,
            )  # fmt: skip
        except Exception as error:
            # The error may be this package's; one of the compiler's is raised again here.
            self._refuse_request(request, error)
            return compile.leave(*arguments, **keywords)
        try:
            if problems:
                raise problems[0]
            self._keep(request, compiled.function, compiled.call)
        except Exception as error:  # The program has its function, and goes on.
            self._refuse_request(request, error)
        return as_requested(request, compiled.function)

    def _refuse_request(self, request: Request, error: Exception) -> None:
        # Here, since a server that keeps nothing need not have it.
        from cutlass_aot.generators.compile_errors import explain

        # The program may make it often: a direct call is a request each time.
        self._refused.add(request.digest)
        own = isinstance(error, CutlassAotError)
        self.refuse(f"{request.callable}: {error if own else explain(error)}")

    def refuse(self, reason: str) -> None:
        """Note why a call cannot be kept."""
        try:
            note_refusal(self._folder, reason)
        except OSError as error:
            _log.warning("not kept: %s; nor can that be noted: %s", reason, error)

    def _path(self, request: Request) -> Path:
        return self._folder / request.digest

    def _keep(self, request: Request, function: Any, call: CallByName | None) -> None:
        path = self._path(request)
        exporter = importlib.import_module(_EXPORT)
        scratch = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.ll")
        data = exporter.export(function, request.kernel.symbol, scratch).to_bytes()
        if len(data) > MAX_OBJECT_BYTES:
            raise RequestError(f"its code has {len(data)} bytes, more than a recording takes")
        write_whole(path.with_suffix(".object"), data)
        write_whole(path.with_suffix(".request"), request.encoded())
        # Written last: it says that the other two are complete.
        write_whole(path.with_suffix(".result"), encode({"call": to_plain(call)}))


def gathered(folder: Path, most: int = MAX_OBJECT_BYTES) -> Iterator[tuple[Recording, dict[str, bytes]]]:
    """One or more recordings of what a program's processes kept, with objects by their requests' digests.

    A recording has at most ``most`` bytes of objects; a larger object has a recording of its own.
    """
    requests: list[CompiledRequest] = []
    objects: dict[str, bytes] = {}
    size, refused = 0, tuple(refusals(folder))
    for path in sorted(folder.glob("*.result")):
        request = Request.from_bytes(read_whole(path.with_suffix(".request"), MAX_REQUEST_BYTES), path.name)
        try:
            call = decode(read_whole(path, MAX_REQUEST_BYTES), path.name)["call"]
        except MALFORMED as error:
            raise CorruptFile(f"{path.name} is malformed: {error!r}") from None
        data = read_whole(path.with_suffix(".object"), MAX_OBJECT_BYTES)
        if requests and size + len(data) > most:
            yield Recording(tuple(requests), refused), objects
            requests, objects, size, refused = [], {}, 0, ()
        requests.append(
            CompiledRequest(
                request,
                None if call is None else from_plain(CallByName, call, "how a compiled function is called"),
            )
        )
        objects[request.digest] = data
        size += len(data)
    yield Recording(tuple(requests), refused), objects

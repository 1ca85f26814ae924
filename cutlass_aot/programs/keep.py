"""Keep what a program compiles on a GPU: its requests and the compiled objects, for a bundle that answers
them.

Each process of the program writes what it compiled into a private folder, at once, so that nothing is lost
however it ends; :func:`gathered` makes a recording of it.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.interception import Compile, Interception
from cutlass_aot.programs.packages import cache_environment, target_environment
from cutlass_aot.programs.profiles import device_numbers, profile_at_hand
from cutlass_aot.programs.request import Surroundings, request_of
from cutlass_aot.programs.watched import compile_watched
from cutlass_aot.programs.without_tvm_ffi import as_asked
from cutlass_aot.schema.encoding import decode, digest, encode
from cutlass_aot.schema.recording import MAX_RECORDING_BYTES, Recording
from cutlass_aot.schema.request import MAX_REQUEST_BYTES, CallByName, CompiledRequest, Request

MODULE = "cutlass_aot.programs.keep"
_log = logging.getLogger("cutlass_aot")
# By name: programs are not of the build side, and nobody else needs it.
_EXPORT = "cutlass_aot.builder.export"


def begin(plan: Mapping[str, Any]) -> None:
    """Keep what this process compiles.

    Args:
        plan: with the ``folder`` that takes it.
    """
    os.environ.update(cache_environment())
    keeper = Keeper(Path(plan["folder"]))
    numbers: dict[str, Mapping[str, int]] = {}

    def device(target: str) -> Mapping[str, int]:
        if target not in numbers:
            numbers[target] = device_numbers(profile_at_hand(target))
        return numbers[target]

    surroundings = Surroundings(device, known_variables)

    def answer(compiler: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], compile: Compile) -> Any:
        try:
            request = request_of(compiler, arguments, keywords, surroundings)
        except RequestError as error:
            keeper.refuse(str(error))
            return compile(*arguments, **keywords)
        return keeper.compile(request, arguments, keywords, compile)

    Interception(answer).begin()


def known_variables(target: str, numbers: Mapping[str, int]) -> dict[str, str]:
    """Environment variables, with the values by which packages are told of a target and of their caches."""
    return dict(_known_variables(target, numbers["sm_count"]))


@functools.lru_cache(maxsize=16)
def _known_variables(target: str, sm_count: int) -> Mapping[str, str]:
    # Every request asks for it, and to look for entry points takes milliseconds.
    return {**cache_environment(), **target_environment(target, sm_count)}


class Keeper:
    """Keeps what is compiled in a folder. May be used from several threads.

    Args:
        folder: private, there already.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def compile(
        self, request: Request, arguments: Sequence[Any], keywords: Mapping[str, Any], compile: Compile
    ) -> Any:
        """Compile a request and keep it. What cannot be kept is noted, and never raised into the program.

        Raises:
            Exception: whatever the compiler raises.
        """
        problems: list[Exception] = []
        known = known_variables(request.target, request.device)
        compiled = compile_watched(
            request, lambda: compile(*arguments, **keywords), arguments, keywords, known,
            keep_unsound=problems.append,
        )  # fmt: skip
        try:
            if problems:
                raise problems[0]
            self._keep(request, compiled.function, compiled.call)
        except Exception as error:  # Whatever it is: the program has its function, and goes on.
            self.refuse(f"{request.callable}: {error}")
        return as_asked(request, compiled.function)

    def refuse(self, reason: str) -> None:
        """Note a request that cannot be kept."""
        data = encode({"reason": reason.encode("utf-8", "backslashreplace").decode("utf-8")})
        try:
            write_whole(self._folder / f"{digest(data)[:32]}.refusal", data)
        except OSError as error:
            _log.warning("not kept: %s; nor can that be noted: %s", reason, error)

    def _keep(self, request: Request, function: Any, call: CallByName | None) -> None:
        path = self._folder / request.digest
        with self._lock:
            if path.with_suffix(".result").exists():
                return
            exporter = importlib.import_module(_EXPORT)
            scratch = path.with_name(f"{path.name}.{os.getpid()}.ll")
            data = exporter.export(function, request.kernel.symbol, scratch).to_bytes()
            write_whole(path.with_suffix(".object"), data)
            write_whole(path.with_suffix(".request"), request.encoded())
            # The last of the three says that they are whole.
            write_whole(
                path.with_suffix(".result"), encode({"call": None if call is None else call.to_record()})
            )


def gathered(folder: Path) -> tuple[Recording, dict[str, bytes]]:
    """What all processes of a program kept: the recording, and the objects by the digests of their requests.

    Raises:
        CorruptFile: if a file is not what a process of the program wrote.
    """
    requests, objects = [], {}
    for path in sorted(folder.glob("*.result")):
        request = Request.from_bytes(read_whole(path.with_suffix(".request"), MAX_REQUEST_BYTES), path.name)
        call = decode(read_whole(path, MAX_REQUEST_BYTES), path.name)["call"]
        requests.append(CompiledRequest(request, None if call is None else CallByName.from_record(call)))
        objects[request.digest] = read_whole(path.with_suffix(".object"), MAX_RECORDING_BYTES)
    reasons = (read_whole(path, MAX_REQUEST_BYTES) for path in sorted(folder.glob("*.refusal")))
    refusals = {str(decode(data, "a refusal")["reason"]) for data in reasons}
    return Recording(tuple(requests), tuple(sorted(refusals))), objects


def read_whole(path: Path, limit: int) -> bytes:
    """A file that a process of a program wrote.

    Raises:
        RequestError: if it is larger than ``limit`` bytes.
    """
    with path.open("rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise RequestError(f"{path.name} has more than {limit} bytes")
    return data


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that others see whole or not at all."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_bytes(data)
    new.replace(path)

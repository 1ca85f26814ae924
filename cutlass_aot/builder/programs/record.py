"""Run the programs of a manifest where there is no GPU, and keep what they ask ``cute.compile`` for.

A recording is the requests of one run of a program for one target. It depends on the program's files, on
those of everything that it imports, on its environment, the device profile and the compiler; the program is
run again only if one of them changes. The artifact of a request is kept as that of any kernel is.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from cutlass_aot.builder import events
from cutlass_aot.builder.compile.compile import keep_what_failed
from cutlass_aot.builder.compile.failures import is_machine_failure, reason_of
from cutlass_aot.builder.compile.fork_client import PASSED_ON, private_cache, read_log
from cutlass_aot.builder.compile.messages import WorkerFailure
from cutlass_aot.builder.inputs.file_digests import Seen
from cutlass_aot.builder.inputs.inputs import Inputs
from cutlass_aot.builder.key import key
from cutlass_aot.builder.link.packages import license_notices
from cutlass_aot.builder.records import Failure
from cutlass_aot.builder.settings import Settings
from cutlass_aot.errors import CorruptFile, CutlassAotError, ManifestError, ProgramError
from cutlass_aot.manifest.programs import ProgramTable
from cutlass_aot.programs.describe.distributions import DSL
from cutlass_aot.programs.record import pretend_gpu
from cutlass_aot.programs.record.record import plan_of
from cutlass_aot.programs.start.environment import program_environment
from cutlass_aot.programs.start.files import RequestResult, read_whole, refusals
from cutlass_aot.runtime.files.temporary_folder import temporary_folder
from cutlass_aot.schema.codec import from_plain, to_plain
from cutlass_aot.schema.encoding import MALFORMED, decode, digest, encode
from cutlass_aot.schema.requests.recording import Recording
from cutlass_aot.schema.requests.request import (
    MAX_REQUEST_BYTES,
    REQUEST_SCHEMA,
    CallByName,
    CompiledRequest,
    Request,
)
from cutlass_aot.schema.targets import Target
from cutlass_aot.schema.words import few, plural
from cutlass_aot.store.artifacts import keep_artifact, read_artifact
from cutlass_aot.store.build_state import read_state, write_state
from cutlass_aot.store.store import Store

GENERATOR_VERSION = str(REQUEST_SCHEMA)
"""Takes the place of a generator's version in the keys of kernels that programs ask for."""

COMPILER = "cutlass_aot.builder.programs.compile_request"
"""The module that forks of a program compile with; the builder itself does not import it."""

KIND = "recording"
_MAX_FILE_BYTES = 256 << 20
_MAX_REQUESTS = 100_000
_LAST_LINES = 20
_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class Program:
    """One program of a manifest for one target."""

    table: ProgramTable
    target: str

    def __str__(self) -> str:
        return f"{self.table.where} ({self.table.command}) for {self.target}"


@dataclass(frozen=True, slots=True)
class _LastRun:
    """The store's record of a program's last run: its recording's name, and what that depends on.

    ``own_sources`` is the digest of this package's modules. ``files`` is None if the run failed.
    """

    recording: str
    own_sources: str
    files: dict[str, Seen] | None


class Recorded(NamedTuple):
    """The requests of a program or of a named recording.

    Attributes:
        program: what was run, or would have been if anything had changed; the recording's name if there is no
            program.
        failures: requests that did not compile.
        compiled: how many requests were compiled now.
    """

    program: Program | str
    recording: Recording
    failures: tuple[Failure, ...] = ()
    compiled: int = 0


def programs_of(inputs: Inputs) -> list[Program]:
    """Every program of a manifest, once for each of its targets."""
    programs = [Program(table, target) for table in inputs.manifest.programs for target in table.targets]
    for program in programs:
        profile = inputs.devices[program.target]
        if not Target.parse(program.target).runs_on(profile.compute_capability):
            raise ManifestError(
                f"{program}: the program would see the device profile {profile.name}, a GPU that cannot run "
                f"code for {program.target}: name another one for this target under `device`"
            )
    return programs


def known_recording(program: Program, inputs: Inputs, store: Store | None) -> tuple[Recording | None, str]:
    """The recording of a program's last run, None if there is none, and why the program would be run again.

    The reason is ``""`` if nothing that the recording depends on has changed.
    """
    if store is None:
        return None, "there is no store yet"
    last = _last_run(program, inputs, store)
    if last is None:
        return None, "it was not run with this command, environment, profile and compiler"
    recording = _recording(last, store)
    if recording is None:
        return None, "the store has lost what was recorded"
    why = _changed(last, inputs)
    for item in recording.requests if not why else ():
        kernel = item.request.kernel
        artifact, reason = read_artifact(store, kernel_key(item.request, inputs), kernel)
        if artifact is None:
            why = f"{kernel.name}: {reason}"
    return recording, why


def _last_run(program: Program, inputs: Inputs, store: Store) -> _LastRun | None:
    try:
        return from_plain(_LastRun, read_state(store.root, _state_name(program, inputs)), "build state")
    except CorruptFile:
        return None


def _changed(last: _LastRun, inputs: Inputs) -> str:
    """What has changed of a program's inputs since its last run; ``""`` if nothing has."""
    if last.own_sources != inputs.tools.origins.own_sources:
        return "cutlass-aot changed since its last run"
    if last.files is None:
        return "its last run did not come to a good end"
    changed = [path for path, seen in last.files.items() if inputs.files.digest(Path(path)) != seen.digest]
    return f"{few(changed, 1)} changed since its last run" if changed else ""


def _recording(last: _LastRun, store: Store) -> Recording | None:
    """What the last run recorded, even if it failed."""
    try:
        body = store.get_record(KIND, last.recording)
        return None if body is None else from_plain(Recording, body, "a recording")
    except (*MALFORMED, CutlassAotError):
        return None


def kernel_key(request: Request, inputs: Inputs) -> str:
    """The key in the store of a request's artifact."""
    return key(request.kernel, GENERATOR_VERSION, inputs.tools.origins.toolchain)


def record_programs(inputs: Inputs, store: Store, settings: Settings) -> list[Recorded]:
    """Get what each program of a manifest requests, running those whose last recording is out of date."""
    known: dict[Program, Recorded] = {}
    waiting = []
    for program in programs_of(inputs):
        recording, why = known_recording(program, inputs, store)
        if recording is None or why:
            waiting.append(program)
        else:
            known[program] = Recorded(program, recording)
    at_once = max(1, min(len(waiting), settings.jobs))
    jobs, stop, lock = max(1, settings.jobs // at_once), threading.Event(), threading.Lock()
    runs = [_Run(program, inputs, store, settings, jobs, stop, lock) for program in waiting]
    errors = []
    with ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="program") as pool:
        futures = [pool.submit(run.record) for run in runs]
        try:
            for program, future in zip(waiting, futures, strict=True):
                try:
                    known[program] = future.result()
                except ProgramError as error:
                    errors.append(str(error))
        except BaseException:
            # Mostly an interrupt: do not wait for programs to end by themselves.
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if errors:
        raise ProgramError("\n".join(errors))
    return [known[program] for program in programs_of(inputs)]


def _state_name(program: Program, inputs: Inputs) -> str:
    """Name of a program's state for a target: a digest of those inputs that are not files of the program."""
    table = program.table
    return digest(
        encode(
            {
                "what": "recording",
                "run": table.run,
                "folder": os.fspath(inputs.manifest.path.parent.absolute()),
                "target": program.target,
                "device": to_plain(inputs.devices[program.target]),
                "fake_tensors": table.fake_tensors,
                "environment": dict(table.environment),
                "toolchain": inputs.tools.origins.toolchain,
                "python": sys.version,
                "prefix": sys.prefix,
            }
        )
    )


@dataclass(frozen=True, slots=True)
class _Run:
    """One run of a program.

    Attributes:
        jobs: how many forks may compile at once.
        stop: set to end all programs.
        lock: held while the store is written or an event is told.
        known: how to call each request that the store has compiled, by the request's digest.
    """

    program: Program
    inputs: Inputs
    store: Store
    settings: Settings
    jobs: int
    stop: threading.Event
    lock: threading.Lock
    known: dict[str, CallByName | None] = field(default_factory=dict)

    def record(self) -> Recorded:
        with self.lock:
            self.settings.tell(events.Running(self.program.table.command, self.program.target))
        last = _last_run(self.program, self.inputs, self.store)
        recording = None if last is None else _recording(last, self.store)
        for item in recording.requests if recording else ():
            kernel = item.request.kernel
            if read_artifact(self.store, kernel_key(item.request, self.inputs), kernel)[0] is not None:
                self.known[item.request.digest] = item.call
        with temporary_folder("program") as folder:
            results = folder / "results"
            results.mkdir()
            output = folder / "output"
            problem = self._run(results, output)
            recorded = self._collect(results)
            if problem is None and not recorded.recording.requests and not recorded.failures:
                problem = self._nothing(recorded.recording) + _tail(output)
            # A failed run is remembered without its files, so that the next build runs the program again.
            self._remember(recorded.recording, () if problem or recorded.failures else _files(results))
            if problem is not None:
                kept = len(recorded.recording.requests)
                raise ProgramError(
                    f"{self.program} {problem}\n{plural(kept, 'request')} of it that compiled "
                    f"{'is' if kept == 1 else 'are'} kept: the next build does not compile "
                    f"{'it' if kept == 1 else 'them'} again"
                )
            counts = (len(recorded.recording.requests), recorded.compiled, len(recorded.failures))
            with self.lock:
                self.settings.tell(events.Ran(self.program.table.command, self.program.target, *counts))
            return recorded

    def _run(self, results: Path, output: Path) -> str | None:
        """Run the program to its end; returns what went wrong, None if nothing did."""
        table, target = self.program.table, self.program.target
        profile = self.inputs.devices[target]
        plan = plan_of(
            results, target, to_plain(profile), sorted(self.known), fake_tensors=table.fake_tensors,
            compiler=COMPILER, jobs=self.jobs, timeout=self.settings.timeout,
        )  # fmt: skip
        own = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        # The order of sets must not decide what a program compiles, nor in which order.
        own |= {"PYTHONHASHSEED": "0", **private_cache(results.parent)}
        own |= {**pretend_gpu.environment(profile, target), **dict(table.environment)}
        environment = program_environment(plan, results.parent, own)
        command = [sys.executable if table.run[0] in ("python", "python3") else table.run[0], *table.run[1:]]
        folder = self.inputs.manifest.path.parent
        # The program, its children and its compiling forks hold the other end for as long as they run.
        ours, theirs = os.pipe()
        try:
            with output.open("wb") as log:
                try:
                    process = subprocess.Popen(
                        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log,
                        stderr=log, pass_fds=[theirs], start_new_session=True,
                    )  # fmt: skip
                except OSError as error:
                    return f"cannot be run: {error.strerror or error}"
                finally:
                    os.close(theirs)
            status = self._wait(process, ours, results)
        finally:
            os.close(ours)
        if status is None:
            return f"did not end within {table.timeout} s: give it more by `timeout`, or less to do" + _tail(
                output
            )
        # A package may crash the interpreter on exit, when the program's work is done.
        came_to_its_end = (results / f"{process.pid}.imported").exists()
        if status < 0 and (not came_to_its_end or (results / f"{process.pid}.status").exists()):
            return f"was ended by signal {-status} ({signal.Signals(-status).name})" + _tail(output)
        return f"ended with exit status {status}" + _tail(output) if status > 0 else None

    def _wait(self, process: subprocess.Popen[bytes], pipe: int, results: Path) -> int | None:
        """The program's exit status once it and everything it started has ended; None if it was killed."""
        deadline = time.monotonic() + self.program.table.timeout
        told = self._so_far(results)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(pipe, selectors.EVENT_READ)
                while time.monotonic() < deadline and not self.stop.is_set():
                    if told != (so_far := self._so_far(results)):
                        told = so_far
                        with self.lock:
                            self.settings.tell(so_far)
                    # Readable when the last one has closed its end. Programs may close theirs early, too.
                    if selector.select(_POLL_SECONDS):
                        try:
                            return process.wait(_POLL_SECONDS)
                        except subprocess.TimeoutExpired:
                            continue
            return None
        finally:
            # What is left of its session, too.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _so_far(self, results: Path) -> events.Recording:
        """How many requests the program has made until now, by the files that its processes have written."""
        written = Counter(path.suffix for path in results.iterdir())
        counts = (written[".request"], written[".result"], written[".failure"])
        return events.Recording(self.program.table.command, self.program.target, *counts)

    def _collect(self, results: Path) -> Recorded:
        """Put into the store what the program's forks wrote."""
        requests, failures, compiled = [], [], 0
        paths = sorted(results.glob("*.request"))
        if len(paths) > _MAX_REQUESTS:
            raise ProgramError(
                f"{self.program} makes {len(paths)} requests; expected at most {_MAX_REQUESTS}"
            )
        for path in paths:
            request = Request.from_bytes(read_whole(path, MAX_REQUEST_BYTES), path.name)
            if path.with_suffix(".result").exists():
                requests.append(CompiledRequest(request, self._keep(request, path)))
                compiled += 1
            elif request.digest in self.known:
                requests.append(CompiledRequest(request, self.known[request.digest]))
            else:
                failures.append(self._failure(request, path))
        recording = Recording(tuple(requests), tuple(refusals(results)))
        return Recorded(self.program, recording, tuple(failures), compiled)

    def _keep(self, request: Request, path: Path) -> CallByName | None:
        """Put a request's artifact into the store; returns how to call the compiled function."""
        file = path.with_suffix(".result")
        result = from_plain(RequestResult, decode(read_whole(file, 1 << 20), file.name), file.name)
        with self.lock:
            name = kernel_key(request, self.inputs)
            keep_artifact(self.store, name, request.kernel, result.artifact, path.with_suffix(".object"))
        return result.call

    def _failure(self, request: Request, path: Path) -> Failure:
        try:
            data = read_whole(path.with_suffix(".failure"), 1 << 20)
            failure = from_plain(WorkerFailure, decode(data, path.name), path.name)
        except OSError:
            failure = WorkerFailure(status=1)
        words = read_log(path.with_suffix(".log"))
        key, versions = kernel_key(request, self.inputs), self.inputs.tools.origins.versions
        reason, machine = reason_of(failure), is_machine_failure(failure, words)
        with self.lock:
            return keep_what_failed(self.store, key, request.kernel, reason, words, versions, machine)

    def _remember(self, recording: Recording, files: Sequence[str]) -> None:
        with self.lock:
            # Makes them inputs of the build, so that the up-to-date check looks at them too.
            for path in files:
                self.inputs.files.digest(Path(path))
            seen = {path: self.inputs.files.used[path] for path in files}
            self.store.put_record(KIND, recording.name, to_plain(recording))
            last = _LastRun(recording.name, self.inputs.tools.origins.own_sources, seen or None)
            write_state(self.store.root, _state_name(self.program, self.inputs), to_plain(last))

    def _nothing(self, recording: Recording) -> str:
        if recording.refusals:
            reasons = "\n".join(f"  {reason}" for reason in recording.refusals)
            return f"made no request that can be keyed:\n{reasons}"
        return (
            "compiled nothing: no call of cute.compile was seen. It has to call the functions that are to be "
            "prebuilt, with the package's own kernel cache off; cutlass-aot knows the switches of some "
            "packages (docs/guides/programs.md)"
        )


def _tail(output: Path) -> str:
    lines = read_log(output).rstrip().splitlines()[-_LAST_LINES:]
    return ". Its last words:\n" + "\n".join(f"  {line}" for line in lines) if lines else " and said nothing"


def _files(results: Path) -> list[str]:
    """The files that the program's processes imported, and the lists of files of their distributions."""
    names: set[str] = set()
    for path in sorted(results.glob("*.imported")):
        names.update(read_whole(path, _MAX_FILE_BYTES).decode("utf-8", "surrogateescape").split("\n"))
    return sorted(name for name in names if name)


def warnings(recorded: Sequence[Recorded]) -> list[str]:
    """Warnings about requests that will not be served and what the bundle lacks, without a full stop."""
    refused = [
        f"{item.program}: not recorded: {reason}" for item in recorded for reason in item.recording.refusals
    ]
    requests = [item.request for one in recorded for item in one.recording.requests]
    return refused + [
        f"the bundle has no licence notice of {name} {version}, which is not installed here or carries none"
        for name, version in sorted({pair for item in requests for pair in item.distributions.items()})
        if name != DSL and not license_notices(name, version)
    ]


def merged(recorded: Sequence[Recorded]) -> dict[str, CompiledRequest]:
    """The requests of all programs, each once, by their kernels' digests."""
    requests = {item.request.kernel.digest: item for one in recorded for item in one.recording.requests}
    return dict(sorted(requests.items()))

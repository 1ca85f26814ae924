"""Record a program's calls of ``cute.compile``, in the program's own process.

Each distinct request is compiled in a fork, so that a trace's side effects or a crash concern that request
alone; the program gets a function that does nothing and goes on. Results are written to a private folder at
once, so that nothing is lost however the program ends::

    <digest>.claim      made by the process that compiles the request
    <digest>.request    the request
    <digest>.object     the compiled object, and
    <digest>.result     what else is known of it; written last
    <digest>.failure    why it did not compile, instead of the two
    <digest>.log        what the compiler printed
    <digest>.refusal    why a call makes no request; the digest is that of the reason
    <process>.imported  files that the process has imported; written when its program ends
    <process>.error     the same, if an uncaught error ended the program
    <process>.status    exists if the program has requested an exit status other than 0
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib
import multiprocessing.util
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from cutlass_aot.errors import RequestError
from cutlass_aot.generators.compile_errors import explain
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.programs.describe.distributions import in_standard_library
from cutlass_aot.programs.describe.profiles import device_numbers
from cutlass_aot.programs.describe.request import Surroundings, request_of
from cutlass_aot.programs.record import pretend_gpu
from cutlass_aot.programs.record.fake_tensors import explain_data_dependence
from cutlass_aot.programs.start.export import NotExported
from cutlass_aot.programs.start.files import note_refusal, write_whole
from cutlass_aot.programs.start.interception import Compile, Interception
from cutlass_aot.programs.start.packages import known_variables
from cutlass_aot.programs.start.parent import end_after, end_with_parent
from cutlass_aot.schema.codec import from_plain
from cutlass_aot.schema.encoding import encode
from cutlass_aot.schema.requests.request import Request

MODULE = "cutlass_aot.programs.record.record"
_POLL_SECONDS = 0.02
_Call = tuple[Any, Sequence[Any], Mapping[str, Any]]
"""The compiler, its arguments and its keywords."""


def begin(plan: Mapping[str, Any]) -> None:
    """Record the requests of this process and of its forks; :func:`plan_of` makes the plan."""
    if os.getppid() == plan["builder"]:
        end_with_parent()
    profile = from_plain(DeviceProfile, plan["device"], "the device profile of the plan")
    pretend_gpu.install(profile, plan["target"], fake_tensors=bool(plan["fake_tensors"]))
    recorder = Recorder(
        folder=Path(plan["folder"]),
        device=device_numbers(profile),
        known=frozenset(plan["known"]),
        compiler=str(plan["compiler"]),
        jobs=int(plan["jobs"]),
        timeout=float(plan["timeout"]),
    )
    _note_what_is_read(recorder)
    Interception(recorder.answer).begin()
    atexit.register(recorder.finish)
    # Workers that `multiprocessing` forks end without exit handlers.
    multiprocessing.util.register_after_fork(
        Recorder, lambda _: multiprocessing.util.Finalize(None, recorder.finish, exitpriority=0)
    )
    _watch_the_end(recorder)


def plan_of(
    folder: Path,
    target: str,
    device: Mapping[str, Any],
    known: Sequence[str],
    *,
    fake_tensors: bool,
    compiler: str,
    jobs: int,
    timeout: float,
) -> dict[str, Any]:
    """The plan with which a program is recorded, with results in a private ``folder``.

    Args:
        device: record of the device profile.
        known: digests of requests that need not be compiled.
        fake_tensors: whether tensors on a GPU have shapes but no data.
        compiler: the module whose function ``compile_request`` compiles.
        jobs: how many forks may compile at once.
        timeout: seconds that one of them may take.
    """
    return {
        "begin": MODULE, "folder": str(folder), "target": target, "device": dict(device),
        "known": sorted(known), "fake_tensors": fake_tensors, "compiler": compiler, "jobs": jobs,
        "timeout": timeout, "builder": os.getpid(),
    }  # fmt: skip


class Nothing(NotExported):
    """Stands for a compiled function where there is no GPU: takes any arguments and does nothing.

    It has what the DSL's functions have that programs were seen to use beside calling them.
    """

    __signature__ = False
    """:func:`inspect.signature` refuses it, as it does an ``ffi.Function``: any arguments are taken, so that
    a program would read other parameters than the compiled function's."""

    def __call__(self, *arguments: Any, **keywords: Any) -> None:
        """Do nothing."""

    def __tvm_ffi_object__(self) -> Nothing:
        """What takes arguments in order: this one."""
        return self

    def __repr__(self) -> str:
        return "<a compiled function that does nothing, as there is no GPU>"


@dataclass(slots=True)
class Recorder:
    """Answers ``cute.compile`` by noting the request. Most fields are as :func:`plan_of` takes them.

    Attributes:
        erred: whether an uncaught error has ended the program.
        status: the exit status that the program requested last, None for 0. The program may have caught the
            ``SystemExit``.
        read: files named on the command line, and those read in the working directory of the start.
    """

    folder: Path
    device: Mapping[str, int]
    known: frozenset[str]
    compiler: str
    jobs: int
    timeout: float
    _seen: set[str] = field(default_factory=set)
    _running: dict[int, tuple[str, float]] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.RLock)
    _process: int = field(default_factory=os.getpid)
    erred: bool = False
    status: Any = None
    read: set[str] = field(default_factory=set)

    def answer(
        self, compiler: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], compile: Compile
    ) -> Any:
        """Note a call, and compile a new request in a fork."""
        surroundings = Surroundings(lambda target: self.device, known_variables)
        try:
            request = request_of(compiler, arguments, keywords, surroundings, direct=compile.direct)
        except RequestError as error:
            note_refusal(self.folder, str(error))
            if compile.direct:
                # What it returns may need no GPU.
                with contextlib.suppress(Exception):
                    return compile.leave(*arguments, **keywords)
            return Nothing()
        with self._lock:
            self._own_process()
            if request.digest not in self._seen:
                self._seen.add(request.digest)
                self._note(request, lambda: compile(*arguments, **keywords), (compiler, arguments, keywords))
        return Nothing()

    def finish(self) -> None:
        """Wait for the forks, then write the files that say how this process ended."""
        with self._lock:
            self._own_process()
            self._wait_for_forks(0)
        if self.status is not None:
            write_whole(self.folder / f"{os.getpid()}.status", b"")
        name = f"{os.getpid()}.{'error' if self.erred else 'imported'}"
        files = "\n".join(sorted({*imported_files(), *filter(os.path.isfile, tuple(self.read))}))
        write_whole(self.folder / name, files.encode("utf-8", "surrogateescape"))

    def _own_process(self) -> None:
        """A child that the program has forked has no forks of its own yet."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._running.clear()

    def _note(self, request: Request, compile: Callable[[], Any], call: _Call) -> None:
        path = self.folder / request.digest
        try:
            # The process that makes this file compiles: another one of the program may make the same request.
            with path.with_suffix(".claim").open("xb"):
                pass
        except FileExistsError:
            return
        write_whole(path.with_suffix(".request"), request.encoded())
        if request.digest in self.known:
            return
        self._wait_for_forks(self.jobs - 1)
        sys.stdout.flush()
        sys.stderr.flush()
        # The number of this process, which the fork's parent has no more once this one has ended.
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._compile(request, compile, call, parent)
        self._running[pid] = request.digest, time.monotonic() + self.timeout

    def _compile(self, request: Request, compile: Callable[[], Any], call: _Call, parent: int) -> None:
        """Compile in the fork, and end it."""
        path = self.folder / request.digest
        status = 1
        try:
            # The program's thread that made the request may end before the program does.
            end_after(parent)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            with path.with_suffix(".log").open("wb", buffering=0) as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            try:
                module = importlib.import_module(self.compiler)
                result = module.compile_request(request, compile, call, path.with_suffix(".object"))
                if result is not None:
                    write_whole(path.with_suffix(".result"), encode(result))
                else:
                    note_refusal(
                        self.folder,
                        f"{request.callable}: it launches no kernel, so that there is nothing to prebuild",
                    )
                    path.with_suffix(".request").unlink()
            except BaseException as error:
                failure = {
                    "raised": [kind.__name__ for kind in type(error).__mro__],
                    "message": explain(error),
                }
                traceback.print_exc()
                write_whole(path.with_suffix(".failure"), encode(failure))
            status = 0
        finally:
            # Not sys.exit: the exit handlers are the program's.
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def _wait_for_forks(self, most: int) -> None:
        """Wait until at most ``most`` forks run, and kill those past their deadline."""
        while len(self._running) > most:
            for pid, (name, deadline) in list(self._running.items()):
                try:
                    ended, status = os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    # The program itself has waited for this child: the files say how it ended.
                    ended, status = pid, 0
                if ended:
                    del self._running[pid]
                    self._ended(name, os.waitstatus_to_exitcode(status))
                elif time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                    with contextlib.suppress(ChildProcessError):
                        os.waitpid(pid, 0)
                    del self._running[pid]
                    self._fail(name, {"timed_out": self.timeout})
            if len(self._running) > most:
                time.sleep(_POLL_SECONDS)

    def _ended(self, name: str, status: int) -> None:
        path = self.folder / name
        if path.with_suffix(".request").exists() and not any(
            path.with_suffix(kind).exists() for kind in (".result", ".failure")
        ):
            self._fail(name, {"signal": max(0, -status), "status": max(0, status)})

    def _fail(self, name: str, failure: dict[str, Any]) -> None:
        write_whole((self.folder / name).with_suffix(".failure"), encode(failure))


def imported_files() -> list[str]:
    """Files of imported modules, except Python's own, and every distribution's ``RECORD``."""
    files = {
        str(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))
    }
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    files.update([spec.origin] if spec is not None and spec.origin else [])
    own = {os.path.abspath(file) for file in files if not in_standard_library(file)}  # noqa: PTH100
    lists = {
        str(path) for folder in {*sys.path} if folder for path in Path(folder).glob("*.dist-info/RECORD")
    }
    return sorted(own | lists)


def _note_what_is_read(recorder: Recorder) -> None:
    """Note files that the program depends on beside modules: data in its working directory, and its script.

    The script's module no longer has its file when exit handlers run.
    """
    folder = f"{Path.cwd()}/"
    recorder.read.update(os.path.abspath(word) for word in sys.orig_argv[1:] if Path(word).is_file())  # noqa: PTH100

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str) or not isinstance(arguments[1], str):
            return
        with contextlib.suppress(OSError):  # An audit hook's error is raised into the program.
            path = os.path.abspath(arguments[0])  # noqa: PTH100
            is_read = not set(arguments[1]) & set("wax+")
            # Byte code is written by whichever run is the first.
            is_kept = "/site-packages/" in path or "/__pycache__/" in path
            if is_read and path.startswith(folder) and not is_kept:
                recorder.read.add(path)

    sys.addaudithook(hear)


def _watch_the_end(recorder: Recorder) -> None:
    """Note how the program ends, and explain an uncaught error that comes from a fake tensor's missing data.

    The exit status of the process is not enough: it may crash after the program's end, while the interpreter
    tears packages down.
    """
    shown = sys.excepthook
    exit_class = builtins.SystemExit

    def show(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        recorder.erred = True
        shown(kind, error, trace)
        explained = explain_data_dependence(error)
        if explained:
            print(f"cutlass-aot: {explained}", file=sys.stderr)

    class SystemExit(exit_class):  # type: ignore[misc, valid-type]
        """``SystemExit`` that notes its status: ``sys.excepthook`` is not called for it."""

        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            recorder.status = None if self.code == 0 else self.code

    def leave(status: Any = None) -> NoReturn:
        raise SystemExit(status)

    sys.excepthook = show
    sys.exit = leave
    builtins.SystemExit = SystemExit  # type: ignore[misc]

"""A builder for torture.py: a process that tells what it is doing, and the handle on it from outside.

Run as a script it builds one manifest, once, as ``cutlass-aot build`` does, and writes what phase it is in to
a pipe. Every process of the build bears a mark in its environment, so that all of them can be found.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.torture.faults import write_interpreter

MARK = "TORTURE_BUILDER"
PHASES = ("starting", "planning", "compiling", "storing", "linking", "writing the bundle", "ending")
WITHIN = ("storing", "writing the bundle", "linking")
"""Phases that happen within others, the innermost first."""
FAILED, BROKEN = 1, 3
"""Exit statuses: an error that says what is wrong, and anything else that was raised."""


# ---- in the builder --------------------------------------------------------------------------------------


def build_and_tell(task: Mapping[str, Any]) -> int:
    """Build, telling phases, kernels compiled and the number of changes on disk; returns the exit status."""
    from cutlass_aot.builder import events
    from cutlass_aot.builder.build import build
    from cutlass_aot.builder.inputs.up_to_date import up_to_date
    from cutlass_aot.builder.link.linker import LinkToolchain
    from cutlass_aot.builder.settings import Settings
    from cutlass_aot.errors import CutlassAotError
    from cutlass_aot.store.store import Store

    assembling = importlib.import_module("cutlass_aot.builder.assemble")
    sys.executable = task["interpreter"]
    descriptor = int(task["descriptor"])
    base = "starting"

    def say(text: str) -> None:
        os.write(descriptor, f"{text}\n".encode())

    # The process's own counter of changes on disk, and what it is to kill itself before; see faults.c.
    changes = ctypes.CDLL(None).faults_changes
    kill_phase, kill_entry, kill_change = task["kill"]
    entered: Counter[str] = Counter()

    # Libraries are linked by a thread of its own, beside the compiling.
    active: Counter[str] = Counter()
    lock = threading.Lock()

    def say_phase() -> None:
        say(f"phase {next((phase for phase in WITHIN if active[phase]), base)}")

    def within(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def told(*arguments: Any, **named: Any) -> Any:
            with lock:
                active[phase] += 1
                entered[phase] += 1
                say_phase()
                if phase == kill_phase and entered[phase] == kill_entry:
                    os.environ["FAULTS_KILL"] = str(changes() + kill_change)
            try:
                return function(*arguments, **named)
            finally:
                with lock:
                    active[phase] -= 1
                    say_phase()

        return told

    for name in ("adopt_blob", "put_blob", "put_record", "put_log"):
        setattr(Store, name, within("storing", getattr(Store, name)))
    for name in ("link", "link_launcher"):
        setattr(LinkToolchain, name, within("linking", getattr(LinkToolchain, name)))
    assembling.write_bundle = within("writing the bundle", assembling.write_bundle)  # type: ignore[attr-defined]

    def tell(event: events.Event) -> None:
        nonlocal base
        if isinstance(event, (events.Enumerating, events.Planned, events.Finished)):
            names = {events.Enumerating: "planning", events.Planned: "compiling", events.Finished: "ending"}
            base = names[type(event)]
            with lock:
                say_phase()
        if isinstance(event, events.Compiled):
            say(f"compiled {event.kernel.name}")

    try:
        manifest, store, out = (Path(task[name]) for name in ("manifest", "store", "out"))
        if up_to_date(manifest, store, out) is not None:
            return 0
        result = build(manifest, out, Settings(store, int(task["jobs"]), 120.0, tell))
    except CutlassAotError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    for failure in result.failures:
        print(f"failed: {failure.kernel.name}: {failure.reason}", file=sys.stderr)
    if result.failures:
        return FAILED
    say(f"changes {changes()}")
    return 0


# ---- outside ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Where builders work.

    Attributes:
        root: directory of store and bundles; faults happen below it.
        shim: the library of faults.c.
        scratch: a directory for logs, which no fault reaches.
    """

    root: Path
    shim: Path
    scratch: Path

    @property
    def store(self) -> Path:
        """The store."""
        return self.root / "store"

    @property
    def out(self) -> Path:
        """Directory of the bundles."""
        return self.root / "out"

    @property
    def fault_log(self) -> Path:
        """What faults.c noted."""
        return self.scratch / "faults.log"


@dataclass(frozen=True)
class Kill:
    """A change on disk that a builder kills itself before.

    Attributes:
        change: which one, counted from the beginning or from where a phase is entered; 0 for none.
        phase: the phase, or ``""`` for the beginning.
        entry: which time that phase is entered.
    """

    change: int = 0
    phase: str = ""
    entry: int = 0


@dataclass
class Builder:
    """A builder that runs, or has run.

    Attributes:
        name: its mark.
        manifest: what it builds.
        process: the builder itself.
        started: monotonic time of its start.
        phase: what it said last that it does.
        compiled: kernels that it compiled.
        changes: how many changes on disk a build that succeeded took.
        kill_before: what it was to kill itself before.
        gone: monotonic time at which its last process was seen to be gone, or 0.
        killed_in: the phase that it was killed in, or ``""``.
        killed_all: whether every process of the build was killed with it.
        ended: monotonic time at which it was seen to have ended, or 0.
    """

    name: str
    manifest: Path
    process: subprocess.Popen[bytes]
    started: float
    log: Path
    phase: str = "starting"
    compiled: list[str] = field(default_factory=list)
    changes: int = 0
    kill_before: Kill = field(default_factory=Kill)
    gone: float = 0.0
    killed_in: str = ""
    killed_all: bool = False
    ended: float = 0.0
    _pipe: int = -1
    _rest: bytes = b""

    @classmethod
    def start(
        cls, name: str, manifest: Path, place: Place, jobs: int, faults: Mapping[str, str], kill: Kill
    ) -> Builder:
        """Start a builder.

        Args:
            name: unlike any other's.
            manifest: what to build.
            place: where.
            jobs: workers.
            faults: environment variables of faults.c, for the builder and its workers.
            kill: what the builder, alone, kills itself before.
        """
        ours, theirs = os.pipe()
        os.set_blocking(ours, False)
        shared = {
            "LD_PRELOAD": str(place.shim),
            "FAULTS_ROOT": str(place.root),
            "FAULTS_LOG": str(place.fault_log),
            **faults,
            MARK: name,
        }
        task = {
            "manifest": str(manifest),
            "store": str(place.store),
            "out": str(place.out),
            "jobs": jobs,
            "kill": (kill.phase, kill.entry, kill.change),
            "descriptor": theirs,
            "interpreter": str(write_interpreter(place.scratch / f"{name}.sh", shared)),
        }
        own = {**os.environ, **shared} | (
            {"FAULTS_KILL": str(kill.change)} if kill.change and not kill.phase else {}
        )
        log = place.scratch / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, __file__, json.dumps(task)],
                env=own,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs],
                start_new_session=True,
            )
        os.close(theirs)
        return cls(name, manifest, process, time.monotonic(), log, kill_before=kill, _pipe=ours)

    def poll(self) -> bool:
        """Read what it told; returns whether it still runs."""
        status = self.process.poll()
        try:
            while data := os.read(self._pipe, 1 << 16):
                *lines, self._rest = (self._rest + data).split(b"\n")
                for line in lines:
                    self._heard(line.decode())
        except BlockingIOError:
            pass
        if status is None:
            return True
        if not self.ended:
            self.ended = time.monotonic()
            os.close(self._pipe)
            self._pipe = os.open(os.devnull, os.O_RDONLY)
            if status == -signal.SIGKILL:
                self.killed_in = self.phase
        return False

    def _heard(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "phase":
            self.phase = rest
        elif word == "compiled":
            self.compiled.append(rest)
        elif word == "changes":
            self.changes = int(rest)

    def see_the_end(self) -> bool:
        """Whether it has ended, and all its processes with it."""
        if not self.gone and not self.poll() and not self.processes():
            self.gone = time.monotonic()
        return self.gone > 0

    def close(self) -> None:
        """Forget it; it has ended."""
        os.close(self._pipe)

    def processes(self) -> list[int]:
        """Process ids of everything that belongs to this build and is alive."""
        mark = f"{MARK}={self.name}".encode()
        pids = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    pids.append(int(folder.name))
            except OSError:  # It has ended, or is somebody else's.
                continue
        return pids

    def kill(self, *, everything: bool) -> None:
        """Kill the builder, or every process of the build."""
        self.killed_all = everything
        self.process.kill()
        for process in self.processes() if everything else ():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue

    def words(self) -> str:
        """What it printed."""
        return self.log.read_text(encoding="utf-8", errors="replace").strip()


if __name__ == "__main__":
    try:
        sys.exit(build_and_tell(json.loads(sys.argv[1])))
    except Exception:
        import traceback

        traceback.print_exc()
        sys.exit(BROKEN)

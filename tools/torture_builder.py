"""A builder for tools/torture.py: a process that tells what it is doing, and the handle on it from outside.

Run as a script it builds one manifest, once, as ``cutlass-aot build`` does, and writes what phase it is in to
a pipe. Every process of the build bears a mark in its environment, so that all of them can be found.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults import write_interpreter

MARK = "TORTURE_BUILDER"
PHASES = ("starting", "planning", "compiling", "storing", "linking", "writing the bundle", "ending")
FAILED, BROKEN = 1, 3
"""Exit statuses: an error that says what is wrong, and anything else that was raised."""


# ---- in the builder --------------------------------------------------------------------------------------


def build_and_tell(task: Mapping[str, Any]) -> int:
    """Build, telling phases, kernels compiled and the number of changes on disk; returns the exit status."""
    from cutlass_aot.builder import events, pipeline
    from cutlass_aot.errors import CutlassAotError
    from cutlass_aot.store.store import Store

    sys.executable = task["interpreter"]
    descriptor = int(task["descriptor"])
    base = "starting"

    def say(text: str) -> None:
        os.write(descriptor, f"{text}\n".encode())

    def within(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def told(*arguments: Any, **named: Any) -> Any:
            say(f"phase {phase}")
            try:
                return function(*arguments, **named)
            finally:
                say(f"phase {base}")

        return told

    for name in ("adopt_blob", "put_blob", "put_record", "put_log"):
        setattr(Store, name, within("storing", getattr(Store, name)))
    for name, phase in (("link_groups", "linking"), ("write_bundle", "writing the bundle")):
        setattr(pipeline, name, within(phase, getattr(pipeline, name)))

    def tell(event: events.Event) -> None:
        nonlocal base
        if isinstance(event, (events.Enumerating, events.Planned, events.Finished)):
            names = {events.Enumerating: "planning", events.Planned: "compiling", events.Finished: "ending"}
            base = names[type(event)]
            say(f"phase {base}")
        if isinstance(event, events.Compiled):
            say(f"compiled {event.kernel.name}")

    try:
        result = pipeline.build(
            Path(task["manifest"]),
            Path(task["store"]),
            Path(task["out"]),
            jobs=int(task["jobs"]),
            timeout=120.0,
            tell=tell,
        )
    except CutlassAotError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    for failure in result.failures:
        print(f"failed: {failure.kernel.name}: {failure.reason}", file=sys.stderr)
    if result.failures:
        return FAILED
    if "LD_PRELOAD" in os.environ:
        say(f"changes {ctypes.CDLL(None).faults_changes()}")
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
        kill_at: the change on disk that it was to kill itself before, or 0.
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
    kill_at: int = 0
    killed_in: str = ""
    killed_all: bool = False
    ended: float = 0.0
    _pipe: int = -1
    _rest: bytes = b""

    @classmethod
    def start(
        cls, name: str, manifest: Path, place: Place, jobs: int, faults: Mapping[str, str], kill_at: int = 0
    ) -> Builder:
        """Start a builder.

        Args:
            name: unlike any other's.
            manifest: what to build.
            place: where.
            jobs: workers.
            faults: environment variables of faults.c, for the builder and its workers.
            kill_at: the builder alone kills itself before this change on disk; 0 for never.
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
            "descriptor": theirs,
            "interpreter": str(write_interpreter(place.scratch / f"{name}.sh", shared)),
        }
        own = {**os.environ, **shared} | ({"FAULTS_KILL": str(kill_at)} if kill_at else {})
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
        return cls(name, manifest, process, time.monotonic(), log, kill_at=kill_at, _pipe=ours)

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

    def close(self) -> None:
        """Forget it; it has ended."""
        os.close(self._pipe)

    def processes(self) -> list[int]:
        """Process ids of everything that belongs to this build and is alive."""
        mark = f"{MARK}={self.name}".encode()
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
            except OSError:  # It has ended, or is somebody else's.
                continue
        return found

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

"""Run the hazards against a cache: programs in processes of their own, and what the cache said of each."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from tools.check.cache_conformance.caches import cache_named
from tools.check.cache_conformance.child import NEVER_KILLED
from tools.check.cache_conformance.hazards import COMMON, HAZARDS, Expected, Hazard, Steps
from tools.check.cache_conformance.protocol import KILL, SM_COUNT

SECONDS = 180.0
"""Most that one call may take, with the imports before it."""
_CHILD = Path(__file__).with_name("child.py")
_ENVIRONMENT = {
    "CUTE_DSL_ARCH": "sm_90a",
    SM_COUNT: "132",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class Result(NamedTuple):
    """What a cache did with a hazard.

    Attributes:
        hazard: its name.
        expected: what the second call must be.
        verdict: ``handled``, ``refused`` (safe, but never cached), ``NOT HANDLED``, ``not shared``,
            ``not applicable`` or ``error``.
        detail: the outcomes, or the reason.
    """

    hazard: str
    expected: str
    verdict: str
    detail: str

    @property
    def passed(self) -> bool:
        """Whether it counts as handled."""
        return self.verdict in ("handled", "refused", "not applicable")


class _Call(NamedTuple):
    """One call of a process: the outcomes, or how it died."""

    outcomes: tuple[tuple[str, str], ...]
    status: int

    @property
    def outcome(self) -> str:
        """Of its only call."""
        return self.outcomes[0][0] if self.outcomes else f"died ({self.status})"

    @property
    def reason(self) -> str:
        """Of an error."""
        return next((reason for _, reason in self.outcomes if reason), "")


class Suite:
    """The processes of one cache.

    Args:
        name: of the cache.
        jobs: hazards at once.
    """

    def __init__(self, name: str, jobs: int = 2) -> None:
        self.cache = cache_named(name)
        self._name = name
        self._jobs = jobs
        self._servers: queue.Queue[_Server] = queue.Queue()

    def run(
        self, hazards: Sequence[Hazard] = HAZARDS, tell: Callable[[Result], None] = lambda result: None
    ) -> list[Result]:
        """Every hazard against the cache.

        Args:
            hazards: those to run.
            tell: called with each result, in order.
        """
        results = []
        with contextlib.ExitStack() as stack, ThreadPoolExecutor(self._jobs) as pool:
            for _ in range(self._jobs):
                server = _Server(self._name)
                stack.callback(server.close)
                self._servers.put(server)
            for result in pool.map(self._hazard, hazards):
                results.append(result)
                tell(result)
        return results

    def _hazard(self, hazard: Hazard) -> Result:
        expected = hazard.expected.value
        reason = self.cache.not_applicable.get(hazard.name)
        if reason is not None:
            return Result(hazard.name, expected, "not applicable", reason)
        server = self._servers.get()
        try:
            with tempfile.TemporaryDirectory(prefix="cache-conformance-") as folder:
                return Result(
                    hazard.name, expected, *_Run(hazard, self._name, Path(folder), server).verdict()
                )
        finally:
            self._servers.put(server)


class _Run:
    """One hazard against one cache, in a directory."""

    def __init__(self, hazard: Hazard, cache: str, folder: Path, server: _Server) -> None:
        self.hazard = hazard
        self.cache = cache
        self.folder = folder
        self.server = server
        self.program = folder / "program"
        self.entries = folder / "entries"
        self.entries.mkdir()
        self._write({"common.py": COMMON, "program.py": hazard.program, **hazard.files})

    def verdict(self) -> tuple[str, str]:
        """The verdict, and the outcomes that it follows from."""
        steps = {
            Steps.TWO_PROCESSES: self._two_processes,
            Steps.ONE_PROCESS: self._one_process,
            Steps.KILLED: self._killed,
            Steps.DAMAGED: self._damaged,
            Steps.AT_ONCE: self._at_once,
        }
        return steps[self.hazard.steps]()

    # -- two calls --------------------------------------------------------------------------------------

    def _two_processes(self) -> tuple[str, str]:
        first = self._call(["first"], self.hazard.environment[0])
        self._write(self.hazard.edited)
        second = self._call(["second"], self.hazard.environment[1])
        return self._compared(first.outcome, second.outcome, first.reason or second.reason)

    def _one_process(self) -> tuple[str, str]:
        both = self._call(["first", "second"], self.hazard.environment[0])
        if len(both.outcomes) != 2:
            return "error", both.outcome
        return self._compared(both.outcomes[0][0], both.outcomes[1][0], both.reason)

    def _compared(self, first: str, second: str, reason: str) -> tuple[str, str]:
        said = f"{first}, {second}"
        if first == second == "refused":
            return "refused" if self.hazard.expected is not Expected.ONE else "not shared", said
        if first == second == "error":
            # Nothing wrong is answered, but nobody can use it either.
            return "refused" if self.hazard.expected is Expected.TWO else "not shared", f"raises {reason}"
        if first != "miss" or second not in ("hit", "miss", "refused"):
            return "error", f"{said}: {reason}" if reason else said
        if self.hazard.expected is Expected.TWO:
            return ("NOT HANDLED" if second == "hit" else "handled"), said
        return ("handled" if second == "hit" else "not shared"), said

    # -- entries ----------------------------------------------------------------------------------------

    def _killed(self) -> tuple[str, str]:
        writer = self._call(["first"], {KILL: "1"})
        if writer.status == NEVER_KILLED or writer.outcomes:
            return "error", f"the writer was never killed: {writer.outcome} {writer.reason}"
        return self._recovered()

    def _damaged(self) -> tuple[str, str]:
        writer = self._call(["first"], {})
        if writer.outcome != "miss":
            return "error", f"{writer.outcome}: {writer.reason}"
        largest = max((path for path in self.entries.rglob("*") if path.is_file()), key=_size)
        largest.chmod(0o600)
        with largest.open("r+b") as file:
            file.truncate(_size(largest) // 2)
        return self._recovered()

    def _recovered(self) -> tuple[str, str]:
        second = self._call(["second"], {})
        third = self._call(["second"], {})
        said = f"{second.outcome}, then {third.outcome}"
        if (second.outcome, third.outcome) == ("miss", "hit"):
            return "handled", said
        return "NOT HANDLED", f"{said} {second.reason or third.reason}".rstrip()

    def _at_once(self) -> tuple[str, str]:
        with ThreadPoolExecutor(2) as pool:
            calls = list(pool.map(lambda name: self._fresh([name], {}), ("first", "second")))
        third = self._call(["second"], {})
        said = f"{calls[0].outcome} and {calls[1].outcome}, then {third.outcome}"
        sound = all(call.outcome in ("hit", "miss") for call in calls) and third.outcome == "hit"
        reason = next((call.reason for call in (*calls, third) if call.reason), "")
        return ("handled" if sound else "NOT HANDLED"), f"{said} {reason}".rstrip()

    # -- processes --------------------------------------------------------------------------------------

    def _write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            path = self.program / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text:
                path.write_text(text, encoding="utf-8")
            else:
                path.unlink()
                with contextlib.suppress(OSError):
                    path.parent.rmdir()

    def _call(self, calls: list[str], environment: Mapping[str, str]) -> _Call:
        if self.hazard.fresh:
            return self._fresh(calls, environment)
        job = self._job(calls, environment)
        return _answered(job, self.server.run(job))

    def _fresh(self, calls: list[str], environment: Mapping[str, str]) -> _Call:
        """In a process that is started for it."""
        job = self._job(calls, environment)
        file = Path(f"{job['answer']}.job")
        file.write_text(json.dumps(job), encoding="utf-8")
        process = subprocess.Popen(
            [sys.executable, str(_CHILD), self.cache, str(file)],
            env={**os.environ, **_ENVIRONMENT, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _, words = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            words = b"it did not end"
        call = _answered(job, process.returncode)
        return call if call.outcomes or not words else _Call((("error", words.decode()[-500:]),), call.status)

    def _job(self, calls: list[str], environment: Mapping[str, str]) -> dict[str, Any]:
        answer = tempfile.mkdtemp(dir=self.folder)
        path = [self.program, *(self.program / name for name in self.hazard.path)]
        return {
            "calls": calls,
            "directory": str(self.entries),
            "path": list(map(str, path)),
            "script": self.hazard.script,
            "environment": {**_ENVIRONMENT, **environment},
            "entries": self.hazard.steps in (Steps.KILLED, Steps.DAMAGED, Steps.AT_ONCE),
            "answer": f"{answer}/answer",
            "log": f"{answer}/log",
        }


def _size(path: Path) -> int:
    return path.stat().st_size


def _answered(job: Mapping[str, Any], status: int) -> _Call:
    try:
        answers = json.loads(Path(job["answer"]).read_text(encoding="utf-8"))
    except OSError:
        return _Call((), status)
    return _Call(tuple((outcome, reason) for outcome, reason in answers), status)


class _Server:
    """A process that has imported the DSL and the cache, and forks for each job."""

    def __init__(self, cache: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_CHILD), cache], env={**os.environ, **_ENVIRONMENT}, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self._ready = False

    def run(self, job: Mapping[str, Any]) -> int:
        """The exit status of the fork."""
        timer = threading.Timer(SECONDS, self._process.kill)
        timer.start()
        try:
            if not self._ready:
                self._ready = self._line() == "ready"
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
            return int(self._line())
        finally:
            timer.cancel()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of the suite ended: {self._process.wait()}")
        return line.strip()

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=SECONDS)

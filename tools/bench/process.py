"""Measure in fresh processes: a script that is started again, as a worker, and prints its numbers."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

Numbers = dict[str, Any]
Worker = Callable[..., Numbers]

OPERATORS = "nvidia-cutlass-operators"
NO_DSL = "DSL not installed"


def timed(action: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of one call, and its result."""
    start = time.perf_counter()
    result = action()
    return time.perf_counter() - start, result


def environment() -> dict[str, str]:
    """Environment variables of a fresh process: ours, but that it may keep compiled modules.

    Installed packages come with them. A checkout would be compiled anew in each process.
    """
    return {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def in_fresh_process(
    script: str, worker: str, *arguments: object, variables: Mapping[str, str] | None = None
) -> Numbers:
    """Run a worker of a script (its ``__file__``) in a fresh process, with these environment variables too.

    Raises:
        RuntimeError: with the last line of what it wrote, if it fails.
    """
    command = [sys.executable, str(Path(script).resolve()), "--worker", worker, *map(str, arguments)]
    result = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment() | dict(variables or {})
    )
    if result.returncode:
        raise RuntimeError((result.stderr.strip().splitlines() or ["no output"])[-1])
    numbers: Numbers = json.loads(result.stdout.splitlines()[-1])
    return numbers


def work(workers: Mapping[str, Worker], words: Sequence[str]) -> NoReturn:
    """Be a worker: run the one that is named first on the other words, print its numbers, and end."""
    name, *arguments = words
    print(json.dumps(workers[name](*arguments)), flush=True)
    # Not by way of the interpreter's end, at which libraries may crash: nvidia-matmul-heuristics 0.1.0.27, by
    # which quack chooses tiles, does when its handle is destroyed after it has loaded a GPU's discovery set.
    os._exit(0)


def medians(runs: Sequence[Numbers]) -> Numbers:
    """The median of each figure over runs."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def has_operators() -> bool:
    """Whether the package of ``cutlass.operators`` is installed, without importing it."""
    try:
        metadata.version(OPERATORS)
    except metadata.PackageNotFoundError:
        return False
    return True


def status_bytes(field: str, pid: int | str = "self") -> int:
    """A figure of a process's memory, in bytes: ``VmRSS``, or ``VmHWM``, the largest it ever was.

    It is 0 if the process has ended.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)


class MemoryWatch(threading.Thread):
    """Within: the largest resident size of any process that was forked to compile, looked at while it lives.

    What is read is the operating system's own high-water mark, so that only what a process grows by in the
    last fifth of a second of its life can be missed.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.largest_bytes = 0
        self._seen: set[int] = set()
        self._done = threading.Event()

    @property
    def workers(self) -> int:
        """How many there were."""
        return len(self._seen)

    def __enter__(self) -> MemoryWatch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()

    def run(self) -> None:
        """Look five times a second."""
        while not self._done.wait(0.2):
            for pid in forked_workers(os.getpid()):
                self._seen.add(pid)
                self.largest_bytes = max(self.largest_bytes, status_bytes("VmHWM", pid))


def forked_workers(ancestor: int) -> list[int]:
    """Descendants of a process that were forked by a fork server: their parent runs the same program."""
    parents: dict[int, int] = {}
    programs: dict[int, bytes] = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            programs[int(path.name)] = (path / "cmdline").read_bytes()
            parents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue

    def descends(pid: int) -> bool:
        return pid == ancestor or (pid in parents and descends(parents[pid]))

    return [
        pid
        for pid, parent in parents.items()
        if b"cutlass_aot.builder.compile.fork_server" in programs[pid]
        and programs.get(parent) == programs[pid]
        and descends(parent)
    ]

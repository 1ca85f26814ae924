"""Measure in fresh processes: a script that is started again, as a worker, and prints its numbers."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

Numbers = dict[str, float]
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
    found: Numbers = json.loads(result.stdout.splitlines()[-1])
    return found


def work(workers: Mapping[str, Worker], words: Sequence[str]) -> None:
    """Be a worker: run the one that is named first on the other words, and print its numbers."""
    name, *arguments = words
    print(json.dumps(workers[name](*arguments)))


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

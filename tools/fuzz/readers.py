"""Feed damaged files to every reader of files that come from outside, and see that none does harm.

    python -m tools.fuzz.readers BUNDLE [--inputs 1000000] [--seed 0] [--workers 2] [--reader NAME]
    python -m tools.fuzz.readers BUNDLE --reader NAME --input FILE

BUNDLE is a sound bundle of a few kernels (the manifest ``smoke``); samples of every kind of file are made
from it by the package's own writers. Needs the extra ``dev``, no GPU.

A reader may return, or raise what the package raises on purpose. Anything else is a finding: another
exception, lack of memory (each process may have 268 MB more than at its start), more than five seconds for
one input, a crash. A finding is told with its place in the code, and its input is kept in ``--keep``; the
second form feeds one again. Exits with 1 if there was any.

Inputs are drawn from the seed, the reader's name and a number, so that a run can be repeated. They are read
in child processes, some thousands in each. Prints a table in Markdown.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import platform
import random
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from cutlass_aot.errors import CutlassAotError
from tools.bench.command import markdown
from tools.fuzz.inputs import Reader
from tools.fuzz.samples import readers

SECONDS = 5.0
"""Most that one input may take."""
MEMORY = 256 << 20
"""Bytes that a process may have beyond what it has at its start."""
FILE_BYTES = 1 << 30
"""Most of a file that a reader may write."""
CHUNK = 20_000
"""Inputs a process."""
LOST = "not told"
"""Outcome of inputs before one that took the process with it: they were read, how is not known."""
PATIENCE = 60.0
"""Seconds beyond that after which an input that no signal interrupts is given up, with its process."""
_SHOWN = 3


class TooSlow(BaseException):
    """Raised in a reader that takes too long; no reader catches it."""


@dataclass(slots=True)
class Findings:
    """What a reader did with its inputs.

    Attributes:
        outcomes: how often it returned, or raised what.
        findings: place in the code and exception, to the inputs that led there, the first few of them.
        seconds: for making and reading all inputs, by one process.
        slowest: seconds for reading one input.
        growth: bytes by which a process grew at most.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0
    slowest: float = 0.0
    growth: int = 0

    def add(self, other: dict[str, Any]) -> None:
        """Add the findings of one process."""
        self.outcomes.update(other["outcomes"])
        for place, numbers in other["findings"].items():
            self.findings[place] = [*self.findings.get(place, []), *numbers][:_SHOWN]
        self.seconds += other["seconds"]
        self.slowest = max(self.slowest, other["slowest"])
        self.growth = max(self.growth, other["growth"])


def input_of(reader: Reader, seed: int, number: int) -> bytes:
    """One input; the same at every call."""
    return reader.make(random.Random(f"{seed} {reader.name} {number}"))  # noqa: S311


def outcome_of(reader: Reader, data: bytes, seconds: float) -> tuple[str, str]:
    """What a reader does with an input: a word for the table, and a finding or ``""``."""
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            result = reader.read(data)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except CutlassAotError as error:
        return type(error).__name__, ""
    except TooSlow as error:
        return "finding", _place(error, f"more than {seconds:g} seconds")
    except Exception as error:
        return "finding", _place(error, "")
    return ("problems listed" if isinstance(result, list) and result else "read"), ""


def _place(error: BaseException, what: str) -> str:
    """Where an exception comes from: its innermost frame in the package."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "cutlass_aot" in frame.filename] or frames
    place = f"{own[-1].filename.rpartition('cutlass_aot/')[2]}:{own[-1].lineno}" if own else "?"
    return f"{type(error).__name__} at {place} in {own[-1].name if own else '?'}" + (
        f" ({what})" if what else ""
    )


def run_chunk(
    reader: Reader, seed: int, first: int, count: int, *, seconds: float, memory: int, at: mmap.mmap
) -> dict[str, Any]:
    """Make and read inputs in this process, with its bounds set; notes in ``at`` which one is at work."""
    signal.signal(signal.SIGALRM, _too_slow)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space() + memory, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    outcomes: Counter[str] = Counter()
    findings: dict[str, list[int]] = {}
    slowest, before, started = 0.0, _peak(), time.perf_counter()
    for number in range(first, first + count):
        struct.pack_into("<q", at, 0, number)
        data = input_of(reader, seed, number)
        begun = time.perf_counter()
        outcome, finding = outcome_of(reader, data, seconds)
        slowest = max(slowest, time.perf_counter() - begun)
        outcomes[outcome] += 1
        if finding:
            findings.setdefault(finding, []).append(number)
    return {
        "outcomes": outcomes,
        "findings": {place: numbers[:_SHOWN] for place, numbers in findings.items()},
        "seconds": time.perf_counter() - started,
        "slowest": slowest,
        "growth": _peak() - before,
    }


def _too_slow(*arguments: object) -> None:
    raise TooSlow


def _address_space() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class Child:
    """A process at work on some inputs of a reader.

    Args:
        bundle: what the samples are made from.
        name: the reader's.
        seed: of all inputs.
        first: number of the first one.
        count: how many.
        seconds: most for one input.
        memory: most bytes beyond what it begins with.
    """

    def __init__(
        self, bundle: Path, name: str, seed: int, first: int, count: int, seconds: float, memory: int
    ) -> None:
        self.name, self.first, self.count = name, first, count
        self._at = mmap.mmap(-1, 8)
        struct.pack_into("<q", self._at, 0, -1)
        self._folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=_in_memory()))
        self._pipe, other = os.pipe()
        self._seconds = seconds
        self._seen, self._since = -1, time.monotonic()
        self._answer = b""
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(self._pipe)
                reader = next(item for item in readers(bundle, self._folder) if item.name == name)
                answer = run_chunk(reader, seed, first, count, seconds=seconds, memory=memory, at=self._at)
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                with os.fdopen(other, "wb") as file:
                    file.write(json.dumps(answer).encode())
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        os.close(other)
        os.set_blocking(self._pipe, False)

    def finished(self) -> dict[str, Any] | None:
        """Its findings, once it has ended; None while it is at work.

        One that crashed or cannot be interrupted is a finding, and the inputs after it are left to another.
        """
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._pipe, 1 << 16):
                self._answer += piece
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        number = struct.unpack_from("<q", self._at, 0)[0]
        if pid == 0:
            if number != self._seen:
                self._seen, self._since = number, time.monotonic()
            elif time.monotonic() - self._since > PATIENCE + self._seconds:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return self._ended("a hang that no signal interrupts", number)
            return None
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(self._pipe, 1 << 16):
                self._answer += piece
        if status == 0:
            self._clear()
            result: dict[str, Any] = json.loads(self._answer)
            return result
        code = os.waitstatus_to_exitcode(status)
        return self._ended(f"a process that ended with {code}", number)

    def _ended(self, what: str, number: int) -> dict[str, Any]:
        self._clear()
        if number < 0:
            raise click.ClickException(f"{self.name}: its samples cannot be made, see above")
        done = number - self.first
        return {
            "outcomes": {LOST: done, "finding": 1},
            "findings": {what: [number]},
            "seconds": 0.0,
            "slowest": 0.0,
            "growth": 0,
        }

    @property
    def rest(self) -> tuple[int, int]:
        """First and number of the inputs after the one that ended the process."""
        at: int = struct.unpack_from("<q", self._at, 0)[0]
        return at + 1, self.first + self.count - at - 1

    def _clear(self) -> None:
        os.close(self._pipe)
        shutil.rmtree(self._folder, ignore_errors=True)


def _in_memory() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108


def run(
    bundle: Path,
    counts: dict[str, int],
    *,
    seed: int = 0,
    workers: int = 2,
    chunk: int = CHUNK,
    seconds: float = SECONDS,
    memory: int = MEMORY,
) -> dict[str, Findings]:
    """Feed each reader that many inputs, and gather what they do.

    Args:
        bundle: what the samples are made from.
        counts: inputs by the reader's name.
        seed: of all inputs.
        workers: processes at once.
        chunk: inputs a process.
        seconds: most for one input.
        memory: most bytes a process may have beyond what it begins with.
    """
    waiting = [
        (name, first, min(chunk, count - first))
        for name, count in counts.items()
        for first in range(0, count, chunk)
    ]
    results = {name: Findings() for name in counts}
    children: list[Child] = []
    while waiting or children:
        while waiting and len(children) < workers:
            name, first, count = waiting.pop(0)
            children.append(Child(bundle, name, seed, first, count, seconds, memory))
        for child in list(children):
            answer = child.finished()
            if answer is None:
                continue
            children.remove(child)
            results[child.name].add(answer)
            if LOST in answer["outcomes"] and child.rest[1] > 0:
                waiting.append((child.name, *child.rest))
        time.sleep(0.01)
    return results


def table(results: dict[str, Findings]) -> str:
    """What was done, in Markdown, a line a reader."""
    head = ("reader", "inputs", "a second", "read", "refused", "findings", "slowest, ms", "growth, MB")
    lines = []
    total: Counter[str] = Counter()
    for name, item in results.items():
        row = _row(item)
        total.update(row)
        rate = f"{row['inputs'] / item.seconds:,.0f}" if item.seconds else ""
        refused = ", ".join(
            f"{word} {n:,}" for word, n in sorted(item.outcomes.items()) if word in _refused(item)
        )
        times = f"{item.slowest * 1e3:.1f}", f"{item.growth / 1e6:.0f}"
        lines.append((name, f"{row['inputs']:,}", rate, f"{row['read']:,}", refused, row["findings"], *times))
    inputs, read, refused = (f"{total[word]:,}" for word in ("inputs", "read", "refused"))
    return markdown(head, [*lines, ("all", inputs, "", read, refused, total["findings"], "", "")])


def _refused(item: Findings) -> set[str]:
    return set(item.outcomes) - {"read", "finding", LOST}


def _row(item: Findings) -> dict[str, int]:
    return {
        "inputs": item.outcomes.total(),
        "read": item.outcomes["read"],
        "refused": sum(item.outcomes[word] for word in _refused(item)),
        "findings": item.outcomes["finding"],
    }


def shares(all_readers: Sequence[Reader], inputs: int) -> dict[str, int]:
    """How many inputs each reader gets of all, by its weight, at least one."""
    weight = sum(reader.weight for reader in all_readers)
    return {reader.name: max(-(-inputs * reader.weight // weight), 1) for reader in all_readers}


def keep_findings(bundle: Path, results: dict[str, Findings], seed: int, folder: Path) -> Iterator[str]:
    """Write the inputs of all findings to a directory; a line for each."""
    with tempfile.TemporaryDirectory() as scratch:
        by_name = {reader.name: reader for reader in readers(bundle, Path(scratch))}
        for name, item in results.items():
            for place, numbers in sorted(item.findings.items()):
                folder.mkdir(parents=True, exist_ok=True)
                for number in numbers:
                    file = folder / f"{name.replace(' ', '-')}-{number}"
                    file.write_bytes(input_of(by_name[name], seed, number))
                    yield f"{name}: {place}: {file}"


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--inputs", default=1_000_000, show_default=True, help="Inputs of all readers together.")
@click.option("--seed", default=0, show_default=True)
@click.option("--workers", default=2, show_default=True, help="Processes at once.")
@click.option("--reader", "names", multiple=True, help="Only these readers; may be repeated.")
@click.option("--input", "file", type=click.Path(path_type=Path, exists=True), help="Read this file, once.")
@click.option("--keep", type=click.Path(path_type=Path), default=Path("build/fuzz"), show_default=True)
def main(
    bundle: Path, inputs: int, seed: int, workers: int, names: tuple[str, ...], file: Path | None, keep: Path
) -> None:
    """Feed damaged files, made from BUNDLE, to every reader."""
    with tempfile.TemporaryDirectory() as scratch:
        chosen = [item for item in readers(bundle, Path(scratch)) if not names or item.name in names]
        if not chosen:
            raise click.UsageError(f"no such reader: {', '.join(names)}")
        if file is not None:
            # Without bounds, and with the whole traceback.
            print(chosen[0].read(file.read_bytes()))
            return
    started = time.monotonic()
    results = run(bundle, shares(chosen, inputs), seed=seed, workers=workers)
    print(f"{time.strftime('%Y-%m-%d')}, {platform.platform()}, Python {platform.python_version()}, ", end="")
    print(f"{workers} processes, seed {seed}, {time.monotonic() - started:.0f} s")
    print(table(results))
    lines = list(keep_findings(bundle, results, seed, keep))
    print("\n".join(lines) if lines else "no finding")
    sys.exit(1 if lines else 0)


if __name__ == "__main__":
    main()

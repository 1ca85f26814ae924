"""Progress of a build: bars on a terminal, plain lines elsewhere, notices alone beside JSON."""

from __future__ import annotations

import contextlib
import math
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cutlass_aot.builder import events
from cutlass_aot.builder.events import Event
from cutlass_aot.builder.records import Failure
from cutlass_aot.cli.output.terminal import lines_of, say
from cutlass_aot.errors import printable
from cutlass_aot.runtime.optional_packages import optional
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.words import duration, plural

_RECENT = 64
"""The rate is that of so many kernels, the last ones: early and late kernels take different times."""
_LEAST_BAR, _MOST_BAR = 10, 40
"""Columns of a bar; words beside it are dropped before it gets narrower."""
_LINE_SECONDS = 10.0
"""At most so often a program that is being recorded gets a line: nobody knows how many requests it makes."""


@dataclass(slots=True)
class Progress:
    """Progress of a build, counted from its events. Times are seconds of the clock ``now``.

    ``doing`` is what happens before there is a plan, ``""`` after, and ``since`` when that began. ``total``
    counts the kernels to compile, ``cached`` those found in the store, also if another builder put them there
    meanwhile, and ``failed_before`` those that failed in an earlier build. ``libraries`` is 0 as long as it
    is not known how many are to be linked.
    """

    now: Callable[[], float] = time.monotonic
    doing: str = ""
    since: float = 0.0
    planned: bool = False
    total: int = 0
    cached: int = 0
    compiled: int = 0
    failed: int = 0
    failed_before: int = 0
    libraries: int = 0
    linked: int = 0
    _interrupted: tuple[str, float] = ("", 0.0)
    _programs: dict[tuple[str, str], events.Recording] = field(default_factory=dict)
    _shared: int = 0
    _begin: float = 0.0
    _running: dict[str, tuple[Kernel, float]] = field(default_factory=dict)
    _ended: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    _slowest: tuple[str, float] | None = None

    def take(self, event: Event) -> None:
        """Count an event."""
        match event:
            case events.Enumerating(problems):
                self._begin_doing(f"enumerating {plural(problems, 'problem')}")
            case events.Importing():
                self._interrupted = (self.doing, self.since)
                self._begin_doing("importing the DSL")
            case events.Imported():
                self.doing, self.since = self._interrupted
            case events.Ranking(shapes):
                self._begin_doing(f"ranking for {plural(shapes, 'shape')}")
            case events.Running(command, target):
                self._record(events.Recording(command, target, 0, 0, 0))
            case events.Recording():
                self._record(event)
            case events.Ran(command, target):
                self._programs.pop((command, target), None)
                self._sum_of_programs()
            case events.Planned(kernels):
                self.doing, self.planned, self.total = "", True, event.missing
                self.failed_before = event.failed_before
                self.cached = len(kernels) - event.missing - event.failed_before
                self._begin = self.now()
                self._ended.append(self._begin)
            case events.Started(kernel):
                self._running[kernel.digest] = (kernel, self.now())
            case events.Compiled(kernel, artifact):
                self.compiled += 1
                if self._slowest is None or artifact.seconds > self._slowest[1]:
                    self._slowest = (kernel.name, artifact.seconds)
                self._end(kernel)
            case events.Shared(kernel):
                self.cached += 1
                self._shared += 1
                self._end(kernel)
            case events.Failed(failure) if not failure.before:
                self.failed += 1
                self._end(failure.kernel)
            case events.Linking(libraries):
                self.libraries = libraries
            case events.Linked():
                self.linked += 1

    def _record(self, event: events.Recording) -> None:
        """Count what a program has requested until now, beside what others have."""
        if not self._programs:
            self.since = self.now()
        self._programs[event.command, event.target] = event
        self._sum_of_programs()

    def _sum_of_programs(self) -> None:
        running = list(self._programs.values())
        if len(running) == 1:
            self.doing = _recording(running[0])
        elif running:
            counts = zip(*((event.requests, event.compiled, event.failed) for event in running), strict=True)
            self.doing = f"recording {len(running)} programs: {_requests(*map(sum, counts))}"

    def _begin_doing(self, what: str) -> None:
        self.doing, self.since = what, self.now()

    def _end(self, kernel: Kernel) -> None:
        self._running.pop(kernel.digest, None)
        self._ended.append(self.now())

    @property
    def done(self) -> int:
        """Kernels of ``total`` that need no more work."""
        return self.compiled + self.failed + self._shared

    @property
    def seconds(self) -> float:
        """Seconds that compiling has taken."""
        over = self._ended and self.done == self.total
        return (self._ended[-1] if over else self.now()) - self._begin

    @property
    def rate(self) -> float | None:
        """Kernels a second, over the last ones; None before the first."""
        passed = self.now() - self._ended[0] if self._ended else 0.0
        return (len(self._ended) - 1) / passed if len(self._ended) > 1 and passed > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds left at that rate; None if unknown."""
        return (self.total - self.done) / self.rate if self.rate and self.done < self.total else None

    @property
    def running(self) -> tuple[Kernel, float, int] | None:
        """The kernel that has been compiling longest, its seconds so far, and how many are compiling."""
        if not self._running:
            return None
        kernel, began = min(self._running.values(), key=lambda item: (item[1], item[0].digest))
        return kernel, self.now() - began, len(self._running)

    def plan(self) -> str:
        """What there is to compile, in one line."""
        line = f"plan: {plural(self.total, 'kernel')} to build, {self.cached} present"
        before = f", {self.failed_before} failed in an earlier build and not compiled again without --retry"
        return line + before if self.failed_before else line

    def summary(self) -> str:
        """The outcome of compiling, in one line."""
        line = f"{plural(self.compiled, 'kernel')} compiled in {duration(self.seconds)}"
        line += f", {self.cached} present" if self.cached else ""
        line += f", {self.failed} failed" if self.failed else ""
        return f"{line}; slowest {self._slowest[1]:.1f} s: {self._slowest[0]}" if self._slowest else line


class Notes:
    """Prints warnings, notices and failures on standard error; of failures with equal reasons the first."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()

    def __call__(self, event: Event) -> None:
        """Show an event."""
        match event:
            case events.Planned(_, warnings):
                for warning in warnings:
                    self._say(f"note: {warning}")
            case events.Failed(failure) if failure.reason not in self._reasons:
                self._reasons.add(failure.reason)
                self._say(_failure_line(failure))
            case events.Notice(text):
                self._say(f"note: {text}")

    def _say(self, line: str) -> None:
        say(*lines_of(line), err=True)

    def close(self) -> None:
        """End the output, also after an error."""


class PlainReport(Notes):
    """Lines on standard error: the plan, failures, one line for every tenth of the kernels, the outcome."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._progress = Progress(now)
        self._last_lines: dict[tuple[str, str], float] = {}

    def __call__(self, event: Event) -> None:
        """Show an event."""
        super().__call__(event)
        self._progress.take(event)
        match event:
            case events.Enumerating() | events.Importing() | events.Ranking():
                self._say(self._progress.doing)
            case events.Running(command, target):
                self._last_lines[command, target] = self._progress.now()
                self._say(_recording(events.Recording(command, target, 0, 0, 0)))
            case events.Recording(command, target):
                now = self._progress.now()
                if now - self._last_lines[command, target] >= _LINE_SECONDS:
                    self._last_lines[command, target] = now
                    self._say(_recording(event))
            case events.Ran():
                self._say(_recorded(event))
            case events.Planned():
                self._say(self._progress.plan())
            case events.Failed(failure) if failure.before:
                pass  # Nothing was done for it now.
            case events.Compiled() | events.Shared() | events.Failed():
                self._step()
            case events.Linking(libraries):
                self._say(f"linking {plural(libraries, 'library')}")

    def _step(self) -> None:
        progress = self._progress
        if not progress.total:
            return  # Requests of programs, which were compiled before there was a plan.
        if progress.done == progress.total:
            self._say(f"finished: {progress.summary()}")
        elif progress.done % math.ceil(progress.total / 10) == 0:
            line = f"compiling: {progress.done}/{progress.total} in {duration(progress.seconds)}"
            line += f", {progress.failed} failed" if progress.failed else ""
            left = progress.seconds_left
            self._say(line + (f", about {duration(left)} left" if left is not None and left >= 1 else ""))


class BarReport(Notes):
    """Bars on standard error, redrawn also between events; notices and failures are lines above them."""

    def __init__(self, console: Any = None, now: Callable[[], float] = time.monotonic) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        self._console: Any = console or Console(stderr=True)
        self._progress = Progress(now)
        # The screen is drawn by a thread of its own.
        self._lock = threading.Lock()
        self._live: Any = Live(
            get_renderable=self._picture, console=self._console, refresh_per_second=4, redirect_stdout=False,
            redirect_stderr=False,
        )  # fmt: skip

    def __call__(self, event: Event) -> None:
        """Show an event."""
        super().__call__(event)
        progress = self._progress
        with self._lock:
            progress.take(event)
            compiling = progress.planned and progress.total > 0
        if progress.doing or compiling or progress.libraries:
            self._live.start()
        if isinstance(event, events.Ran):
            self._say(_recorded(event))
        elif isinstance(event, events.Planned):
            self._say(progress.plan())
        elif isinstance(event, events.Finished):
            self.close()
            if compiling:
                self._say(progress.summary())

    def _say(self, line: str) -> None:
        """Print a line above the bars, without wrapping it."""
        self._console.print(printable(line, "\n\t"), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the bars as they stand."""
        self._live.stop()

    def _picture(self) -> Any:
        from rich.console import Group

        width = max(20, self._console.width)
        with self._lock:
            return Group(*self._rows(self._progress, width))

    def _rows(self, progress: Progress, width: int) -> list[Any]:
        from rich.text import Text

        if progress.doing:
            waited = duration(progress.now() - progress.since)
            line = printable(f"{progress.doing}, {waited}")
            return [Text(line, no_wrap=True, overflow="ellipsis")]
        rows = []
        if progress.total:
            rows.append(_bar("compiling", progress.done, progress.total, _speed(progress), width))
            for line in _state(progress, width):
                rows.append(Text(printable(line), no_wrap=True, overflow="ellipsis", style="dim"))
        if progress.libraries:
            rows.append(_bar("linking", progress.linked, progress.libraries, ["libraries"], width))
        return rows


def _recording(event: events.Recording) -> str:
    """A program that is being run, and what it has requested until now, in one line."""
    made = (event.requests, event.compiled, event.failed)
    return f"recording {event.command} for {event.target}" + (f": {_requests(*made)}" if any(made) else "")


def _recorded(event: events.Ran) -> str:
    made = _requests(event.requests + event.failed, event.compiled, event.failed)
    return f"recorded {event.command} for {event.target}: {made}"


def _requests(made: int, compiled: int, failed: int) -> str:
    text = f"{plural(made, 'request')}, {compiled} compiled"
    return f"{text}, {failed} failed" if failed else text


def _bar(title: str, done: int, total: int, words: list[str], width: int) -> Any:
    """One line: a title, a bar, counts, and as many of the words as fit."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    title = f"{title:<9}"
    text = f"{done}/{total}"
    for word in words:
        if len(title) + _LEAST_BAR + len(text) + len(word) + 4 <= width:
            text += f"  {word}"
    room = max(1, min(_MOST_BAR, width - len(title) - len(text) - 2))
    grid = Table.grid(padding=(0, 1))
    # The library's own colour is red, which reads as a failure.
    bar = ProgressBar(total=total, completed=done, width=room, complete_style="cyan")
    grid.add_row(title, bar, Text(text, no_wrap=True, overflow="ellipsis"))
    return grid


def _speed(progress: Progress) -> list[str]:
    words = []
    if (rate := progress.rate) is not None:
        words.append(f"{rate:.1f}/s" if rate >= 1 else f"{60 * rate:.0f}/min")
    if progress.seconds_left is not None:
        words.append(f"{duration(progress.seconds_left)} left")
    return words


def _state(progress: Progress, width: int) -> list[str]:
    """Lines below the bar: kernels from the store, failures, and the kernel that is taking longest."""
    line = f"{progress.cached} cached, {progress.failed} failed"
    line += f", {progress.failed_before} before" if progress.failed_before else ""
    if progress.running is None:
        return [line]
    kernel, seconds, count = progress.running
    slowest = f"slowest now, {duration(seconds)}: "
    return [f"{line}, {count} running", slowest + short_name(kernel, width - len(slowest))]


def short_name(kernel: Kernel, width: int) -> str:
    """A short name, of at most ``width`` characters unless the end of the kernel's name alone is longer.

    It ends as the name does, by which the kernel can be found. Names begin with what many kernels share; here
    the words that distinguish them come first, as far as they fit.
    """
    *words, end = kernel.name.removeprefix(f"{kernel.group_name}-").split("-")
    dtypes = [operand.dtype for operand in kernel.operands]
    types = dtypes[0] if len(set(dtypes)) == 1 else ".".join(dtypes)
    family = [words.pop(0)] if words and "family" in dict(kernel.design) else []
    text = ""
    for word in (kernel.target, types, kernel.layouts, *words, *family):
        if len(text) + len(word) + 1 + len(end) > width:
            break
        text += f"{word} "
    return text + end


def _failure_line(failure: Failure) -> str:
    reason = failure.headline
    if reason.startswith("timed out after"):
        reason += "; --timeout gives more"
    state = "failed in an earlier build" if failure.before else "failed"
    return f"{state}: {failure.kernel.name}: {reason or 'no reason given'} (log: {failure.log})"


def make_report(*, quiet: bool = False) -> Notes:
    """Bars if standard error is a terminal and rich is installed, else lines; if ``quiet``, notices alone."""
    if quiet:
        return Notes()
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            optional("rich", ImportError, "a report with bars")
            return BarReport()
    return PlainReport()

"""What a build tells while it goes: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from cutlass_aot.builder import events
from cutlass_aot.builder.events import Event
from cutlass_aot.builder.records import Failure
from cutlass_aot.cli.render import plural


class PlainReport:
    """Lines on standard error: the plan, every failure, and one line for every tenth of the way."""

    def __init__(self) -> None:
        self._total = 0
        self._done = 0
        self._failed = 0
        self._start = time.monotonic()

    def __call__(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, events.Enumerating):
            click.echo(f"enumerating: {plural(event.problems, 'problem')}", err=True)
        elif isinstance(event, events.Ranking):
            click.echo(f"ranking: {plural(event.shapes, 'shape')}", err=True)
        elif isinstance(event, events.Planned):
            self._planned(event)
        elif isinstance(event, (events.Compiled, events.Shared)):
            self._step()
        elif isinstance(event, events.Failed):
            self._failed += 1
            self._show_failure(event.failure)
            self._step()
        elif isinstance(event, events.Linking):
            self.close()
            click.echo(f"linking: {plural(event.libraries, 'library')}", err=True)
        elif isinstance(event, events.Notice):
            click.echo(f"note: {event.text}", err=True)

    def _planned(self, event: events.Planned) -> None:
        for remark in event.remarks:
            click.echo(f"note: {remark}", err=True)
        present = len(event.kernels) - event.missing
        click.echo(f"plan: {plural(event.missing, 'kernel')} to build, {present} present", err=True)
        self._total = event.missing
        self._start = time.monotonic()

    def _show_failure(self, failure: Failure) -> None:
        click.echo(_failure_line(failure), err=True)

    def _step(self) -> None:
        self._done += 1
        stride = max(1, self._total // 10)
        if self._done % stride == 0 or self._done == self._total:
            elapsed = time.monotonic() - self._start
            failed = f", {self._failed} failed" if self._failed else ""
            click.echo(f"finished: {self._done}/{self._total} in {elapsed:.0f} s{failed}", err=True)

    def close(self) -> None:
        """Nothing is left on the screen."""


class BarReport(PlainReport):
    """A progress bar with the rate, the time left and what failed."""

    def __init__(self) -> None:
        super().__init__()
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self._console: Any = Console(stderr=True)
        self._progress: Any = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[failed]}"),
            console=self._console,
        )
        self._task: Any = None

    def _planned(self, event: events.Planned) -> None:
        super()._planned(event)
        if event.missing:
            self._progress.start()
            self._task = self._progress.add_task("compiling", total=event.missing, rate="", failed="")

    def _show_failure(self, failure: Failure) -> None:
        """A line above the bar."""
        self._console.print(_failure_line(failure), markup=False, highlight=False, soft_wrap=True)

    def _step(self) -> None:
        self._done += 1
        elapsed = max(time.monotonic() - self._start, 1e-9)
        self._progress.update(
            self._task,
            completed=self._done,
            rate=f"{self._done / elapsed:.1f}/s",
            failed=f"{self._failed} failed" if self._failed else "",
        )

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._progress.stop()


def _failure_line(failure: Failure) -> str:
    """One line of a failure; its log has the rest."""
    reason = failure.reason.strip().partition("\n")[0].rstrip()
    if reason.startswith("timed out after"):
        reason += "; --timeout gives more"
    return f"failed: {failure.kernel.name}: {reason or 'no reason given'} (log: {failure.log})"


def make_report() -> PlainReport:
    """A bar if standard error is a terminal and rich is installed, plain lines otherwise."""
    if sys.stderr.isatty():
        try:
            return BarReport()
        except ImportError:
            pass
    return PlainReport()

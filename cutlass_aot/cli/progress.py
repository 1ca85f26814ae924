"""What a build tells while it goes: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from cutlass_aot.builder.records import Failure
from cutlass_aot.cli.render import plural
from cutlass_aot.schema.kernel import Kernel


class PlainReport:
    """Lines on standard error: the plan, every failure, and one line for every tenth of the way."""

    def __init__(self) -> None:
        self._total = 0
        self._done = 0
        self._failed = 0
        self._start = time.monotonic()

    def enumerating(self, questions: int) -> None:
        """The generators are being asked."""
        click.echo(f"enumerating: {plural(questions, 'problem')}", err=True)

    def ranking(self, shapes: int) -> None:
        """The heuristic is being asked."""
        click.echo(f"ranking: {plural(shapes, 'shape')}", err=True)

    def planned(self, to_build: int, present: int, remarks: Sequence[str]) -> None:
        """The plan is made."""
        for remark in remarks:
            click.echo(f"note: {remark}", err=True)
        click.echo(f"plan: {plural(to_build, 'kernel')} to build, {present} present", err=True)
        self._total = to_build
        self._start = time.monotonic()

    def compiled(self, kernel: Kernel, seconds: float) -> None:
        """A kernel was compiled and stored."""
        self._step()

    def shared(self, kernel: Kernel) -> None:
        """Another builder stored a kernel."""
        self._step()

    def failed(self, failure: Failure) -> None:
        """A kernel failed."""
        self._failed += 1
        click.echo(_failure_line(failure), err=True)
        self._step()

    def linking(self, groups: int) -> None:
        """Libraries are being linked."""
        click.echo(f"linking: {plural(groups, 'library')}", err=True)

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

    def planned(self, to_build: int, present: int, remarks: Sequence[str]) -> None:
        """The plan is made; the bar begins."""
        super().planned(to_build, present, remarks)
        if to_build:
            self._progress.start()
            self._task = self._progress.add_task("compiling", total=to_build, rate="", failed="")

    def failed(self, failure: Failure) -> None:
        """A kernel failed: a line above the bar."""
        self._failed += 1
        self._console.print(_failure_line(failure), markup=False, highlight=False, soft_wrap=True)
        self._step()

    def linking(self, groups: int) -> None:
        """Libraries are being linked: the bar is done."""
        self.close()
        super().linking(groups)

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

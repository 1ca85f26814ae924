"""Progress of tuning: lines on standard error, or events as JSON on standard output."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from cutlass_aot.cli.output.terminal import say
from cutlass_aot.schema.codec import to_plain
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.schema.tuning.tuning import TunedProblem, Tuning
from cutlass_aot.schema.words import duration, plural
from cutlass_aot.tuning.session import Job

_TERMINAL_SECONDS = 0.2
_LOG_SECONDS = 15.0


class _Counts:
    """Counts of problems that were measured, kept or left out, and of failures."""

    def __init__(self, jobs: Sequence[Job], gpu: str) -> None:
        self.gpu = gpu
        self.jobs = jobs
        self.total = sum(len(job.problems) for job in jobs)
        self.kept_before = 0
        self.done = 0
        self.left_out = 0
        self.failures: dict[str, list[str]] = {}
        self._begin = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self._begin

    @property
    def finished(self) -> int:
        """Problems that need no more work."""
        return self.done + self.kept_before + self.left_out

    @property
    def seconds_left(self) -> float | None:
        """Estimate; None until a problem was measured."""
        return self.elapsed / self.done * (self.total - self.finished) if self.done else None

    def count(self, job: Job, problem: TunedProblem, *, new: bool) -> None:
        """Count a problem and its failures."""
        if new:
            self.done += 1
        else:
            self.kept_before += 1
        names = {handle.digest: handle.name for handle in job.kernels}
        for digest, reason in problem.failed:
            self.failures.setdefault(names.get(digest, digest), []).append(f"{problem.extents}: {reason}")

    def close(self) -> None:
        """Have the next output begin on a line of its own."""


class PlainReport(_Counts):
    """A line that is rewritten on a terminal; elsewhere a line every 15 seconds."""

    def __init__(self, jobs: Sequence[Job], gpu: str) -> None:
        super().__init__(jobs, gpu)
        self._terminal = sys.stderr.isatty()
        self._told = 0.0

    def begin(self, notes: Sequence[str]) -> None:
        """Show what is to be measured."""
        for note in notes:
            say(f"note: {note}", err=True)
        kernels = sum(len(job.kernels) for job in self.jobs)
        say(
            f"tuning on {self.gpu}: {plural(len(self.jobs), 'group')}, {plural(kernels, 'kernel')}, "
            f"{plural(self.total, 'problem')}",
            err=True,
        )
        if self._terminal:
            # The first problem takes longest: its kernels are loaded.
            click.echo(f"0/{self.total} problems", err=True, nl=False)

    def measured(self, job: Job, problem: TunedProblem) -> None:
        """Count and show a problem that was measured now."""
        self.count(job, problem, new=True)
        self._line()

    def kept(self, job: Job, problem: TunedProblem) -> None:
        """Count a problem that was measured before."""
        self.count(job, problem, new=False)

    def skipped(self, job: Job, extents: Extents, reason: str) -> None:
        """Count and show a problem that could not be measured."""
        self.left_out += 1
        self.close()
        say(f"note: {job.name}: {extents}: left out: {reason}", err=True)

    def end(self, path: Path) -> None:
        """Show the outcome."""
        self.close()
        for name, reasons in sorted(self.failures.items()):
            say(f"failed: {name}: {reasons[0]}", err=True)
            if len(reasons) > 1:
                say(f"  and on {plural(len(reasons) - 1, 'other problem')}; the file has all", err=True)
        state = f"{plural(self.done, 'problem')} measured in {duration(self.elapsed)}"
        if self.kept_before:
            state += f", {self.kept_before} measured before"
        if self.left_out:
            state += f", {self.left_out} left out"
        if self.failures:
            state += f"; {plural(len(self.failures), 'kernel')} failed, not ranked there"
        say(f"{path}: {state}")

    def _line(self) -> None:
        now = time.monotonic()
        if now - self._told < (_TERMINAL_SECONDS if self._terminal else _LOG_SECONDS):
            return
        self._told = now
        left = self.seconds_left
        text = f"{self.finished}/{self.total} problems, {self.done / max(self.elapsed, 1e-9):.1f}/s"
        if left is not None:
            text += f", {duration(left)} left"
        if self._terminal:
            click.echo(f"\r\x1b[K{text}", err=True, nl=False)
        else:
            say(text, err=True)

    def close(self) -> None:
        """Erase the line that is rewritten."""
        if self._terminal:
            click.echo("\r\x1b[K", err=True, nl=False)


class JsonReport(_Counts):
    """Events on standard output: a JSON object a line, with its kind as ``event``."""

    def begin(self, notes: Sequence[str]) -> None:
        """Show what is to be measured."""
        groups = [
            {"name": job.name, "kernels": len(job.kernels), "problems": len(job.problems)}
            for job in self.jobs
        ]
        self._print("begin", gpu=self.gpu, groups=groups, problems=self.total, notes=list(notes))

    def measured(self, job: Job, problem: TunedProblem) -> None:
        """Count and show a problem that was measured now."""
        self.count(job, problem, new=True)
        self._problem("measured", job, problem)

    def kept(self, job: Job, problem: TunedProblem) -> None:
        """Count a problem that was measured before."""
        self.count(job, problem, new=False)
        self._problem("kept", job, problem)

    def skipped(self, job: Job, extents: Extents, reason: str) -> None:
        """Count and show a problem that could not be measured."""
        self.left_out += 1
        self._print("skipped", group=job.name, extents=_record(extents), reason=reason)

    def end(self, path: Path) -> None:
        """Show the outcome."""
        self._print(
            "end",
            path=str(path),
            measured=self.done,
            kept=self.kept_before,
            skipped=self.left_out,
            failures=self.failures,
            seconds=round(self.elapsed, 1),
        )

    def _problem(self, event: str, job: Job, problem: TunedProblem) -> None:
        names = {handle.digest: handle.name for handle in job.kernels}
        best = problem.ranked[0] if problem.ranked else None
        left = self.seconds_left
        self._print(
            event,
            group=job.name,
            extents=_record(problem.extents),
            best=None if best is None else names.get(best[0], best[0]),
            microseconds=None if best is None else best[1],
            ranked=len(problem.ranked),
            stopped=len(problem.stopped),
            failed=len(problem.failed),
            done=self.finished,
            problems=self.total,
            seconds_left=None if left is None else round(left, 1),
        )

    def _print(self, event: str, **values: Any) -> None:
        say(json.dumps({"event": event, **values}, sort_keys=True))


def tell_fitted(tuning: Tuning, path: Path, *, as_json: bool) -> None:
    """Show how well the cost model that was fitted chooses, for each group."""
    for group in tuning.groups:
        if group.model is None:
            continue
        accuracy = group.model.accuracy
        if as_json:
            event = {"event": "fitted", "group": group.name, "path": str(path)}
            say(json.dumps({**event, "accuracy": to_plain(accuracy)}, sort_keys=True))
        else:
            said = "too few problems to say how well it chooses" if accuracy is None else str(accuracy)
            say(f"{group.name}: cost model fitted: {said}")


def tell_applied(tuning: Tuning, bundle: Path, written: bool, *, as_json: bool) -> None:
    """Show that a bundle has the results of a tuning file."""
    problems = sum(bool(problem.ranked) for group in tuning.groups for problem in group.problems)
    if as_json:
        event = {"event": "applied", "gpu": tuning.gpu, "path": str(bundle), "problems": problems}
        say(json.dumps({**event, "written": written}, sort_keys=True))
        return
    state = "written" if written else "up to date"
    say(f"{bundle}: {plural(problems, 'problem')} tuned on {tuning.gpu}, {state}")


def _record(extents: Extents) -> dict[str, int]:
    return {"batch": extents.batch, "m": extents.m, "n": extents.n, "k": extents.k}

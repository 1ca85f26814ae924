"""Render the facts of a build as one HTML file, from which a browser fetches nothing."""

from __future__ import annotations

import contextlib
import heapq
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from cutlass_aot.builder.records import Failure
from cutlass_aot.cli.output.report import charts
from cutlass_aot.cli.output.report.about import About
from cutlass_aot.cli.output.report.collect import BuildFacts, Collector, KernelFacts
from cutlass_aot.errors import ReportError
from cutlass_aot.schema.words import duration, plural, size, without_colors

TOP = 10
"""Kernels in a list of the slowest or largest."""
MAX_ROWS = 10_000
"""Most kernels that the page lists."""
MAX_LOG_BYTES = 8_000
"""Most bytes of one log in the page: its end, where the error stands."""
MAX_LOGS_BYTES = 400_000
"""Most bytes of all logs together."""

INTERRUPTED = "interrupted"
"""``ended_by`` of a build that was interrupted."""

# Control characters, which a page cannot show.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class LoggedFailure:
    """A failure as the page shows it.

    ``text`` is the end of the log, ``""`` if the page has no room for it; ``cut`` is true if the log begins
    earlier.
    """

    name: str
    reason: str
    file: str
    text: str
    cut: bool


@dataclass(frozen=True, slots=True)
class Chart:
    """A histogram of one value over kernels.

    ``picture`` is SVG, ``""`` if all kernels have the same value, which is ``only``; ``marked`` is true if
    kernels that spill stand out.
    """

    title: str
    note: str
    picture: Markup
    only: str
    marked: bool = False


@contextlib.contextmanager
def reported(path: Path, about: About) -> Iterator[Collector]:
    """Write a page about the build that runs inside, also if it fails, unless it ends before there is a plan.

    Yields the listener for the build's events.
    """
    _check_place(path)
    collector = Collector()
    try:
        yield collector
    except BaseException as error:
        if collector.planned:
            # The build's own error is the one to tell.
            with contextlib.suppress(ReportError):
                words = INTERRUPTED if isinstance(error, KeyboardInterrupt) else str(error) or repr(error)
                write_page(path, render(about, collector.facts(), ended_by=words))
        raise
    write_page(path, render(about, collector.facts()))


def render(about: About, facts: BuildFacts, *, ended_by: str = "") -> str:
    """The page as HTML; ``ended_by`` is the error that ended the build, if one did."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        size=size, seconds=seconds_text, plural=lambda count, noun: plural(count, noun), bar=_bar
    )
    compiled = [kernel for kernel in facts.kernels if kernel.artifact is not None]
    shown, listed = [], 0
    for group in facts.groups:
        rows = group.kernels[: MAX_ROWS - listed]
        listed += len(rows)
        shown.append((group, rows))
    return environment.get_template("page.html.j2").render(
        about=about,
        facts=facts,
        ended_by=clean(ended_by),
        verdict=_verdict(facts, ended_by),
        counts={
            state: sum(kernel.state == state for kernel in facts.kernels)
            for state in ("compiled", "present", "shared", "failed", "open")
        },
        now_seconds=sum(kernel.seconds for kernel in facts.kernels if kernel.state == "compiled"),
        object_bytes=sum(kernel.size for kernel in compiled),
        code_bytes=sum(kernel.artifact.facts.cubin_bytes for kernel in compiled if kernel.artifact),
        assemblers=sorted({kernel.artifact.facts.ptxas_version for kernel in compiled if kernel.artifact}),
        spilling=sorted(
            (kernel for kernel in compiled if kernel.spills),
            key=lambda kernel: (-kernel.spills, kernel.group, kernel.design),
        ),
        slowest=_top(compiled, [kernel.seconds for kernel in compiled]),
        largest=_top(compiled, [kernel.size for kernel in compiled]),
        failures=_logged(facts.failures),
        groups=sorted(facts.groups, key=lambda group: (-group.seconds, group.name)),
        most_group_seconds=max((group.seconds for group in facts.groups), default=0.0),
        most_group_bytes=max((group.size for group in facts.groups), default=0),
        charts=_charts(compiled) if compiled else [],
        timeline=_timeline(facts),
        lists=shown,
        unlisted=len(facts.kernels) - listed,
        top=TOP,
    )


def write_page(path: Path, page: str) -> None:
    """Write a page atomically."""
    staging: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        staging = Path(name)
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o644)
            # A file name in a message may hold bytes that are not text.
            file.write(page.encode("utf-8", "backslashreplace"))
            file.flush()
            os.fsync(descriptor)
        staging.replace(path)
        staging = None
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from error
    finally:
        if staging is not None:
            staging.unlink(missing_ok=True)


def clean(text: str) -> str:
    """Text that a page can show: without a terminal's colours, and without control characters."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", without_colors(text.replace("\r\n", "\n")))


def seconds_text(seconds: float) -> str:
    """Seconds, rounded for reading: ``0.53 s``, ``12.4 s``, ``3 min 20 s``."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    return f"{seconds:.1f} s" if seconds < 60 else duration(seconds)


def _check_place(path: Path) -> None:
    """Refuse, before a long build, a place that cannot be written."""
    if path.is_dir():
        raise _unwritable(path, "it is a directory")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(path, error.strerror or str(error)) from None
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise _unwritable(path, "its directory cannot be written")


def _unwritable(path: Path, why: str) -> ReportError:
    return ReportError(f"{path}: the page cannot be written: {why}; make room, or name another file")


def _verdict(facts: BuildFacts, ended_by: str) -> tuple[str, str]:
    """The outcome of the build: a class of the style sheet, and words."""
    if ended_by:
        return "bad", "interrupted" if ended_by == INTERRUPTED else "ended by an error"
    finished = facts.finished
    if finished is None:
        return "bad", "not finished"
    if finished.failed:
        return "bad", f"no bundle: {finished.failed} of {plural(finished.kernels, 'kernel')} failed"
    return "good", "bundle written" if finished.written else "up to date"


def _top(kernels: Sequence[KernelFacts], measures: Sequence[float]) -> list[tuple[KernelFacts, float]]:
    """The kernels with the largest measures, each with its measure as a share of the largest."""
    ordered = heapq.nsmallest(
        TOP,
        zip(kernels, measures, strict=True),
        key=lambda item: (-item[1], item[0].group, item[0].design),
    )
    return [(kernel, measure / ordered[0][1] if ordered[0][1] else 0.0) for kernel, measure in ordered]


def _logged(failures: Iterable[Failure]) -> list[LoggedFailure]:
    room = MAX_LOGS_BYTES
    found = []
    for failure in failures:
        text, cut = _log_end(failure.log, min(room, MAX_LOG_BYTES))
        room -= len(text)
        found.append(
            LoggedFailure(failure.kernel.name, clean(failure.headline), failure.log.name, clean(text), cut)
        )
    return found


def _log_end(path: Path, limit: int) -> tuple[str, bool]:
    if limit <= 0:
        return "", True
    try:
        with path.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - limit))
            return file.read(limit).decode("utf-8", "replace"), length > limit
    except OSError as error:
        return f"(the log cannot be read: {error.strerror})", False


def _charts(compiled: Sequence[KernelFacts]) -> list[Chart]:
    artifacts = [kernel.artifact for kernel in compiled if kernel.artifact]
    spills = [bool(artifact.facts.spill_bytes) for artifact in artifacts]

    def chart(
        title: str,
        note: str,
        values: Sequence[float],
        label: Callable[[float], str],
        least: float,
        marked: Sequence[bool] = (),
    ) -> Chart:
        only = f"{label(values[0])}, all of them" if len(set(values)) == 1 else ""
        marks = marked or [False] * len(values)
        # The numbers are ours, and every text in it is escaped.
        picture = Markup() if only else Markup(charts.histogram(values, marks, label, least, title))  # noqa: S704
        return Chart(title, note, picture, only, any(marks))

    def in_bytes(value: float) -> str:
        return size(round(value))

    seconds = [artifact.seconds for artifact in artifacts]
    facts = [artifact.facts for artifact in artifacts]
    return [
        chart(
            "Seconds of compilation",
            f"kernels by time; all of them together {seconds_text(sum(seconds))}",
            seconds,
            lambda value: f"{value:.10g} s",
            0.01,
        ),
        chart(
            "Registers a thread",
            "kernels by registers" if any(spills) else "kernels by registers; none spills",
            [item.registers for item in facts],
            lambda value: f"{value:.0f}",
            1,
            spills,
        ),
        chart("GPU code", "kernels by bytes", [item.cubin_bytes for item in facts], in_bytes, 100),
        chart(
            "Static shared memory",
            "kernels by bytes of a block; a launch may ask for more",
            [item.shared_memory_bytes for item in facts],
            in_bytes,
            100,
        ),
    ]


def _timeline(facts: BuildFacts) -> Markup:
    if not facts.spans:
        return Markup()
    return Markup(charts.timeline(facts.spans, max(span.end for span in facts.spans)))  # noqa: S704


def _bar(part: float, whole: float = 1.0) -> Markup:
    return Markup(charts.bar(part, whole))  # noqa: S704

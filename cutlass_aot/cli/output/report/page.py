"""Render the facts of a build as one HTML file, from which a browser fetches nothing."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import heapq
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.builder.records import Failure
from cutlass_aot.bundle.replace import check_folder
from cutlass_aot.cli.output.report import charts
from cutlass_aot.cli.output.report.about import About
from cutlass_aot.cli.output.report.collect import BuildFacts, Collector, KernelFacts
from cutlass_aot.cli.output.report.sizes import FinalSizes, final_sizes
from cutlass_aot.diff.listing import ELEMENT, ListedKernel, Listing
from cutlass_aot.errors import CorruptFile, ReportError, StoreError
from cutlass_aot.schema.words import duration, plural, size, without_colors
from cutlass_aot.store.store import Store

TOP = 10
"""Kernels in a list of the slowest or largest."""
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
    """Equal failures as the page shows them: once, with the kernels that have them and the log of the first.

    ``text`` is the end of the log, ``""`` if the page has no room for it; ``cut`` is true if the log begins
    earlier. ``before`` counts those that failed in an earlier build and were not compiled again.
    """

    names: tuple[str, ...]
    reason: str
    detail: str
    file: str
    text: str
    cut: bool
    before: int = 0


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


@dataclass(frozen=True, slots=True)
class Summary:
    """Kernels of one target or of one table of the manifest.

    ``registers``, ``static`` and ``dynamic`` are the least and the most of a kernel, None where none is
    known. ``final`` is their share of the bundle in bytes.
    """

    name: str
    kernels: int
    failed: int
    size: int
    code: int
    spilling: int
    registers: tuple[int, int] | None
    static: tuple[int, int] | None
    dynamic: tuple[int, int] | None
    final: float


@contextlib.contextmanager
def reported(path: Path, about: About, store: Path | None = None) -> Iterator[Collector]:
    """Write a page about the build that runs inside, also if it fails, unless it ends before there is a plan.

    ``store`` is where it keeps its objects, which say with how much shared memory they are launched. Yields
    the listener for the build's events.
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
                facts = collector.facts()
                write_page(path, render(about, facts, ended_by=words, dynamic=dynamic_bytes(facts, store)))
        raise
    facts = collector.facts()
    finished = facts.finished
    sizes = final_sizes(finished.bundle) if finished and not finished.failed else None
    write_page(path, render(about, facts, dynamic=dynamic_bytes(facts, store), sizes=sizes))


def dynamic_bytes(facts: BuildFacts, store: Path | None) -> dict[str, int]:
    """Digest of a kernel to the dynamic shared memory of a block, where its object says it.

    Of several launches it is the most.
    """
    found: dict[str, int] = {}
    if store is None or not store.is_dir():
        return found
    with contextlib.suppress(StoreError):
        opened = Store(store, create=False)
        for kernel in facts.kernels:
            data = opened.get_blob(kernel.artifact.object_sha256) if kernel.artifact else None
            with contextlib.suppress(CorruptFile):
                launches = KernelObject.from_bytes(data).launches() if data else ()
                known = [launch.dynamic_bytes for launch in launches if launch.dynamic_bytes is not None]
                if known and len(known) == len(launches):
                    found[kernel.digest] = max(known)
    return found


def render(
    about: About,
    facts: BuildFacts,
    *,
    ended_by: str = "",
    dynamic: Mapping[str, int] | None = None,
    sizes: FinalSizes | None = None,
) -> str:
    """The page as HTML.

    ``ended_by`` is the error that ended the build, if one did, ``dynamic`` what :func:`dynamic_bytes` gives,
    and ``sizes`` those of the bundle, if there is one.
    """
    dynamic = dynamic or {}
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent, encoding="utf-8"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        size=lambda count: _unbroken(size(round(count))),
        seconds=lambda seconds: _unbroken(seconds_text(seconds)),
        between=_between,
        plural=lambda count, noun: plural(count, noun),
        bar=_bar,
    )
    compiled = [kernel for kernel in facts.kernels if kernel.artifact is not None]
    script = Path(__file__).with_name("page.js").read_text(encoding="utf-8")

    def summaries(name: Callable[[KernelFacts], str]) -> list[Summary]:
        members: dict[str, list[KernelFacts]] = {}
        for kernel in facts.kernels:
            members.setdefault(name(kernel), []).append(kernel)
        return [_summary(name, members[name], dynamic, sizes) for name in sorted(members, key=_by_number)]

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
        targets=summaries(lambda kernel: kernel.target),
        tables=summaries(lambda kernel: kernel.table or "programs"),
        sizes=sizes,
        # Both are ours; what the listing holds is escaped by it.
        listing=Markup(_listing(about, facts, dynamic, sizes).to_json()),  # noqa: S704
        script=Markup(script),  # noqa: S704
        script_sha256=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        element=Markup(ELEMENT),  # noqa: S704
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
    """Refuse, before a long build, a place that cannot be written; nothing is made there yet."""
    if path.is_dir():
        raise _unwritable(path, "it is a directory")
    try:
        check_folder(path.absolute().parent)
    except OSError as error:
        raise _unwritable(path, f"{error.filename}: {error.strerror or error}") from None


def _unwritable(path: Path, why: str) -> ReportError:
    return ReportError(
        f"{path}: the page cannot be written: {why}; check permissions and free space, or name another file"
    )


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
    by_reason: dict[str, list[Failure]] = {}
    for failure in failures:
        by_reason.setdefault(failure.common_reason, []).append(failure)
    for equal in by_reason.values():
        first = equal[0]
        text, cut = _log_end(first.log, min(room, MAX_LOG_BYTES))
        room -= len(text)
        names = tuple(failure.kernel.name for failure in equal)
        words = clean(first.headline), clean(first.detail)
        before = sum(failure.before for failure in equal)
        found.append(LoggedFailure(names, *words, first.log.name, clean(text), cut, before))
    return found


def _by_number(name: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", name)]


def _summary(
    name: str, kernels: Sequence[KernelFacts], dynamic: Mapping[str, int], sizes: FinalSizes | None
) -> Summary:
    facts = [kernel.artifact.facts for kernel in kernels if kernel.artifact]
    return Summary(
        name,
        len(kernels),
        sum(kernel.state == "failed" for kernel in kernels),
        sum(kernel.size for kernel in kernels),
        sum(item.cubin_bytes for item in facts),
        sum(bool(kernel.spills) for kernel in kernels),
        _range([item.registers for item in facts]),
        _range([item.shared_memory_bytes for item in facts]),
        _range([dynamic[kernel.digest] for kernel in kernels if kernel.digest in dynamic]),
        sum(sizes.kernels.get(kernel.digest, 0.0) for kernel in kernels) if sizes else 0.0,
    )


def _range(values: Sequence[int]) -> tuple[int, int] | None:
    return (min(values), max(values)) if values else None


def _listing(
    about: About, facts: BuildFacts, dynamic: Mapping[str, int], sizes: FinalSizes | None
) -> Listing:
    def listed(kernel: KernelFacts) -> ListedKernel:
        made = kernel.artifact
        if made is None:
            return ListedKernel(kernel.group, kernel.design, kernel.target, kernel.state)
        return ListedKernel(
            kernel.group,
            kernel.design,
            kernel.target,
            kernel.state,
            sha256=made.object_sha256,
            seconds=round(made.seconds, 3),
            registers=made.facts.registers,
            spill_bytes=made.facts.spill_bytes,
            static_bytes=made.facts.shared_memory_bytes,
            dynamic_bytes=dynamic.get(kernel.digest),
            code_bytes=made.facts.cubin_bytes,
            object_bytes=made.object_bytes,
        )

    title = f"{about.bundle} {about.version}"
    return Listing("report", title, sizes.bundle if sizes else None, tuple(map(listed, facts.kernels)))


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
            lambda value: f"{value:.4g} s",
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


def _between(ends: tuple[int, int] | None, unit: str = "") -> str:
    """The least and the most of something, once if they are equal; ``-`` where nothing is known."""
    texts = [size(end) if unit == "bytes" else str(end) for end in dict.fromkeys(ends or ())]
    # Two sizes are too long for a narrow column in one line.
    return (" to " if unit else _unbroken(" to ")).join(map(_unbroken, texts)) or "-"


def _unbroken(text: str) -> str:
    """Text that no line ends in: a number stays with its unit."""
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _bar(part: float, whole: float = 1.0) -> Markup:
    return Markup(charts.bar(part, whole))  # noqa: S704

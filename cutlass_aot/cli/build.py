"""``cutlass-aot build``: a manifest to a bundle; ``cutlass-aot plan``: what a build would do."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import click

from cutlass_aot.cli.options import (
    build_options,
    json_option,
    manifest_argument,
    out_option,
    upstream_options,
)
from cutlass_aot.cli.output.operand_lines import group_lines
from cutlass_aot.cli.output.render import own_name, print_json, resumable, table
from cutlass_aot.cli.output.terminal import lines_of, say
from cutlass_aot.schema.words import few, plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cutlass_aot.builder.build import BuildResult
    from cutlass_aot.builder.events import Event, Listener
    from cutlass_aot.builder.inputs.up_to_date import UpToDateBundle
    from cutlass_aot.builder.records import Failure, PlannedKernel

_MAX_REASONS = 20


@click.command("build")
@manifest_argument
@build_options
@upstream_options
@out_option
@click.option(
    "--retry", is_flag=True, help="Compile kernels again that failed before with the same toolchain."
)
@click.option("--shard", metavar="I/N", help="Compile part I of N alone, for `bundle merge`.")
@click.option(
    "--executor",
    type=click.Choice(["local", "dask"]),
    default="local",
    show_default=True,
    help="Who compiles: workers of this machine, or of a dask scheduler.",
)
@click.option("--scheduler", metavar="ADDRESS", help="The dask scheduler, such as tcp://node1:8786.")
@click.option("--json", "as_json", is_flag=True, help="Print an event a line as JSON, and nothing else.")
@click.option(
    "--report",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="Write a page about the build: what was built, time, size, registers, failures.",
)
@resumable
def command(
    manifest: Path,
    out: Path,
    shard: str | None,
    executor: str,
    scheduler: str | None,
    as_json: bool,
    page: Path | None,
    **settings: Any,
) -> int:
    """Build MANIFEST's bundle: compile what the store lacks, link, write.

    Kernels that fail do not stop the others; their logs are kept, and the bundle is written only when every
    kernel is there.
    """
    if (executor == "dask") != (scheduler is not None):
        raise click.UsageError("--executor dask needs --scheduler ADDRESS, and nothing else takes it")
    if page is None and shard is None:
        from cutlass_aot.builder.inputs.up_to_date import up_to_date

        bundle = up_to_date(manifest, settings["store"], out)
        if bundle is not None:
            _tell_up_to_date(bundle, as_json=as_json)
            return 0
    return _build(manifest, out, shard, as_json, page, settings | {"scheduler": scheduler})


def _tell_up_to_date(bundle: UpToDateBundle, *, as_json: bool) -> None:
    if not as_json:
        say(f"{bundle.bundle}: {plural(bundle.kernels, 'kernel')}, 0 compiled, up to date")
        return
    from cutlass_aot.builder.events import Finished, UpToDate
    from cutlass_aot.cli.output.event_lines import EventLines

    lines = EventLines()
    lines(UpToDate(bundle.kernels))
    lines(Finished(bundle.bundle, bundle.kernels, compiled=0, failed=0, written=False))


def _build(
    manifest: Path, out: Path, shard: str | None, as_json: bool, page: Path | None, settings: dict[str, Any]
) -> int:
    # Imported here: that alone takes longer than a whole build with nothing to do.
    from cutlass_aot.builder.build import build
    from cutlass_aot.builder.settings import Settings
    from cutlass_aot.builder.shard import Share
    from cutlass_aot.cli.output.event_lines import EventLines
    from cutlass_aot.cli.output.progress import make_report

    try:
        share = None if shard is None else Share.parse(shard)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--shard") from None
    shown = make_report(quiet=as_json)
    listeners: list[Listener] = [EventLines(), shown] if as_json else [shown]

    one_at_a_time = threading.Lock()

    def tell(event: Event) -> None:
        # A notice may come from any thread.
        with one_at_a_time:
            for listener in listeners:
                listener(event)

    def run() -> BuildResult:
        try:
            return build(manifest, out, Settings(**settings, tell=tell, whole=page is not None), share)
        finally:
            shown.close()

    if page is None:
        result = run()
    else:
        from cutlass_aot.cli.output.report.about import about_build
        from cutlass_aot.cli.output.report.page import reported

        with reported(page, about_build(manifest), settings["store"]) as collect:
            listeners.append(collect)
            result = run()
    return _tell_result(result, manifest, as_json=as_json)


def _tell_result(result: BuildResult, manifest: Path, *, as_json: bool) -> int:
    if result.failures:
        if not as_json:
            _tell_failures(result)
        before = sum(failure.before for failure in result.failures)
        if before:
            say(
                f"{plural(before, 'kernel')} failed in an earlier build with the same sources and toolchain, "
                f"not compiled again: cutlass-aot build {manifest} --retry does that",
                err=True,
            )
        others = result.kernels > len(result.failures)
        kept = f"; {result.bundle} is still the one of an earlier build" * result.bundle.is_dir()
        say("nothing was written" + "; what compiled is in the store" * others + kept, err=True)
        return 1
    if not as_json:
        state = "written" if result.written else "up to date"
        say(f"{result.bundle}: {plural(result.kernels, 'kernel')}, {result.compiled} compiled, {state}")
    return 0


def _tell_failures(result: BuildResult) -> None:
    """Print each reason once, in full, with the kernels that it concerns and the log of the first."""
    by_reason: dict[str, list[Failure]] = {}
    for failure in result.failures:
        by_reason.setdefault(failure.common_reason, []).append(failure)
    reasons = f" for {len(by_reason)} reasons" if len(by_reason) > 1 else ""
    before = sum(failure.before for failure in result.failures)
    when = f", {'all' if before == len(result.failures) else before} in an earlier build" if before else ""
    say(f"{plural(len(result.failures), 'kernel')} of {result.kernels} failed{reasons}{when}:", err=True)
    for failures in list(by_reason.values())[:_MAX_REASONS]:
        first = failures[0]
        say("", f"  {first.headline or 'no reason given'}", err=True)
        if first.detail:
            say(*lines_of(indent(first.detail, "  ")), err=True)
        names = few([failure.kernel.name for failure in failures], 2)
        old = sum(failure.before for failure in failures)
        remembered = f", {'all' if old == len(failures) else old} in an earlier build" if old else ""
        say(f"  {plural(len(failures), 'kernel')}{remembered}: {names}", f"  log: {first.log}", err=True)
    more = len(by_reason) - _MAX_REASONS
    further = ["", f"  and {plural(more, 'further reason')}"] if more > 0 else []
    say(*further, "", err=True)


def _what_is_known(item: PlannedKernel) -> dict[str, Any]:
    """What a planned kernel is, and what is known of it if the store has it."""
    made = item.artifact
    return {
        "group": item.kernel.group_name,
        "target": item.kernel.target,
        "object_sha256": made and made.object_sha256,
        "object_bytes": made and made.object_bytes,
        "seconds": made and made.seconds,
        "registers": made and made.facts.registers,
        "spill_bytes": made and made.facts.spill_bytes,
        "static_bytes": made and made.facts.shared_memory_bytes,
        "code_bytes": made and made.facts.cubin_bytes,
    }


def _state(item: PlannedKernel) -> str:
    if item.failed:
        return "failed"
    return "build" if item.artifact is None else "-"


def _listed(planned: Sequence[PlannedKernel]) -> list[str]:
    """A line for each kernel, under its group and why it is to be built."""
    shown = sorted(
        planned,
        key=lambda item: (item.kernel.group_name, item.kernel.group, item.why, item.kernel.name),
    )
    rows = [(_state(item), own_name(item.kernel)) for item in shown]
    lines = group_lines({item.kernel.group: item.kernel for item in shown})
    groups = [(f"{item.kernel.group_name}: {item.why}", *lines[item.kernel.group]) for item in shown]
    return table(rows, ("", "kernel"), groups)


def _counted(planned: Sequence[PlannedKernel]) -> list[str]:
    """The number of each group's kernels, and what its name does not say, under why they are to be built."""
    lines = group_lines({item.kernel.group: item.kernel for item in planned})
    counts = Counter((item.why, item.kernel.group_name, item.kernel.group) for item in planned)
    rows: list[tuple[str, str]] = []
    headings: list[tuple[str]] = []
    for (why, name, group), count in sorted(counts.items()):
        rows += [(f"{count:7}", name), *(("", line) for line in lines[group])]
        headings += [(why,)] * (len(rows) - len(headings))
    return table(rows, ("kernels", "group"), headings)


@click.command("plan")
@manifest_argument
@build_options
@upstream_options
@click.option("--explain", is_flag=True, help="Name the first thing that differs from the last build.")
@click.option("--kernels", "by_kernel", is_flag=True, help="List each kernel, not only how many a group has.")
@json_option
def plan(manifest: Path, explain: bool, by_kernel: bool, as_json: bool, **settings: Any) -> int:
    """Say which kernels MANIFEST asks for, which the store has, and why the others are to be built."""
    from cutlass_aot.builder.build import make_plan
    from cutlass_aot.builder.settings import Settings
    from cutlass_aot.cli.output.progress import PlainReport

    made = make_plan(manifest, Settings(**settings, tell=PlainReport()))
    selection, planned = made.selection, made.kernels
    if as_json:
        kernels = [
            {"name": item.kernel.name, "key": item.key, "build": item.artifact is None, "why": item.why}
            | _what_is_known(item)
            for item in planned
        ]
        rankings = [
            {
                "group": item.group,
                "gpu": item.gpu,
                "origin": item.origin,
                "shapes": len(item.problems),
            }
            for item in selection.rankings
        ]
        found = {"kernels": kernels, "rankings": rankings, "warnings": list(selection.warnings)}
        print_json(found | {"difference": made.difference, "runs": list(made.runs)})
        return 0
    if explain:
        say(f"planned again: {made.difference}" if made.difference else "the plan of the last build holds")
    missing = sum(item.artifact is None for item in planned)
    if planned:
        say(*(_listed(planned) if by_kernel else _counted(planned)))
    for warning in (*selection.warnings, *made.runs):
        say(*lines_of(f"note: {warning}"))
    failed = sum(bool(item.failed) for item in planned)
    counts = (
        f"{plural(len(planned), 'kernel')}: {missing - failed} to build, {len(planned) - missing} present"
    )
    if failed:
        counts += f", {failed} failed in an earlier build and not compiled again without build --retry"
    more = f"; more may come of {plural(len(made.runs), 'program')} to be run" if made.runs else ""
    say(counts + more)
    return 0

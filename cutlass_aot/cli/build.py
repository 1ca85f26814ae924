"""``cutlass-aot build``: a manifest to a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cutlass_aot.cli.options import build_options, manifest_argument, out_option
from cutlass_aot.words import plural

if TYPE_CHECKING:
    from cutlass_aot.builder.events import Event, Listener
    from cutlass_aot.builder.pipeline import BuildResult


@click.command("build")
@manifest_argument
@build_options
@out_option
@click.option("--json", "as_json", is_flag=True, help="Print an event a line as JSON, and nothing else.")
@click.option(
    "--report",
    "page",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="Write a page about the build: what was built, time, size, registers, failures.",
)
def command(
    manifest: Path, store: Path, jobs: int, timeout: float, out: Path, as_json: bool, page: Path | None
) -> int:
    """Build MANIFEST's bundle: compile what the store lacks, link, write.

    Kernels that fail do not stop the others; their logs are kept, and the bundle is written only when every
    kernel is there.
    """
    from cutlass_aot.builder.answer import known_answer

    answer = known_answer(manifest, store, out) if page is None else None
    if answer is not None and not as_json:
        click.echo(f"{answer.bundle}: {plural(answer.kernels, 'kernel')}, 0 compiled, up to date")
        return 0
    if answer is not None:
        from cutlass_aot.builder.events import Finished, UpToDate
        from cutlass_aot.cli.event_lines import EventLines

        lines = EventLines()
        lines(UpToDate(answer.kernels))
        lines(Finished(answer.bundle, answer.kernels, compiled=0, failed=0, written=False))
        return 0
    return _build(manifest, store, jobs, timeout, out, as_json, page)


def _build(
    manifest: Path, store: Path, jobs: int, timeout: float, out: Path, as_json: bool, page: Path | None
) -> int:
    # Only now: importing the build side takes longer than all that a build with nothing to do does.
    from cutlass_aot.builder.pipeline import Settings, build
    from cutlass_aot.cli.event_lines import EventLines
    from cutlass_aot.cli.progress import make_report

    shown = make_report(quiet=as_json)
    listeners: list[Listener] = [EventLines(), shown] if as_json else [shown]

    def tell(event: Event) -> None:
        for listener in listeners:
            listener(event)

    def run() -> BuildResult:
        try:
            return build(manifest, out, Settings(store, jobs, timeout, tell, whole=page is not None))
        finally:
            shown.close()

    if page is None:
        result = run()
    else:
        from cutlass_aot.report.about import about_build
        from cutlass_aot.report.page import reported

        with reported(page, about_build(manifest)) as collect:
            listeners.append(collect)
            result = run()
    return _tell_result(result, as_json=as_json)


def _tell_result(result: BuildResult, *, as_json: bool) -> int:
    if result.failures:
        if not as_json:
            click.echo(f"{plural(len(result.failures), 'kernel')} of {result.kernels} failed:", err=True)
            for failure in result.failures:
                click.echo(f"  {failure.kernel.name}\n    log: {failure.log}", err=True)
        click.echo("no bundle was written; what compiled is in the store", err=True)
        return 1
    if not as_json:
        state = "written" if result.written else "up to date"
        click.echo(
            f"{result.bundle}: {plural(result.kernels, 'kernel')}, {result.compiled} compiled, {state}"
        )
    return 0

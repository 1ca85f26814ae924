"""``cutlass-aot build``: a manifest to a bundle."""

from __future__ import annotations

from pathlib import Path

import click

from cutlass_aot.cli.options import build_options, manifest_argument, out_option
from cutlass_aot.cli.render import plural


@click.command("build")
@manifest_argument
@build_options
@out_option
def command(manifest: Path, store: Path, jobs: int, timeout: float, out: Path) -> int:
    """Build MANIFEST's bundle: compile what the store lacks, link, write.

    Kernels that fail do not stop the others; their logs are kept, and the bundle is written only when every
    kernel is there.
    """
    from cutlass_aot.builder.answer import known_answer

    answer = known_answer(manifest, store, out)
    if answer is not None:
        click.echo(f"{answer.bundle}: {plural(answer.kernels, 'kernel')}, 0 compiled, up to date")
        return 0
    # Only now: importing the build side takes longer than all that a build with nothing to do does.
    from cutlass_aot.builder.pipeline import Settings, build
    from cutlass_aot.cli.progress import make_report

    report = make_report()
    try:
        result = build(manifest, out, Settings(store, jobs, timeout, report))
    finally:
        report.close()
    if result.failures:
        click.echo(f"{plural(len(result.failures), 'kernel')} of {result.kernels} failed:", err=True)
        for failure in result.failures:
            click.echo(f"  {failure.kernel.name}\n    log: {failure.log}", err=True)
        click.echo("no bundle was written; what compiled is in the store", err=True)
        return 1
    state = "written" if result.written else "up to date"
    click.echo(f"{result.bundle}: {plural(result.kernels, 'kernel')}, {result.compiled} compiled, {state}")
    return 0

"""``cutlass-aot installed``: which bundles a program would find, and which it would leave out."""

from __future__ import annotations

from pathlib import Path

import click

from cutlass_aot.cli.output.render import json_option, print_json


@click.command("installed")
@click.argument("name", required=False)
@click.option(
    "--path",
    "paths",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Search this directory first; may be repeated.",
)
@json_option
def command(name: str | None, paths: tuple[Path, ...], as_json: bool) -> int:
    """Say what cutlass_aot.open_installed finds, of bundle NAME or of all, and what it leaves out and why.

    Bundles are searched for in the directories of --path, in those of CUTLASS_AOT_BUNDLE_PATH, and among what
    is installed.
    """
    from cutlass_aot.runtime.installed import installed_report

    report = installed_report(name, paths=paths)
    if as_json:
        print_json(report.to_record())
    else:
        click.echo(str(report) or f"no bundle{f' {name}' if name else ''} is installed")
    return 0

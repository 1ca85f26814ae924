"""``cutlass-aot installed``: which bundles are installed, and which of them are opened."""

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
    """List installed bundles, of NAME or of all, and say which one cutlass_aot.open_installed opens.

    Bundles are searched for in the directories of --path, in those of CUTLASS_AOT_BUNDLE_PATH, and among what
    is installed.
    """
    from cutlass_aot.runtime.installed import installed_report
    from cutlass_aot.schema.codec import to_plain

    found = installed_report(name, paths=paths)
    if as_json:
        print_json([to_plain(item) for item in found])
    for item in () if as_json else found:
        click.echo(str(item))
    if not found and not as_json:
        click.echo(f"no bundle{f' {name}' if name else ''} is installed")
    return 0

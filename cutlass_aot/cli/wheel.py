"""``cutlass-aot wheel``: a bundle as an installable wheel."""

from __future__ import annotations

from pathlib import Path

import click

from cutlass_aot.cli.options import bundle_argument
from cutlass_aot.words import size


@click.command("wheel")
@bundle_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/wheels"),
    show_default=True,
    help="Directory that takes the wheel.",
)
def command(bundle: Path, output: Path) -> int:
    """Verify BUNDLE and pack it into a wheel, which needs the runtime side and nothing of the build side.

    Equal bundles give equal wheels; SOURCE_DATE_EPOCH sets the date of their files.
    """
    from cutlass_aot.bundle.wheel import build_wheel

    wheel = build_wheel(bundle, output)
    click.echo(f"{wheel}: {size(wheel.stat().st_size)}")
    return 0

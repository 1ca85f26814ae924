"""``cutlass-aot wheel``: a bundle as installable wheels."""

from __future__ import annotations

import re
from pathlib import Path

import click

from cutlass_aot.cli.options import bundle_argument
from cutlass_aot.cli.output.render import tell_unchecked
from cutlass_aot.cli.sign import signer_of, signer_options
from cutlass_aot.words import size

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KIB": 1 << 10,
    "MIB": 1 << 20,
    "GIB": 1 << 30,
}


def _bytes(context: click.Context, option: click.Parameter, value: str | None) -> int | None:
    """A size with a unit or without, in bytes."""
    if value is None:
        return None
    match = re.fullmatch(r"([0-9]{1,20})\s*([A-Za-z]*)", value.strip(), re.ASCII)
    if match is None or match[2].upper() not in _UNITS or not int(match[1]):
        raise click.BadParameter(
            f"{value[:40]!r}: expected a size such as 100MB or 60MiB: a whole number above 0, with B, KB, "
            "MB, GB, KiB, MiB or GiB or without",
            context,
            option,
        )
    return int(match[1]) * _UNITS[match[2].upper()]


@click.command("wheel")
@bundle_argument
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("build/wheels"),
    show_default=True,
    help="Directory that takes the wheels.",
)
@click.option(
    "--split",
    "by",
    type=click.Choice(["families", "targets"]),
    help="A wheel for each family of GPUs, or for each GPU code target.",
)
@click.option(
    "--max-size",
    "limit",
    callback=_bytes,
    metavar="SIZE",
    help="Most bytes a wheel may have; a bundle of more is split. A whole number, with B, KB, MB, GB, KiB, "
    "MiB or GiB or without, such as 100MB.",
)
@signer_options
def command(
    bundle: Path,
    output: Path,
    by: str | None,
    limit: int | None,
    key: Path | None,
    program: str | None,
    public_key: Path | None,
    timeout: float,
) -> int:
    """Verify BUNDLE and pack it into a wheel for each of its hosts.

    A wheel needs the runtime side and nothing of the build side. A bundle that is split gives a wheel for
    each part, and one that needs them all; cutlass_aot.open_installed opens the parts as one bundle. Equal
    bundles give equal wheels; SOURCE_DATE_EPOCH sets the date of their files.

    The signatures of BUNDLE go along where all of it is one wheel. What is for one host of several, or a
    part, is a bundle of its own: --key, or --command, signs it.
    """
    from cutlass_aot.bundle.wheel.write import build_wheels
    from cutlass_aot.runtime.files.signatures import is_signed

    signer = signer_of(key, program, public_key, timeout)
    wheels = build_wheels(bundle, output, by=by, limit=limit, signer=signer)
    for wheel in wheels:
        click.echo(f"{wheel}: {size(wheel.stat().st_size)}")
    tell_unchecked(bundle)
    if is_signed(bundle) and signer is None and len(wheels) > 1:
        click.echo(
            f"{bundle} is signed, and these wheels are not: sign them with --key or --command", err=True
        )
    return 0

"""``cutlass-aot wheel``: a bundle as installable wheels."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from cutlass_aot.cli.options import bundle_argument
from cutlass_aot.cli.output.render import tell_unchecked
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.cli.sign import signer_of, signer_options, terms_of
from cutlass_aot.schema.bundles.signature import NO_TERMS
from cutlass_aot.schema.words import size


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
    type=click.Choice(["targets"]),
    help="targets: a wheel for each GPU code target, each with a bundle of its own.",
)
@signer_options
def command(
    bundle: Path,
    output: Path,
    split: str | None,
    key: Path | None,
    program: str | None,
    public_key: Path | None,
    timeout: float,
    sequence: int,
    expires: datetime | None,
) -> int:
    """Verify BUNDLE and pack it into a wheel for each of its hosts.

    A wheel needs the runtime side and nothing of the build side. With --split targets there is a wheel for
    each GPU code target, with a bundle of the same name; of several that are installed,
    cutlass_aot.open_installed opens the one for this machine's GPU. Equal bundles give equal wheels;
    SOURCE_DATE_EPOCH sets the date of their files.

    The signatures of BUNDLE are kept where all of it is in one wheel. A wheel for one host of several, or for
    one target, holds a bundle of its own, which --key or --command signs.
    """
    from cutlass_aot.bundle.wheel.write import build_wheels
    from cutlass_aot.runtime.files.signatures import is_signed

    signer = signer_of(key, program, public_key, timeout)
    terms = terms_of(sequence, expires)
    if signer is None and terms != NO_TERMS:
        raise click.UsageError("--sequence and --expires go with --key or --command")
    wheels = build_wheels(bundle, output, split=split == "targets", signer=signer, terms=terms)
    for wheel in wheels:
        say(f"{wheel}: {size(wheel.stat().st_size)}")
    tell_unchecked(bundle)
    if is_signed(bundle) and signer is None and len(wheels) > 1:
        say(f"{bundle} is signed, and these wheels are not: sign them with --key or --command", err=True)
    return 0

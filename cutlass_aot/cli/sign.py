"""``cutlass-aot sign``: say under a key that a bundle is yours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cutlass_aot.cli.key import ENVIRONMENT_VARIABLE, passphrase_of_environment
from cutlass_aot.cli.options import Function, KeyPath, bundle_argument
from cutlass_aot.errors import SignatureError

if TYPE_CHECKING:
    from cutlass_aot.bundle.sign import Signer


def signer_options(function: Function) -> Function:
    """Options that say who signs."""
    path = KeyPath()
    options = (
        click.option("--key", type=path, help="The private key's file."),
        click.option("--command", "program", help="Instead of --key: a program with arguments that signs."),
        click.option(
            "--public-key",
            type=path,
            help="With --command: file of the public key whose signatures the program gives.",
        ),
        click.option(
            "--timeout",
            type=click.FloatRange(0.1),
            default=60.0,
            show_default=True,
            help="Seconds that the program may take.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def signer_of(
    key: Path | None, program: str | None, public_key: Path | None, timeout: float
) -> Signer | None:
    """Who signs, by the options of :func:`signer_options`; None if they name nobody."""
    if key is not None and program is not None:
        raise click.UsageError("expected one of --key and --command")
    if (program is None) != (public_key is None):
        raise click.UsageError("--command and --public-key go together")
    if key is None and program is None:
        return None
    from cutlass_aot.bundle.sign import Command, KeyFile
    from cutlass_aot.runtime.files.signatures import read_public_key

    if key is not None:
        return KeyFile(key, lambda: _passphrase(key))
    return Command(program or "", read_public_key(public_key or Path()), timeout)


@click.command("sign")
@bundle_argument
@signer_options
def command(
    bundle: Path, key: Path | None, program: str | None, public_key: Path | None, timeout: float
) -> int:
    """Verify BUNDLE and sign its manifest, which has the digest of every other file.

    The signature becomes a file of the bundle; those by other keys stay. A bundle that is written anew is
    unsigned. --command gets the message on standard input and writes the signature to standard output: 64 raw
    bytes, hexadecimal or base64.
    """
    signer = signer_of(key, program, public_key, timeout)
    if signer is None:
        raise click.UsageError("expected one of --key and --command")
    from cutlass_aot.bundle.sign import sign_bundle

    click.echo(f"{sign_bundle(bundle, signer)}: signed")
    return 0


def _passphrase(key: Path) -> str:
    passphrase = passphrase_of_environment()
    if passphrase is None:
        if not sys.stdin.isatty():
            raise SignatureError(
                f"{key} is protected by a passphrase, and there is no terminal to ask at: set "
                f"{ENVIRONMENT_VARIABLE}"
            )
        asked: str = click.prompt(f"Passphrase of {key}", hide_input=True, err=True)
        return asked
    return passphrase

"""``cutlass-aot sign``: say under a key that a bundle is yours; ``cutlass-aot key``: make such keys."""

from __future__ import annotations

import os
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cutlass_aot.cli.options import KeyPath, together
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.errors import SignatureError
from cutlass_aot.schema.bundles.signature import MAX_SEQUENCE, NO_TERMS, Terms

if TYPE_CHECKING:
    from cutlass_aot.bundle.sign import Signer

ENVIRONMENT_VARIABLE = "CUTLASS_AOT_KEY_PASSPHRASE"


signer_options = together(
    click.option("--key", type=KeyPath(), help="The private key's file."),
    click.option("--command", "program", help="Instead of --key: a program with arguments that signs."),
    click.option(
        "--public-key",
        type=KeyPath(),
        help="With --command: file of the public key whose signatures the program gives.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(0.1),
        default=60.0,
        show_default=True,
        help="Seconds that the program may take.",
    ),
    click.option(
        "--sequence",
        type=click.IntRange(0, MAX_SEQUENCE),
        default=0,
        show_default=True,
        help="Number that you raise with each release, signed too, so that older ones can be refused.",
    ),
    click.option(
        "--expires",
        type=click.DateTime(["%Y-%m-%d"]),
        metavar="YYYY-MM-DD",
        help="Last day, in UTC, on which the signature is good, signed too.",
    ),
)
"""Options that say who signs and under which terms; :func:`signer_of` and :func:`terms_of` read them."""


def terms_of(sequence: int, expires: datetime | None) -> Terms:
    """The terms that the ``signer_options`` name."""
    if expires is None:
        return Terms(sequence)
    from cutlass_aot.runtime.files.signatures import today

    day = expires.date().isoformat()
    if day < today():
        raise click.UsageError(
            f"--expires: {day} is past, and such a signature counts nowhere: name a later day"
        )
    return Terms(sequence, day)


def signer_of(
    key: Path | None, program: str | None, public_key: Path | None, timeout: float
) -> Signer | None:
    """The signer that the ``signer_options`` name; None if they name none."""
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
@click.argument("bundle", type=click.Path(path_type=Path))
@signer_options
def command(
    bundle: Path,
    key: Path | None,
    program: str | None,
    public_key: Path | None,
    timeout: float,
    sequence: int,
    expires: datetime | None,
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

    terms = terms_of(sequence, expires)
    said = f", {terms}" if terms != NO_TERMS else ""
    say(f"{sign_bundle(bundle, signer, terms)}: signed{said}")
    return 0


def _passphrase(key: Path) -> str:
    passphrase = passphrase_of_environment()
    if passphrase is None and not sys.stdin.isatty():
        raise SignatureError(
            f"{key} is protected by a passphrase, and there is no terminal to ask at: set "
            f"{ENVIRONMENT_VARIABLE}"
        )
    return passphrase or str(click.prompt(f"Passphrase of {key}", hide_input=True, err=True))


@click.group("key")
def key() -> None:
    """Make keys to sign bundles with."""


@key.command("new", short_help="Make a private key, and the public one beside it.")
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--passphrase", "ask", is_flag=True, help="Ask for a passphrase that protects the private key.")
def new(path: Path, ask: bool) -> int:
    """Make a key: the private one at PATH, for you alone to read, the public one beside it, as PATH.pub.

    The private key is protected by the passphrase in CUTLASS_AOT_KEY_PASSPHRASE, if it is set, or by the one
    that --passphrase asks for. A file that is there is never overwritten.
    """
    from cutlass_aot.bundle.sign import new_key

    passphrase = passphrase_of_environment()
    if passphrase is None and ask:
        passphrase = click.prompt("Passphrase", hide_input=True, confirmation_prompt=True, err=True)
    public = new_key(path, passphrase)
    say(f"{path}: private key, {'unprotected' if passphrase is None else 'protected'}")
    say(f"{public.source}: public key {public.id}")
    return 0


def passphrase_of_environment() -> str | None:
    """The passphrase in the environment, None if there is none."""
    passphrase = os.environ.get(ENVIRONMENT_VARIABLE)
    if passphrase == "":
        raise SignatureError(f"{ENVIRONMENT_VARIABLE} is set and empty: set a passphrase, or unset it")
    return passphrase

"""``cutlass-aot key``: keys that bundles are signed with."""

from __future__ import annotations

import os
from pathlib import Path

import click

from cutlass_aot.errors import SignatureError

ENVIRONMENT_VARIABLE = "CUTLASS_AOT_KEY_PASSPHRASE"


@click.group("key")
def command() -> None:
    """Make keys to sign bundles with."""


@command.command("new", short_help="Make a private key, and the public one beside it.")
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
    key = new_key(path, passphrase)
    click.echo(f"{path}: private key, {'unprotected' if passphrase is None else 'protected'}")
    click.echo(f"{key.source}: public key {key.id}")
    return 0


def passphrase_of_environment() -> str | None:
    """The passphrase in the environment, None if there is none."""
    passphrase = os.environ.get(ENVIRONMENT_VARIABLE)
    if passphrase == "":
        raise SignatureError(f"{ENVIRONMENT_VARIABLE} is set and empty: set a passphrase, or unset it")
    return passphrase

"""``cutlass-aot capture``: the manifest of what a program compiles."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from cutlass_aot.errors import ManifestError
from cutlass_aot.words import plural


@click.command("capture", context_settings={"ignore_unknown_options": True})
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("captured.toml"),
    show_default=True,
    help="Manifest to write.",
)
@click.option("--name", default="captured", show_default=True, help="Name of its bundle.")
@click.option("--target", "targets", multiple=True, help="GPU code target to build for; may be repeated.")
@click.option(
    "--device",
    "devices",
    multiple=True,
    metavar="TARGET=PROFILE",
    help="Device profile for a target: a name, or a .toml file's path from the manifest; may be repeated.",
)
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    output: Path, name: str, targets: tuple[str, ...], devices: tuple[str, ...], program: tuple[str, ...]
) -> int:
    """Run PROGRAM, and write the manifest of the CuTe DSL kernels that it compiles.

    \b
        cutlass-aot capture -o app.toml -- python app.py

    It sees what goes through cutlass.operators, kernels declared with cutlass_aot.kernel, and what the policy
    jit compiles, which is the program's policy unless CUTLASS_AOT_POLICY says otherwise. Other kernels
    are named, with what to do about them. The program's own programs in Python are watched too. An interrupt
    ends the program; what was found until then is written.
    """
    from cutlass_aot.capture import manifest
    from cutlass_aot.capture.run import run

    # Whatever can be refused is refused now: the program may run for hours.
    profiles = _profiles(devices)
    manifest.check_wishes(name, targets, profiles, output.parent)
    if not output.parent.is_dir() or not os.access(output.parent, os.W_OK):
        raise ManifestError(
            f"{output}: {output.parent} is no folder to write to: make it, or name another one"
        )
    ran = run(program)
    problem, found = ran.problem(), ran.found
    notes = {**found.others, **manifest.left_out(found, targets)}
    for other, reason in sorted(notes.items()):
        click.echo(f"note: {other}: {reason}", err=True)
    if problem and not found.kernels:
        click.echo(f"error: {problem}, and nothing was found", err=True)
        return 1
    text = manifest.manifest_text(found, name, targets, profiles)
    manifest.write_manifest(text, output)
    click.echo(f"{output}: {plural(text.count('[[kernels]]'), 'kernel')}")
    for placeholder in (manifest.NO_TARGET, manifest.NO_PROFILE):
        if json.dumps(placeholder) in text:
            click.echo(f"note: {output} has to be edited before it builds: {placeholder}", err=True)
    if problem:
        click.echo(f"error: {problem}", err=True)
    return 1 if problem else 0


def _profiles(devices: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in devices:
        target, equals, profile = text.partition("=")
        if not equals or not profile:
            raise ManifestError(f"--device {text}: expected TARGET=PROFILE, such as sm_90a=h200")
        found[target] = profile
    return found

"""``cutlass-aot capture``: the manifest of what a program compiles."""

from __future__ import annotations

from pathlib import Path

import click

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
@click.argument("program", nargs=-1, required=True, type=click.UNPROCESSED)
def command(output: Path, name: str, targets: tuple[str, ...], program: tuple[str, ...]) -> int:
    """Run PROGRAM, and write the manifest of the CuTe DSL kernels that it compiles.

    \b
        cutlass-aot capture -o app.toml -- python app.py

    It sees what goes through cutlass.operators, kernels declared with cutlass_aot.kernel, and what the policy
    jit compiles, which is the program's policy unless CUTLASS_AOT_POLICY says otherwise. Other kernels
    are named, with what to do about them. The program's own programs in Python are watched too.
    """
    from cutlass_aot.capture.manifest import manifest_text
    from cutlass_aot.capture.run import run

    status, found = run(program)
    for other, reason in sorted(found.others.items()):
        click.echo(f"note: {other}: {reason}", err=True)
    if status and not found.kernels:
        click.echo(f"error: the program ended with status {status}, and nothing was found", err=True)
        return 1
    text = manifest_text(found, name, targets)
    output.write_text(text, encoding="utf-8")
    click.echo(f"{output}: {plural(text.count('[[kernels]]'), 'kernel')}")
    if status:
        click.echo(f"error: the program ended with status {status}", err=True)
    return 1 if status else 0

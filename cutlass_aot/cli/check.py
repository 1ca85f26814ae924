"""``cutlass-aot check``: what changes a declared kernel and is not a parameter of it."""

from __future__ import annotations

from dataclasses import asdict

import click

from cutlass_aot.cli.output.render import json_option, print_json


@click.command("check")
@click.argument("names", metavar="KERNEL...", nargs=-1, required=True)
@click.option("--plugin", "plugins", multiple=True, help="Module to import first; may be repeated.")
@click.option("--target", help="GPU code target to compile for; a kernel's first one if left out.")
@json_option
def command(names: tuple[str, ...], plugins: tuple[str, ...], target: str | None, as_json: bool) -> int:
    """Compile declared kernels twice, under different circumstances, and compare.

    Exit status 1 if one depends on something that is not among its parameters.
    """
    from cutlass_aot.builder.check.undeclared import undeclared
    from cutlass_aot.generators.registry import import_plugin

    for plugin in plugins:
        import_plugin(plugin)
    found = {name: undeclared(name, target) for name in names}
    if as_json:
        print_json([{"kernel": name, **asdict(item)} for name, items in found.items() for item in items])
        return 1 if any(found.values()) else 0
    for name, items in found.items():
        if not items:
            click.echo(f"{name}: its code follows from its parameters")
        for item in items:
            click.echo(f"{name}: {item.message}")
    return 1 if any(found.values()) else 0

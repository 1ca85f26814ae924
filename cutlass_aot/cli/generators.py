"""``cutlass-aot generators``: the known sources of kernels."""

from __future__ import annotations

from typing import Any

import click

from cutlass_aot.cli.render import json_option, print_json


@click.command("generators")
@click.option("--plugin", "plugins", multiple=True, help="Module to import first; may be repeated.")
@json_option
def command(plugins: tuple[str, ...], as_json: bool) -> int:
    """List the known generators with their operations, targets and design names."""
    from cutlass_aot.generators.registry import import_plugin, references, version_of

    for plugin in plugins:
        import_plugin(plugin)
    described: list[dict[str, Any]] = []
    for name, reference in references().items():
        generator = reference.load()
        described.append(
            {
                "name": name,
                "location": reference.location,
                "version": version_of(generator),
                "operations": {
                    operation: list(generator.targets(operation)) for operation in generator.operations
                },
                "design": dict(generator.design),
            }
        )
    if as_json:
        print_json(described)
        return 0
    for item in described:
        click.echo(f"{item['name']}  ({item['location']}, version {item['version']})")
        for operation, targets in item["operations"].items():
            click.echo(f"  {operation}: {' '.join(targets)}")
        for name, meaning in item["design"].items():
            click.echo(f"    {name}: {meaning}")
    return 0

"""``cutlass-aot generators``: the known sources of kernels; ``cutlass-aot check``: what they depend on."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from cutlass_aot.cli.options import json_option, plugin_option
from cutlass_aot.cli.output.render import print_json, prose
from cutlass_aot.cli.output.terminal import lines_of, say
from cutlass_aot.errors import CutlassAotError


@click.command("generators")
@plugin_option
@json_option
def command(plugins: tuple[str, ...], as_json: bool) -> int:
    """List the known generators with their operations, targets and design names.

    One that cannot be used is named after the others, with its problem.
    """
    from cutlass_aot.builder.toolchain import require_build_side
    from cutlass_aot.generators.registry import import_plugin, references, version_of

    for plugin in plugins:
        import_plugin(plugin)
    described: list[dict[str, Any]] = []
    broken: list[dict[str, Any]] = []
    for name, reference in references().items():
        where = {"name": name, "location": reference.location}
        try:
            generator = reference.load()
            facts = {
                "version": version_of(generator),
                "operations": {
                    operation: list(generator.targets(operation)) for operation in generator.operations
                },
                "design": dict(generator.design),
            }
        except CutlassAotError as error:
            broken.append({**where, "problem": str(error)})
        except Exception as error:  # Somebody else's code: whatever it raises must not hide the others.
            problem = f"generator {name!r} ({reference.location}) raised {type(error).__name__}: {error}"
            broken.append({**where, "problem": problem})
        else:
            described.append({**where, **facts})
    if as_json:
        print_json([*described, *broken])
        return 1 if broken else 0
    for item in described:
        say(*prose(f"{item['name']}  ({item['location']}, version {item['version']})"))
        for operation, targets in item["operations"].items():
            say(*prose(f"  {operation}: {' '.join(targets)}", 6))
        for name, meaning in item["design"].items():
            say(*prose(f"    {name}: {' '.join(meaning.split())}", 6))
    for item in broken:
        say(*lines_of(f"error: {item['problem']}"), err=True)
    if broken:
        require_build_side()
    return 1 if broken else 0


@click.command("check")
@click.argument("names", metavar="KERNEL...", nargs=-1, required=True)
@plugin_option
@click.option("--target", help="GPU code target to compile for; a kernel's first one if left out.")
@json_option
def check(names: tuple[str, ...], plugins: tuple[str, ...], target: str | None, as_json: bool) -> int:
    """Compile declared kernels twice, under different circumstances, and compare.

    KERNEL is the name of a declared kernel, or the file that declares it, such as axpy_kernels/declared.py,
    which need not be installed (FILE.py:NAME if there are several).

    Exit status 1 if one depends on something that is not among its parameters.
    """
    from cutlass_aot.builder.check.undeclared import undeclared
    from cutlass_aot.builder.toolchain import require_build_side
    from cutlass_aot.generators.registry import import_plugin, named

    require_build_side()

    for plugin in plugins:
        import_plugin(plugin)
    kernels = [named(kernel).name for kernel in names]
    if not as_json:
        say(f"importing the DSL, compiling {', '.join(kernels)} several times", err=True)
    found = {name: undeclared(name, target) for name in kernels}
    if as_json:
        print_json([{"kernel": name, **asdict(item)} for name, items in found.items() for item in items])
        return 1 if any(found.values()) else 0
    for name, items in found.items():
        if not items:
            say(f"{name}: its code follows from its parameters")
        for item in items:
            say(*lines_of(f"{name}: {item.message}"))
    return 1 if any(found.values()) else 0

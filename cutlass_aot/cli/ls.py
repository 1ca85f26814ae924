"""``cutlass-aot ls``: the kernels of a bundle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cutlass_aot.cli.options import bundle_argument
from cutlass_aot.cli.render import json_option, print_json, table
from cutlass_aot.words import plural

if TYPE_CHECKING:
    from cutlass_aot.runtime.handle import KernelHandle

_SHOWN = 16
"""Values of one filter that are named where nothing matches."""

_FILTERS = {
    "operation": "Operation, such as gemm.",
    "target": "GPU code target, such as sm_90a.",
    "dtypes": "Element types of the operands, such as f16.f16.f32 or 'bf16.*'.",
    "layouts": "Layout letters of the operands, such as tnt.",
    "accumulator": "Element type of the accumulator.",
    "generator": "Generator.",
    "name": "Kernel name.",
}


def _filter_options(function: Any) -> Any:
    for name, meaning in reversed(_FILTERS.items()):
        function = click.option(f"--{name}", multiple=True, metavar="PATTERN", help=meaning)(function)
    return function


@click.command("ls")
@bundle_argument
@_filter_options
@click.option(
    "--where",
    multiple=True,
    metavar="NAME=PATTERN",
    help="A name in the design or a parameter, such as tile_shape=256x128 or n=4096.",
)
@json_option
def command(bundle: Path, where: tuple[str, ...], as_json: bool, **filters: tuple[str, ...]) -> int:
    """List the kernels of BUNDLE that match every option given.

    Each option takes a shell pattern. An option that is repeated gives alternatives, of which one has to
    match; so does a name repeated in --where.
    """
    from cutlass_aot.runtime.bundle import open_bundle
    from cutlass_aot.runtime.listing import values

    wanted = {name: list(patterns) for name, patterns in filters.items() if patterns}
    for item in where:
        name, equals, pattern = item.partition("=")
        if not equals or not name or not pattern:
            raise click.BadParameter(f"{item!r}: expected NAME=PATTERN", param_hint="--where")
        wanted.setdefault(name, []).append(pattern)
    opened = open_bundle(bundle, check=False)
    kernels = opened.kernels(**wanted)
    if as_json:
        print_json([kernel_summary(handle) for handle in kernels])
        return 0
    rows = [
        (handle.name, handle.facts.registers, handle.facts.spill_bytes, handle.facts.cubin_bytes)
        for handle in kernels
    ]
    if not rows and wanted:
        everything = opened.kernels()
        click.echo(f"nothing of {opened.name} {opened.version} matches; it has")
        for name in wanted:
            click.echo(f"  {name}: {_few(values(everything, name))}")
        return 0
    if rows:
        click.echo(table(rows, ("kernel", "registers", "spill bytes", "cubin bytes")))
    targets = sorted({handle.target for handle in kernels})
    shown = f"{plural(len(kernels), 'kernel')} of {opened.name} {opened.version}"
    tuned = f"; tuned for {', '.join(opened.tuned_for)}" if opened.tuned_for else ""
    click.echo(f"{shown}, for {', '.join(targets) or 'no target'}{tuned}")
    return 0


def _few(texts: Sequence[str]) -> str:
    shown = ", ".join(text or "''" for text in texts[:_SHOWN])
    return shown + (f", and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else "")


def kernel_summary(handle: KernelHandle) -> dict[str, Any]:
    """One kernel as plain data: what a script selects by."""
    kernel = handle.kernel
    return {
        "name": handle.name,
        "digest": handle.digest,
        "group": handle.group.name,
        "operation": kernel.operation,
        "target": kernel.target,
        "dtypes": [operand.dtype for operand in kernel.operands],
        "layouts": kernel.layouts,
        "accumulator": kernel.accumulator,
        "epilogue": kernel.epilogue,
        "generator": kernel.generator,
        "design": dict(kernel.design),
        "parameters": dict(kernel.parameters),
        "constants": dict(kernel.constants),
        "workspace_bytes": kernel.workspace_bytes,
        "facts": handle.facts.to_record(),
    }

"""``cutlass-aot ls``: the kernels of a bundle; ``cutlass-aot installed``: the bundles that are installed."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cutlass_aot.cli.options import bundle_argument, filter_options, filters_given, json_option
from cutlass_aot.cli.output.operand_lines import group_lines
from cutlass_aot.cli.output.render import own_name, print_json, table
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.schema.codec import to_plain
from cutlass_aot.schema.words import by_numbers, did_you_mean, few, plural, size

if TYPE_CHECKING:
    from cutlass_aot.runtime.opened.kernel_handle import KernelHandle

_SHOWN = 16
"""Most values of a filter that are listed if nothing matches."""


@click.command("ls")
@bundle_argument
@filter_options(
    operation="Operation, such as gemm.",
    target="GPU code target, such as sm_90a.",
    dtypes="Element types of the operands, such as f16.f16.f32 or 'bf16.*'.",
    layouts="Layout letters of the operands, such as tnt.",
    accumulator="Element type of the accumulator.",
    accumulation="Sums of FP8 on sm_90a, exact or fast.",
    generator="Generator.",
    name="Kernel name.",
)
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
    from cutlass_aot.runtime.opened.filters import values

    patterns = filters_given(filters)
    for item in where:
        name, equals, pattern = item.partition("=")
        if not equals or not name or not pattern:
            raise click.BadParameter(f"{item!r}: expected NAME=PATTERN", param_hint="--where")
        patterns.setdefault(name, []).append(pattern)
    opened = open_bundle(bundle, check=False)
    kernels = opened.kernels(**patterns)
    if as_json:
        print_json([kernel_summary(handle) for handle in kernels])
        return 1 if patterns and not kernels else 0
    rows: list[tuple[object, ...]] = [
        (
            handle.facts.registers,
            size(handle.facts.spill_bytes),
            size(handle.facts.cubin_bytes),
            own_name(handle.kernel),
        )
        for handle in kernels
    ]
    groups = [handle.group.name for handle in kernels]
    header: tuple[str, ...] = ("registers", "spills", "cubin", "kernel")
    if any(handle.group.requests for handle in kernels):
        apart = _set_apart(kernels)
        rows = [(*row, apart.get(handle.digest, "")) for row, handle in zip(rows, kernels, strict=True)]
        places = {group: place for place, group in enumerate(dict.fromkeys(h.group.name for h in kernels))}
        order = [(places[h.group.name], by_numbers(apart.get(h.digest, ""))) for h in kernels]
        by_request = sorted(zip(order, groups, rows, strict=True), key=itemgetter(0))
        groups, rows = [group for _, group, _ in by_request], [row for _, _, row in by_request]
        header = (*header, "request")
    if not rows and patterns:
        everything = opened.kernels()
        say(f"nothing of {opened.name} {opened.version} matches; it has")
        for name in patterns:
            shown = few((value or "''" for value in values(everything, name)), _SHOWN)
            say(f"  {name}: {shown}")
        return 1
    if rows:
        lines = group_lines({handle.group.name: handle.kernel for handle in kernels})
        say(*table(rows, header, [(group, *lines[group]) for group in groups]))
    targets = sorted({handle.target for handle in kernels}, key=by_numbers)
    shown = f"{plural(len(kernels), 'kernel')} of {opened.name} {opened.version}"
    tuned = f"; tuned for {', '.join(opened.tuned_for)}" if opened.tuned_for else ""
    say(f"{shown}, for {', '.join(targets) or 'no target'}{tuned}")
    return 0


@click.command("installed")
@click.argument("name", required=False)
@click.option(
    "--path",
    "paths",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Search this directory first; may be repeated.",
)
@json_option
def installed(name: str | None, paths: tuple[Path, ...], as_json: bool) -> int:
    """List installed bundles, of NAME or of all, and say which one cutlass_aot.open_installed opens.

    Bundles are searched for in the directories of --path, in those of CUTLASS_AOT_BUNDLE_PATH, and among what
    is installed.
    """
    from cutlass_aot.runtime.installed import installed_report

    found = installed_report(name, paths=paths)
    if as_json:
        print_json([to_plain(item) for item in found])
    for item in () if as_json else found:
        say(str(item))
    if not found and not as_json:
        meant = did_you_mean(name, [item.name for item in installed_report(paths=paths) if item.targets])
        say(f"no bundle{f' {name}' if name else ''} is installed{meant}")
    return 1 if name and not found else 0


def _set_apart(kernels: Sequence[KernelHandle]) -> dict[str, str]:
    """What distinguishes each kernel of a request from those listed of its group, by digest."""
    from cutlass_aot.cli.output.request_lines import set_apart

    groups: dict[str, list[KernelHandle]] = {}
    for handle in kernels:
        groups.setdefault(handle.group.name, []).append(handle)
    found: dict[str, str] = {}
    for handles in groups.values():
        requests = [handle.request.request for handle in handles if handle.request is not None]
        if requests:
            found |= dict(zip([handle.digest for handle in handles], set_apart(requests), strict=True))
    return found


def kernel_summary(handle: KernelHandle) -> dict[str, Any]:
    """One kernel as plain data, for scripts that select."""
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
        "accumulation": kernel.accumulation,
        "epilogue": kernel.epilogue,
        "generator": kernel.generator,
        "design": dict(kernel.design),
        "parameters": dict(kernel.parameters),
        "constants": dict(kernel.constants),
        "workspace_bytes": kernel.workspace_bytes,
        "facts": to_plain(handle.facts),
    }

"""``cutlass-aot show``: one kernel of a bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cutlass_aot.cli.ls import kernel_summary
from cutlass_aot.cli.options import bundle_argument, json_option
from cutlass_aot.cli.output.operand_lines import operand_lines
from cutlass_aot.cli.output.render import print_json, prose
from cutlass_aot.cli.output.request_lines import request_lines, request_record
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.schema.codec import to_plain
from cutlass_aot.schema.words import plural, size

if TYPE_CHECKING:
    from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
    from cutlass_aot.schema.bundles.catalog import GroupEntry


@click.command("show")
@bundle_argument
@click.argument("kernel")
@json_option
def command(bundle: Path, kernel: str, as_json: bool) -> int:
    """Show one kernel of BUNDLE: operands and design, or the request that it answers; what the compiler made
    of it, where it comes from, and by what measurements kernels of its group are chosen.

    KERNEL is a name as ls prints it, or the beginning of a name or digest that one kernel has; a request's
    digest will do.
    """
    from cutlass_aot.runtime.bundle import open_bundle

    handle = open_bundle(bundle, check=False).kernel(kernel)
    answered = handle.request
    if as_json:
        print_json(
            {
                **kernel_summary(handle),
                "operands": [to_plain(operand) for operand in handle.kernel.operands],
                "symbol": handle.kernel.symbol,
                "object_sha256": handle.entry.object_sha256,
                "code": {**to_plain(handle.group.code), "span": handle.entry.code._asdict()},
                "libraries": {
                    host: to_plain(references[handle.entry.library])
                    for host, references in handle.group.libraries.items()
                },
                "provenance": dict(handle.entry.provenance),
                **({} if answered is None else request_record(answered)),
            }
        )
        return 0
    for name, value in (*_lines(handle), *_rankings(bundle, handle.group)):
        line = f"{name:<18}{value}"
        # A single word, such as a kernel's name, stays beside its title however long it is.
        say(*prose(line, 20) if " " in str(value) else [line])
    return 0


def _lines(handle: KernelHandle) -> list[tuple[str, Any]]:
    kernel, facts = handle.kernel, handle.facts
    lines: list[tuple[str, Any]] = [
        ("kernel", handle.name),
        ("digest", handle.digest),
        ("operation", kernel.operation + (f", epilogue {kernel.epilogue}" if kernel.epilogue else "")),
        ("target", kernel.target),
    ]
    lines += operand_lines(kernel.operands)
    if kernel.accumulator:
        lines.append(("accumulator", kernel.accumulator))
    if kernel.accumulation:
        lines.append(("accumulation", kernel.accumulation))
    if handle.request is not None:
        # Its parameters and its design are the callable's name and the request's digest.
        lines += request_lines(handle.request)
    else:
        for index, (name, value) in enumerate(kernel.parameters):
            lines.append(("" if index else "parameters", f"{name} = {value}"))
        for index, (name, value) in enumerate(kernel.design):
            text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
            lines.append(("" if index else "design", f"{name} = {text}"))
    for index, (name, number) in enumerate(kernel.constants):
        lines.append(("" if index else "device constants", f"{name} = {number}"))
    lines += [
        ("workspace", size(kernel.workspace_bytes) if kernel.workspace_bytes else "none"),
        ("registers", f"{facts.registers} a thread"),
        ("spills", size(facts.spill_bytes) + " a thread" if facts.spill_bytes else "none"),
        ("shared memory", f"{size(facts.shared_memory_bytes)} static; a launch asks for what it needs"),
        ("cubin", f"{size(facts.cubin_bytes)}, {facts.cubin_target}, ptxas {facts.ptxas_version}"),
        ("object", f"sha256:{handle.entry.object_sha256}"),
    ]
    packed, span = handle.group.code, handle.entry.code
    lines.append(("GPU code", f"{packed.path} ({size(packed.size)}), {size(span.size)} of what it holds"))
    for index, (host, references) in enumerate(sorted(handle.group.libraries.items())):
        library = references[handle.entry.library]
        lines.append(("" if index else "host code", f"{library.path} ({size(library.size)}, {host})"))
    for index, (name, text) in enumerate(sorted(handle.entry.provenance.items())):
        lines.append(("" if index else "provenance", f"{name} {text}"))
    return lines


def _rankings(bundle: Path, group: GroupEntry) -> list[tuple[str, str]]:
    """What is known of the speed of a group's kernels, and how well the cost model chooses among them."""
    from cutlass_aot.runtime.files.verified_read import read_file
    from cutlass_aot.schema.tuning.ranking import Ranking

    lines = []
    for index, reference in enumerate(group.rankings):
        ranking = Ranking.from_bytes(read_file(bundle, reference.file), str(bundle / reference.file.path))
        known = f"{plural(len(ranking.problems), 'problem')}, {ranking.origin}"
        lines.append(("" if index else "rankings", known))
    return lines

"""``cutlass-aot diff``: what two bundles, reports of builds or plans differ in."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from cutlass_aot.cli.options import json_option
from cutlass_aot.cli.output.render import print_json, table
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.schema.words import plural, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cutlass_aot.diff.compare import Change, Difference
    from cutlass_aot.diff.listing import ListedKernel, Listing


@click.command("diff")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@json_option
def command(first: str, second: str, as_json: bool) -> int:
    """Show which kernels B has beyond those of A, which it lacks, and which are different in it.

    A and B are bundles (directories, or names of installed ones), reports that `build --report` wrote, or
    outputs of `plan --json`; one of each will do. Registers, spills, shared memory and sizes are compared as
    far as both have them, and so are the times that `tune` measured and that compiling took. The exit status
    is 0 whether they differ or not.
    """
    from cutlass_aot.diff.compare import compare
    from cutlass_aot.diff.listing import read_listing

    one, two = read_listing(first), read_listing(second)
    found = compare(one, two)
    if as_json:
        print_json(_record(one, two, found))
    else:
        for name, listing in ((first, one), (second, two)):
            holds = "" if listing.size is None else f", {size(listing.size)}"
            title = f"{listing.what} {listing.title}"
            say(f"{name}: {title}: {plural(len(listing.kernels), 'kernel')}{holds}")
        _tell(one, two, found)
    return 0


def _tell(one: Listing, two: Listing, found: Difference) -> None:
    for title, kernels in (("added", found.added), ("removed", found.removed)):
        if kernels:
            say("", f"{title}: {plural(len(kernels), 'kernel')}", *_listed(kernels))
    if found.changed:
        say("", f"changed: {plural(len(found.changed), 'kernel')}")
        rows = [(row, change.kernel) for change in found.changed for row in _rows(change)]
        groups = [(kernel.group, f"  {kernel.design}") for _, kernel in rows]
        say(*table([row for row, _ in rows], ("  what", "A", "B", "by"), groups))
    if found.speeds:
        say("", "measured times of B by those of A")
        speeds = [(f"{item.ratio:.3f}", item.problems, item.gpu, item.kernel) for item in found.speeds]
        say(*table(speeds, ("B / A", "problems", "GPU", "kernel")))
    say()
    if one.size is not None and two.size is not None and one.size != two.size:
        say(f"size: {size(one.size)} to {size(two.size)}, {_by(one.size, two.size)}")
    if found.compile_seconds is not None:
        before, after = found.compile_seconds
        say(f"compiling what both have took {before:.1f} s in A and {after:.1f} s in B")
    counts = (len(found.added), len(found.removed), len(found.changed), found.equal)
    names = ("added", "removed", "changed", "equal")
    say(", ".join(f"{count} {name}" for count, name in zip(counts, names, strict=True)))


def _listed(kernels: Sequence[ListedKernel]) -> list[str]:
    rows = [
        (
            "-" if kernel.registers is None else kernel.registers,
            "-" if kernel.spill_bytes is None else size(kernel.spill_bytes),
            "-" if kernel.code_bytes is None else size(kernel.code_bytes),
            kernel.design,
        )
        for kernel in kernels
    ]
    header = ("registers", "spills", "cubin", "kernel")
    return table(rows, header, [(kernel.group,) for kernel in kernels])


def _rows(change: Change) -> list[tuple[str, str, str, str]]:
    from cutlass_aot.diff.listing import NUMBERS

    rows = []
    for name, (before, after) in change.numbers.items():
        shown = str if name == "registers" else size
        rows.append((f"    {NUMBERS[name]}", shown(before), shown(after), _by(before, after)))
    return rows or [("    code", "", "", "another object, or another toolchain")]


def _by(before: int, after: int) -> str:
    return f"{100 * (after - before) / before:+.1f} %" if before else "new"


def _record(one: Listing, two: Listing, found: Difference) -> dict[str, Any]:
    def about(listing: Listing) -> dict[str, Any]:
        return {
            "what": listing.what,
            "title": listing.title,
            "bytes": listing.size,
            "kernels": len(listing.kernels),
        }

    def named(kernels: Sequence[ListedKernel]) -> list[dict[str, Any]]:
        return [{"name": kernel.name, **asdict(kernel)} for kernel in kernels]

    return {
        "a": about(one),
        "b": about(two),
        "added": named(found.added),
        "removed": named(found.removed),
        "changed": [{"name": item.kernel.name, "code": item.code, **item.numbers} for item in found.changed],
        "equal": found.equal,
        "speeds": [asdict(speed) for speed in found.speeds],
        "compile_seconds": found.compile_seconds,
    }

"""``cutlass-aot choose``: the kernel that a bundle takes for a problem, without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cutlass_aot.cli.options import (
    bundle_argument,
    extent_option,
    extents_given,
    filter_options,
    filters_given,
    json_option,
)
from cutlass_aot.cli.output.render import own_name, print_json, prose, table
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.errors import KernelNotFound
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.schema.words import few, plural

if TYPE_CHECKING:
    from cutlass_aot.runtime.bundle import Bundle
    from cutlass_aot.runtime.opened.finder import Choice
    from cutlass_aot.schema.bundles.catalog import GroupEntry

_extent = click.IntRange(1)


@click.command("choose")
@bundle_argument
@click.option("--m", type=_extent, help="Rows of the output of a GEMM.")
@click.option("--n", type=_extent, help="Columns of it.")
@click.option("--k", type=_extent, help="Length of the sums.")
@click.option("--batch", type=_extent, default=1, show_default=True, help="Products in the batch.")
@extent_option
@click.option(
    "--gpu", metavar="MODEL", help='GPU to choose for, as the driver names it, such as "NVIDIA H200".'
)
@filter_options(
    dtypes="Element types of the operands, such as bf16.bf16.bf16.",
    layouts="Layout letters of the operands, such as tnt.",
    accumulator="Element type of the accumulator.",
    epilogue="Formula of the epilogue.",
    target="GPU code target, such as sm_90a.",
)
@click.option("--top", type=click.IntRange(1), default=4, show_default=True, help="Kernels to show.")
@json_option
def command(
    bundle: Path,
    m: int | None,
    n: int | None,
    k: int | None,
    batch: int,
    extents: tuple[str, ...],
    gpu: str | None,
    top: int,
    as_json: bool,
    **filters: tuple[str, ...],
) -> int:
    """Show which kernel of BUNDLE a problem of these extents takes, why, and what is expected of it.

    The problem is a GEMM by --m, --n and --k, or one of other kernels by --extent for each name that their
    operands have. No GPU is needed: --gpu names the one to choose for. Operands are taken to be packed. For
    each kind of problem that BUNDLE has and the filters leave, the first kernels are shown, with their
    expected times if these are known.

    \b
      cutlass-aot choose build/bundles/sm90 --m 16 --n 4096 --k 4096 --gpu "NVIDIA H200"
      cutlass-aot choose build/bundles/axpy --extent N=1000000
    """
    from cutlass_aot.runtime.bundle import open_bundle

    opened = open_bundle(bundle, check=False)
    problem: Mapping[Any, int]
    if extents:
        if (m, n, k) != (None, None, None):
            raise click.UsageError("--extent is for what is not a GEMM: it does not go with --m, --n and --k")
        problem = extents_given(extents)
        named = ", ".join(f"{name} = {extent}" for name, extent in problem.items())
    elif m is None or n is None or k is None:
        missing = next(name for name, value in (("m", m), ("n", n), ("k", k)) if value is None)
        raise click.UsageError(f"Missing option '--{missing}', or '--extent' for what is not a GEMM.")
    else:
        gemm = Extents(batch, m, n, k)
        problem, named = gemm.by_name, str(gemm)
    found, refused = _choices(opened, problem, gpu, filters_given(filters), own=bool(extents))
    if not found:
        reasons = few([f"{name}: {reason}" for name, reason in refused.items()], 4) if refused else ""
        kind = "kernel" if extents else "GEMM"
        raise KernelNotFound(
            f"{opened.name} has no {kind} for {named}: {reasons or f'no {kind} matches the filters'}"
        )
    if as_json:
        print_json([_record(group, choice, top) for group, choice in found])
        return 0
    for number, (group, choice) in enumerate(found):
        expected = choice.expected
        say(*[""] * bool(number), *prose(f"{group.name}: {choice.tier}: {choice.reason}"))
        rows = [
            (_microseconds(item.microseconds), item.bound, own_name(item.kernel.kernel))
            for item in expected[:top]
        ]
        say(*table(rows, ("µs", "most of it", "kernel")))
        if len(expected) > top:
            say(f"and {plural(len(expected) - top, 'other kernel')}; --top shows more")
    return 0


def _choices(
    bundle: Bundle,
    extents: Mapping[Any, int],
    gpu: str | None,
    filters: dict[str, list[str]],
    *,
    own: bool,
) -> tuple[list[tuple[GroupEntry, Choice]], dict[str, str]]:
    """The choice for each group that serves the problem, but once for groups that serve the same calls.

    And why the other groups that match the filters do not serve it, by their names. The problem is that of a
    GEMM, or of ``own`` kernels.
    """
    from cutlass_aot.runtime.opened.filters import group_matches
    from cutlass_aot.schema.kernels.operands import extent_names, packed, supports

    found: dict[object, tuple[GroupEntry, Choice]] = {}
    refused = {}
    for group in bundle.groups:
        if own is (group.operation == "gemm") or group.requests or not group_matches(group, filters):
            continue
        names = extent_names(group.operands)
        if own and set(names) != extents.keys():
            refused[group.name] = f"its extents are {', '.join(names)}"
            continue
        operands = packed(group.operands, extents)
        verdict = supports(group.operands, operands)
        if not verdict:
            refused[group.name] = verdict.reason
            continue
        choice = bundle.choose(
            *operands,
            operation=group.operation,
            accumulator=group.accumulator,
            epilogue=group.epilogue,
            parameters=dict(group.parameters),
            target=group.target,
            gpu=gpu,
        )
        found.setdefault(
            (choice.kernel.digest, tuple(operand.dtype for operand in operands)), (group, choice)
        )
    return list(found.values()), refused


def _microseconds(time: float | None) -> str:
    return "-" if time is None else f"{time:.1f}"


def _record(group: GroupEntry, choice: Choice, top: int) -> dict[str, Any]:
    return {
        "group": group.name,
        "tier": choice.tier,
        "reason": choice.reason,
        "kernels": [
            {"name": item.kernel.name, "microseconds": item.microseconds, "bound": item.bound}
            for item in choice.expected[:top]
        ],
    }

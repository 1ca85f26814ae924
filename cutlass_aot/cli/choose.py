"""``cutlass-aot choose``: the kernel that a bundle takes for a problem, without a GPU."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
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
    pairs_given,
)
from cutlass_aot.cli.output.operand_lines import group_lines
from cutlass_aot.cli.output.render import own_name, print_json, prose, table
from cutlass_aot.cli.output.terminal import say
from cutlass_aot.errors import KernelNotFound
from cutlass_aot.schema.kernels.accumulation import EXACT
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.schema.words import closest, did_you_mean, few, plural

if TYPE_CHECKING:
    from cutlass_aot.runtime.bundle import Bundle
    from cutlass_aot.runtime.opened.finder import Choice, Expected
    from cutlass_aot.schema.bundles.catalog import GroupEntry
    from cutlass_aot.schema.kernels.constraints import Extent, OperandConstraint

_extent = click.IntRange(1)
_FILTERS = {
    "operation": "Operation, such as grouped_gemm.",
    "dtypes": "Element types of the operands, such as bf16.bf16.bf16.",
    "layouts": "Layout letters of the operands, such as tnt.",
    "accumulator": "Element type of the accumulator.",
    "accumulation": "Sums of FP8 on sm_90a, exact or fast.",
    "epilogue": "Formula of the epilogue.",
    "target": "GPU code target, such as sm_90a.",
}


@click.command("choose")
@bundle_argument
@click.option("--m", type=_extent, help="Rows of the output of a GEMM.")
@click.option("--n", type=_extent, help="Columns of it.")
@click.option("--k", type=_extent, help="Length of the sums.")
@click.option("--batch", type=_extent, default=1, show_default=True, help="Products in the batch.")
@extent_option
@click.option(
    "--gpu",
    metavar="MODEL",
    help='GPU to choose for, such as H200, or as the driver names it, such as "NVIDIA H200 NVL".',
)
@filter_options(**_FILTERS)
@click.option(
    "--where",
    multiple=True,
    metavar="NAME=PATTERN",
    help="A parameter of a declared kernel, such as dtype=f32; may be repeated.",
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
    where: tuple[str, ...],
    top: int,
    as_json: bool,
    **filters: tuple[str, ...],
) -> int:
    """Show which kernel of BUNDLE a problem of these extents takes, why, and what is expected of it.

    The problem is a GEMM by --m, --n and --k, or one of other kernels by --extent for each name that their
    operands have. No GPU is needed: --gpu names the one to choose for, and leaves the targets that run on it;
    a model that neither BUNDLE was measured on nor cutlass-aot knows is refused. Operands are taken to be
    packed. For each kind of problem that BUNDLE has and the filters leave, such as each element type, the
    first kernels are shown, with their expected times, or their costs by a formula, if
    these are known; the last line says which options leave one.

    \b
      cutlass-aot choose build/bundles/sm90 --m 16 --n 4096 --k 4096 --gpu H200
      cutlass-aot choose build/bundles/axpy --extent N=1000000
    """
    from cutlass_aot.runtime.bundle import open_bundle
    from cutlass_aot.runtime.opened.filters import group_matches, parameters_match
    from cutlass_aot.schema.kernels.operands import extent_names

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
    if gpu is not None:
        _require_known(opened, gpu)
    given = filters_given(filters)
    parameters = _parameters(opened, pairs_given(where, "--where"))
    found, refused = _choices(opened, problem, gpu, given, parameters, own=bool(extents))
    # Kernels of other operations, which a bundle may have beside GEMMs.
    others = {
        group.operation: group.operands
        for group in opened.groups
        if not (extents or group.operation == "gemm" or group.requests)
        and group_matches(group, given) and parameters_match(group, parameters)
    }  # fmt: skip
    ways = [
        f"{operation} is chosen by {' '.join(f'--extent {name}=...' for name in extent_names(operands))}"
        f"{_where(operands)}"
        for operation, operands in others.items()
    ]
    if not found:
        kind = "kernel" if extents else "GEMM"
        reasons = few(
            [*(f"{reason} ({few(names, 2)})" for reason, names in refused.items()), *ways], 4, separator="; "
        )
        if not (refused or ways):
            reasons = f"no {kind} matches the filters{_present(opened, given, parameters)}"
            if not (given or parameters):
                gemms = any(group.operation == "gemm" for group in opened.groups)
                requests = any(group.requests for group in opened.groups)
                there = ["GEMMs, which --m, --n and --k name"] * gemms + ["requests of programs"] * requests
                reasons = f"it has {' and '.join(there) or 'no kernels'}"
        raise KernelNotFound(f"{opened.name} has no {kind} for {named}: {reasons}")
    if as_json:
        print_json([_record(group, choice, top) for group, choice in found])
        return 0
    lines = group_lines({group.name: choice.kernel.kernel for group, choice in found})
    for number, (group, choice) in enumerate(found):
        expected = choice.expected
        heading = [*prose(f"{group.name}: {choice.tier}: {choice.reason}"), *lines[group.name]]
        say(*[""] * bool(number), *heading)
        say(*_table(expected[:top]))
        if len(expected) > top:
            say(f"and {plural(len(expected) - top, 'other kernel')}; --top shows more")
    if differences := _differences([group for group, _ in found]):
        say("", *prose(f"{len(found)} choices; name one by {differences}"))
    for way in ways:
        say("", *prose(way))
    return 0


def _parameters(bundle: Bundle, where: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    """Patterns for parameters of declared kernels, by their names."""
    known = sorted({name for group in bundle.groups for name, _ in group.parameters})
    found: dict[str, list[str]] = {}
    for name, pattern in where:
        if name not in known:
            raise click.BadParameter(
                f"no kernel of {bundle.name} has a parameter {name!r}: it has {few(known, 24)}"
                f"{did_you_mean(name, known)}",
                param_hint="--where",
            )
        found.setdefault(name, []).append(pattern)
    return found


def _differences(groups: Sequence[GroupEntry]) -> str:
    """The options that tell groups apart, with the values that they have; ``""`` for one group."""
    from cutlass_aot.runtime.opened.filters import text_of, value_of

    differing: dict[str, list[str]] = {}
    for name in _FILTERS:
        texts = [value_of(group, name) for group in groups]
        if len(set(texts)) > 1:
            differing[f"--{name}"] = texts
    if len(set(zip(*differing.values(), strict=True))) < len(groups):
        for name in sorted({name for group in groups for name, _ in group.parameters}):
            texts = [text_of(dict(group.parameters).get(name, "")) for group in groups]
            if len(set(texts)) > 1:
                differing[f"--where {name}="] = texts
    shown = {option: sorted(text or "''" for text in set(texts)) for option, texts in differing.items()}
    return " and ".join(f"{option} ({few(texts, 6)})" for option, texts in shown.items())


def _choices(
    bundle: Bundle,
    extents: Mapping[Any, int],
    gpu: str | None,
    filters: Mapping[str, list[str]],
    parameters: Mapping[str, list[str]],
    *,
    own: bool,
) -> tuple[list[tuple[GroupEntry, Choice]], dict[str, list[str]]]:
    """The choice for each group that serves the problem, but once for groups that serve the same calls.

    And the names of the other groups that match the filters by the reason why they do not serve it. The
    problem is that of a GEMM, or of ``own`` kernels; ``parameters`` are patterns for those of declared ones.
    """
    from cutlass_aot.runtime.opened.filters import group_matches, parameters_match
    from cutlass_aot.schema.drivers import compute_capability_of
    from cutlass_aot.schema.kernels.operands import extent_names, packed, supports
    from cutlass_aot.schema.targets import Target

    capability = None if gpu is None else compute_capability_of(gpu)
    found: dict[object, tuple[GroupEntry, Choice]] = {}
    refused: dict[str, list[str]] = {}
    for group in bundle.groups:
        if own is (group.operation == "gemm") or group.requests:
            continue
        if not (group_matches(group, filters) and parameters_match(group, parameters)):
            continue
        names = extent_names(group.operands)
        if own and set(names) != extents.keys():
            refused.setdefault(_other_extents(group.operands, extents), []).append(group.name)
            continue
        operands = packed(group.operands, extents)
        verdict = supports(group.operands, operands)
        if not verdict:
            refused.setdefault(verdict.reason, []).append(group.name)
            continue
        if capability and not Target.parse(group.target).runs_on(capability):
            text = (
                f"{group.target} does not run on compute capability {capability[0]}.{capability[1]} of {gpu}"
            )
            refused.setdefault(text, []).append(group.name)
            continue
        choice = bundle.choose(
            *operands,
            operation=group.operation,
            accumulator=group.accumulator,
            accumulation=group.accumulation or EXACT,
            epilogue=group.epilogue,
            parameters=dict(group.parameters),
            target=group.target,
            gpu=gpu,
        )
        found.setdefault(
            (choice.kernel.digest, tuple(operand.dtype for operand in operands)), (group, choice)
        )
    return list(found.values()), refused


def _present(bundle: Bundle, filters: Collection[str], parameters: Collection[str]) -> str:
    """What a bundle has of what filters that match nothing ask for."""
    from cutlass_aot.runtime.opened.filters import values

    kernels = bundle.kernels()
    options = {f"--{name}": name for name in filters} | {f"--where {name}=": name for name in parameters}
    there = {
        option: few([value or "''" for value in values(kernels, name)], 6) for option, name in options.items()
    }
    shown = "; ".join(f"{option}: {text}" for option, text in there.items())
    return f"; it has {shown}" if shown else ""


def _relations(operands: Sequence[OperandConstraint]) -> dict[Extent, OperandConstraint]:
    """Extents that tell a named one, such as ``128 * B``: one for each name, with the operand that has it."""
    from cutlass_aot.schema.kernels.constraints import extent_of

    found: dict[str, tuple[Extent, OperandConstraint]] = {}
    for operand in operands:
        for text in operand.extents:
            extent = extent_of(text) if isinstance(text, str) else None
            if extent and not (extent.is_plain or extent.is_quotient):
                found.setdefault(extent.name, (extent, operand))
    return dict(found.values())


def _where(operands: Sequence[OperandConstraint]) -> str:
    """What those of the extents mean that stand for a part of an operand's."""
    shown = dict.fromkeys(_relations(operands).values())
    shapes = (f"`{operand.name}` is ({', '.join(map(str, operand.extents))})" for operand in shown)
    return "".join(f", where {shape}" for shape in shapes)


def _other_extents(operands: Sequence[OperandConstraint], given: Mapping[Any, int]) -> str:
    """Why a problem with the ``given`` extents is none of kernels with these operands, and what to type."""
    from cutlass_aot.schema.kernels.operands import extent_names

    known = extent_names(operands)
    problems = [f"--extent {name} is missing" for name in known if name not in given]
    problems += [
        f"there is no extent {name}{did_you_mean(name, known)}" for name in given if name not in known
    ]
    meant = [
        f"{extent.name}={extent.named(value)} for {extent} = {value}"
        for extent in _relations(operands)
        for other, value in given.items()
        if extent.name not in given and other not in known and not closest(other, known)
        if extent.is_possible(value) and extent.named(value)
    ]
    hint = f": --extent {' or '.join(meant)}" if meant else ""
    return f"{', '.join(problems)}; its extents are {', '.join(known)}{_where(operands)}{hint}"


def _require_known(bundle: Bundle, gpu: str) -> None:
    """Refuse a GPU model that may be misspelt: nothing is known of it, or its vendor looks like another."""
    from cutlass_aot.schema.drivers import refusal_of_model

    if refusal := refusal_of_model(gpu, bundle.tuned_for):
        typical = "without --gpu, kernels are chosen for a typical GPU of their target"
        raise click.BadParameter(f"{refusal}; {typical}", param_hint="--gpu")


def _table(expected: Sequence[Expected]) -> list[str]:
    """Kernels with what is known of them, best first."""
    columns: list[tuple[str, list[str]]] = []
    costs = any(item.cost is not None for item in expected)
    if not costs or any(item.microseconds is not None for item in expected):
        columns.append(("µs", [_number(item.microseconds, ".1f") for item in expected]))
    if costs:
        columns.append(("cost", [_number(item.cost, ".9g") for item in expected]))
    if any(item.bound for item in expected):
        columns.append(("bound by", [item.bound for item in expected]))
    columns.append(("kernel", [own_name(item.kernel.kernel) for item in expected]))
    return table(list(zip(*(cells for _, cells in columns), strict=True)), [title for title, _ in columns])


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _record(group: GroupEntry, choice: Choice, top: int) -> dict[str, Any]:
    return {
        "group": group.name,
        "tier": choice.tier,
        "reason": choice.reason,
        "kernels": [
            {
                "name": item.kernel.name,
                "microseconds": item.microseconds,
                "bound": item.bound,
                "cost": item.cost,
            }
            for item in choice.expected[:top]
        ],
    }

"""Which groups serve a request, and why the others do not: pure functions over the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from cutlass_aot.schema.catalog import GroupEntry, Groups, signature
from cutlass_aot.schema.kernel import LAYOUT_LETTERS
from cutlass_aot.schema.operands import OperandDescription, Rejected, Verdict, supports
from cutlass_aot.schema.ranking import Extents

NEAREST = 9
"""Rank of a refusal that has nothing against the operands."""


class Request(NamedTuple):
    """What a caller asks for.

    Attributes:
        operation: such as ``gemm``.
        epilogue: formula, ``""`` for none.
        accumulator: element type, None for any.
        targets: GPU code targets that will do.
        where: why these targets, for messages, such as ``GPU 0 with compute capability 9.0``.
        operands: descriptions in the order of the call.
    """

    operation: str
    epilogue: str
    accumulator: str | None
    targets: tuple[str, ...]
    where: str
    operands: tuple[OperandDescription, ...]

    def __str__(self) -> str:
        operands = ", ".join(
            f"{operand.dtype} {operand.shape} with strides {operand.strides}" for operand in self.operands
        )
        epilogue = f", epilogue {self.epilogue!r}" if self.epilogue else ""
        return (
            f"{self.operation} on {operands}; accumulator {self.accumulator or 'any'}{epilogue}; {self.where}"
        )


class Explanation(list[tuple[GroupEntry, Verdict]]):
    """Every group of a bundle with its verdict, nearest first; ``str`` gives one line a group."""

    def __str__(self) -> str:
        return "\n".join(f"{group.name}: {verdict.reason or _supported(group)}" for group, verdict in self)


def _supported(group: GroupEntry) -> str:
    return f"supported, {group.count} kernel{'' if group.count == 1 else 's'}"


def judge(group: GroupEntry, request: Request) -> Verdict:
    """Whether a group serves a request.

    What no copy of an operand could mend ranks below every refusal of operands: another operation, then
    another epilogue, then another target. Another accumulator alone is the nearest miss there is.
    """
    if group.operation != request.operation:
        return Rejected(f"expected operation {group.operation}, got {request.operation}", -3)
    if group.epilogue != request.epilogue:
        return Rejected(f"expected epilogue {group.epilogue!r}, got {request.epilogue!r}", -2)
    if group.target not in request.targets:
        return Rejected(f"built for {group.target}, asked for {request.where}", -1)
    verdict = supports(group.operands, request.operands)
    if not verdict:
        return verdict
    if request.accumulator not in (None, group.accumulator):
        return Rejected(f"expected accumulator {group.accumulator}, got {request.accumulator}", NEAREST)
    return verdict


def explain(groups: Iterable[GroupEntry], request: Request) -> Explanation:
    """Judge every group; the nearest come first, then by name."""

    def nearness(item: tuple[GroupEntry, Verdict]) -> tuple[int, str]:
        group, verdict = item
        rank = verdict.rank if isinstance(verdict, Rejected) else NEAREST + 1
        return -rank, group.name

    return Explanation(sorted(((group, judge(group, request)) for group in groups), key=nearness))


def serving(groups: Groups, request: Request, target: str) -> list[GroupEntry]:
    """Groups of one target that serve a request, all with the same accumulator.

    Where the request leaves the accumulator open, it is the first of those that serve in this order: the
    usual one for the last operand's element type (f64 for f64, f32 for other floating types, i32 for
    integers), then the others by name.
    """
    dtypes = [operand.dtype for operand in request.operands]
    fitting = [
        group
        for layouts in _layouts(request.operands)
        for group in groups.with_signature(signature(request.operation, dtypes, layouts, target))
        if judge(group, request)
    ]
    if not fitting:
        return []
    usual = usual_accumulator(request.operands[-1].dtype)
    chosen = min((group.accumulator for group in fitting), key=lambda name: (name != usual, name))
    return sorted((group for group in fitting if group.accumulator == chosen), key=lambda group: group.name)


def _layouts(operands: Iterable[OperandDescription]) -> Iterator[str]:
    """Layout words that operands can have: where an extent is 1, an operand has more than one layout."""
    letters = []
    for operand in operands:
        letters.append(
            [
                letter
                for mode, letter in LAYOUT_LETTERS.items()
                if len(operand.shape) >= -mode and (operand.strides[mode] == 1 or operand.shape[mode] == 1)
            ]
        )
    return map("".join, product(*letters))


def usual_accumulator(dtype: str) -> str:
    """The accumulator that is meant where none is named, by the element type of the output."""
    if dtype == "f64":
        return "f64"
    return "f32" if "f" in dtype else "i32"


def problem_extents(group: GroupEntry, operands: Sequence[OperandDescription]) -> Extents:
    """Extents of the problem by their names in the group's constraints; 1 for one that is not named."""
    extents: dict[str, int] = {}
    for constraint, operand in zip(group.operands, operands, strict=True):
        names = constraint.extents[len(constraint.extents) - len(operand.shape) :]
        extents.update(zip(names, operand.shape, strict=True))
    return Extents(extents.get("L", 1), extents.get("M", 1), extents.get("N", 1), extents.get("K", 1))


def not_found(bundle: str, groups: Sequence[GroupEntry], request: Request) -> str:
    """The message for a request that nothing serves: what was asked, and what comes nearest."""
    asked = f"bundle {bundle} has no kernel for {request}"
    if not groups:
        return f"{asked}. The bundle is empty"
    targets = sorted({group.target for group in groups})
    if not set(targets) & set(request.targets):
        return (
            f"bundle {bundle} has nothing for {request.where}: it has kernels for {', '.join(targets)}, "
            "and a target is an exact name"
        )
    explanation = explain(groups, request)
    nearest, verdict = explanation[0]
    more = "; explain() has the reason for each group" if len(groups) > 1 else ""
    return f"{asked}. Nearest is {nearest.name}: {verdict.reason}{more}"

"""Which groups serve a request, and why the others do not: pure functions over the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple, Protocol

from cutlass_aot.errors import OperandError
from cutlass_aot.schema.bundles.catalog import GroupEntry, signature
from cutlass_aot.schema.kernels.kernel import LAYOUT_LETTERS, NO_VALUES, Values
from cutlass_aot.schema.kernels.operands import OperandDescription, Rejected, Verdict, supports
from cutlass_aot.schema.tuning.ranking import Extents

NEAREST = 9
"""Rank of a refusal that has nothing against the operands."""


class Request(NamedTuple):
    """What a caller asks for.

    Attributes:
        operation: such as ``gemm``.
        epilogue: formula, ``""`` for none; None for the one that takes operands of these names.
        accumulator: element type, None for any.
        targets: GPU code targets that will do.
        where: why these targets, for messages, such as ``GPU 0 with compute capability 9.0``.
        operands: descriptions in the order of the call.
        names: of the last operands, as many as were given by name.
        parameters: what the operation leaves open, sorted by name.
    """

    operation: str
    epilogue: str | None
    accumulator: str | None
    targets: tuple[str, ...]
    where: str
    operands: tuple[OperandDescription, ...]
    names: tuple[str, ...] = ()
    parameters: Values = NO_VALUES

    def __str__(self) -> str:
        unnamed = len(self.operands) - len(self.names)
        operands = ", ".join(
            (f"{self.names[index - unnamed]} = " if index >= unnamed else "") + _in_words(operand)
            for index, operand in enumerate(self.operands)
        )
        epilogue = f", epilogue {self.epilogue!r}" if self.epilogue else ""
        parameters = "".join(f", {name} = {value}" for name, value in self.parameters)
        return (
            f"{self.operation} on {operands}; accumulator {self.accumulator or 'any'}{epilogue}{parameters}; "
            f"{self.where}"
        )


def _in_words(operand: OperandDescription) -> str:
    if operand.is_number:
        return f"a number ({operand.dtype})"
    return f"{operand.dtype} {operand.shape} with strides {operand.strides}"


class KeptGroups(Protocol):
    """Groups that are kept by their signature: those of a catalog, or of several."""

    def with_signature(self, word: str, /) -> Sequence[GroupEntry]:
        """Those with a :func:`~cutlass_aot.schema.bundles.catalog.signature`, by name."""

    def of_operation(self, operation: str, target: str, /) -> Sequence[GroupEntry]:
        """Those of one operation and target."""


def arrangement(known: Sequence[str], count: int, names: Sequence[str]) -> tuple[int, ...] | Rejected:
    """Where each operand of a kernel stands among those of a call.

    Args:
        known: names of the kernel's operands, in order.
        count: operands of the call.
        names: of the last of them, as many as were given by name. The others are, in order, what is left.
    """
    strange = [name for name in names if name not in known]
    if len(known) != count or strange:
        wanted = ", ".join(known)
        found = f"`{strange[0]}`" if strange else str(count)
        return Rejected(f"expected {len(known)} operands ({wanted}), got {found}")
    unnamed = iter(range(count - len(names)))
    named = {name: count - len(names) + index for index, name in enumerate(names)}
    return tuple(named[name] if name in named else next(unnamed) for name in known)


def operand_names(group: GroupEntry) -> list[str]:
    """Names of a group's operands, in order."""
    return [operand.name for operand in group.operands]


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
    if group.requests is not None:
        return Rejected("answers requests of a program (cutlass_aot.serve), and is not found by operands", -2)
    if request.epilogue is not None and group.epilogue != request.epilogue:
        return Rejected(f"expected epilogue {group.epilogue!r}, got {request.epilogue!r}", -2)
    if group.parameters != request.parameters:
        expected, got = dict(group.parameters), dict(request.parameters)
        return Rejected(f"expected parameters {expected}, got {got}", -2)
    if group.target not in request.targets:
        return Rejected(f"built for {group.target}, asked for {request.where}", -1)
    order = arrangement(operand_names(group), len(request.operands), request.names)
    if isinstance(order, Rejected):
        return order
    verdict = supports(group.operands, [request.operands[index] for index in order])
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


def serving(groups: KeptGroups, request: Request, target: str) -> list[GroupEntry]:
    """Groups of one target that serve a request, all with the same accumulator and epilogue.

    Where the request leaves the accumulator open, it is the first of those that serve in this order: the
    usual one for the output's element type (f64 for f64, f32 for other floating types, i32 for
    integers), then the others by name.

    Raises:
        OperandError: if the request leaves the epilogue open, and more than one takes its operands.
    """
    candidates = list(_candidates(groups, request, target))
    fitting = [group for group in candidates if judge(group, request)]
    if not fitting:
        return []
    if request.epilogue is None:
        # Whatever the shapes: which epilogue is computed must not depend on what happens to fit them.
        epilogues = sorted({group.epilogue for group in candidates if _takes(group, request)})
        if len(epilogues) > 1:
            raise OperandError(
                f"{len(epilogues)} epilogues take these operands: name one, such as epilogue={epilogues[0]!r}"
            )
    usual = usual_accumulator(_output(fitting[0], request).dtype)
    chosen = min((group.accumulator for group in fitting), key=lambda name: (name != usual, name))
    return sorted((group for group in fitting if group.accumulator == chosen), key=lambda group: group.name)


def _takes(group: GroupEntry, request: Request) -> bool:
    """Whether a group has operands of these names and element types, and these parameters."""
    order = arrangement(operand_names(group), len(request.operands), request.names)
    if isinstance(order, Rejected) or group.parameters != request.parameters:
        return False
    return all(
        constraint.is_number or constraint.dtype == request.operands[place].dtype
        for constraint, place in zip(group.operands, order, strict=True)
    )


def _candidates(groups: KeptGroups, request: Request, target: str) -> Iterable[GroupEntry]:
    """Groups that may serve: few are decoded for operands alone, for named ones all of the operation."""
    if request.names or any(operand.is_number or len(operand.shape) < 2 for operand in request.operands):
        return groups.of_operation(request.operation, target)
    dtypes = [operand.dtype for operand in request.operands]
    return (
        group
        for layouts in _layouts(request.operands)
        for group in groups.with_signature(signature(request.operation, dtypes, layouts, target))
    )


def _output(group: GroupEntry, request: Request) -> OperandDescription:
    """The first operand that is written; the last one if none is said to be."""
    for place, constraint in zip(order_for(group, request), group.operands, strict=True):
        if constraint.written:
            return request.operands[place]
    return request.operands[-1]


def _layouts(operands: Iterable[OperandDescription]) -> Iterator[str]:
    """Layout words that operands can have: where an extent is 1, an operand has more than one layout."""
    letters = []
    for operand in operands:
        letters.append(
            [
                letter
                for mode, letter in LAYOUT_LETTERS.items()
                if 0 < -mode <= len(operand.shape)
                and (operand.strides[mode] == 1 or operand.shape[mode] == 1)
            ]
        )
    return map("".join, product(*letters))


def usual_accumulator(dtype: str) -> str:
    """The accumulator that is meant where none is named, by the element type of the output."""
    if dtype == "f64":
        return "f64"
    return "f32" if "f" in dtype else "i32"


def order_for(group: GroupEntry, request: Request) -> tuple[int, ...]:
    """Where each operand of a group that serves a request stands among those of the request."""
    order = arrangement(operand_names(group), len(request.operands), request.names)
    if isinstance(order, Rejected):
        raise ValueError(f"{group.name} does not serve the request: {order.reason}")
    return order


def problem_extents(group: GroupEntry, request: Request) -> Extents:
    """Extents of the problem by their names in the group's constraints; 1 for one that is not named."""
    extents: dict[str | int, int] = {}
    operands = [request.operands[index] for index in order_for(group, request)]
    for constraint, operand in zip(group.operands, operands, strict=True):
        if constraint.scale is None:
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

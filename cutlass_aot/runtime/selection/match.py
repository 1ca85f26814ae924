"""Decide which groups match a query, and why the others do not: pure functions over the catalog."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING

from cutlass_aot.errors import KernelNotFound, MisplacedOperand, OperandError
from cutlass_aot.runtime.selection.query import Query
from cutlass_aot.schema.bundles.catalog import GroupEntry, signature
from cutlass_aot.schema.kernels.accumulation import FAST
from cutlass_aot.schema.kernels.constraints import BATCH, LAYOUT_LETTERS, are_plain_gemm
from cutlass_aot.schema.kernels.operands import (
    ACCEPTED,
    OperandDescription,
    Rejected,
    Verdict,
    misplaced,
    supports,
    told,
)
from cutlass_aot.schema.tuning.ranking import Extents, problem_of

if TYPE_CHECKING:
    from typing import Protocol

    class KeptGroups(Protocol):
        """Groups indexed by signature: those of one catalog, or of several."""

        def with_signature(self, word: str, /) -> Sequence[GroupEntry]:
            """Groups with this :func:`~cutlass_aot.schema.bundles.catalog.signature`, by name."""

        def of_operation(self, operation: str, target: str, /) -> Sequence[GroupEntry]:
            """Groups of one operation and target."""


NEAREST = 9
"""Rank of a refusal for which the operands are not the reason."""

INCOMPLETE = 1
"""Rank of a refusal of a call that only lacks operands, such as scale factors: nearer than another type."""


def arrangement(known: Sequence[str], count: int, names: Sequence[str]) -> tuple[int, ...] | Rejected:
    """For each operand of a kernel, its position among the operands of a call.

    Args:
        known: names of the kernel's operands, in order.
        count: operands of the call.
        names: of those given by name, which come last in the call. The others take the remaining places in
            order.
    """
    if not names and len(known) == count:
        return tuple(range(count))
    unknown = [name for name in names if name not in known]
    if len(known) != count or unknown:
        expected = ", ".join(known)
        found = f"`{unknown[0]}`" if unknown else str(count)
        if not unknown and count < len(known):
            missing = [name for name in known if name not in names][count - len(names) :]
            found += f", without {', '.join(missing)}"
        # Those that are missing, too many or unknown.
        failing = max(abs(len(known) - count), len(unknown))
        return Rejected(f"expected {len(known)} operands ({expected}), got {found}", failing=failing)
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
    return f"supported, {group.kernel_count} kernel{'' if group.kernel_count == 1 else 's'}"


def judge(group: GroupEntry, query: Query) -> Verdict:
    """Whether a group serves a query.

    Refusals that no copy of an operand could avoid are further than any refusal of operands: another
    operation is the furthest, then another epilogue, then another target. A refusal of the accumulator or
    of its sums alone is the nearest.
    """
    if group.operation != query.operation:
        return Rejected(f"expected operation {group.operation}, got {query.operation}", -3)
    if group.requests is not None:
        return Rejected("answers requests of a program (cutlass_aot.serve), and is not found by operands", -2)
    if query.epilogue is not None and group.epilogue != query.epilogue:
        return Rejected(f"expected epilogue {group.epilogue!r}, got {query.epilogue!r}", -2)
    if group.parameters != query.parameters:
        expected, got = dict(group.parameters), dict(query.parameters)
        return Rejected(f"expected parameters={expected}, got {got or 'none'}", -2)
    if group.target not in query.targets:
        return Rejected(f"built for {group.target}, asked for {query.where}", -1)
    operands = _in_order_of(group, query)
    if isinstance(operands, Rejected):
        return operands._replace(rank=INCOMPLETE) if _lacks_operands(group, query) else operands
    verdict = supports(group.operands, operands)
    if verdict is not ACCEPTED:
        return verdict
    if query.accumulator not in (None, group.accumulator):
        return Rejected(f"expected accumulator {group.accumulator}, got {query.accumulator}", NEAREST)
    if group.accumulation == FAST and query.accumulation != FAST:
        return Rejected(
            "its sums are fast, with fewer bits than its accumulator: permit them by accumulation='fast', or "
            "build kernels with accumulation = 'exact'",
            NEAREST,
        )
    return verdict


def _in_order_of(group: GroupEntry, query: Query) -> Sequence[OperandDescription] | Rejected:
    """The operands of a query in the order of a group's."""
    if not query.names and len(query.operands) == len(group.operands):
        return query.operands
    order = arrangement(operand_names(group), len(query.operands), query.names)
    return order if isinstance(order, Rejected) else [query.operands[place] for place in order]


def _lacks_operands(group: GroupEntry, query: Query) -> bool:
    """Whether a call has some of a group's operands, all of the group's element types, and no others."""
    constraints = {operand.name: operand for operand in group.operands}
    unnamed = [name for name in constraints if name not in query.names]
    places = [*unnamed[: len(query.operands) - len(query.names)], *query.names]
    return len(places) == len(query.operands) and all(
        name in constraints and (constraints[name].is_number or operand.dtype == constraints[name].dtype)
        for name, operand in zip(places, query.operands, strict=True)
    )


def explain(groups: Iterable[GroupEntry], query: Query) -> Explanation:
    """Judge every group; the nearest come first, then by name.

    Of groups that refuse for one kind of reason, those that refuse fewer operands are nearer: offsets of i64
    are the reason rather than that other groups expect other element types of all operands.
    """

    def nearness(item: tuple[GroupEntry, Verdict]) -> tuple[int, int, str]:
        group, verdict = item
        if isinstance(verdict, Rejected):
            return -verdict.rank, verdict.failing, group.name
        return -NEAREST - 1, 0, group.name

    return Explanation(sorted(((group, judge(group, query)) for group in groups), key=nearness))


def serving(groups: KeptGroups, query: Query, target: str) -> list[GroupEntry]:
    """Groups of one target that serve a query, all with the same accumulator, accumulation and epilogue.

    Where the query permits fast sums, only groups that have them serve, if there are any.
    Where the query leaves the accumulator open, it is the first that serves of these: the usual one for the
    output's element type (f64 for f64, f32 for other floating types, i32 for integers), then the others by
    name.
    """
    candidates = _candidates(groups, query, target)
    fitting = [group for group in candidates if judge(group, query)]
    fitting = [group for group in fitting if group.accumulation == FAST] or fitting
    if not fitting:
        return []
    if query.epilogue is None:
        # Shapes are ignored here: they must not decide which epilogue is computed.
        epilogues = sorted({group.epilogue for group in candidates if _takes(group, query)})
        if len(epilogues) > 1:
            raise OperandError(
                f"{len(epilogues)} epilogues take these operands: name one, such as epilogue={epilogues[0]!r}"
            )
    if len(fitting) == 1:
        return fitting
    usual = usual_accumulator(_output(fitting[0], query).dtype)
    chosen = min((group.accumulator for group in fitting), key=lambda name: (name != usual, name))
    return sorted((group for group in fitting if group.accumulator == chosen), key=lambda group: group.name)


def serves_alone(groups: KeptGroups, query: Query, group: GroupEntry) -> bool:
    """Whether a group that serves a query also serves every other problem on operands like the query's.

    These have the same element types and layouts, no extent of 1 in their matrices, and are supported by the
    group; the operands are given in order.
    """
    if query.names or query.epilogue != group.epilogue:
        return False
    others = (other for other in groups.with_signature(group.signature) if other.name != group.name)
    return all(
        other.operands == group.operands
        or other.epilogue != group.epilogue
        or other.parameters != group.parameters
        or query.accumulator not in (None, other.accumulator)
        or other.requests is not None
        for other in others
    )


def _takes(group: GroupEntry, query: Query) -> bool:
    """Whether a group has operands of these names and element types, and these parameters."""
    order = arrangement(operand_names(group), len(query.operands), query.names)
    if isinstance(order, Rejected) or group.parameters != query.parameters:
        return False
    return all(
        constraint.is_number or constraint.dtype == query.operands[place].dtype
        for constraint, place in zip(group.operands, order, strict=True)
    )


def _candidates(groups: KeptGroups, query: Query, target: str) -> Sequence[GroupEntry]:
    """Groups that may serve; looked up by signature, or, with named operands, all of the operation."""
    # Numbers have no modes.
    if query.names or any(len(operand.shape) < 2 for operand in query.operands):
        return groups.of_operation(query.operation, target)
    dtypes = [operand.dtype for operand in query.operands]
    return [
        group
        for layouts in _layouts(query.operands)
        for group in groups.with_signature(signature(query.operation, dtypes, layouts, target))
    ]


def _output(group: GroupEntry, query: Query) -> OperandDescription:
    """The first operand that is written; the last one if none is marked as written."""
    for place, constraint in zip(order_for(group, query), group.operands, strict=True):
        if constraint.written:
            return query.operands[place]
    return query.operands[-1]


def _layouts(operands: Iterable[OperandDescription]) -> Iterator[str]:
    """Layout words that fit operands of rank 2 or more: where an extent is 1, one has more than one layout.

    So has one without elements, whose strides mean nothing.
    """
    letters = []
    for operand in operands:
        shape, strides = operand.shape, operand.strides
        empty = 0 in shape
        fitting = _ROW_MAJOR if empty or strides[-1] == 1 or shape[-1] == 1 else ""
        if empty or strides[-2] == 1 or shape[-2] == 1:
            fitting += _COLUMN_MAJOR
        letters.append(fitting)
    return map("".join, product(*letters))


_ROW_MAJOR, _COLUMN_MAJOR = LAYOUT_LETTERS[-1], LAYOUT_LETTERS[-2]


def usual_accumulator(dtype: str) -> str:
    """The accumulator to use if none is named, by the element type of the output."""
    if dtype == "f64":
        return "f64"
    return "f32" if "f" in dtype else "i32"


def order_for(group: GroupEntry, query: Query) -> tuple[int, ...]:
    """For each operand of a group that serves a query, its position in the query."""
    order = arrangement(operand_names(group), len(query.operands), query.names)
    if isinstance(order, Rejected):
        raise _does_not_serve(group, order)
    return order


def _does_not_serve(group: GroupEntry, why: Rejected) -> ValueError:
    return ValueError(f"{group.name} does not serve the query: {why.reason}")


def problem_extents(group: GroupEntry, query: Query) -> Extents:
    """The problem of a query, as rankings of a group that serves it have it.

    Extents of 0 count as 1: no kernel is launched then, and any may be chosen.
    """
    if not query.names and are_plain_gemm(group.operands):
        # By their places, which for nearly all calls saves looking at every extent of every operand.
        a, b, _ = query.operands
        batch = a.shape[0] if len(a.shape) > 2 else 1
        return Extents(batch or 1, a.shape[-2] or 1, b.shape[-1] or 1, a.shape[-1] or 1)
    return problem_of(group.operands, named_extents(group, query))


def named_extents(group: GroupEntry, query: Query) -> dict[str, int]:
    """The extents of a query by their names in the constraints of a group that serves it, at least 1."""
    extents: dict[str, int] = {}
    operands = _in_order_of(group, query)
    if isinstance(operands, Rejected):
        raise _does_not_serve(group, operands)
    for constraint, operand in zip(group.operands, operands, strict=True):
        if constraint.scale is None:
            names, shape = constraint.extents, operand.shape
            if len(names) != len(shape):
                # A batch that no operand of the call has is one of 1.
                extents.setdefault(BATCH, 1)
                names = names[len(names) - len(shape) :]
            for name, extent in zip(names, shape, strict=True):
                if isinstance(name, str):
                    base, named = (name, extent) if name.isidentifier() else told(name, extent)
                    if named is not None:
                        extents[base] = named if named > 1 else 1
    return extents


def miss(bundle: str, groups: Sequence[GroupEntry], query: Query) -> KernelNotFound:
    """The error for a query that nothing serves.

    Where the bundle has the operation at all, operands that are not on one GPU are the reason.
    """
    own = [g for g in groups if g.operation == query.operation and g.requests is None]
    if own and (problem := misplaced(call_names(own, query), query.operands)):
        return MisplacedOperand(problem)
    return KernelNotFound(not_found(bundle, groups, query))


def call_names(groups: Iterable[GroupEntry], query: Query) -> list[str]:
    """Names of the operands of a call, by the first group that takes so many and these.

    If there is none, those that are not named have the names of the last group's first operands, or their
    places.
    """
    known: Sequence[str] = ()
    for group in groups:
        known = operand_names(group)
        order = arrangement(known, len(query.operands), query.names)
        if not isinstance(order, Rejected):
            names = dict(zip(order, known, strict=True))
            return [names[place] for place in range(len(query.operands))]
    count = len(query.operands) - len(query.names)
    return [*(known[:count] if len(known) >= count else map(str, range(count))), *query.names]


def not_found(bundle: str, groups: Sequence[GroupEntry], query: Query) -> str:
    """The message for a query that nothing serves, with the nearest groups."""
    # Imported here, as below: a kernel that is found needs no words.
    from cutlass_aot.schema.words import did_you_mean, few

    missing = f"bundle {bundle} has no kernel for {query}"
    if not groups:
        return f"{missing}. The bundle is empty"
    callable_groups = [group for group in groups if group.requests is None]
    own = [group for group in callable_groups if group.operation == query.operation]
    if callable_groups and not own:
        operations = sorted({group.operation for group in callable_groups})
        return (
            f"bundle {bundle} has no kernel for operation {query.operation!r}: it has "
            f"{few(operations, 12)}{did_you_mean(query.operation, operations)}"
        )
    targets = sorted({group.target for group in groups})
    if not set(targets) & set(query.targets):
        return (
            f"bundle {bundle} has nothing for {query.where}: it has kernels for {', '.join(targets)}, "
            "and a target is an exact name"
        )
    if own and all(group.parameters != query.parameters for group in own):
        return f"{missing}: {_other_parameters(own, query)}"
    explanation = explain(groups, query)
    nearest, verdict = explanation[0]
    more = "; explain() has the reason for each group" if len(groups) > 1 else ""
    return f"{missing}. Nearest is {nearest.name}: {verdict.reason}{more}"


def _other_parameters(groups: Sequence[GroupEntry], query: Query) -> str:
    """Which parameters the groups of an operation have, where none has the query's; the nearest first."""
    from cutlass_aot.schema.words import did_you_mean, few

    found = list(dict.fromkeys(group.parameters for group in groups))
    found.sort(key=lambda parameters: len({*parameters} - {*query.parameters}))
    if not found[0]:
        return f"its kernels of {query.operation} take no parameters"
    shown = few((f"parameters={dict(each)}" for each in found), 6)
    known = {*dict.fromkeys(name for parameters in found for name, _ in parameters)}
    unknown = [name for name, _ in query.parameters if name not in known]
    hints = "".join(f"; there is no parameter `{name}`{did_you_mean(name, known)}" for name in unknown)
    return f"it has kernels of {query.operation} with {shown}{hints}: name one of them"

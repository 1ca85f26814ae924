"""Split a bundle: for one host, by GPU target or family, or under a size; each part is a whole small bundle.

Groups that share code or a library stay together: what is left in a part has all that it needs, and a part
is verified and opened like any bundle. Its catalog says which part it is, and which parts there are.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from cutlass_aot.bundle.glibc import glibc_of
from cutlass_aot.bundle.write import BundlePlan, GroupPlan, PackedFile
from cutlass_aot.errors import BundleError
from cutlass_aot.schema.bundles.group_index import group_to_bytes
from cutlass_aot.schema.codec import to_plain
from cutlass_aot.schema.encoding import encode
from cutlass_aot.schema.requests.request_index import requests_to_bytes
from cutlass_aot.schema.targets import Target
from cutlass_aot.schema.tuning.ranking import Ranking
from cutlass_aot.words import size

Label = Callable[[GroupPlan], str]
"""The part that a group belongs to, by name."""

Measure = Callable[[BundlePlan], int]
"""Bytes that the wheel of a bundle really has, of the host for which it has most."""

_PER_FILE = 512
"""Bytes of a wheel that a file costs beside its contents: twice its name in the archive, a row of RECORD, an
entry of the manifest."""

_PER_KERNEL = 400
"""Bytes of a wheel that a kernel costs in the bill of materials; it has two digests that do not compress."""

_PER_WHEEL = 1 << 16
"""Bytes that a wheel has whatever is in it: its metadata, and the catalog and the manifest without groups."""


_PER_PART = 32
"""Bytes of a part's wheel that the name of another part costs."""


def by_target(group: GroupPlan) -> str:
    """A part for each GPU code target: ``sm100a``."""
    return _target(group).replace("_", "")


def by_family(group: GroupPlan) -> str:
    """A part for each family of GPUs, those of one major compute capability: ``sm10x``."""
    return f"sm{Target.parse(_target(group)).major}x"


SPLITS: Mapping[str, Label] = {"families": by_family, "targets": by_target}
"""Ways to split a bundle, by their names."""


def _target(group: GroupPlan) -> str:
    return group.entries[0].kernel.target


def for_host(plan: BundlePlan, host: str) -> BundlePlan:
    """A bundle with the libraries of one host alone, and what these need; the GPU code is the same."""
    if tuple(plan.hosts) == (host,):
        return plan
    return _promising_its_own(
        replace(
            plan,
            hosts=(host,),
            launchers={host: plan.launchers[host]},
            groups=[replace(group, libraries={host: group.libraries[host]}) for group in plan.groups],
        )
    )


def _promising_its_own(plan: BundlePlan) -> BundlePlan:
    """A bundle that promises the glibc that its own libraries need, not those of what it is a part of."""
    libraries = [library.path for group in plan.groups for own in group.libraries.values() for library in own]
    launchers = [launcher.path for launcher in plan.launchers.values()]
    return replace(plan, needs=plan.needs._replace(glibc=glibc_of([*libraries, *launchers])))


def part_of(plan: BundlePlan, groups: Collection[str], part: str, parts: Sequence[str]) -> BundlePlan:
    """A part of a bundle: a bundle of its own with some of the groups.

    Args:
        plan: the bundle.
        groups: names of its groups.
        part: how the part is called.
        parts: how all parts are called.

    Raises:
        CorruptFile: if a library is none.
        BundleError: if one binds to what no release of glibc promises.
    """
    kept = [group for group in plan.groups if group.name in groups]
    digests = {group.entries[0].kernel.group for group in kept}
    return _promising_its_own(
        replace(
            plan,
            groups=kept,
            targets=sorted({_target(group) for group in kept}),
            rankings=[ranking for ranking in plan.rankings if ranking.group in digests],
            part=part,
            parts=tuple(sorted(parts)),
        )
    )


def split(
    plan: BundlePlan,
    *,
    label: Label | None = None,
    limit: int | None = None,
    measure: Measure | None = None,
) -> list[BundlePlan]:
    """A bundle in parts, in order of their names; the bundle itself, if it is to be one.

    Args:
        plan: the bundle.
        label: which part a group belongs to; None puts all into one.
        limit: bytes that a part's wheel may have for each host; parts that would have more are split further.
        measure: asked about what seems to have more: an estimate errs on the side of too much, for small
            bundles by several times. None leaves it at the estimate.

    Raises:
        BundleError: if groups that share a file are more than that, or belong to different parts.
    """
    labelled: dict[str, list[_Unit]] = {}
    for unit in _units(plan):
        names = {label(group) if label else "" for group in unit.groups}
        if len(names) > 1:
            raise BundleError(
                f"groups {_few(unit)} share a file and belong to the parts {', '.join(sorted(names))}: "
                "build the bundle again, which keeps targets apart"
            )
        labelled.setdefault(names.pop(), []).append(unit)

    def asked(units: Sequence[_Unit]) -> int:
        assert measure is not None  # noqa: S101 - for types
        groups = {group.name for unit in units for group in unit.groups}
        if label is None and len(groups) == len(plan.groups):
            return measure(plan)
        # Whichever parts there will be: their names stand in each.
        count = sum(map(len, labelled.values()))
        return measure(part_of(plan, groups, "part1", ["part1"])) + _PER_PART * count

    parts: dict[str, set[str]] = {}
    for name, units in sorted(labelled.items()):
        bins = _bins(units, _overhead(plan), limit, asked if measure else None)
        for number, filled in enumerate(bins, 1):
            own = [name] if name else []
            if len(bins) > 1:
                own.append(f"part{number}")
            parts["-".join(own)] = {group.name for unit in filled for group in unit.groups}
    if list(parts) == [""]:
        return [plan]
    return [part_of(plan, groups, part, list(parts)) for part, groups in parts.items()]


@dataclass(frozen=True, slots=True)
class _Unit:
    """Groups that share files, and bytes that they have in a wheel, at most and at least."""

    groups: tuple[GroupPlan, ...]
    weight: int
    least: int


def _units(plan: BundlePlan) -> list[_Unit]:
    """The groups, those that share a file together, in order of target and name."""
    together: list[tuple[set[str], list[GroupPlan]]] = []
    for group in sorted(plan.groups, key=lambda group: (_target(group), group.name)):
        files = {packed.sha256 for packed in _packed(group)}
        members = [group]
        for other in [item for item in together if item[0] & files]:
            together.remove(other)
            files |= other[0]
            members = other[1] + members
        together.append((files, members))
    rankings: dict[str, list[Ranking]] = {}
    for ranking in plan.rankings:
        rankings.setdefault(ranking.group, []).append(ranking)
    return [_Unit(tuple(groups), *_weights(groups, rankings)) for _, groups in together]


def _packed(group: GroupPlan) -> list[PackedFile]:
    return [group.code, *(library for own in group.libraries.values() for library in own)]


def _weights(groups: Sequence[GroupPlan], rankings: Mapping[str, Sequence[Ranking]]) -> tuple[int, int]:
    """Most and least bytes that groups have in the wheel of the host whose libraries are the largest."""
    code = {group.code.sha256: group.code.path.stat().st_size for group in groups}
    hosts = sorted({host for group in groups for host in group.libraries})
    libraries = [
        sum(
            {
                library.sha256: library.path.stat().st_size + _PER_FILE
                for group in groups
                for library in group.libraries.get(host, ())
            }.values()
        )
        for host in hosts
    ]
    texts = [
        data
        for group in groups
        for data in (
            group_to_bytes(group.entries),
            *(ranking.to_bytes() for ranking in rankings.get(group.entries[0].kernel.group, ())),
        )
    ]
    texts += [requests_to_bytes(group.requests) for group in groups if group.requests]
    operands = [to_plain(operand) for group in groups for operand in group.entries[0].kernel.operands]
    least = sum(code.values())
    most = (
        least
        + _PER_FILE * len(code)
        + max(libraries, default=0)
        + sum(len(zlib.compress(data)) + _PER_FILE for data in texts)
        + _PER_KERNEL * sum(len(group.entries) for group in groups)
        # A group's entry in the catalog, with room for its files' digests.
        + len(encode(operands))
        + _PER_FILE * (len(texts) + len(code) + len(groups))
    )
    return most, least


def _overhead(plan: BundlePlan) -> int:
    """Bytes that every part's wheel has: launcher, licences (which a wheel has twice), metadata."""
    launchers = [launcher.path.stat().st_size for launcher in plan.launchers.values()]
    return max(launchers) + 2 * sum(len(zlib.compress(text)) for text in plan.licenses.values()) + _PER_WHEEL


def _bins(
    units: Sequence[_Unit], overhead: int, limit: int | None, asked: Callable[[Sequence[_Unit]], int] | None
) -> list[list[_Unit]]:
    """All units in one part, if it has room; else in as few as come of putting each into the first that has.

    What alone is too large by its estimate, and is not really, has a part of its own.
    """
    if limit is None or _bytes(units, overhead, limit, asked)[0] <= limit:
        return [list(units)]
    filled: list[list[_Unit]] = []
    for unit in units:
        found, about = _bytes([unit], overhead, limit, asked)
        if found > limit:
            raise BundleError(
                f"groups {_few(unit)} share their code, and would come to {about}{size(found)} in a wheel; "
                f"the limit is {size(limit)}: allow more, or build fewer kernels a group (max_per_group in "
                "the manifest)"
            )
        for part in filled:
            if sum(other.weight for other in part) + unit.weight + overhead <= limit:
                part.append(unit)
                break
        else:
            filled.append([unit])
    return filled


def _bytes(
    units: Sequence[_Unit], overhead: int, limit: int, asked: Callable[[Sequence[_Unit]], int] | None
) -> tuple[int, str]:
    """Bytes of a wheel, and ``"about "`` where that is an estimate: where it decides, either way."""
    estimate = sum(unit.weight for unit in units) + overhead
    if asked is None or estimate <= limit or sum(unit.least for unit in units) > limit:
        return estimate, "about "
    return asked(units), ""


def _few(unit: _Unit) -> str:
    names = [group.name for group in unit.groups]
    more = f" and {len(names) - 2} more" if len(names) > 2 else ""
    return ", ".join(names[:2]) + more

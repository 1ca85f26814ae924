"""The plan of a bundle: groups of kernels, their code and libraries, and what the catalog says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cutlass_aot.errors import BundleError, CorruptFile
from cutlass_aot.schema.bundles.catalog import BUNDLE_NAME, FILE_NAME, VARIANT_NAME, VersionRequirements
from cutlass_aot.schema.bundles.group_index import KernelEntry
from cutlass_aot.schema.requests.request import OPERATION, CompiledRequest
from cutlass_aot.schema.tuning.ranking import Ranking


@dataclass(frozen=True, slots=True)
class PackedFile:
    """GPU code, or a library, of one group or several: one zstd frame.

    Attributes:
        name: stem of its file in the bundle.
        path: of the file to copy.
        sha256: of what was made; a file with another digest is never copied.
    """

    name: str
    path: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """One group to be written.

    Attributes:
        name: readable name, also the stem of its index.
        entries: its kernels, in any order, at least one.
        libraries: host to the libraries of the kernels' host code; every host has the same number.
        requests: one for each kernel of a program, in any order; empty for kernels found by operands.
    """

    name: str
    entries: tuple[KernelEntry, ...]
    code: PackedFile
    libraries: Mapping[str, tuple[PackedFile, ...]]
    requests: tuple[CompiledRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class BundlePlan:
    """Everything a bundle is made of.

    Attributes:
        name: lower-case letters, digits, ``.``, ``_`` and ``-``.
        device: device profile it was built with.
        targets: GPU code targets, in any order.
        hosts: CPU architectures; each group has a library for each.
        provenance: names and versions of what built it (no times, no paths).
        groups: in any order, at least one.
        launchers: host to the library through which kernels are launched.
        licenses: file name to text, of what is linked in and of what was compiled into kernels.
        rankings: in any order; each names a group of the bundle.
        variant: see :attr:`~cutlass_aot.schema.bundles.catalog.Catalog.variant`.
    """

    name: str
    version: str
    device: str
    targets: Sequence[str]
    hosts: Sequence[str]
    requirements: VersionRequirements
    provenance: Mapping[str, str]
    groups: Sequence[GroupPlan]
    launchers: Mapping[str, PackedFile]
    licenses: Mapping[str, bytes]
    rankings: Sequence[Ranking] = ()
    variant: str = ""


def check_plan(plan: BundlePlan) -> None:
    """Refuse a plan that contradicts itself, or names what no bundle can hold."""
    if not BUNDLE_NAME.fullmatch(plan.name):
        raise BundleError(
            f"{plan.name!r} cannot name a bundle: expected lower-case letters, digits, '.', '_' and '-', "
            "beginning and ending with a letter or a digit"
        )
    if not plan.groups:
        raise BundleError(f"bundle {plan.name!r} has no kernels: nothing to write")
    if not VARIANT_NAME.fullmatch(plan.variant):
        raise BundleError(
            f"bundle {plan.name!r} cannot have a variant {plan.variant!r}: expected lower-case letters "
            "and digits"
        )
    for what, values in (
        ("target", plan.targets),
        ("host", plan.hosts),
        ("group", [group.name for group in plan.groups]),
    ):
        if not values or len(set(values)) != len(values):
            raise BundleError(f"bundle {plan.name!r} names no {what}, or one twice: {list(values)}")
    if set(plan.launchers) != set(plan.hosts):
        raise BundleError(
            f"bundle {plan.name!r} has launchers for {sorted(plan.launchers)}, needs them for {plan.hosts}"
        )
    libraries = [library for group in plan.groups for own in group.libraries.values() for library in own]
    codes = [group.code for group in plan.groups]
    names = [packed.name for packed in (*codes, *libraries, *plan.launchers.values())]
    for name in (*plan.hosts, *(group.name for group in plan.groups), *names, *plan.licenses):
        if not FILE_NAME.fullmatch(name):
            raise BundleError(
                f"{name!r} cannot name a file of a bundle: expected letters, digits, '.', '_', '+' and '-', "
                "beginning with a letter or a digit"
            )
    for group in plan.groups:
        _check_group(group, plan)
    _check_rankings(plan)


def _check_rankings(plan: BundlePlan) -> None:
    digests = {
        group.entries[0].kernel.group: {entry.kernel.digest for entry in group.entries}
        for group in plan.groups
    }
    seen: set[tuple[str, str, bool]] = set()
    for ranking in plan.rankings:
        what = f"the ranking of group {ranking.group[:12]} for {ranking.gpu}"
        if ranking.group not in digests:
            raise BundleError(f"{what} is of a group that bundle {plan.name!r} does not have")
        if (ranking.group, ranking.gpu, ranking.measured) in seen:
            raise BundleError(f"{what} is given twice to bundle {plan.name!r}")
        seen.add((ranking.group, ranking.gpu, ranking.measured))
        try:
            # Written and read here, so that nothing is written that cannot be read again.
            list(Ranking.from_bytes(ranking.to_bytes(), what).problems)
        except CorruptFile as error:
            raise BundleError(str(error)) from None
        unknown = sorted(ranking.kernels - digests[ranking.group])
        if unknown:
            raise BundleError(f"{what} names a kernel that bundle {plan.name!r} does not have: {unknown[0]}")


def _check_group(group: GroupPlan, plan: BundlePlan) -> None:
    if not group.entries:
        raise BundleError(f"group {group.name!r} has no kernels")
    if len({entry.kernel.group for entry in group.entries}) != 1:
        raise BundleError(
            f"the kernels of group {group.name!r} are not functionally equivalent: expected one operation, "
            "operands, accumulator, epilogue and target"
        )
    if len({entry.kernel.symbol for entry in group.entries}) != len(group.entries):
        raise BundleError(f"group {group.name!r} has a kernel twice")
    _check_requests(group)
    target = group.entries[0].kernel.target
    if target not in plan.targets:
        raise BundleError(f"group {group.name!r} is for {target}, the bundle for {', '.join(plan.targets)}")
    if set(group.libraries) != set(plan.hosts):
        raise BundleError(
            f"group {group.name!r} has libraries for {sorted(group.libraries)}, "
            f"the bundle needs them for {sorted(plan.hosts)}"
        )
    count = max(entry.library for entry in group.entries) + 1
    if (
        any(len(own) < count for own in group.libraries.values())
        or len({len(own) for own in group.libraries.values()}) != 1
    ):
        raise BundleError(
            f"group {group.name!r} has kernels in {count} libraries, and not as many for each host"
        )


def _check_requests(group: GroupPlan) -> None:
    of_program = group.entries[0].kernel.operation == OPERATION
    if of_program != bool(group.requests):
        found, expected = ("no requests", "one for each") if of_program else ("requests", "none")
        raise BundleError(
            f"group {group.name!r} of operation {group.entries[0].kernel.operation} has {found}: expected "
            f"{expected} of its kernels"
        )
    answered = sorted(compiled.request.kernel.digest for compiled in group.requests)
    if of_program and answered != sorted(entry.kernel.digest for entry in group.entries):
        raise BundleError(
            f"group {group.name!r} has {len(group.requests)} requests for {len(group.entries)} kernels: "
            "expected the request of each kernel, once"
        )

"""Split a bundle by host and by GPU code target: each result is a complete, smaller bundle."""

from __future__ import annotations

from dataclasses import replace

from cutlass_aot.bundle.glibc import glibc_of
from cutlass_aot.bundle.plan import BundlePlan, GroupPlan


def by_target(plan: BundlePlan) -> list[BundlePlan]:
    """A bundle for each target, of the same name and version; the bundle itself if it has one target."""
    targets = sorted({_target(group) for group in plan.groups})
    if len(targets) == 1:
        return [plan]
    return [_for_target(plan, target) for target in targets]


def for_host(plan: BundlePlan, host: str) -> BundlePlan:
    """The bundle with the libraries of one host alone, and the glibc that these need; the same GPU code."""
    if tuple(plan.hosts) == (host,):
        return plan
    return _with_own_glibc(
        replace(
            plan,
            hosts=(host,),
            launchers={host: plan.launchers[host]},
            groups=[replace(group, libraries={host: group.libraries[host]}) for group in plan.groups],
        )
    )


def _for_target(plan: BundlePlan, target: str) -> BundlePlan:
    groups = [group for group in plan.groups if _target(group) == target]
    digests = {group.entries[0].kernel.group for group in groups}
    return _with_own_glibc(
        replace(
            plan,
            groups=groups,
            targets=(target,),
            rankings=[ranking for ranking in plan.rankings if ranking.group in digests],
            variant=target.replace("_", ""),
        )
    )


def _with_own_glibc(plan: BundlePlan) -> BundlePlan:
    """The bundle with the glibc that its own libraries need, not that of the one it was split from."""
    libraries = [library.path for group in plan.groups for own in group.libraries.values() for library in own]
    launchers = [launcher.path for launcher in plan.launchers.values()]
    return replace(plan, requirements=plan.requirements._replace(glibc=glibc_of([*libraries, *launchers])))


def _target(group: GroupPlan) -> str:
    return group.entries[0].kernel.target

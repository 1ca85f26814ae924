"""Ask the tiers of :mod:`~.selection.ranking`, in order, about the kernels of open groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from cutlass_aot.runtime.opened.group import Group
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.runtime.selection import ranking as select
from cutlass_aot.runtime.selection.cost_model import Candidates, usual_sm_count
from cutlass_aot.runtime.selection.ranking import Preference, Ranked
from cutlass_aot.schema.tuning.ranking import Extents


class Choice(NamedTuple):
    """The kernel that a bundle takes for a problem, and why.

    Attributes:
        kernel: to launch.
        tier: ``tuned``, ``nearest tuned``, ``modelled`` or ``default order``; see
            :mod:`~.selection.ranking`.
        reason: what the tier went by, in words.
    """

    kernel: KernelHandle
    tier: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kernel.name} ({self.tier}: {self.reason})"


def prefer(groups: Sequence[Group], extents: Extents, gpu: str | None, sm_count: int | None) -> Preference:
    """What the first tier that knows an answer says.

    Args:
        groups: of one target, that all serve the problem.
        extents: of the problem.
        gpu: model of the GPU, None if there is none to choose for.
        sm_count: its SMs; None for those of a typical GPU of the target.
    """
    sms = sm_count or usual_sm_count(groups[0].entry.target)
    measured: list[Ranked] = []
    modelled: list[tuple[str, Ranked]] = []
    elsewhere: set[str] = set()
    for group in groups:
        for reference in group.rankings:
            if not reference.measured:
                modelled.append((reference.gpu, group.ranking(reference)))
            elif reference.gpu == gpu:
                measured.append(group.ranking(reference))
            else:
                elsewhere.add(reference.gpu)
    if measured:
        ranking = select.merged(measured)
        found = select.tuned(ranking, extents) or select.nearest_tuned(
            ranking, extents, _candidates(groups), sms
        )
        if found is not None:
            return found
    found = select.modelled(modelled, extents) or _default_order(groups, extents, sms)
    if elsewhere and not measured:
        where = "no GPU was named" if gpu is None else f"not on {gpu!r}"
        reason = f"{found.reason}; measured on {', '.join(sorted(elsewhere))}, {where}"
        found = Preference(found.tier, reason, found.digests)
    return found


def best(
    preference: Preference, groups: Sequence[Group], handles: Sequence[Sequence[KernelHandle]]
) -> Choice:
    """The kernel that a preference comes to.

    Args:
        preference: of :func:`prefer`.
        groups: as given to it.
        handles: the kernels of each group, in the order of its index.
    """
    for digest in preference.digests:
        for group, members in zip(groups, handles, strict=True):
            position = group.index.position(digest)
            if position is not None:
                return Choice(members[position], preference.tier, preference.reason)
    raise AssertionError("a preference names a kernel of the groups")


def ordered(
    preference: Preference,
    groups: Sequence[Group],
    handles: Sequence[Sequence[KernelHandle]],
    extents: Extents,
    sm_count: int | None,
) -> list[KernelHandle]:
    """All kernels: those that a preference names in its order, then the others in the default order.

    Args:
        preference: of :func:`prefer`.
        groups: as given to it.
        handles: the kernels of each group, in the order of its index.
        extents: as given to it.
        sm_count: as given to it.
    """
    by_digest = {handle.digest: handle for members in handles for handle in members}
    sms = sm_count or usual_sm_count(groups[0].entry.target)
    names = dict.fromkeys((*preference.digests, *_default_order(groups, extents, sms).digests))
    return [by_digest[digest] for digest in names if digest in by_digest]


def _default_order(groups: Sequence[Group], extents: Extents, sms: int) -> Preference:
    return select.default_order(_candidates(groups), extents, sms)


def _candidates(groups: Sequence[Group]) -> Candidates:
    if len(groups) == 1:
        return groups[0].candidates
    return Candidates.merged(group.candidates for group in groups)

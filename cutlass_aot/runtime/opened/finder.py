"""Find the kernels of an open bundle that match a call, best first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from cutlass_aot.errors import DeviceError, Incompatible, KernelNotFound, OperandError
from cutlass_aot.runtime.launching.tensors import common_device, describe_operand
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.machine.compatibility import runnable_targets
from cutlass_aot.runtime.opened.bundle_directory import BundleDirectory
from cutlass_aot.runtime.opened.group import Group
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.runtime.selection import match, tiers
from cutlass_aot.runtime.selection.cost_model import Candidates, usual_sm_count
from cutlass_aot.runtime.selection.query import Computation, Query
from cutlass_aot.runtime.selection.tiers import KnownSpeeds, Preference
from cutlass_aot.schema.targets import Target
from cutlass_aot.schema.tuning.ranking import Extents


class Choice(NamedTuple):
    """The kernel that a bundle takes for a problem, and why.

    ``tier`` is ``tuned``, ``nearest tuned``, ``modelled`` or ``default order`` (see
    :mod:`~.selection.tiers`); ``reason`` tells the data that it used.
    """

    kernel: KernelHandle
    tier: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kernel.name} ({self.tier}: {self.reason})"


def _known(groups: Sequence[Group], gpu: str | None) -> KnownSpeeds:
    """What is known of the speed of the groups' kernels: on this GPU model, by a model, and elsewhere."""
    known = KnownSpeeds([], [], set())
    for group in groups:
        for reference in group.rankings:
            if not reference.measured:
                known.modelled.append((reference.gpu, group.ranking(reference)))
            elif reference.gpu == gpu:
                known.measured.append(group.ranking(reference))
            else:
                known.elsewhere.add(reference.gpu)
    return known


def _candidates(groups: Sequence[Group]) -> Candidates:
    if len(groups) == 1:
        return groups[0].candidates
    return Candidates.merged(group.candidates for group in groups)


class _Match(NamedTuple):
    """The result of a query for one target: the preference, the groups, and the kernels of each."""

    preference: Preference
    groups: list[Group]
    handles: list[tuple[KernelHandle, ...]]
    extents: Extents
    sm_count: int

    def best(self) -> Choice:
        """The preferred kernel."""
        for digest in self.preference.digests:
            for group, members in zip(self.groups, self.handles, strict=True):
                position = group.index.position(digest)
                if position is not None:
                    return Choice(members[position], self.preference.tier, self.preference.reason)
        raise AssertionError("a preference names a kernel of the groups")

    def ordered(self) -> list[KernelHandle]:
        """All kernels: those that the preference names, in its order, then the rest in the default order."""
        by_digest = {handle.digest: handle for members in self.handles for handle in members}
        others = tiers.default_order(_candidates(self.groups), self.extents, self.sm_count).digests
        names = dict.fromkeys((*self.preference.digests, *others))
        return [by_digest[digest] for digest in names if digest in by_digest]


class PreparedCall(NamedTuple):
    """A call whose operands are described; ``ordinal`` is that of the operands' GPU, -1 for none."""

    query: Query
    ordinal: int


class Finder:
    """Finds the kernels of a bundle that match a query. ``targets`` are those of the bundle, sorted."""

    def __init__(self, directory: BundleDirectory) -> None:
        self._directory = directory
        self.targets = directory.catalog.targets
        self.groups = directory.catalog.groups
        self.group = directory.group
        self.handles = directory.handles

    def find(
        self, computation: Computation, operands: Sequence[Any], target: str | None, gpu: str | None
    ) -> list[KernelHandle]:
        """Kernels that serve operands, best first; see :meth:`cutlass_aot.Bundle.find`."""
        call = self.prepare(computation, operands, target)
        return [kernel for found in self._matches(call, target, gpu) for kernel in found.ordered()]

    def choose(
        self, computation: Computation, operands: Sequence[Any], target: str | None, gpu: str | None
    ) -> Choice:
        """The kernel that a launch on operands takes; see :meth:`cutlass_aot.Bundle.choose`."""
        return self.best(self.prepare(computation, operands, target), target, gpu)

    def explain(
        self, computation: Computation, operands: Sequence[Any], target: str | None
    ) -> match.Explanation:
        """For each group, whether it serves operands; see :meth:`cutlass_aot.Bundle.explain`."""
        descriptions = tuple(describe_operand(operand) for operand in operands)
        try:
            targets, where = self._targets(common_device(descriptions), target)
        except (Incompatible, DeviceError) as error:
            # The error then is the reason for every group.
            targets, where = (), str(error)
        return match.explain(self.groups, computation.query(targets, where, descriptions))

    def prepare(
        self, computation: Computation, operands: Sequence[Any], target: str | None = None
    ) -> PreparedCall:
        """Describe the operands of a call, and determine the targets that can serve it."""
        descriptions = tuple(describe_operand(operand) for operand in operands)
        ordinal = common_device(descriptions)
        targets, where = self._targets(ordinal, target)
        return PreparedCall(computation.query(targets, where, descriptions), ordinal)

    def best(self, call: PreparedCall, target: str | None = None, gpu: str | None = None) -> Choice:
        """The best kernel for a call."""
        return next(self._matches(call, target, gpu)).best()

    def _matches(self, call: PreparedCall, target: str | None, gpu: str | None) -> Iterator[_Match]:
        """Matches by target, the best first: exactly one for operands on a GPU, at least one otherwise."""
        query, ordinal = call
        if gpu is not None and target is None and ordinal < 0 and len(self.targets) > 1:
            raise OperandError(
                f"gpu {gpu!r} alone does not say which target it runs: name the target too, one of "
                f"{', '.join(self.targets)}"
            )
        found = False
        for name in query.targets:
            entries = match.serving(self.groups, query, name)
            if not entries:
                continue
            if target is None and ordinal >= 0:
                self._directory.require(name, ordinal)
            groups = [self.group(entry) for entry in entries]
            handles = [self.handles(entry) for entry in entries]
            extents = match.problem_extents(entries[0], query)
            model, sms = _gpu(ordinal) if ordinal >= 0 else (gpu, None)
            sm_count = sms or usual_sm_count(name)
            known, candidates = _known(groups, model), partial(_candidates, groups)
            preference = tiers.prefer(known, candidates, extents, model, sm_count)
            found = True
            yield _Match(preference, groups, handles, extents, sm_count)
            if ordinal >= 0:
                break
        if not found:
            raise KernelNotFound(match.not_found(self._directory.catalog.name, self.groups, query))

    def _targets(self, ordinal: int, target: str | None) -> tuple[tuple[str, ...], str]:
        """Targets to search, best first, and in words why these."""
        if target is not None:
            try:
                Target.parse(target)
            except (TypeError, ValueError):
                raise OperandError(
                    f"target: expected a name such as sm_90a, sm_100f or sm_80, got {target!r}"
                ) from None
            return (target,), f"target {target}"
        if ordinal < 0:
            return self.targets, f"any target of the bundle ({', '.join(self.targets)})"
        capability = cuda_driver.compute_capability(ordinal)
        where = f"GPU {ordinal} with compute capability {capability[0]}.{capability[1]}"
        running = runnable_targets(self.targets, capability)
        if not running:
            self._directory.require_any(self.targets, ordinal)
        return tuple(running), where


def _gpu(ordinal: int) -> tuple[str | None, int | None]:
    """Model and SMs of a GPU; None for each if it is not here."""
    try:
        return cuda_driver.device_name(ordinal), cuda_driver.sm_count(ordinal)
    except DeviceError:
        # A target was named explicitly, for a GPU that is not here.
        return None, None

"""Which kernels of an open bundle serve a call's operands, best first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from cutlass_aot.errors import DeviceError, Incompatible, KernelNotFound, OperandError
from cutlass_aot.runtime.launching.tensors import common_device, describe_operand
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.machine.compatibility import runnable_targets
from cutlass_aot.runtime.opened.bundle_directory import Part
from cutlass_aot.runtime.opened.choice import Choice, best, ordered, prefer
from cutlass_aot.runtime.opened.group import Group
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.runtime.opened.merged_groups import MergedGroups
from cutlass_aot.runtime.selection import match
from cutlass_aot.runtime.selection.query import Asked
from cutlass_aot.runtime.selection.ranking import Preference
from cutlass_aot.schema.bundles.catalog import GroupEntry
from cutlass_aot.schema.targets import Target
from cutlass_aot.schema.tuning.ranking import Extents


class _Served(NamedTuple):
    """What serves a request for one target: what a tier says, the groups, their kernels, and for whom."""

    preference: Preference
    groups: list[Group]
    handles: list[tuple[KernelHandle, ...]]
    extents: Extents
    sm_count: int | None


class Search:
    """Finds kernels in a bundle; holds nothing but the bundle.

    Args:
        name: of the bundle, for messages.
        parts: the directories it lies in, at least one.

    Attributes:
        targets: GPU code targets it has kernels for, sorted.
        groups: its groups.
    """

    def __init__(self, name: str, parts: Sequence[Part]) -> None:
        self._name = name
        self._parts = tuple(parts)
        self.targets = tuple(sorted({target for part in parts for target in part.catalog.targets}))
        self.groups = MergedGroups(parts)

    def group(self, entry: GroupEntry) -> Group:
        """One of the groups, open."""
        return self.groups.part_of(entry).group(entry)

    def handles(self, entry: GroupEntry) -> tuple[KernelHandle, ...]:
        """The kernels of one of the groups, in the order of its index."""
        return self.groups.part_of(entry).handles(entry)

    def find(
        self, asked: Asked, operands: Sequence[Any], target: str | None, gpu: str | None
    ) -> list[KernelHandle]:
        """Kernels that serve operands, best first; see :meth:`cutlass_aot.Bundle.find`."""
        request, ordinal = self.request(asked, operands, target)
        return [
            kernel for served in self._served(request, ordinal, target, gpu) for kernel in ordered(*served)
        ]

    def choose(self, asked: Asked, operands: Sequence[Any], target: str | None, gpu: str | None) -> Choice:
        """The kernel that a launch on operands takes; see :meth:`cutlass_aot.Bundle.choose`."""
        request, ordinal = self.request(asked, operands, target)
        return self.best(request, ordinal, target, gpu)

    def explain(self, asked: Asked, operands: Sequence[Any], target: str | None) -> match.Explanation:
        """For each group, whether it serves operands; see :meth:`cutlass_aot.Bundle.explain`."""
        descriptions = tuple(describe_operand(operand) for operand in operands)
        try:
            targets, where = self._targets(common_device(descriptions), target)
        except (Incompatible, DeviceError) as error:
            # Then that is the reason for each group.
            targets, where = (), str(error)
        return match.explain(self.groups, asked.request(targets, where, descriptions))

    def request(
        self, asked: Asked, operands: Sequence[Any], target: str | None = None
    ) -> tuple[match.Request, int]:
        """What a caller asks for, and the GPU that the operands are on, -1 for none.

        Raises:
            OperandError: if an operand cannot be described, or ``target`` is not the name of one.
            Incompatible: if nothing of the bundle runs on the operands' GPU.
            DeviceError: if operands are on a GPU that the driver does not know.
        """
        descriptions = tuple(describe_operand(operand) for operand in operands)
        ordinal = common_device(descriptions)
        targets, where = self._targets(ordinal, target)
        return asked.request(targets, where, descriptions), ordinal

    def best(
        self, request: match.Request, ordinal: int, target: str | None = None, gpu: str | None = None
    ) -> Choice:
        """The best kernel for a request.

        Raises:
            KernelNotFound: if there is none.
            OperandError: see :meth:`cutlass_aot.Bundle.find`.
            Incompatible: if the kernels cannot run on the GPU.
        """
        preference, groups, handles, *_ = next(self._served(request, ordinal, target, gpu))
        return best(preference, groups, handles)

    def _served(
        self, request: match.Request, ordinal: int, target: str | None, gpu: str | None
    ) -> Iterator[_Served]:
        """What serves a request, by target, the best first: one for operands on a GPU, at least one."""
        if gpu is not None and target is None and ordinal < 0 and len(self.targets) > 1:
            raise OperandError(
                f"gpu {gpu!r} alone does not say which target it runs: name the target too, one of "
                f"{', '.join(self.targets)}"
            )
        found = False
        for name in request.targets:
            entries = match.serving(self.groups, request, name)
            if not entries:
                continue
            if target is None and ordinal >= 0:
                entries = self._usable(entries, name, ordinal)
            groups = [self.group(entry) for entry in entries]
            handles = [self.handles(entry) for entry in entries]
            extents = match.problem_extents(entries[0], request)
            model, sms = _gpu(ordinal) if ordinal >= 0 else (gpu, None)
            found = True
            yield _Served(prefer(groups, extents, model, sms), groups, handles, extents, sms)
            if ordinal >= 0:
                break
        if not found:
            raise KernelNotFound(match.not_found(self._name, self.groups, request))

    def _usable(self, entries: Sequence[GroupEntry], target: str, ordinal: int) -> list[GroupEntry]:
        """Groups whose directory can be used on a GPU.

        Raises:
            Incompatible: if there is none, with the first reason.
        """
        usable = []
        refusal: Incompatible | None = None
        for entry in entries:
            try:
                self.groups.part_of(entry).require(target, ordinal)
                usable.append(entry)
            except Incompatible as error:
                refusal = refusal or error
        if refusal is not None and not usable:
            raise refusal
        return usable

    def _targets(self, ordinal: int, target: str | None) -> tuple[tuple[str, ...], str]:
        """Targets to look at, best first, and why these."""
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
            self._parts[0].require_any(self.targets, ordinal)
        return tuple(running), where


def _gpu(ordinal: int) -> tuple[str | None, int | None]:
    """Model and SMs of a GPU."""
    try:
        return cuda_driver.device_name(ordinal), cuda_driver.sm_count(ordinal)
    except DeviceError:
        # A target was named, for a GPU that is not here.
        return None, None

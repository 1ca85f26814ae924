"""An open bundle: find kernels for operands, explain, and launch the best one."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutlass_aot.errors import DeviceError, Incompatible, KernelNotFound, OperandError
from cutlass_aot.runtime import compatibility, device, lookup, machine
from cutlass_aot.runtime.files import read_catalog
from cutlass_aot.runtime.group import Group
from cutlass_aot.runtime.handle import KernelHandle
from cutlass_aot.runtime.launch import Plan, launch
from cutlass_aot.runtime.library import Library
from cutlass_aot.runtime.listing import by_name, group_matches, matching
from cutlass_aot.runtime.operands import common_device, describe_operand, is_torch
from cutlass_aot.runtime.select import sort_key
from cutlass_aot.schema.catalog import Catalog, GroupEntry
from cutlass_aot.schema.operands import OperandDescription
from cutlass_aot.schema.targets import Target

MAX_REMEMBERED = 65536
"""Choices that :meth:`Bundle.gemm` remembers; it forgets all of them when there are more."""


def open_bundle(path: str | os.PathLike[str], *, check: bool = True) -> Bundle:
    """Open a bundle. Its manifest and its catalog are read and verified; everything else when needed.

    Args:
        path: the bundle's directory.
        check: refuse a bundle that this machine cannot load. False opens any bundle for a look at what is
            in it; the check then comes with the first launch.

    Raises:
        BundleError: if there is no bundle, or an incomplete one.
        CorruptFile: if a file is truncated, altered or foreign.
        SchemaTooNew: if a newer release wrote it.
        Incompatible: if this machine's CPU, C library or tvm-ffi is not one it can be used with.
    """
    root = Path(path)
    bundle = Bundle(root, read_catalog(root))
    if check:
        bundle.check_machine()
    return bundle


class Bundle:
    """An open bundle; made by :func:`cutlass_aot.open`. May be used from several threads."""

    def __init__(self, root: Path, catalog: Catalog) -> None:
        self.path = root
        self.catalog = catalog
        host = os.uname().machine
        # Groups of one target may share a library, which is then mapped once.
        libraries = {
            reference: Library(root, reference)
            for reference in dict.fromkeys(g.libraries[host] for g in catalog.groups if host in g.libraries)
        }
        self._groups = {
            group.name: Group(
                root,
                group,
                libraries[group.libraries[host]] if host in group.libraries else None,
                self.require,
            )
            for group in catalog.groups
        }
        # Addresses matter to a choice as far as the strictest alignment of any operand tells them apart.
        self._alignment = math.lcm(
            1, *(operand.alignment for group in catalog.groups for operand in group.operands)
        )
        self._machine_checked = False
        self._runs: set[tuple[int, str, int]] = set()
        self._choices: dict[Any, Plan] = {}

    @property
    def name(self) -> str:
        """The bundle's name."""
        return self.catalog.name

    @property
    def version(self) -> str:
        """The bundle's version."""
        return self.catalog.version

    @property
    def targets(self) -> tuple[str, ...]:
        """GPU code targets it has kernels for."""
        return self.catalog.targets

    @property
    def groups(self) -> tuple[GroupEntry, ...]:
        """Its groups of functionally equivalent kernels, by name."""
        return self.catalog.groups

    def __repr__(self) -> str:
        count = sum(group.count for group in self.groups)
        kernels = f"{count} kernel{'' if count == 1 else 's'}"
        return f"<Bundle {self.name} {self.version}: {kernels}, {', '.join(self.targets)}>"

    # -- lookup -----------------------------------------------------------------------------------------

    def find(
        self,
        *operands: Any,
        accumulator: str | None = None,
        operation: str = "gemm",
        epilogue: str = "",
        target: str | None = None,
    ) -> list[KernelHandle]:
        """Kernels that support the operands, best first (:mod:`cutlass_aot.runtime.select`); never empty.

        Args:
            operands: a, b and out: torch tensors, DLPack objects or descriptions, (m, k), (k, n) and
                (m, n), or each with a batch first.
            accumulator: element type; None takes what the bundle has for these operands, preferring f32 for
                floating outputs, f64 for f64 and i32 for integers.
            operation: what is computed.
            epilogue: what is done before the result is stored.
            target: exact name of a GPU code target: ``sm_90`` is not ``sm_90a``. None takes the best of
                those that run on the operands' GPU, or, for descriptions on no device, every target of the
                bundle, one after the other.

        Raises:
            KernelNotFound: if there is none; says what was asked and what comes nearest.
            OperandError: if an operand cannot be described, or ``target`` is not the name of one.
            Incompatible: if no kernel of the bundle runs on the operands' GPU with its driver.
            DeviceError: if operands are on a GPU that the driver does not know.
        """
        descriptions = tuple(describe_operand(operand) for operand in operands)
        ordinal = common_device(descriptions)
        targets, where = self._targets(ordinal, target)
        request = lookup.Request(operation, epilogue, accumulator, targets, where, descriptions)
        found: list[KernelHandle] = []
        for name in targets:
            groups = lookup.serving(self.groups, request, name)
            if not groups:
                continue
            if target is None and ordinal >= 0:
                self.require(name, ordinal)
            found += self._in_order(groups, descriptions, ordinal)
            if ordinal >= 0:
                break
        if not found:
            raise KernelNotFound(lookup.not_found(self.name, self.groups, request))
        return found

    def _in_order(
        self, groups: Sequence[GroupEntry], operands: Sequence[OperandDescription], ordinal: int
    ) -> list[KernelHandle]:
        """Kernels of groups of one target that serve the operands, best first."""
        extents = lookup.problem_extents(groups[0], operands)
        try:
            sms = device.sm_count(ordinal) if ordinal >= 0 else None
        except DeviceError:
            # A target was named, for a GPU that is not here.
            sms = None
        handles = [handle for group in groups for handle in self._handles(group)]
        return sorted(handles, key=lambda handle: sort_key(handle.kernel, extents, sms))

    def explain(
        self,
        *operands: Any,
        accumulator: str | None = None,
        operation: str = "gemm",
        epilogue: str = "",
        target: str | None = None,
    ) -> lookup.Explanation:
        """For each group, whether it serves the operands, and why not; nearest first.

        Args:
            operands: as for :meth:`find`, like the other arguments.
            accumulator: element type, None for any.
            operation: what is computed.
            epilogue: what is done before the result is stored.
            target: exact name of a GPU code target, None for any that will do.

        Returns:
            A list of (group, verdict). ``str`` of it has one line a group.

        Raises:
            OperandError: if an operand cannot be described, or ``target`` is not the name of one.
        """
        descriptions = tuple(describe_operand(operand) for operand in operands)
        try:
            targets, where = self._targets(common_device(descriptions), target)
        except (Incompatible, DeviceError) as error:
            # Then that is the reason for each group.
            targets, where = (), str(error)
        request = lookup.Request(operation, epilogue, accumulator, targets, where, descriptions)
        return lookup.explain(self.groups, request)

    def kernels(self, **filters: str | Sequence[str]) -> list[KernelHandle]:
        """Kernels of the bundle, by group, family, tile shape, cluster shape, the rest of the design, name.

        Args:
            filters: by ``operation``, ``target``, ``accumulator``, ``epilogue``, ``dtypes``
                (``f16.f16.f32``), ``layouts`` (``tnt``), ``group``, ``generator``, ``name``, or any
                name in a kernel's design.
                Each is a shell pattern or several, of which one has to match. Shapes read ``128x256``,
                extents left out at the end match any; switches read ``true`` or ``false``.

        Raises:
            BundleError: for a filter that no kernel of the bundle has.
        """
        groups = [group for group in self.groups if group_matches(group, filters)]
        return matching([h for group in groups for h in self._handles(group)], filters)

    def kernel(self, name: str) -> KernelHandle:
        """One kernel by its name, or by the beginning of its name or digest.

        Raises:
            BundleError: if there is none, or more than one.
        """
        return by_name(self.name, [h for group in self.groups for h in self._handles(group)], name)

    def _handles(self, entry: GroupEntry) -> list[KernelHandle]:
        group = self._groups[entry.name]
        return [KernelHandle(group, kernel) for kernel in group.kernels]

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
        capability = device.compute_capability(ordinal)
        where = f"GPU {ordinal} with compute capability {capability[0]}.{capability[1]}"
        verdict = compatibility.check_targets(self.targets, capability, f"GPU {ordinal}")
        if not verdict:
            raise self._incompatible(verdict.reason)
        return tuple(compatibility.runnable_targets(self.targets, capability)), where

    # -- launching --------------------------------------------------------------------------------------

    def gemm(
        self,
        a: Any,
        b: Any,
        out: Any,
        *,
        accumulator: str | None = None,
        stream: Any = None,
        workspace: Any = None,
    ) -> None:
        """``out = a @ b`` by the best kernel for it. The choice is remembered for like operands.

        Args:
            a: (m, k), or (batch, m, k).
            b: (k, n), or (batch, k, n).
            out: (m, n), or (batch, m, n); written.
            accumulator: see :meth:`find`.
            stream: see :meth:`cutlass_aot.runtime.handle.KernelHandle.launch`.
            workspace: likewise.

        Raises:
            KernelNotFound: if the bundle has no kernel for the operands.
            OperandError: if an operand cannot be described or launched on.
            Incompatible: if nothing of the bundle runs on the operands' GPU.
            LaunchError: if compiled code refuses the call.
            DeviceError: if there is no driver, or it refuses the launch.
        """
        operands = (a, b, out)
        key = (self._like(a), self._like(b), self._like(out), accumulator)
        plan = self._choices.get(key)
        if plan is None:
            kernel = self.find(a, b, out, accumulator=accumulator)[0]
            plan = kernel.plan(operands, [describe_operand(operand) for operand in operands])
            if len(self._choices) >= MAX_REMEMBERED:
                self._choices.clear()
            self._choices[key] = plan
        launch(plan, operands, stream, workspace)

    def _like(self, operand: Any) -> Any:
        """Everything about an operand that a choice, or the plan of a launch, can depend on."""
        if is_torch(operand):
            try:
                address = operand.data_ptr() % self._alignment
                return operand.dtype, operand.shape, operand.stride(), address, operand.device
            except RuntimeError:
                # No plain strided memory; the description says so properly.
                pass
        found = describe_operand(operand)
        address = found.address % self._alignment
        return found.dtype, found.shape, found.strides, address, found.device

    # -- this machine -----------------------------------------------------------------------------------

    def check_machine(self) -> None:
        """Refuse a machine on which the bundle's libraries cannot be loaded; no GPU is looked for.

        Raises:
            Incompatible: with what was found and what is needed.
        """
        if self._machine_checked:
            return
        verdict = compatibility.check_machine(
            self.catalog,
            machine=os.uname().machine,
            tvm_ffi=machine.installed_version("apache-tvm-ffi"),
            glibc=machine.glibc_version(),
        )
        if not verdict:
            raise self._incompatible(verdict.reason)
        self._machine_checked = True

    def require(self, target: str, ordinal: int) -> None:
        """Refuse a target that cannot be used on this machine and GPU; the answer is remembered.

        Raises:
            Incompatible: with what was found and what is needed.
            DeviceError: if there is no driver or no such GPU.
        """
        seen = (os.getpid(), target, ordinal)
        if seen in self._runs:
            return
        self.check_machine()
        capability = device.compute_capability(ordinal)
        for verdict in (
            compatibility.check_targets((target,), capability, f"GPU {ordinal}"),
            compatibility.check_driver(self.catalog.needs, target, device.driver_version()),
        ):
            if not verdict:
                raise self._incompatible(verdict.reason)
        self._runs.add(seen)

    def _incompatible(self, reason: str) -> Incompatible:
        return Incompatible(f"bundle {self.name} ({self.path}) cannot be used here: {reason}")

"""An open bundle: find kernels for operands, choose, explain, and launch."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cutlass_aot.errors import CutlassAotError, DeviceError, Incompatible, KernelNotFound, OperandError
from cutlass_aot.runtime import compatibility, device, lookup, machine
from cutlass_aot.runtime.asked import Asked, Parameters
from cutlass_aot.runtime.choice import Choice, best, ordered, prefer
from cutlass_aot.runtime.files import read_catalog
from cutlass_aot.runtime.group import Group
from cutlass_aot.runtime.handle import KernelHandle
from cutlass_aot.runtime.launch import call, requires_gradient, without_gradients
from cutlass_aot.runtime.library import Library
from cutlass_aot.runtime.operands import (
    common_device,
    describe_operand,
    exports,
    is_torch,
    native_classes,
    to_ffi,
)
from cutlass_aot.runtime.select import Preference
from cutlass_aot.schema.catalog import Catalog, FileReference, GroupEntry
from cutlass_aot.schema.ranking import Extents
from cutlass_aot.schema.targets import Target

_opened: list[weakref.ref[Bundle]] = []

MAX_REMEMBERED = 65536
"""Choices that :meth:`Bundle.gemm` remembers; it forgets all of them when there are more."""


def open_bundle(path: str | os.PathLike[str], *, check: bool = True, rankings: bool = True) -> Bundle:
    """Open a bundle. Its manifest and its catalog are read and verified; everything else when needed.

    Args:
        path: the bundle's directory.
        check: refuse a bundle that this machine cannot load. False opens any bundle for a look at what is
            in it; the check then comes with the first launch.
        rankings: choose by the speeds that the bundle knows. False leaves the default order alone, to see
            what they bring.

    Raises:
        BundleError: if there is no bundle, or an incomplete one.
        CorruptFile: if a file is truncated, altered or foreign.
        SchemaTooNew: if a newer release wrote it.
        Incompatible: if this machine's CPU, C library or tvm-ffi is not one it can be used with.
    """
    root = Path(path)
    bundle = Bundle(root, read_catalog(root), rankings=rankings)
    if check:
        bundle.check_machine()
    # The latest first. What is gone goes with the list, which is made anew: others may be reading it.
    _opened[:] = [weakref.ref(bundle), *(other for other in _opened if other() is not None)]
    return bundle


def opened_bundles() -> list[Bundle]:
    """Bundles that this process has opened and still holds, the latest first."""
    return [bundle for reference in list(_opened) if (bundle := reference()) is not None]


class Bundle:
    """An open bundle; made by :func:`cutlass_aot.open`. May be used from several threads."""

    def __init__(self, root: Path, catalog: Catalog, *, rankings: bool = True) -> None:
        self.path = root
        self.catalog = catalog
        self._rankings = rankings
        self._host = os.uname().machine
        # Each made when it is first needed, without a lock: what two threads make at once is equal.
        self._libraries: dict[FileReference, Library] = {}
        self._groups: dict[str, Group] = {}
        self._handles_of: dict[str, tuple[KernelHandle, ...]] = {}
        self._machine_checked = False
        self._runs: set[tuple[int, str, int]] = set()
        # Of the launch path: remembered choices, those of plain GEMMs by accumulator once more, the classes
        # whose instances native code takes, and their framework's word on whether gradients are recorded.
        self._choosers: dict[Asked, Any] = {}
        self._plain: dict[str | None, Any] = {}
        self._native: frozenset[type] = frozenset()
        self._gradients: Any = None

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
    def uses_rankings(self) -> bool:
        """Whether it chooses by the speeds that it knows; see :func:`open_bundle`."""
        return self._rankings

    @property
    def groups(self) -> Sequence[GroupEntry]:
        """Its groups of functionally equivalent kernels, by name."""
        return self.catalog.groups

    @property
    def tuned_for(self) -> tuple[str, ...]:
        """Models of GPUs, as their drivers name them, on which kernels of it were measured."""
        models = {ranking.gpu for group in self.groups for ranking in group.rankings if ranking.measured}
        return tuple(sorted(models))

    def __repr__(self) -> str:
        count = sum(group.count for group in self.groups)
        kernels = f"{count} kernel{'' if count == 1 else 's'}"
        return f"<Bundle {self.name} {self.version}: {kernels}, {', '.join(self.targets)}>"

    # -- lookup -----------------------------------------------------------------------------------------

    def find(
        self,
        /,
        *operands: Any,
        accumulator: str | None = None,
        operation: str = "gemm",
        epilogue: str | None = None,
        parameters: Parameters | None = None,
        target: str | None = None,
        gpu: str | None = None,
        **named: Any,
    ) -> list[KernelHandle]:
        """Kernels that support the operands, best first (:mod:`cutlass_aot.runtime.select`); never empty.

        Args:
            operands: a, b and out: torch tensors, DLPack objects or descriptions, (m, k), (k, n) and
                (m, n), or each with a batch first.
            accumulator: element type; None takes what the bundle has for these operands, preferring f32 for
                floating outputs, f64 for f64 and i32 for integers.
            operation: what is computed.
            epilogue: formula of what is done before the result is stored, ``""`` for nothing. None is that,
                or, with operands by name, the one epilogue that takes them.
            parameters: what the operation leaves open, by name.
            named: further operands by their names, such as ``C=c``; numbers stand for themselves.
            target: exact name of a GPU code target: ``sm_90`` is not ``sm_90a``. None takes the best of
                those that run on the operands' GPU, or, for descriptions on no device, every target of the
                bundle, one after the other.
            gpu: model of a GPU as its driver names it, such as ``NVIDIA H200``, to order kernels for operands
                on no device as there; with ``target``, where the bundle has several. Of operands on a GPU
                their own decides.

        Raises:
            KernelNotFound: if there is none; says what was asked and what comes nearest.
            OperandError: if an operand cannot be described, ``target`` is not the name of one, or ``gpu`` is
                given for a bundle of several targets and none is named.
            Incompatible: if no kernel of the bundle runs on the operands' GPU with its driver.
            DeviceError: if operands are on a GPU that the driver does not know.
        """
        asked = Asked.of(operation, epilogue, accumulator, parameters, named)
        request, ordinal = self._request(asked, _in_order(asked, operands, named), target)
        return [
            kernel for served in self._served(request, ordinal, target, gpu) for kernel in ordered(*served)
        ]

    def choose(
        self,
        /,
        *operands: Any,
        accumulator: str | None = None,
        operation: str = "gemm",
        epilogue: str | None = None,
        parameters: Parameters | None = None,
        target: str | None = None,
        gpu: str | None = None,
        **named: Any,
    ) -> Choice:
        """The kernel that a launch on the operands takes, with the tier that chose it and the reason.

        Args:
            operands: as for :meth:`find`, like the other arguments.
            accumulator: element type, None for the usual one.
            operation: what is computed.
            epilogue: what is done before the result is stored.
            parameters: what the operation leaves open.
            named: further operands by their names.
            target: exact name of a GPU code target, None for the best there is.
            gpu: model of a GPU to choose for, as for :meth:`find`.

        Raises:
            KernelNotFound: as for :meth:`find`, like the other errors.
        """
        asked = Asked.of(operation, epilogue, accumulator, parameters, named)
        request, ordinal = self._request(asked, _in_order(asked, operands, named), target)
        return self._best(request, ordinal, target, gpu)

    def _best(
        self, request: lookup.Request, ordinal: int, target: str | None = None, gpu: str | None = None
    ) -> Choice:
        preference, groups, handles, *_ = next(self._served(request, ordinal, target, gpu))
        return best(preference, groups, handles)

    def _served(
        self, request: lookup.Request, ordinal: int, target: str | None, gpu: str | None
    ) -> Iterator[tuple[Preference, list[Group], list[tuple[KernelHandle, ...]], Extents, int | None]]:
        """By target, best first, what a tier says, the groups that serve operands and their kernels.

        One target for operands on a GPU; at least one.
        """
        if gpu is not None and target is None and ordinal < 0 and len(self.targets) > 1:
            raise OperandError(
                f"gpu {gpu!r} alone does not say which target it runs: name the target too, one of "
                f"{', '.join(self.targets)}"
            )
        found = False
        for name in request.targets:
            entries = lookup.serving(self.catalog.groups, request, name)
            if not entries:
                continue
            if target is None and ordinal >= 0:
                self.require(name, ordinal)
            groups = [self._group(entry) for entry in entries]
            handles = [self._handles(entry) for entry in entries]
            extents = lookup.problem_extents(entries[0], request)
            model, sms = self._gpu(ordinal) if ordinal >= 0 else (gpu, None)
            found = True
            yield prefer(groups, extents, model, sms), groups, handles, extents, sms
            if ordinal >= 0:
                break
        if not found:
            raise KernelNotFound(lookup.not_found(self.name, self.groups, request))

    def _request(
        self, asked: Asked, operands: Sequence[Any], target: str | None = None
    ) -> tuple[lookup.Request, int]:
        """What a caller asks for, and the GPU that the operands are on, -1 for none."""
        descriptions = tuple(describe_operand(operand) for operand in operands)
        ordinal = common_device(descriptions)
        targets, where = self._targets(ordinal, target)
        return asked.request(targets, where, descriptions), ordinal

    def _gpu(self, ordinal: int) -> tuple[str | None, int | None]:
        """Model and SMs of a GPU."""
        try:
            return device.device_name(ordinal), device.sm_count(ordinal)
        except DeviceError:
            # A target was named, for a GPU that is not here.
            return None, None

    def explain(
        self,
        /,
        *operands: Any,
        accumulator: str | None = None,
        operation: str = "gemm",
        epilogue: str | None = None,
        parameters: Parameters | None = None,
        target: str | None = None,
        **named: Any,
    ) -> lookup.Explanation:
        """For each group, whether it serves the operands, and why not; nearest first.

        Args:
            operands: as for :meth:`find`, like the other arguments.
            accumulator: element type, None for any.
            operation: what is computed.
            epilogue: what is done before the result is stored.
            parameters: what the operation leaves open.
            named: further operands by their names.
            target: exact name of a GPU code target, None for any that will do.

        Returns:
            A list of (group, verdict). ``str`` of it has one line a group.

        Raises:
            OperandError: if an operand cannot be described, or ``target`` is not the name of one.
        """
        asked = Asked.of(operation, epilogue, accumulator, parameters, named)
        descriptions = tuple(describe_operand(operand) for operand in _in_order(asked, operands, named))
        try:
            targets, where = self._targets(common_device(descriptions), target)
        except (Incompatible, DeviceError) as error:
            # Then that is the reason for each group.
            targets, where = (), str(error)
        return lookup.explain(self.groups, asked.request(targets, where, descriptions))

    def kernels(self, **filters: str | Sequence[str]) -> list[KernelHandle]:
        """Kernels of the bundle, by group, family, tile shape, cluster shape, the rest of the design, name.

        Args:
            filters: by ``operation``, ``target``, ``accumulator``, ``epilogue``, ``dtypes``
                (``f16.f16.f32``), ``layouts`` (``tnt``), ``group``, ``generator``, ``name``, or any
                name in a kernel's design or of a parameter.
                Each is a shell pattern or several, of which one has to match. Shapes read ``128x256``,
                extents left out at the end match any; switches read ``true`` or ``false``.

        Raises:
            BundleError: for a filter that no kernel of the bundle has.
        """
        # Here and below: a launch needs no listing, and should not pay for its import.
        from cutlass_aot.runtime.listing import group_matches, matching

        groups = [group for group in self.groups if group_matches(group, filters)]
        return matching([h for group in groups for h in self._handles(group)], filters)

    def kernel(self, name: str) -> KernelHandle:
        """One kernel by its name, or by the beginning of its name or digest.

        Raises:
            BundleError: if there is none, or more than one.
        """
        from cutlass_aot.runtime.listing import by_name

        return by_name(self.name, [h for group in self.groups for h in self._handles(group)], name)

    def kernels_of(self, operation: str, parameters: Parameters) -> list[KernelHandle]:
        """Kernels of an operation that leaves something open, with these parameters; by target, then name.

        Args:
            operation: what is computed.
            parameters: every one of them, with its value.
        """
        wanted = sorted((name, type(value), value) for name, value in parameters.items())
        return [
            handle
            for target in self.targets
            for entry in self.catalog.groups.of_operation(operation, target)
            # True and 1 are equal, and two parameters.
            if [(name, type(value), value) for name, value in entry.parameters] == wanted
            for handle in self._handles(entry)
        ]

    def _handles(self, entry: GroupEntry) -> tuple[KernelHandle, ...]:
        handles = self._handles_of.get(entry.name)
        if handles is None:
            group = self._group(entry)
            handles = tuple(KernelHandle(group, position) for position in range(len(group.index)))
            handles = self._handles_of.setdefault(entry.name, handles)
        return handles

    def _group(self, entry: GroupEntry) -> Group:
        group = self._groups.get(entry.name)
        if group is None:
            library = entry.libraries.get(self._host)
            made = Group(
                self.path,
                entry,
                None if library is None else self._library(library),
                self._launcher(),
                self.require,
                self._rankings,
            )
            group = self._groups.setdefault(entry.name, made)
        return group

    def _library(self, reference: FileReference) -> Library:
        # Groups of one target may share a library, which is then mapped once.
        library = self._libraries.get(reference)
        return library or self._libraries.setdefault(reference, Library(self.path, reference))

    def _launcher(self) -> Library | None:
        reference = self.catalog.launchers.get(self._host)
        return None if reference is None else self._library(reference)

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
        /,
        a: Any,
        b: Any,
        out: Any,
        *,
        accumulator: str | None = None,
        epilogue: str | None = None,
        stream: Any = None,
        workspace: Any = None,
        **named: Any,
    ) -> None:
        """``out = a @ b`` by the best kernel for it. The choice is remembered for like operands.

        Args:
            a: (m, k), or (batch, m, k).
            b: (k, n), or (batch, k, n).
            out: (m, n), or (batch, m, n); written. It must not share memory with a or b: that is not looked
                for.
            accumulator: see :meth:`find`.
            epilogue: see :meth:`find`.
            stream: see :meth:`cutlass_aot.runtime.handle.KernelHandle.launch`.
            workspace: likewise.
            named: further operands by their names: those of the epilogue, such as ``C=c`` and ``alpha=0.5``,
                or scale factors, ``a_scale`` and ``b_scale``.

        Raises:
            KernelNotFound: if the bundle has no kernel for the operands, unless :mod:`cutlass_aot.policy`
                says otherwise.
            OperandError: if an operand cannot be described or launched on.
            Incompatible: if nothing of the bundle runs on the operands' GPU.
            LaunchError: if compiled code refuses the call.
            DeviceError: if there is no driver, or it refuses the launch.
        """
        native = self._native
        if (
            stream is None
            and not named
            and epilogue is None
            and type(a) in native
            and type(b) in native
            and type(out) in native
        ):
            chooser = self._plain.get(accumulator)
            if chooser is not None and self._short(chooser, (a, b, out), accumulator):
                return
        self._run(Asked.of("gemm", epilogue, accumulator, None, named), (a, b, out), named, stream, workspace)

    def run(
        self,
        operation: str,
        /,
        *operands: Any,
        accumulator: str | None = None,
        epilogue: str | None = None,
        parameters: Parameters | None = None,
        stream: Any = None,
        workspace: Any = None,
        **named: Any,
    ) -> None:
        """Compute any operation by the best kernel for it. The choice is remembered for like operands.

        Args:
            operation: such as ``"grouped_gemm"``, or the name of a declared kernel.
            operands: in the order of the operation, those that are given by name left out.
            accumulator: see :meth:`find`.
            epilogue: see :meth:`find`.
            parameters: what the operation leaves open, by name.
            stream: see :meth:`cutlass_aot.runtime.handle.KernelHandle.launch`.
            workspace: likewise.
            named: operands by their names.

        Raises:
            KernelNotFound: as for :meth:`gemm`, like the other errors.
        """
        asked = Asked.of(operation, epilogue, accumulator, parameters, named)
        self._run(asked, operands, named, stream, workspace)

    def _run(
        self,
        asked: Asked,
        operands: Sequence[Any],
        named: Mapping[str, Any],
        stream: Any,
        workspace: Any,
    ) -> None:
        given = _in_order(asked, operands, named)
        native = self._native
        if stream is None and native and all(type(item) in native or type(item) is float for item in given):
            chooser = self._choosers.get(asked)
            if chooser is not None and self._short(chooser, given, asked):
                return
        self._choose_and_launch(asked, given, stream, workspace)

    def _short(self, chooser: Any, operands: Sequence[Any], asked: Asked | str | None) -> bool:
        """Launch what is remembered for operands that native code takes as they are; False if nothing is.

        Args:
            chooser: what remembers.
            operands: tensors of torch, and numbers.
            asked: what for; an accumulator, or None, for a plain GEMM.
        """
        if self._gradients() and requires_gradient(operands):
            return False
        try:
            return chooser(*operands) is None
        except Exception as error:
            # torch may not export one of the element types; the long way knows how to.
            if all(not is_torch(operand) or exports(operand) for operand in operands):
                made = asked if isinstance(asked, Asked) else Asked("gemm", accumulator=asked)
                raise self._failure(error, operands, made) from error
            return False

    def _choose_and_launch(self, asked: Asked, operands: Sequence[Any], stream: Any, workspace: Any) -> None:
        """A problem not seen before, or operands that the short way above does not serve."""
        operands = without_gradients(_names(asked, len(operands)), operands)
        descriptions = tuple(describe_operand(operand) for operand in operands)
        ordinal = common_device(descriptions)
        remembered = asked.reading(operands)
        chooser = self._choosers.get(remembered)
        if chooser is not None:
            try:
                if call(chooser, operands, ordinal, stream) is None:
                    return
            except Exception as error:
                raise self._failure(error, operands, asked) from error
        request, _ = self._request(asked, descriptions)
        try:
            kernel = self._best(request, ordinal).kernel
        except KernelNotFound as error:
            from cutlass_aot.runtime.policy import on_miss

            on_miss(error, request, operands, stream, workspace)
            return
        order = lookup.order_for(kernel.group, request)
        kernel.launch(*(operands[index] for index in order), stream=stream, workspace=workspace)
        # Whoever calls a remembered choice has no workspace for it, and gives the operands in their order.
        if not kernel.workspace_bytes and order == tuple(range(len(operands))):
            self._remember(kernel, operands, remembered, ordinal)

    def _remember(self, kernel: KernelHandle, operands: Sequence[Any], asked: Asked, ordinal: int) -> None:
        """Teach the chooser that this kernel is for operands like these."""
        launcher = self._launcher()
        if launcher is None:
            return
        chooser = self._choosers.get(asked)
        if chooser is None:
            chooser = launcher.function("cutlass_aot_chooser")(self.catalog.alignment)
            chooser = self._choosers.setdefault(asked, chooser)
            if asked == Asked("gemm", accumulator=asked.accumulator):
                self._plain[asked.accumulator] = chooser
        # They are only looked at: no stream has to wait for another.
        seen = (item if is_torch(item) and exports(item) else to_ffi(item) for item in operands)
        if chooser(*seen, kernel.native_function(ordinal)) > MAX_REMEMBERED:
            # Others may be calling it: it goes when the last of them is done.
            self._choosers.pop(asked, None)
            if self._plain.get(asked.accumulator) is chooser:
                del self._plain[asked.accumulator]
        if not self._native and any(map(is_torch, operands)):
            self._gradients = sys.modules["torch"].is_grad_enabled
            self._native = native_classes()

    def _failure(self, error: Exception, operands: Sequence[Any], asked: Asked) -> CutlassAotError:
        """Our error for one that a remembered choice raised."""
        try:
            request, ordinal = self._request(asked, operands)
            kernel = self._best(request, ordinal).kernel
            order = lookup.order_for(kernel.group, request)
            return kernel.failure(error, [operands[index] for index in order])
        except CutlassAotError as found:
            return found

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


def _in_order(asked: Asked, operands: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The operands of a call, those given by name last, in order of their names."""
    return (*operands, *(named[name] for name in asked.names)) if named else tuple(operands)


def _names(asked: Asked, count: int) -> list[str]:
    """Names of a call's operands for messages."""
    unnamed = count - len(asked.names)
    usual = ("a", "b", "out") if asked.operation == "gemm" and unnamed == 3 else map(str, range(unnamed))
    return [*usual, *asked.names]

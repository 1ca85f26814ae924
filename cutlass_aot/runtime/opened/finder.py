"""Find the kernels of an open bundle that match a call, best first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Any

from cutlass_aot.errors import (
    CorruptFile,
    DeviceError,
    Incompatible,
    KernelNotFound,
    ManifestError,
    OperandError,
    ParameterError,
)
from cutlass_aot.runtime.launching.library import Library
from cutlass_aot.runtime.launching.tensors import common_device, describe_operand
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.machine.compatibility import runnable_targets
from cutlass_aot.runtime.opened import native_choice
from cutlass_aot.runtime.opened.bundle_directory import BundleDirectory
from cutlass_aot.runtime.opened.group import Group
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle, KernelHandles
from cutlass_aot.runtime.opened.native_choice import NativeChoice
from cutlass_aot.runtime.selection import match, tiers
from cutlass_aot.runtime.selection.cost_model import Candidates, Estimate
from cutlass_aot.runtime.selection.query import Computation, Query
from cutlass_aot.runtime.selection.tiers import Constants, Fastest, KnownSpeeds, Preference, Ranked
from cutlass_aot.schema.bundles.catalog import GroupEntry
from cutlass_aot.schema.named_tuple import NamedTuple
from cutlass_aot.schema.targets import Target
from cutlass_aot.schema.tuning.costs import Machine, typical_machine
from cutlass_aot.schema.tuning.ranking import Extents


class Expected(NamedTuple):
    """What is expected of a kernel for a problem.

    Attributes:
        kernel: the kernel.
        microseconds: its time, measured at this problem or estimated; None if neither is known, as of kernels
            that are not GEMMs.
        bound: what takes most of it, ``launch``, ``compute`` or ``memory``; ``""`` if that is not known.
        cost: its value by its cost formula; None without one.
    """

    kernel: KernelHandle
    microseconds: float | None
    bound: str
    cost: float | None = None


class Choice:
    """The kernel that a bundle takes for a problem, why, and what is expected of it.

    Attributes:
        kernel: the kernel.
        tier: ``tuned``, ``fitted``, ``scaled``, ``modelled``, ``declared`` or ``default order`` (see
            :mod:`~.selection.tiers`).
        reason: the data that the tier used.

    Choices of the same kernel for the same reason are equal.
    """

    __slots__ = ("_table", "kernel", "reason", "tier")

    def __init__(
        self, kernel: KernelHandle, tier: str, reason: str, table: Callable[[], tuple[Expected, ...]]
    ) -> None:
        """``table`` computes :attr:`expected`."""
        self.kernel = kernel
        self.tier = tier
        self.reason = reason
        self._table = table

    @property
    def expected(self) -> tuple[Expected, ...]:
        """What is expected of every kernel that serves the problem, best first: :attr:`kernel`, then others.

        Computed anew each time.
        """
        return self._table()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Choice) and self._compared == other._compared

    def __hash__(self) -> int:
        return hash(self._compared)

    @property
    def _compared(self) -> tuple[KernelHandle, str, str]:
        return self.kernel, self.tier, self.reason

    def __repr__(self) -> str:
        return f"Choice(kernel={self.kernel!r}, tier={self.tier!r}, reason={self.reason!r})"

    def __str__(self) -> str:
        return f"{self.kernel.name} ({self.tier}: {self.reason})"


class Serving:
    """The groups that serve a query, as candidates with what is known of their speed on one GPU model.

    Kept for all queries that the same groups serve, so that what several groups have is put together once.
    """

    def __init__(self, groups: Sequence[Group], gpu: str | None) -> None:
        self.groups = groups
        self.known = _known(groups, gpu)
        self._candidates: Candidates | None = None
        # By the identity of the constants, which are kept with the choice that was made of them.
        self._native_choices: dict[tuple[int, int], tuple[Constants, NativeChoice]] = {}

    def native_choice(
        self, launcher: Library, ordinal: int, constants: Constants, machine: Machine
    ) -> NativeChoice:
        """The launcher's choice among the candidates on one GPU; made once."""
        key = id(constants), ordinal
        found = self._native_choices.get(key)
        if found is None:
            made = native_choice.make(
                native_choice.select(launcher),
                self.candidates(),
                constants,
                machine,
                self.known.measured,
                self.groups[0].entry.operands,
                ordinal,
            )
            found = self._native_choices[key] = constants, made
        return found[1]

    def candidates(self) -> Candidates:
        """The kernels of all groups."""
        if self._candidates is None:
            parts = [group.candidates for group in self.groups]
            self._candidates = parts[0] if len(parts) == 1 else Candidates.merged(parts)
        return self._candidates


def _known(groups: Sequence[Group], gpu: str | None) -> KnownSpeeds:
    """What is known of the speed of the groups' kernels: on this GPU model, on others, and by a model."""
    measured: dict[str, list[Callable[[], Ranked]]] = {}
    modelled = []
    for group in groups:
        for reference in group.rankings:
            read = partial(group.ranking, reference)
            if reference.measured:
                measured.setdefault(reference.gpu, []).append(read)
            else:
                modelled.append(read)
    by_gpu = {name: cache(partial(_together, parts)) for name, parts in sorted(measured.items())}
    here = by_gpu.pop(gpu, None) if gpu is not None else None
    return KnownSpeeds(here() if here else None, by_gpu, lambda: [read() for read in modelled])


def _together(parts: Sequence[Callable[[], Ranked]]) -> Ranked:
    return Ranked.merged([read() for read in parts])


class _Match(NamedTuple):
    """The result of a query for one target: the preference, the groups, and the kernels of each."""

    preference: Preference
    serving: Serving
    handles: Sequence[KernelHandles]
    extents: Extents
    machine: Machine
    costs: Callable[[], Mapping[str, float]] | None

    def best(self) -> KernelHandle:
        """The preferred kernel."""
        for digest in self.preference.digests:
            for group, members in zip(self.serving.groups, self.handles, strict=True):
                position = group.index.position(digest)
                if position is not None:
                    return members[position]
        raise AssertionError("a preference names a kernel of the groups")

    def choice(self) -> Choice:
        """The preferred kernel, why, and what is expected of all."""
        return Choice(self.best(), self.preference.tier, self.preference.reason, self.expected)

    def expected(self) -> tuple[Expected, ...]:
        """What is expected of each kernel, best first."""
        preference, candidates = self.preference, self.serving.candidates()
        times = dict(zip(preference.digests, preference.expected, strict=False))
        costs = self.costs() if self.costs else {}
        estimates: Mapping[str, Estimate] = {}
        if not costs or preference.tier != "declared":
            # Else the author's formula knows the kernels better than constants that are derived from designs.
            estimates = tiers.estimates(self.serving.known, candidates, self.extents, self.machine)
        found = []
        for handle in self.ordered():
            own = estimates.get(handle.digest)
            time = times.get(handle.digest, None if own is None else own.microseconds)
            bound = "" if own is None else own.bound
            found.append(Expected(handle, time, bound, costs.get(handle.digest)))
        return tuple(found)

    def ordered(self) -> list[KernelHandle]:
        """All kernels: those that the preference names, in its order, then the rest in the default order."""
        by_digest = {handle.digest: handle for members in self.handles for handle in members}
        names = dict.fromkeys(self.preference.digests)
        if names.keys() < by_digest.keys():
            others = tiers.default_order(self.serving.candidates(), self.extents, self.machine)
            names.update(dict.fromkeys(others.digests))
        return [by_digest[digest] for digest in names]


class PreparedCall(NamedTuple):
    """A call whose operands are described, and the GPU to choose for.

    Attributes:
        query: the query that it becomes.
        target: the target that the caller names; None where each of the query's may serve.
        ordinal: that of the operands' GPU, -1 for none.
        gpu: the model of the GPU, for operands on none as the caller names it; None if that is not known.
        machine: what times on the operands' GPU scale with; None if that is not known.
    """

    query: Query
    target: str | None
    ordinal: int
    gpu: str | None
    machine: Machine | None


class NamedOperands:
    """Operands that a call gives by name: an error within its ``with`` block is of a name, if one is wrong.

    Args:
        finder: of the bundle.
        operation: what is computed.
        named: the operands.
        options: what else the call takes by name.
    """

    __slots__ = ("_finder", "_named", "_operation", "_options")

    def __init__(
        self, finder: Finder, operation: str, named: Mapping[str, Any], options: Sequence[str]
    ) -> None:
        self._finder = finder
        self._operation = operation
        self._named = named
        self._options = options

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, (KernelNotFound, OperandError)) and (
            wrong := self._finder.misnamed(self._operation, self._named, self._options)
        ):
            raise wrong from error


class Finder:
    """Finds the kernels of a bundle that match a query. ``targets`` are those of the bundle, sorted."""

    def __init__(self, directory: BundleDirectory) -> None:
        self._directory = directory
        self.targets = directory.catalog.targets
        self.groups = directory.catalog.groups
        self.group = directory.group
        self.handles = directory.handles
        self._found: dict[tuple[tuple[str, ...], str | None], Serving] = {}
        # By the ordinal of a GPU and its compute capability.
        self._running: dict[tuple[int, tuple[int, int]], tuple[tuple[str, ...], str]] = {}

    def find(
        self, computation: Computation, operands: Sequence[Any], target: str | None, gpu: str | None
    ) -> list[KernelHandle]:
        """Kernels that serve operands, best first; see :meth:`cutlass_aot.Bundle.find`."""
        call = self.prepare(computation, operands, target, gpu)
        if call.ordinal >= 0:
            return self._first_match(call).ordered()
        matches = [found for name in call.query.targets if (found := self._match(call, name))]
        if not matches:
            raise self._nothing_found(call)
        return [kernel for found in matches for kernel in found.ordered()]

    def choose(
        self, computation: Computation, operands: Sequence[Any], target: str | None, gpu: str | None
    ) -> Choice:
        """The kernel that a launch on operands takes; see :meth:`cutlass_aot.Bundle.choose`."""
        return self._first_match(self.prepare(computation, operands, target, gpu)).choice()

    @cached_property
    def tuned_for(self) -> tuple[str, ...]:
        """GPU models, as their drivers name them, on which kernels were measured."""
        models = {ranking.gpu for group in self.groups for ranking in group.rankings if ranking.measured}
        return tuple(sorted(models))

    def _model(self, gpu: str, target: str | None) -> str:
        """The GPU model that was measured by another way to write its name, such as ``h200``; or the name.

        OperandError if several can be meant, if nothing is known of such a model, or if the target is open.
        """
        if target is None and len(self.targets) > 1:
            raise OperandError(
                f"gpu {gpu!r} alone does not say which target it runs: name the target too, one of "
                f"{', '.join(self.targets)}"
            )
        # Imported here: a launch names no model.
        from cutlass_aot.schema.drivers import models_named, refusal_of_model

        refusal = refusal_of_model(gpu, self.tuned_for)
        # A driver may name a model that the table lacks.
        if refusal and not gpu.startswith("NVIDIA "):
            typical = "without `gpu`, kernels are chosen for a typical GPU of their target"
            raise OperandError(f"{refusal}; {typical}")
        found = models_named(gpu, self.tuned_for)
        if len(found) > 1:
            raise OperandError(
                f"gpu {gpu!r} can be {' or '.join(found)}, on each of which the bundle was measured: name one"
            )
        return found[0] if found else gpu

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
        self,
        computation: Computation,
        operands: Sequence[Any],
        target: str | None = None,
        gpu: str | None = None,
    ) -> PreparedCall:
        """Describe the operands of a call, and determine its targets and GPU; ``gpu`` is a model's name."""
        descriptions = tuple(describe_operand(operand) for operand in operands)
        ordinal = common_device(descriptions)
        targets, where = self._targets(ordinal, target)
        query = computation.query(targets, where, descriptions)
        if ordinal >= 0:
            return PreparedCall(query, target, ordinal, *_gpu(ordinal))
        return PreparedCall(query, target, ordinal, None if gpu is None else self._model(gpu, target), None)

    def best(self, call: PreparedCall) -> KernelHandle:
        """The best kernel for a call."""
        return self._first_match(call, natively=True).best()

    def misnamed(
        self, operation: str, named: Mapping[str, Any], options: Sequence[str]
    ) -> ParameterError | None:
        """The error for a call that failed, if a name in it is the reason; ``options`` are what it takes."""
        # Imported here: a kernel that is found needs no words.
        from cutlass_aot.schema.words import did_you_mean, few

        own = [entry for entry in self.groups if entry.operation == operation and entry.requests is None]
        operands = list(dict.fromkeys(operand.name for entry in own for operand in entry.operands))
        for name, value in named.items() if own else ():
            if name in operands:
                continue
            hint = did_you_mean(name, (*options, *operands))
            if hint or not _is_operand(value):
                return ParameterError(
                    f"bundle {self._directory.catalog.name}: {operation} has no parameter or operand "
                    f"`{name}`{hint}: its operands are {few(operands, 12)}, and the call takes "
                    f"{', '.join(options)}"
                )
        return None

    def native_choice(self, call: PreparedCall) -> NativeChoice | None:
        """The choice for other problems on operands like those of a call; None if Python has to make it."""
        query, _, ordinal, model, machine = call
        if ordinal < 0 or not query.targets:
            return None
        entries = match.serving(self.groups, query, query.targets[0])
        if len(entries) != 1 or not match.serves_alone(self.groups, query, entries[0]):
            return None
        if not native_choice.is_plain(entries[0].operands):
            return None
        serving = self._serving(entries, model)
        launcher = serving.groups[0].launcher
        if launcher is None or machine is None:
            return None
        if entries[0].cost and serving.known.fit(machine) is None:
            # Their author's formula chooses, which native code does not know.
            return None
        constants = tiers.estimating(serving.known, serving.candidates(), machine)
        return None if constants is None else serving.native_choice(launcher, ordinal, constants, machine)

    def _first_match(self, call: PreparedCall, *, natively: bool = False) -> _Match:
        """The match of a call for the best target that has one."""
        for target in call.query.targets:
            if found := self._match(call, target, natively=natively):
                return found
        raise self._nothing_found(call)

    def _match(self, call: PreparedCall, target: str, *, natively: bool = False) -> _Match | None:
        """The match of a call for one target; None if no group serves it.

        With ``natively``, for operands on a GPU, it has no more than the best kernel, which the launcher
        chooses. Otherwise nothing of the bundle is mapped.
        """
        query, named, ordinal, model, present = call
        entries = match.serving(self.groups, query, target)
        if not entries:
            return None
        if named is None and ordinal >= 0:
            self._directory.require(target, ordinal)
        handles = [self.handles(entry) for entry in entries]
        extents = match.problem_extents(entries[0], query)
        serving = self._serving(entries, model)
        machine = present or _machine(serving.known, target, model)
        launcher = serving.groups[0].launcher if natively and ordinal >= 0 else None
        fastest: Fastest | None = None
        if launcher is not None:

            def fastest(constants: Constants) -> int:
                return serving.native_choice(launcher, ordinal, constants, machine).fastest(extents)

        costs = partial(_costs, serving, query, machine) if entries[0].cost else None
        preference = tiers.prefer(serving.known, serving.candidates, extents, model, machine, fastest, costs)
        return _Match(preference, serving, handles, extents, machine, costs)

    def _nothing_found(self, call: PreparedCall) -> KernelNotFound:
        return match.miss(self._directory.catalog.name, self.groups, call.query)

    def _serving(self, entries: Sequence[GroupEntry], gpu: str | None) -> Serving:
        """The groups of entries with what is known of their speed on a GPU model; put together once."""
        if all(reference.gpu != gpu for entry in entries for reference in entry.rankings):
            # Whatever other names callers may choose for: what is known of these is the same.
            gpu = None
        key = (tuple(entry.name for entry in entries), gpu)
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = Serving([self.group(entry) for entry in entries], gpu)
        return found

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
        found = self._running.get((ordinal, capability))
        if found is not None:
            return found
        where = f"GPU {ordinal} with compute capability {capability[0]}.{capability[1]}"
        running = runnable_targets(self.targets, capability)
        if not running:
            self._directory.require_any(self.targets, ordinal)
        found = self._running[ordinal, capability] = tuple(running), where
        return found


def _is_operand(value: Any) -> bool:
    try:
        describe_operand(value)
    except OperandError:
        return False
    return True


def _costs(serving: Serving, query: Query, machine: Machine) -> dict[str, float]:
    """The cost of each kernel by its author's formula, by digests."""
    # Imported here: few kernels have a formula.
    from cutlass_aot.schema.kernels.cost import costs_of, numbers_of

    found: dict[str, float] = {}
    for group in serving.groups:
        entry = group.entry
        known = {
            **machine._asdict(),
            **match.named_extents(entry, query),
            **numbers_of(dict(entry.parameters)),
        }
        positions = range(len(group.index))
        try:
            costs = costs_of(
                entry.cost, [known | numbers_of(group.index.design(position)) for position in positions]
            )
        except (ManifestError, KeyError) as error:
            raise CorruptFile(
                f"group {entry.name} has a cost formula that cannot be used ({error}): build the bundle again"
            ) from None
        found.update(zip(map(group.index.digest, positions), costs, strict=True))
    return found


def _gpu(ordinal: int) -> tuple[str | None, Machine | None]:
    """Model of a GPU and what times scale with; None for each if it is not here."""
    try:
        return cuda_driver.device_name(ordinal), cuda_driver.machine(ordinal)
    except DeviceError:
        # A target was named explicitly, for a GPU that is not here.
        return None, None


def _machine(known: KnownSpeeds, target: str, model: str | None) -> Machine:
    """What times scale with on a GPU that is not here: as measured, of its model, or typical of a target."""
    if known.measured is not None and known.measured.machine is not None:
        return known.measured.machine
    if model is None:
        return typical_machine(target)
    # Imported here: a launch names no model.
    from cutlass_aot.schema.drivers import machine_of

    return machine_of(model) or typical_machine(target)

"""Compile one kernel for its author, into a bundle of its own, without a manifest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cutlass_aot.builder import events
from cutlass_aot.builder.build import build_chosen
from cutlass_aot.builder.compile.compile import enumerate_kernels, find_alternatives
from cutlass_aot.builder.compile.pool import Pool
from cutlass_aot.builder.events import Event, Listener
from cutlass_aot.builder.inputs.inputs import Tools
from cutlass_aot.builder.link.kernel_object import KernelObject, LaunchNumbers
from cutlass_aot.builder.occupancy import BLOCK_THREADS, Occupancy, limits_of, occupancy
from cutlass_aot.builder.plan.recipe import Recipe
from cutlass_aot.builder.records import Enumeration
from cutlass_aot.builder.settings import Settings
from cutlass_aot.errors import CompileError, GeneratorError, ParameterError
from cutlass_aot.generators.device_profiles import profile_for
from cutlass_aot.generators.protocol import Generator, Problem
from cutlass_aot.generators.registry import GeneratorReference
from cutlass_aot.manifest.filters import DesignFilter
from cutlass_aot.schema.kernels.artifact import Facts
from cutlass_aot.schema.kernels.design import full_name
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.targets import DEFAULT_HOSTS, HOSTS, Target, target_meant
from cutlass_aot.schema.words import by_numbers, did_you_mean, few, size
from cutlass_aot.store.store import Store

_LOG_LINES = 30


@dataclass(frozen=True, slots=True)
class TriedKernel:
    """A kernel that was compiled.

    Attributes:
        matching: how many kernels match what was asked for; this is the first.
        seconds: that compiling took.
        import_seconds: that importing the DSL took before.
        launches: of its host code.
        bundle: the directory of a bundle with this kernel alone.
    """

    kernel: Kernel
    matching: int
    seconds: float
    import_seconds: float
    facts: Facts
    launches: tuple[LaunchNumbers, ...]
    bundle: Path

    @property
    def threads(self) -> int | None:
        """Threads of a block; None if they are known at the call only, or it launches several kernels."""
        block = self.launches[0].block if len(self.launches) == 1 else None
        return None if block is None else block[0] * block[1] * block[2]

    @property
    def dynamic_bytes(self) -> int | None:
        """Shared memory of a block beside the static; None as for :attr:`threads`."""
        return self.launches[0].dynamic_bytes if len(self.launches) == 1 else None

    @property
    def occupancy(self) -> Occupancy | None:
        """How much of an SM it fills; None if the launch is not known, or the target's limits."""
        limits = limits_of(self.kernel.target)
        if limits is None or not self.threads or self.dynamic_bytes is None:
            return None
        shared = self.facts.shared_memory_bytes + self.dynamic_bytes
        return occupancy(limits, self.threads, self.facts.registers, shared)

    @property
    def problems(self) -> list[str]:
        """Why no GPU of its target can launch it; empty if nothing is known against it."""
        limits = limits_of(self.kernel.target)
        if limits is None or self.occupancy is None or self.occupancy.blocks:
            return []
        shared = self.facts.shared_memory_bytes + (self.dynamic_bytes or 0)
        if shared > limits.block_bytes:
            return [
                f"a block asks for {size(shared)} of shared memory, and can have {size(limits.block_bytes)}"
            ]
        if (self.threads or 0) > BLOCK_THREADS:
            return [f"a block has {self.threads} threads, and can have {BLOCK_THREADS}"]
        return [f"a block of {self.threads} threads with {self.facts.registers} registers each fits no SM"]


@dataclass(slots=True)
class _Heard:
    """What the build tells: the artifact of the kernel, and how long the DSL was imported."""

    tell: Listener
    compiled: list[events.Compiled] = field(default_factory=list)
    import_seconds: float = 0.0

    def __call__(self, event: Event) -> None:
        self.tell(event)
        if isinstance(event, events.Compiled):
            self.compiled.append(event)
        elif isinstance(event, events.Imported):
            self.import_seconds += event.seconds


def try_kernel(
    reference: GeneratorReference,
    problem: Problem,
    target: str,
    filters: Sequence[DesignFilter],
    folder: Path,
    tell: Listener,
    accept: Callable[[Kernel], object],
    *,
    timeout: float = 600.0,
) -> TriedKernel:
    """Compile the first kernel of a generator that filters match, for a target.

    ``folder`` is a private directory that takes the store and the bundle; ``tell`` hears the build's events;
    ``accept`` is called with the kernel before it is compiled, and may raise.

    Raises:
        GeneratorError: if no kernel matches.
        CompileError: if it does not compile, with the compiler's reason.
    """
    matching: list[Kernel] = []
    profile = profile_for(target)

    def choose(pool: Pool, _tools: Tools) -> Iterable[Kernel]:
        answers = enumerate_kernels(pool, [Enumeration(0, reference, problem, target)], {target: profile})
        ((question, found),) = answers
        matching.extend(kernel for kernel in found if _accepted(kernel, filters))
        if not matching:
            instead = find_alternatives(pool, answers, {target: profile}).get(question, "")
            raise GeneratorError(_nothing(reference.name, question, filters, found, instead))
        accept(matching[0])
        return matching[:1]

    machine = os.uname().machine
    hosts = (machine,) if machine in HOSTS else DEFAULT_HOSTS
    recipe = Recipe("tried", "0", profile.name, (target,), hosts)
    heard = _Heard(tell)
    settings = Settings(folder / "store", 1, timeout, heard)
    result = build_chosen(recipe, {reference.name}, choose, folder / "bundles", settings)
    for failure in result.failures:
        # A crash or a timeout has no reason but what the compiler printed last.
        _, _, words = failure.log.read_text("utf-8", "replace").partition("\n\n")
        lines = [] if failure.detail else words.rstrip().splitlines()[-_LOG_LINES:]
        raise CompileError("\n".join([f"{failure.kernel.name} does not compile:", failure.reason, *lines]))
    (compiled,) = heard.compiled
    data = Store(folder / "store").get_blob(compiled.artifact.object_sha256)
    launches = KernelObject.from_bytes(data).launches() if data else ()
    return TriedKernel(
        compiled.kernel,
        len(matching),
        compiled.artifact.seconds,
        heard.import_seconds,
        compiled.artifact.facts,
        launches,
        result.bundle,
    )


def target_for(
    generator: Generator, operation: str, explicit: str | None, capability: tuple[int, int] | None
) -> str:
    """The target to compile for: the one asked for, else the best for the GPU at hand, else the first.

    Raises:
        GeneratorError: if the generator has no such operation.
        ParameterError: if it has no such target.
    """
    targets = generator.targets(operation)
    if not targets:
        known = ", ".join(generator.operations)
        raise GeneratorError(
            f"generator {generator.name!r} has no operation {operation!r}: expected {known}"
            + did_you_mean(operation, generator.operations)
        )
    if explicit is not None:
        if explicit not in targets:
            raise ParameterError(
                f"kernel {generator.name!r} is for {', '.join(targets)}, not for {explicit}"
                + target_meant(explicit, targets)
            )
        return explicit
    if capability is None:
        return targets[0]
    running = [Target.parse(target) for target in targets if Target.parse(target).runs_on(capability)]
    best = min(running, key=lambda target: target.preference(capability), default=None)
    return targets[0] if best is None else str(best)


def _accepted(kernel: Kernel, filters: Sequence[DesignFilter]) -> bool:
    design = dict(kernel.design + kernel.parameters)
    return all(one.accepts(design) for one in filters)


def _nothing(
    name: str, question: Enumeration, filters: Sequence[DesignFilter], found: Sequence[Kernel], instead: str
) -> str:
    if not found:
        named = question.problem.dtypes
        operands = "" if named else "; --dtypes, --layouts and --accumulator name operands"
        return f"generator {name!r} has no kernel for {question.name}: {instead}{operands}"
    values: dict[str, set[str]] = {}
    for kernel in found:
        for key, value in (*kernel.design, *kernel.parameters):
            text = "x".join(map(str, value)) if isinstance(value, tuple) else str(value)
            values.setdefault(key, set()).add(text)
    names = [full_name(one.written, values) for one in filters]
    meant = "".join(did_you_mean(one, values) for one in names if one not in values)
    shown = dict.fromkeys(names) if values.keys() >= set(names) else values
    there = "; ".join(f"{key} = {few(sorted(values[key], key=by_numbers), 12)}" for key in shown)
    filtered = " and ".join(map(str, filters))
    return f"none of {len(found)} kernels of {name!r} has {filtered}: there is {there}{meant}"

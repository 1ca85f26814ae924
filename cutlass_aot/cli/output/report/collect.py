"""A build's events as the facts of a page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from cutlass_aot.builder import events
from cutlass_aot.builder.events import Event
from cutlass_aot.builder.records import Failure
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.kernel import Kernel

State = Literal["compiled", "present", "shared", "failed", "open"]
"""Of a kernel: compiled, in the store before, stored by another builder meanwhile, failed, not reached."""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One kernel of a build. Group and design are its name; ``artifact`` is None if there is none.

    ``table`` is the manifest's that asks for it, ``""`` if a program does.
    """

    group: str
    design: str
    target: str
    digest: str
    table: str
    state: State
    artifact: Artifact | None

    @property
    def seconds(self) -> float:
        """Seconds its compilation took, now or earlier; 0 if it was not compiled."""
        return self.artifact.seconds if self.artifact else 0.0

    @property
    def size(self) -> int:
        """Bytes of its object; 0 if it was not compiled."""
        return self.artifact.object_bytes if self.artifact else 0

    @property
    def spills(self) -> int:
        """Bytes of registers that a thread spills."""
        return self.artifact.facts.spill_bytes if self.artifact else 0


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """The kernels of a group, sorted by design."""

    name: str
    kernels: tuple[KernelFacts, ...]

    @property
    def seconds(self) -> float:
        """Seconds their compilations took, one after the other."""
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def size(self) -> int:
        """Bytes of their objects."""
        return sum(kernel.size for kernel in self.kernels)

    @property
    def registers(self) -> tuple[int, int] | None:
        """Fewest and most registers of a thread; None if nothing is compiled."""
        counts = [kernel.artifact.facts.registers for kernel in self.kernels if kernel.artifact]
        return (min(counts), max(counts)) if counts else None

    def count(self, *states: State) -> int:
        """How many kernels are in one of these states."""
        return sum(kernel.state in states for kernel in self.kernels)


@dataclass(frozen=True, slots=True)
class Span:
    """When a worker was busy with a kernel, in seconds since the plan."""

    begin: float
    end: float
    name: str
    failed: bool


@dataclass(frozen=True, slots=True)
class BuildFacts:
    """What a page shows of a build.

    ``up_to_date`` counts the kernels of an existing bundle, if the build found it up to date; ``finished`` is
    None if an error ended the build. ``failures`` are in the order of their reasons and names, ``libraries``
    those that were linked now.
    """

    planned: bool
    up_to_date: int
    finished: events.Finished | None
    seconds: float
    groups: tuple[GroupFacts, ...]
    failures: tuple[Failure, ...]
    libraries: tuple[events.Linked, ...]
    warnings: tuple[str, ...]
    spans: tuple[Span, ...]

    @property
    def kernels(self) -> tuple[KernelFacts, ...]:
        """All kernels, in the order of their groups."""
        return tuple(kernel for group in self.groups for kernel in group.kernels)


class Collector:
    """A listener that keeps what a page needs."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._begin = now()
        self._plan = self._begin
        self._planned: events.Planned | None = None
        self._up_to_date = 0
        self._finished: events.Finished | None = None
        self._begun: dict[str, float] = {}
        self._states: dict[str, tuple[State, Artifact | None]] = {}
        self._failures: list[Failure] = []
        self._libraries: list[events.Linked] = []
        self._notices: list[str] = []
        self._spans: list[Span] = []

    @property
    def planned(self) -> bool:
        """Whether there was a plan; without one there is nothing to show."""
        return self._planned is not None

    def __call__(self, event: Event) -> None:
        """Keep an event."""
        if isinstance(event, events.Planned):
            self._planned, self._plan = event, self._now()
        elif isinstance(event, events.UpToDate):
            self._up_to_date = event.kernels
        elif isinstance(event, events.Started):
            self._begun[event.kernel.digest] = self._now()
        elif isinstance(event, events.Compiled):
            self._states[event.kernel.digest] = ("compiled", event.artifact)
            self._span(event.kernel, event.artifact.seconds, failed=False)
        elif isinstance(event, events.Shared):
            self._states[event.kernel.digest] = ("shared", event.artifact)
            self._begun.pop(event.kernel.digest, None)
        elif isinstance(event, events.Failed):
            self._states[event.failure.kernel.digest] = ("failed", None)
            self._failures.append(event.failure)
            # One that nobody started failed in an earlier build.
            if event.failure.kernel.digest in self._begun:
                self._span(event.failure.kernel, None, failed=True)
        elif isinstance(event, events.Linked):
            self._libraries.append(event)
        elif isinstance(event, events.Notice):
            self._notices.append(event.text)
        elif isinstance(event, events.Finished):
            self._finished = event

    def _span(self, kernel: Kernel, seconds: float | None, *, failed: bool) -> None:
        """Record when a worker was busy; ``seconds`` if the worker measured them.

        The event of its start comes too early then: the worker may have yet to start, and it is handed its
        next kernel before its last one is reported.
        """
        end = self._now()
        begin = self._begun.pop(kernel.digest, self._plan)
        if seconds is not None:
            begin = max(begin, end - seconds)
        self._spans.append(Span(begin - self._plan, end - self._plan, kernel.name, failed))

    def facts(self) -> BuildFacts:
        """The facts so far."""
        plan = self._planned
        return BuildFacts(
            planned=plan is not None,
            up_to_date=self._up_to_date,
            finished=self._finished,
            seconds=self._now() - self._begin,
            groups=_grouped(self._kernel(item.kernel, item.artifact) for item in plan.kernels)
            if plan
            else (),
            failures=tuple(sorted(self._failures, key=lambda item: (item.reason, item.kernel.name))),
            libraries=tuple(sorted(self._libraries, key=lambda item: item.library)),
            warnings=(*(plan.warnings if plan else ()), *self._notices),
            spans=tuple(sorted(self._spans, key=lambda item: (item.begin, item.end, item.name))),
        )

    def _kernel(self, kernel: Kernel, present: Artifact | None) -> KernelFacts:
        state, artifact = self._states.get(kernel.digest, ("present" if present else "open", present))
        group = kernel.group_name
        design = kernel.name.removeprefix(f"{group}-")
        table = self._planned.tables.get(kernel.digest, "") if self._planned else ""
        return KernelFacts(group, design, kernel.target, kernel.digest, table, state, artifact)


def _grouped(kernels: Iterable[KernelFacts]) -> tuple[GroupFacts, ...]:
    groups: dict[str, list[KernelFacts]] = {}
    for kernel in kernels:
        groups.setdefault(kernel.group, []).append(kernel)
    return tuple(
        GroupFacts(name, tuple(sorted(members, key=lambda kernel: kernel.design)))
        for name, members in sorted(groups.items())
    )

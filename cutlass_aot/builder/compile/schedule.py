"""The order of jobs: the longest first, and jobs of one group on the same worker if time allows."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean
from typing import Any

from cutlass_aot.builder.compile.messages import Request
from cutlass_aot.schema.kernels.kernel import Kernel


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One request for a worker.

    Attributes:
        name: what messages call it.
        tag: the caller's own, handed back with the result.
        group: a worker that has done one job of a group keeps something that makes the others faster.
        seconds: how long it is expected to take.
    """

    name: str
    request: Request
    tag: Any = None
    group: str = ""
    seconds: float = 1.0


@dataclass(slots=True)
class _Group:
    """The jobs left of a group, the longest last; ``sums`` has the total seconds up to and including each."""

    name: str
    order: int
    jobs: list[Job]
    sums: list[float]

    @property
    def seconds(self) -> float:
        return self.jobs[-1].seconds


_Entry = tuple[float, int, str, int]
"""A group in a heap: its sort key, its order among equals, its name and how many jobs it had. If it has
another number by now, the entry is outdated, and the heap has a newer one."""


@dataclass(slots=True)
class Queue:
    """Jobs that wait to be taken by a number of workers; of equal jobs the first is taken first.

    A worker's first job of a group costs more (it enumerates the operators of a problem, 0.1 s), so it stays
    with the groups it knows as long as that cannot delay the end: a longer job of another group waits only
    while the rest keeps all workers busy for longer than that job takes.
    """

    jobs: Iterable[Job]
    workers: int
    _groups: dict[str, _Group] = field(default_factory=dict)
    _longest: list[_Entry] = field(default_factory=list)
    _most: list[_Entry] = field(default_factory=list)
    _left: float = 0.0
    _count: int = 0

    def __post_init__(self) -> None:
        members: dict[str, list[Job]] = {}
        for job in sorted(self.jobs, key=lambda job: -job.seconds):
            members.setdefault(job.group, []).append(job)
            self._left += job.seconds
            self._count += 1
        for order, (name, jobs) in enumerate(members.items()):
            jobs.reverse()
            group = _Group(name, order, jobs, list(accumulate(job.seconds for job in jobs)))
            self._groups[name] = group
            self._push(group)

    def __len__(self) -> int:
        return self._count

    def take(self, known: Collection[str], taken: Collection[str] = ()) -> Job | None:
        """Remove and return the job to do next; None if the queue is empty.

        ``known`` are the groups that the worker has done jobs of, ``taken`` those that other workers work on.
        """
        if not self._groups:
            return None
        longest = self._first(self._longest)
        if longest.seconds >= self._left / self.workers:
            return self._remove(longest)
        own = [self._groups[name] for name in known if name in self._groups]
        if own:
            return self._remove(min(own, key=lambda group: (-group.seconds, group.order)))
        return self._remove(self._most_work(taken))

    def _most_work(self, taken: Collection[str]) -> _Group:
        """The group with most work among those that no worker works on, or among all if there is none."""
        passed: list[_Entry] = []
        found: _Group | None = None
        while len(passed) < len(self._groups):
            group = self._first(self._most)
            if group.name not in taken:
                found = group
                break
            passed.append(heapq.heappop(self._most))
        for entry in passed:
            heapq.heappush(self._most, entry)
        return found or self._first(self._most)

    def _first(self, heap: list[_Entry]) -> _Group:
        """The group of a heap's first entry that is not outdated; outdated ones before it are removed."""
        while True:
            _, _, name, length = heap[0]
            group = self._groups.get(name)
            if group is not None and len(group.jobs) == length:
                return group
            heapq.heappop(heap)

    def _remove(self, group: _Group) -> Job:
        """Take the longest job of a group."""
        job = group.jobs.pop()
        group.sums.pop()
        if group.jobs:
            self._push(group)
        else:
            del self._groups[group.name]
        self._left -= job.seconds
        self._count -= 1
        return job

    def _push(self, group: _Group) -> None:
        length = len(group.jobs)
        heapq.heappush(self._longest, (-group.seconds, group.order, group.name, length))
        heapq.heappush(self._most, (-group.sums[-1], group.order, group.name, length))


def expected_seconds(
    kernels: Sequence[Kernel], durations: Mapping[str, float], others: Iterable[Kernel] = ()
) -> list[float]:
    """Expected seconds for each kernel: those remembered, or its family's mean on its target, or the longest.

    A kernel of which nothing is known may take any time, so it counts as the longest and starts first.
    ``durations`` are by digest; ``others`` are further kernels that count for the families' means.
    """
    seen: dict[tuple[str, str, str], list[float]] = {}
    for kernel in (*kernels, *others):
        if kernel.digest in durations:
            seen.setdefault(_kind(kernel), []).append(durations[kernel.digest])
    means = {kind: fmean(values) for kind, values in seen.items()}
    longest = max(durations.values(), default=1.0)
    return [durations.get(kernel.digest, means.get(_kind(kernel), longest)) for kernel in kernels]


def _kind(kernel: Kernel) -> tuple[str, str, str]:
    return kernel.generator, str(dict(kernel.design).get("family", "")), kernel.target

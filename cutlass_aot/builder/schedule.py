"""Which job a worker takes next: the longest first, and alike ones together while there is time for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One request for a worker.

    Attributes:
        name: what it is called in messages.
        request: the message, without its log.
        tag: the caller's own, handed back with the result.
        group: jobs of one group share what a worker keeps once it has done one of them.
        seconds: how long it is expected to take.
    """

    name: str
    request: dict[str, Any]
    tag: Any = None
    group: str = ""
    seconds: float = 1.0


@dataclass(slots=True)
class Queue:
    """Jobs that wait to be taken.

    A worker that takes up a group anew pays for it once (the operators of a problem are enumerated, 0.1 s),
    so it stays with the groups it knows as long as that cannot delay the end: a longer job of another group
    waits only while the rest keeps all workers busy for longer than it takes.

    Args:
        jobs: in any order; of equal ones the first is taken first.
        workers: how many there are to take them.
    """

    jobs: Iterable[Job]
    workers: int
    _groups: dict[str, list[Job]] = field(default_factory=dict)
    _left: float = 0.0

    def __post_init__(self) -> None:
        for job in sorted(self.jobs, key=lambda job: -job.seconds):
            self._groups.setdefault(job.group, []).append(job)
            self._left += job.seconds
        # The longest of each group stands at its end, where it is taken from.
        for group in self._groups.values():
            group.reverse()

    def __len__(self) -> int:
        return sum(len(group) for group in self._groups.values())

    def take(self, known: Collection[str], taken: Collection[str] = ()) -> Job | None:
        """The job to do next, which is then no longer in the queue; None if the queue is empty.

        Args:
            known: groups that the worker has done jobs of.
            taken: groups that other workers are at.
        """
        if not self._groups:
            return None
        longest = max(self._groups.values(), key=lambda group: group[-1].seconds)[-1]
        if longest.seconds >= self._left / self.workers:
            return self._remove(longest)
        own = [group for name, group in self._groups.items() if name in known]
        if own:
            return self._remove(max(own, key=lambda group: group[-1].seconds)[-1])
        free = [group for name, group in self._groups.items() if name not in taken]
        most = max(free or self._groups.values(), key=lambda group: sum(job.seconds for job in group))
        return self._remove(most[-1])

    def _remove(self, job: Job) -> Job:
        group = self._groups[job.group]
        group.remove(job)
        if not group:
            del self._groups[job.group]
        self._left -= job.seconds
        return job

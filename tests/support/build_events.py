"""Builds that are told and never run: events for tests of whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cutlass_aot.builder import events
from cutlass_aot.builder.events import Event
from cutlass_aot.builder.records import Failure, PlannedKernel
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.artifact import Artifact, Facts
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.kernels import gemm


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def kernel(number: int, group: int = 0, target: str = "sm_100a") -> Kernel:
    """One of many kernels of one of six groups."""
    layout = ("tnt", "ttt", "nnt", "ntt", "tnn", "ttn")[group % 6]
    design = {"family": "Dense", "tile_shape": (128, 256, 64), "cluster_shape": (2, 1, 1), "n": number}
    return gemm(dtypes=("bf16", "bf16", "bf16"), layouts=layout, target=target, design=design)


def artifact(seconds: float = 0.5, spills: int = 0, registers: int = 168) -> Artifact:
    return Artifact("0" * 64, 50_000, Facts("sm_100a", "12.9", registers, spills, 1024, 40_000), seconds)


def planned(kernels: Sequence[Kernel], present: int = 0, warnings: tuple[str, ...] = ()) -> events.Planned:
    """A plan of kernels, the first ``present`` of which the store has."""
    items = (
        PlannedKernel(item, digest(item.digest.encode()), artifact() if index < present else None, "")
        for index, item in enumerate(kernels)
    )
    return events.Planned(tuple(items), warnings)


def failure(item: Kernel, log: Path, reason: str = "ValueError: no such instruction") -> Failure:
    return Failure(item, reason, log)


def samples(log: Path) -> list[Event]:
    """One event of every kind, in an order that a build could tell them."""
    items = [kernel(number) for number in range(4)]
    return [
        events.Enumerating(3),
        events.Importing(),
        events.Imported(3.14159),
        events.Ranking(7),
        events.Running("python warm.py", "sm_100a"),
        events.Recording("python warm.py", "sm_100a", 5, 3, 0),
        events.Ran("python warm.py", "sm_100a", 5, 4, 1),
        planned(items, 1, ("no INT8 there",)),
        events.Started(items[1]),
        events.Compiled(items[1], artifact(0.61234)),
        events.Shared(items[2], artifact()),
        events.Failed(failure(items[3], log)),
        events.Linking(1),
        events.Linked("sm_100a-0", 3, 800_000, 0.25, "x86_64"),
        events.Notice("the remote store cannot be reached"),
        events.UpToDate(4),
        events.Finished(Path("out/b"), 4, 1, 1, False),
    ]


def build(
    clock: Clock, kernels: Sequence[Kernel], present: int = 0, workers: int = 4, seconds: float = 0.5
) -> Iterator[Event]:
    """A build that goes well, as fast as its workers are."""
    yield planned(kernels, present)
    missing = kernels[present:]
    for first in range(0, len(missing), workers):
        for item in missing[first : first + workers]:
            yield events.Started(item)
        clock.seconds += seconds
        for number, item in enumerate(missing[first : first + workers]):
            # Values that differ, so that there is something to draw.
            yield events.Compiled(item, artifact(seconds + number / 10, spills=8 * (number == 3)))
    yield events.Finished(Path("out/b"), len(kernels), len(missing), 0, True)


def tell_all(listener: Callable[[Event], None], told: Sequence[Event] | Iterator[Event]) -> None:
    for event in told:
        listener(event)

"""Compare two listings: pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import exp, log

from cutlass_aot.diff.listing import NUMBERS, ListedKernel, Listing


@dataclass(frozen=True, slots=True)
class Change:
    """A kernel that both have, and that differs.

    ``numbers`` has those that both know and that differ, by their names in :data:`.NUMBERS`; ``code`` is
    whether its object is another one, or its key where an object is not known.
    """

    kernel: ListedKernel
    numbers: dict[str, tuple[int, int]]
    code: bool


@dataclass(frozen=True, slots=True)
class Speed:
    """Measured times of a kernel on a GPU; ``ratio`` is the geometric mean of the second's by the first's."""

    kernel: str
    gpu: str
    problems: int
    ratio: float


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two listings.

    ``compile_seconds`` are of the kernels of which both know them; None if there are none.
    """

    added: tuple[ListedKernel, ...]
    removed: tuple[ListedKernel, ...]
    changed: tuple[Change, ...]
    equal: int
    speeds: tuple[Speed, ...]
    compile_seconds: tuple[float, float] | None


def compare(first: Listing, second: Listing) -> Difference:
    """What the second listing has that the first has not, has no more, and has otherwise."""
    before = {kernel.name: kernel for kernel in first.kernels}
    after = {kernel.name: kernel for kernel in second.kernels}
    both = [(before[name], after[name]) for name in sorted(before.keys() & after.keys())]
    changed = [change for one, two in both if (change := _change(one, two)) is not None]
    timed = [
        (one.seconds, two.seconds) for one, two in both if one.seconds is not None and two.seconds is not None
    ]
    return Difference(
        added=_sorted(after[name] for name in after.keys() - before.keys()),
        removed=_sorted(before[name] for name in before.keys() - after.keys()),
        changed=tuple(changed),
        equal=len(both) - len(changed),
        speeds=_speeds(first, second),
        compile_seconds=(sum(one for one, _ in timed), sum(two for _, two in timed)) if timed else None,
    )


def _sorted(kernels: Iterable[ListedKernel]) -> tuple[ListedKernel, ...]:
    return tuple(sorted(kernels, key=lambda kernel: kernel.name))


def _change(one: ListedKernel, two: ListedKernel) -> Change | None:
    numbers = {}
    for name in NUMBERS:
        values = getattr(one, name), getattr(two, name)
        if None not in values and values[0] != values[1]:
            numbers[name] = values
    if one.sha256 and two.sha256:
        code = one.sha256 != two.sha256
    else:
        code = bool(one.key and two.key and one.key != two.key)
    return Change(two, numbers, code) if numbers or code else None


def _speeds(first: Listing, second: Listing) -> tuple[Speed, ...]:
    ratios: dict[tuple[str, str], list[float]] = {}
    for (kernel, gpu, problem), time in first.times.items():
        other = second.times.get((kernel, gpu, problem))
        if other is not None and time > 0 and other > 0:
            ratios.setdefault((kernel, gpu), []).append(other / time)
    return tuple(
        Speed(kernel, gpu, len(found), exp(sum(map(log, found)) / len(found)))
        for (kernel, gpu), found in sorted(ratios.items())
    )

"""Which kernels make a group, what it is called, and which groups and kernels share a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from cutlass_aot.schema.kernels.kernel import Kernel

KERNELS_A_PACK = 128
"""Kernels up to which groups share a file of GPU code. The more, the better they compress; the fewer, the
sooner the first one is unpacked. ``tools/bench/size.py`` prints what each number comes to."""

KERNELS_A_LIBRARY = 14
"""Most kernels of a library of host code, all of which are mapped with the first: by ``tools/bench/size.py``,
which prints how long that takes and how much larger it makes a bundle."""


def group_names(kernels: Iterable[Kernel]) -> dict[str, str]:
    """The name of each group by its digest.

    The readable name leaves out alignment and divisibility: groups that differ in nothing else get eight
    digits of their digest in it.
    """
    readable = {kernel.group: kernel.group_name for kernel in kernels}
    count = Counter(readable.values())
    return {group: name if count[name] == 1 else f"{name}-{group[:8]}" for group, name in readable.items()}


def pack(groups: Mapping[str, tuple[str, int]]) -> dict[str, list[str]]:
    """Which groups are packed together: neighbours of one target, until there are enough kernels.

    Args:
        groups: name to target and number of kernels.

    Returns:
        Name of each pack to its groups, both in order. A group is never split, however large.
    """
    packs: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    current: dict[str, str] = {}
    for name in sorted(groups):
        target, count = groups[name]
        packed = current.get(target)
        if packed is None or sizes[packed] + count > KERNELS_A_PACK:
            packed = f"{target}-{sum(other.startswith(f'{target}-') for other in packs)}"
            current[target], packs[packed], sizes[packed] = packed, [], 0
        packs[packed].append(name)
        sizes[packed] += count
    return packs


def libraries_of(pack_name: str, kernels: Sequence[Kernel]) -> dict[str, list[Kernel]]:
    """Which kernels of a pack share a library of host code: as many as are mapped quickly, in order.

    Args:
        pack_name: name of the pack.
        kernels: its kernels, in order.

    Returns:
        Name of each library to its kernels.
    """
    count = -(-len(kernels) // KERNELS_A_LIBRARY)
    if count == 1:
        return {pack_name: list(kernels)}
    bounds = [len(kernels) * number // count for number in range(count + 1)]
    return {f"{pack_name}.{n}": list(kernels[bounds[n] : bounds[n + 1]]) for n in range(count)}

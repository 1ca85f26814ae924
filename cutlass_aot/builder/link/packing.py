"""How kernels are grouped into files: the names of groups, and which groups and kernels share a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from cutlass_aot.schema.kernels.kernel import Kernel

KERNELS_A_PACK = 128
"""Most kernels for which groups share a file of GPU code. More kernels compress better; with fewer, the first
is unpacked sooner. ``tools/bench/size.py`` prints size and time for each number."""

KERNELS_A_LIBRARY = 14
"""Most kernels in a library of host code; loading one kernel maps them all. Mapping more takes longer; more
libraries make a bundle larger. ``tools/bench/size.py`` prints both."""


def group_names(kernels: Iterable[Kernel]) -> dict[str, str]:
    """The name of each group by its digest.

    The readable name leaves out alignment and divisibility; groups that differ in nothing else have eight
    digits of their digest appended.
    """
    readable = {kernel.group: kernel.group_name for kernel in kernels}
    count = Counter(readable.values())
    return {group: name if count[name] == 1 else f"{name}-{group[:8]}" for group, name in readable.items()}


def pack(groups: Mapping[str, tuple[str, int]]) -> dict[str, list[str]]:
    """Divide groups, given by name with target and number of kernels, into packs; returns each pack's groups.

    A pack takes successive groups of one target up to :data:`KERNELS_A_PACK` kernels; a group is never split,
    however large. Packs and groups are in order.
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
    """Divide the kernels of a pack, in order, into libraries of host code of about equal size."""
    count = -(-len(kernels) // KERNELS_A_LIBRARY)
    if count == 1:
        return {pack_name: list(kernels)}
    bounds = [len(kernels) * number // count for number in range(count + 1)]
    return {f"{pack_name}.{n}": list(kernels[bounds[n] : bounds[n + 1]]) for n in range(count)}

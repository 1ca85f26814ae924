"""Which kernels make a group, what it is called, and which groups share a library."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cutlass_aot.schema.group_index import KernelEntry
from cutlass_aot.schema.kernel import Kernel

KERNELS_A_LIBRARY = 128
"""Kernels up to which groups share a library: enough to make its copy of the CUDA runtime (0.75 MB) small
beside them, few enough that verifying it at first use takes milliseconds."""


def group_names(kernels: Iterable[Kernel]) -> dict[str, str]:
    """The name of each group by its digest.

    The readable name leaves out alignment and divisibility: groups that differ in nothing else get eight
    digits of their digest in it.
    """
    readable = {kernel.group: kernel.group_name for kernel in kernels}
    names = list(readable.values())
    return {
        group: name if names.count(name) == 1 else f"{name}-{group[:8]}" for group, name in readable.items()
    }


def named_groups(entries: Sequence[KernelEntry]) -> dict[str, list[KernelEntry]]:
    """Functionally equivalent kernels by the name of their group."""
    names = group_names(entry.kernel for entry in entries)
    groups: dict[str, list[KernelEntry]] = {}
    for entry in entries:
        groups.setdefault(names[entry.kernel.group], []).append(entry)
    return groups


def pack(groups: Mapping[str, tuple[str, int]]) -> dict[str, list[str]]:
    """Which groups share a library: neighbours of one target, until a library has enough kernels.

    Args:
        groups: name to target and number of kernels.

    Returns:
        Name of each library to its groups, both in order. A group is never split.
    """
    packs: dict[str, list[str]] = {}
    sizes: dict[str, int] = {}
    current: dict[str, str] = {}
    for name in sorted(groups):
        target, count = groups[name]
        library = current.get(target)
        if library is None or sizes[library] + count > KERNELS_A_LIBRARY:
            library = f"{target}-{sum(other.startswith(f'{target}-') for other in packs)}"
            current[target], packs[library], sizes[library] = library, [], 0
        packs[library].append(name)
        sizes[library] += count
    return packs

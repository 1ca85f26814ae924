"""Link a bundle's libraries, of kernels and the launcher; what the store has is not linked again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from cutlass_aot.builder.events import Linked, Linking, Listener
from cutlass_aot.builder.native.link import LinkToolchain
from cutlass_aot.bundle.write import GroupPlan, LinkedLibrary
from cutlass_aot.errors import StoreError
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.schema.group_index import KernelEntry
from cutlass_aot.store.blobs import LIBRARY_LEVEL
from cutlass_aot.store.store import Store

LINK_SCHEMA = 1
LAUNCHER = "launcher"
"""Stem of the launcher's file; libraries of kernels begin with their target."""

KERNELS_A_LIBRARY = 128
"""Kernels up to which groups share a library: enough to make its copy of the CUDA runtime (0.75 MB) small
beside them, few enough that verifying it at first use takes milliseconds."""


def link_groups(
    entries: Sequence[KernelEntry],
    linkers: Mapping[str, LinkToolchain],
    store: Store,
    workspace: Path,
    tell: Listener,
) -> list[GroupPlan]:
    """Libraries of every group.

    Args:
        entries: kernels, with the digests of their objects.
        linkers: host to toolchain.
        store: has the objects, and takes the libraries.
        workspace: a private directory.
        tell: called with an event for the start, if anything has to be linked, and for each library.

    Raises:
        LinkError: if the linker fails.
        StoreError: if an object is gone since it was planned.
    """
    groups = named_groups(entries)
    packs = pack({name: (members[0].kernel.target, len(members)) for name, members in groups.items()})
    wanted = _wanted(groups, packs, linkers)
    found = {link_key: _library(store, link_key, workspace) for *_, link_key in wanted}
    missing = sum(library is None for library in found.values())
    if missing:
        tell(Linking(missing))
    libraries: dict[str, dict[str, LinkedLibrary]] = {}
    for pack_name, host, members, link_key in wanted:
        library = found[link_key]
        if library is None:
            start = time.monotonic()
            library = _link(members, linkers[host], link_key, store, workspace)
            size = library[0].stat().st_size
            tell(Linked(pack_name, len(members), size, time.monotonic() - start))
        libraries.setdefault(pack_name, {})[host] = LinkedLibrary(pack_name, *library)
    return [
        GroupPlan(name=name, entries=tuple(groups[name]), libraries=libraries[pack_name])
        for pack_name, names in packs.items()
        for name in names
    ]


def library_keys(entries: Sequence[KernelEntry], linkers: Mapping[str, LinkToolchain]) -> list[str]:
    """Keys in the store of the libraries that :func:`link_groups` gives, and of the launchers."""
    groups = named_groups(entries)
    packs = pack({name: (members[0].kernel.target, len(members)) for name, members in groups.items()})
    keys = [link_key for *_, link_key in _wanted(groups, packs, linkers)]
    return [*keys, *(_launcher_key(linker) for _, linker in sorted(linkers.items()))]


def _wanted(
    groups: Mapping[str, Sequence[KernelEntry]],
    packs: Mapping[str, Sequence[str]],
    linkers: Mapping[str, LinkToolchain],
) -> list[tuple[str, str, list[KernelEntry], str]]:
    """Every library: its name, host, kernels, and key in the store."""
    wanted = []
    for name, group_names in packs.items():
        members = [entry for group in group_names for entry in groups[group]]
        wanted += [(name, host, members, _link_key(members, linkers[host])) for host in sorted(linkers)]
    return wanted


def named_groups(entries: Sequence[KernelEntry]) -> dict[str, list[KernelEntry]]:
    """Functionally equivalent kernels by the name of their group.

    The readable name leaves out alignment and divisibility: groups that differ in nothing else get eight
    digits of their digest in it.
    """
    groups: dict[str, list[KernelEntry]] = {}
    for entry in entries:
        groups.setdefault(entry.kernel.group, []).append(entry)
    names = [members[0].kernel.group_name for members in groups.values()]
    named = {}
    for group, members in groups.items():
        name = members[0].kernel.group_name
        named[name if names.count(name) == 1 else f"{name}-{group[:8]}"] = members
    return named


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


def link_launchers(
    linkers: Mapping[str, LinkToolchain], store: Store, workspace: Path
) -> dict[str, LinkedLibrary]:
    """The launcher for each host.

    Args:
        linkers: host to toolchain.
        store: takes the libraries.
        workspace: a private directory.

    Raises:
        LinkError: if the compiler or the linker fails.
    """
    launchers = {}
    for host, linker in sorted(linkers.items()):
        link_key = _launcher_key(linker)
        library = _library(store, link_key, workspace)
        if library is None:
            made = workspace / f"{link_key}.so"
            linker.link_launcher(made, workspace / "cache")
            library = _keep(made, link_key, store)
        launchers[host] = LinkedLibrary(LAUNCHER, *library)
    return launchers


def _link(
    members: Sequence[KernelEntry], linker: LinkToolchain, link_key: str, store: Store, workspace: Path
) -> tuple[Path, str]:
    library = workspace / f"{link_key}.so"
    linker.link(_objects(members, store, workspace), library, workspace / "cache")
    return _keep(library, link_key, store)


def _keep(library: Path, link_key: str, store: Store) -> tuple[Path, str]:
    """Keep a library in the store; its file in the workspace stays, for the bundle."""
    data = library.read_bytes()
    sha256 = store.put_blob(data, LIBRARY_LEVEL)
    store.put_record("library", link_key, {"sha256": sha256}, blobs={sha256: len(data)})
    return library, sha256


def _launcher_key(linker: LinkToolchain) -> str:
    return digest(encode({"schema": LINK_SCHEMA, "launcher": linker.fingerprint}))


def _link_key(members: Sequence[KernelEntry], linker: LinkToolchain) -> str:
    objects = {entry.kernel.symbol: entry.object_sha256 for entry in members}
    return digest(encode({"schema": LINK_SCHEMA, "objects": objects, "linker": linker.fingerprint}))


def _library(store: Store, link_key: str, workspace: Path) -> tuple[Path, str] | None:
    """A library that the store has, as a file in the workspace, and its digest."""
    record = store.get_record("library", link_key)
    if not isinstance(record, dict):
        return None
    sha256 = str(record.get("sha256"))
    path = workspace / f"{link_key}.so"
    return (path, sha256) if store.extract_blob(sha256, path) else None


def _objects(members: Sequence[KernelEntry], store: Store, workspace: Path) -> list[tuple[str, Path]]:
    """Verified copies of a group's objects: what is linked is what was checked."""
    found = []
    for entry in members:
        path = workspace / f"{entry.kernel.symbol}.o"
        if not store.extract_blob(entry.object_sha256, path):
            raise StoreError(
                f"the object of {entry.kernel.name} is gone or damaged since it was planned: build again"
            )
        found.append((entry.kernel.symbol, path))
    return found

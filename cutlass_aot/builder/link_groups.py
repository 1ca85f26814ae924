"""Link a bundle's libraries while its kernels are compiled; what the store has is not linked again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from cutlass_aot.builder.events import Linked, Linking, Listener
from cutlass_aot.builder.groups import group_names, named_groups, pack
from cutlass_aot.builder.native.link import LinkToolchain
from cutlass_aot.bundle.write import GroupPlan, LinkedLibrary
from cutlass_aot.errors import StoreError
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.schema.group_index import KernelEntry
from cutlass_aot.schema.kernel import Kernel
from cutlass_aot.store.blobs import LIBRARY_LEVEL
from cutlass_aot.store.files import reported
from cutlass_aot.store.store import Store

LINK_SCHEMA = 1
LAUNCHER = "launcher"
"""Stem of the launcher's file; libraries of kernels begin with their target."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A library as a file in the workspace.

    Attributes:
        path: the file.
        sha256: digest of its bytes.
        key: what it is kept under in the store.
        seconds: how long linking took; None if the store had it.
    """

    path: Path
    sha256: str
    key: str
    seconds: float | None


class Libraries:
    """The libraries of a bundle in the making; use it as a context manager.

    Each is linked, by a thread, as soon as all of its kernels are there; the launchers at once.

    Args:
        kernels: all kernels of the bundle.
        linkers: host to toolchain.
        store: has the objects, and takes the libraries.
        workspace: a private directory.
        tell: called with an event for each library, and for the libraries left when there is nothing else to
            wait for; always in the caller's thread.
    """

    def __init__(
        self,
        kernels: Iterable[Kernel],
        linkers: Mapping[str, LinkToolchain],
        store: Store,
        workspace: Path,
        tell: Listener,
    ) -> None:
        self._linkers = dict(sorted(linkers.items()))
        self._store = store
        self._workspace = workspace
        self._tell = tell
        # One at a time: the linker uses several threads of its own, and the compilers need the cores.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="link")
        members: dict[str, list[Kernel]] = {}
        for kernel in kernels:
            members.setdefault(kernel.group, []).append(kernel)
        names = group_names(own[0] for own in members.values())
        groups = {names[group]: own for group, own in members.items()}
        self._packs = pack({name: (own[0].target, len(own)) for name, own in groups.items()})
        self._members = {
            library: {kernel.digest: kernel for name in own for kernel in groups[name]}
            for library, own in self._packs.items()
        }
        self._library_of = {kernel: library for library, own in self._members.items() for kernel in own}
        self._objects: dict[str, dict[str, str]] = {library: {} for library in self._packs}
        self._made: dict[tuple[str, str], Future[_Made]] = {}
        self._told: set[tuple[str, str]] = set()

    def __enter__(self) -> Libraries:
        for host in self._linkers:
            self._made[LAUNCHER, host] = self._submit(self._launcher, host)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def add(self, kernel: Kernel, object_sha256: str) -> None:
        """Be told that the store has the object of a kernel."""
        library = self._library_of[kernel.digest]
        objects = self._objects[library]
        objects[kernel.symbol] = object_sha256
        if len(objects) == len(self._members[library]):
            for host in self._linkers:
                if (library, host) not in self._made:
                    self._made[library, host] = self._submit(self._library, library, host, objects)
        self._tell_linked()

    def groups(self, entries: Sequence[KernelEntry]) -> list[GroupPlan]:
        """Every group with its libraries, when all of them are linked.

        Args:
            entries: the kernels that were given, every one of them added by now.

        Raises:
            LinkError: if the linker fails.
            StoreError: if an object is gone since it was planned.
        """
        if not all(future.done() for future in self._made.values()):
            self._tell(Linking(len(self._packs) * len(self._linkers)))
        own = named_groups(entries)
        plans = []
        for library, names in self._packs.items():
            linked = {host: self._result(library, host) for host in self._linkers}
            plans += [GroupPlan(name=name, entries=tuple(own[name]), libraries=linked) for name in names]
        return plans

    def launchers(self) -> dict[str, LinkedLibrary]:
        """The launcher for each host.

        Raises:
            LinkError: if the compiler or the linker fails.
        """
        return {host: self._result(LAUNCHER, host) for host in self._linkers}

    def store_keys(self) -> list[str]:
        """Keys in the store of all libraries that are linked."""
        return sorted(future.result().key for future in self._made.values())

    def _result(self, library: str, host: str) -> LinkedLibrary:
        made = self._made[library, host].result()
        self._tell_linked()
        return LinkedLibrary(library, made.path, made.sha256)

    def _tell_linked(self) -> None:
        for (library, host), future in list(self._made.items()):
            if (library, host) in self._told or not future.done():
                continue
            # A linker that does not work is an error now, not after hours of compiling.
            made = future.result()
            self._told.add((library, host))
            if library != LAUNCHER:
                size = made.path.stat().st_size
                self._tell(Linked(library, len(self._members[library]), size, made.seconds))

    def _submit(self, make: Callable[..., _Made], *arguments: Any) -> Future[_Made]:
        def made() -> _Made:
            with reported("link libraries in", self._workspace):
                return make(*arguments)

        return self._thread.submit(made)

    # --- in the thread

    def _launcher(self, host: str) -> _Made:
        linker = self._linkers[host]
        key = digest(encode({"schema": LINK_SCHEMA, "launcher": linker.fingerprint}))
        found = self._stored(key)
        if found is not None:
            return found
        start = time.monotonic()
        path = self._workspace / f"{key}.so"
        linker.link_launcher(path, self._workspace / "cache")
        return self._keep(path, key, start)

    def _library(self, library: str, host: str, objects: Mapping[str, str]) -> _Made:
        linker = self._linkers[host]
        key = digest(encode({"schema": LINK_SCHEMA, "objects": objects, "linker": linker.fingerprint}))
        found = self._stored(key)
        if found is not None:
            return found
        start = time.monotonic()
        path = self._workspace / f"{key}.so"
        extracted = self._extracted(library, objects)
        linker.link(extracted, path, self._workspace / "cache")
        for _, file in extracted:
            file.unlink()
        return self._keep(path, key, start)

    def _stored(self, key: str) -> _Made | None:
        """A library that the store has."""
        record = self._store.get_record("library", key)
        if not isinstance(record, dict):
            return None
        sha256 = str(record.get("sha256"))
        path = self._workspace / f"{key}.so"
        return _Made(path, sha256, key, None) if self._store.extract_blob(sha256, path) else None

    def _keep(self, path: Path, key: str, start: float) -> _Made:
        """Keep a library in the store; its file in the workspace stays, for the bundle."""
        data = path.read_bytes()
        sha256 = self._store.put_blob(data, LIBRARY_LEVEL)
        self._store.put_record("library", key, {"sha256": sha256}, blobs={sha256: len(data)})
        return _Made(path, sha256, key, time.monotonic() - start)

    def _extracted(self, library: str, objects: Mapping[str, str]) -> list[tuple[str, Path]]:
        """Verified copies of a library's objects: what is linked is what was checked."""
        found = []
        for kernel in self._members[library].values():
            path = self._workspace / f"{kernel.symbol}.o"
            if not self._store.extract_blob(objects[kernel.symbol], path):
                raise StoreError(
                    f"the object of {kernel.name} is gone or damaged since it was planned: build again"
                )
            found.append((kernel.symbol, path))
        return found

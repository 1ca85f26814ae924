"""Make a bundle's libraries and code while its kernels are compiled, except what the store already has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any

from cutlass_aot.builder.events import Linked, Linking, Listener
from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.builder.link.linker import LinkToolchain
from cutlass_aot.builder.link.packing import group_names, libraries_of, pack
from cutlass_aot.bundle.plan import GroupPlan, PackedFile
from cutlass_aot.errors import StoreError
from cutlass_aot.schema.bundles.group_index import CodeSpan, KernelEntry
from cutlass_aot.schema.compression import MAX_WINDOW_LOG, compress
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.store.files import reported
from cutlass_aot.store.store import Store

LINK_SCHEMA = 5
LAUNCHER = "launcher"
"""Stem of the launcher's file name; those of kernel libraries begin with their target."""

COMPRESSION_LEVEL = 19
"""For code and libraries. ``tools/bench/size.py`` prints the size at each level."""

_HOST_CODES_A_BATCH = 8
"""Kernels compiled by one call of the compiler: enough for few calls, few enough to keep all threads busy."""


@dataclass(frozen=True, slots=True)
class _Made:
    """A packed file in the workspace, with its digest and its key in the store.

    ``seconds`` is how long making it took, None if the store had it. ``spans`` gives, by symbol, where each
    kernel's GPU code is in the unpacked file; it is empty for a library.
    """

    path: Path
    sha256: str
    key: str
    seconds: float | None
    spans: Mapping[str, CodeSpan] = field(default_factory=dict)


@dataclass(slots=True)
class _Library:
    """A library to be linked for every host.

    Attributes:
        kernels: by digest.
        objects: digests of the objects that the store has by now, by symbol.
        waiting: symbols whose host code is yet to be compiled, because the library will have to be linked.
        fresh: whether an object is new in the store, so that the library has to be linked.
    """

    kernels: Mapping[str, Kernel]
    objects: dict[str, str] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    fresh: bool = False


class Libraries:
    """The libraries and the code of a bundle, made while kernels arrive; use it as a context manager.

    Threads compile a kernel's host code as soon as the kernel is added. They link a library, or pack code, as
    soon as all of its kernels are there, and make the launchers at once.

    ``store`` has the objects and takes what is made; ``threads`` bounds how many compilers and linkers run at
    once. ``tell`` is called in the caller's thread, with an event for each library, and one for the libraries
    left when nothing else is to be waited for.
    """

    def __init__(
        self,
        kernels: Iterable[Kernel],
        linkers: Mapping[str, LinkToolchain],
        store: Store,
        workspace: Path,
        tell: Listener,
        threads: int,
    ) -> None:
        self._linkers = dict(sorted(linkers.items()))
        self._store = store
        self._workspace = workspace
        self._tell = tell
        self._threads = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="link")
        members: dict[str, list[Kernel]] = {}
        for kernel in kernels:
            members.setdefault(kernel.group, []).append(kernel)
        names = group_names(own[0] for own in members.values())
        self._names = {group: names[group] for group in members}
        groups = {names[group]: sorted(own, key=_in_order) for group, own in members.items()}
        self._packs = pack({name: (own[0].target, len(own)) for name, own in groups.items()})
        self._pack_of = {name: packed for packed, own in self._packs.items() for name in own}
        self._packed = {
            packed: {kernel.digest: kernel for name in own for kernel in groups[name]}
            for packed, own in self._packs.items()
        }
        self._libraries: dict[str, _Library] = {}
        self._libraries_of: dict[str, list[str]] = {}
        for packed, own_kernels in self._packed.items():
            split = libraries_of(packed, list(own_kernels.values()))
            self._libraries_of[packed] = list(split)
            for library, own in split.items():
                self._libraries[library] = _Library({kernel.digest: kernel for kernel in own})
        self._library_of = {kernel: name for name, own in self._libraries.items() for kernel in own.kernels}
        # In order, each once.
        self._libraries_of_group = {
            name: list(dict.fromkeys(self._library_of[kernel.digest] for kernel in own))
            for name, own in groups.items()
        }
        self._compiled: dict[tuple[str, str], list[Future[dict[str, Path]]]] = {}
        self._made: dict[tuple[str, str], Future[_Made]] = {}
        self._code: dict[str, Future[_Made]] = {}
        self._finished: SimpleQueue[Linked] = SimpleQueue()
        """Libraries that the caller has not been told of yet."""
        self._failure: Exception | None = None
        """What a thread that failed met."""

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
        self._threads.shutdown(wait=True, cancel_futures=True)

    def add(self, kernel: Kernel, object_sha256: str, fresh: bool) -> None:
        """Say that the store has the object of a kernel.

        ``fresh`` says whether it is new there: if it is not, the store may also have a library with it.
        """
        name = self._library_of[kernel.digest]
        library = self._libraries[name]
        library.objects[kernel.symbol] = object_sha256
        library.waiting.append(kernel.symbol)
        library.fresh = library.fresh or fresh
        whole = len(library.objects) == len(library.kernels)
        if library.fresh and not whole and len(library.waiting) >= _HOST_CODES_A_BATCH:
            self._compile_waiting(name, self._linkers)
        if whole and not any((name, host) in self._made for host in self._linkers):
            absent = [
                host
                for host in self._linkers
                if not self._store.has_record("library", self._library_key(name, host))
            ]
            # An upstream store may have a library of objects that are not fresh: linking asks it first.
            if library.fresh or not self._store.upstream:
                self._compile_waiting(name, absent)
            for host in self._linkers:
                self._made[name, host] = self._submit(self._finished_library, name, host)
        packed = self._pack_of[self._names[kernel.group]]
        if packed not in self._code and all(
            len(self._libraries[own].objects) == len(self._libraries[own].kernels)
            for own in self._libraries_of[packed]
        ):
            self._code[packed] = self._submit(self._packed_code, packed)
        if self._failure is not None:
            # A compiler or linker that does not work is an error now, not after hours of compiling.
            raise self._failure
        self._tell_finished()

    def entry(self, kernel: Kernel) -> tuple[CodeSpan, int]:
        """Where a kernel's GPU code is, and the index of its host code's library among those of its group."""
        group = self._names[kernel.group]
        position = self._libraries_of_group[group].index(self._library_of[kernel.digest])
        return self._code[self._pack_of[group]].result().spans[kernel.symbol], position

    def groups(self, entries: Sequence[KernelEntry]) -> list[GroupPlan]:
        """Every group with its code and libraries, once all are made; ``entries`` must all be added."""
        if not all(future.done() for future in (*self._made.values(), *self._code.values())):
            self._tell(Linking(len(self._libraries) * len(self._linkers)))
        own: dict[str, list[KernelEntry]] = {}
        for entry in entries:
            own.setdefault(self._names[entry.kernel.group], []).append(entry)
        plans = []
        for packed, names in self._packs.items():
            code = self._code[packed].result()
            file = PackedFile(packed, code.path, code.sha256)
            for name in names:
                linked = {
                    host: tuple(self._result(library, host) for library in self._libraries_of_group[name])
                    for host in self._linkers
                }
                plans.append(GroupPlan(name, tuple(own[name]), file, linked))
        return plans

    def launchers(self) -> dict[str, PackedFile]:
        """The launcher for each host."""
        return {host: self._result(LAUNCHER, host) for host in self._linkers}

    def store_keys(self) -> list[str]:
        """The keys in the store of all files made."""
        return sorted(future.result().key for future in (*self._made.values(), *self._code.values()))

    def _result(self, library: str, host: str) -> PackedFile:
        made = self._made[library, host].result()
        self._tell_finished()
        return PackedFile(library, made.path, made.sha256)

    def _tell_finished(self) -> None:
        while True:
            try:
                event = self._finished.get_nowait()
            except Empty:
                return
            self._tell(event)

    def _compile_waiting(self, name: str, hosts: Iterable[str]) -> None:
        library = self._libraries[name]
        symbols, library.waiting = library.waiting, []
        for first in range(0, len(symbols), _HOST_CODES_A_BATCH):
            batch = symbols[first : first + _HOST_CODES_A_BATCH]
            objects = {symbol: library.objects[symbol] for symbol in batch}
            for host in hosts:
                future = self._submit(self._host_code, host, objects)
                self._compiled.setdefault((name, host), []).append(future)

    def _submit(self, make: Callable[..., Any], *arguments: Any) -> Future[Any]:
        def made() -> Any:
            try:
                with reported("link libraries in", self._workspace):
                    return make(*arguments)
            except Exception as error:
                self._failure = self._failure or error
                raise

        return self._threads.submit(made)

    # --- in the threads

    def _host_code(self, host: str, objects: Mapping[str, str]) -> dict[str, Path]:
        """Compile the host code of kernels; returns the files by symbol."""
        texts = {symbol: self._object(symbol, sha256).host_code for symbol, sha256 in objects.items()}
        return self._linkers[host].compile(texts, self._workspace, self._workspace / "cache")

    def _launcher(self, host: str) -> _Made:
        linker = self._linkers[host]
        key = digest(
            encode({"schema": LINK_SCHEMA, "launcher": linker.fingerprint, "compression": _compression()})
        )
        found = self._stored(key)
        if found is not None:
            return found
        start = time.monotonic()
        path = self._workspace / f"{key}.so"
        linker.link_launcher(path, self._workspace / "cache")
        return self._keep(path.read_bytes(), key, start)

    def _library_key(self, name: str, host: str) -> str:
        objects, linker = self._libraries[name].objects, self._linkers[host].fingerprint
        parts = {"schema": LINK_SCHEMA, "objects": objects, "linker": linker, "compression": _compression()}
        return digest(encode(parts))

    def _finished_library(self, name: str, host: str) -> _Made:
        """Make a library as :meth:`_library` does, and queue the event for the caller."""
        made = self._library(name, host)
        # Queued before it is returned, so that a caller who waits for the result finds the event.
        count, size = len(self._libraries[name].kernels), made.path.stat().st_size
        self._finished.put(Linked(name, count, size, made.seconds, host))
        return made

    def _library(self, name: str, host: str) -> _Made:
        linker, library = self._linkers[host], self._libraries[name]
        key = self._library_key(name, host)
        found = self._stored(key)
        if found is not None:
            return found
        start = time.monotonic()
        compiled: dict[str, Path] = {}
        # No deadlock: these were submitted earlier, so that other threads have already begun them.
        for future in self._compiled.get((name, host), ()):
            compiled |= future.result()
        rest = {symbol: sha256 for symbol, sha256 in library.objects.items() if symbol not in compiled}
        if rest:
            compiled |= self._host_code(host, rest)
        path = self._workspace / f"{key}.so"
        linker.link(compiled, path, self._workspace / "cache")
        for file in compiled.values():
            file.unlink()
        return self._keep(path.read_bytes(), key, start)

    def _packed_code(self, packed: str) -> _Made:
        """Concatenate the GPU code of a pack's kernels; equal code is stored once."""
        objects = {
            k: v for own in self._libraries_of[packed] for k, v in self._libraries[own].objects.items()
        }
        # The order is part of the key: it follows the groups' names, which differ between bundles.
        ordered = [(kernel.symbol, objects[kernel.symbol]) for kernel in self._packed[packed].values()]
        key = digest(encode({"schema": LINK_SCHEMA, "code": ordered, "compression": _compression()}))
        found = self._stored(key)
        if found is not None:
            return found
        start = time.monotonic()
        spans: dict[str, CodeSpan] = {}
        places: dict[str, CodeSpan] = {}
        parts: list[bytes] = []
        end = 0
        for kernel in self._packed[packed].values():
            code = self._object(kernel.symbol, objects[kernel.symbol]).gpu_code
            sha256 = digest(code)
            if sha256 not in places:
                places[sha256] = CodeSpan(end, len(code), sha256)
                parts.append(code)
                end += len(code)
            spans[kernel.symbol] = places[sha256]
        return self._keep(b"".join(parts), key, start, spans)

    def _object(self, symbol: str, sha256: str) -> KernelObject:
        """Read and verify an object of the store."""
        data = self._store.get_blob(sha256)
        if data is None:
            raise StoreError(f"the object of {symbol} is gone or damaged since it was planned: build again")
        return KernelObject.from_bytes(data)

    def _stored(self, key: str) -> _Made | None:
        record = self._store.get_record("library", key)
        try:
            body: Any = record
            sha256 = str(body["sha256"])
            spans = {str(k): CodeSpan(int(v[0]), int(v[1]), str(v[2])) for k, v in body["spans"].items()}
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            return None
        path = self._workspace / f"{key}.zst"
        return _Made(path, sha256, key, None, spans) if self._store.extract_blob(sha256, path) else None

    def _keep(
        self, content: bytes, key: str, start: float, spans: Mapping[str, CodeSpan] | None = None
    ) -> _Made:
        """Compress a new file, keep it in the store, and leave it in the workspace for the bundle."""
        data = compress(content, COMPRESSION_LEVEL)
        path = self._workspace / f"{key}.zst"
        path.write_bytes(data)
        sha256 = self._store.put_blob(data, compressed=True)
        body = {"sha256": sha256, "spans": {symbol: list(span) for symbol, span in (spans or {}).items()}}
        self._store.put_record("library", key, body, blobs={sha256: len(data)})
        return _Made(path, sha256, key, time.monotonic() - start, spans or {})


def _compression() -> dict[str, str | int]:
    """What determines the compressed bytes besides the content."""
    return {"zstandard": version("zstandard"), "level": COMPRESSION_LEVEL, "window_log": MAX_WINDOW_LOG}


def _in_order(kernel: Kernel) -> tuple[str, str]:
    return kernel.name, kernel.digest

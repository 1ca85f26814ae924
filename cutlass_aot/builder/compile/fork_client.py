"""The builder's side of the fork server: start it, wait for its imports, fork and reap workers."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import cutlass_aot
from cutlass_aot.builder.compile import messages
from cutlass_aot.builder.compile.messages import Fork, Forked, Imported, Reap, Reaped, WorkerFailure
from cutlass_aot.errors import ToolchainError
from cutlass_aot.schema.words import without_colors

PASSED_ON = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "LOGNAME", "PATH", "TMPDIR", "USER")
"""The builder's environment variables that workers see. No other reaches them: the compiler reads many (such
as CUTE_DSL_LINEINFO) that change the code it makes, and none of them is part of a kernel's key."""

SETTINGS = {
    # The DSL builds a JIT engine for every kernel that this architecture could run, and reads the variable
    # once, at its first import. None of our targets runs on this architecture, so that no engine is built:
    # the object is the same to the byte and comes 0.1 s sooner.
    "CUTE_DSL_ARCH": "sm_90",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
    # For the C library, see mallopt(3) and "Memory Allocation Tunables" in its manual. The compiler allocates
    # and frees hundreds of megabytes for each kernel; if the process keeps that memory, in large pages, there
    # are a quarter of the page faults, and compiling takes 5 % less time.
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "MALLOC_TOP_PAD_": str(64 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(2 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
}
"""Further environment variables of workers. None of them changes an object:
`python -m tools.bench.profile_build --part digests` compares."""


_DSLS = ("CUTE_DSL", "CUTE_EXPERIMENTAL_DSL")
"""Beginnings of the variables that the DSL's package reads: one for each of the two DSLs that it makes."""


def private_cache(folder: Path) -> dict[str, str]:
    """Variables by which the DSL keeps no cache in files, and has a directory for one inside ``folder``.

    Its default is a directory of a known name in the machine's temporary one, which another user can make
    first, and which it makes even where it keeps nothing.
    """
    return {f"{dsl}_DISABLE_FILE_CACHING": "1" for dsl in _DSLS} | {
        f"{dsl}_CACHE_DIR": str(folder / "dsl-cache") for dsl in _DSLS
    }


_IMPORT_SECONDS = 300
_LOG_BYTES = 1 << 20


@dataclass(slots=True)
class ForkServer:
    """The process that imports the DSL and forks workers.

    Args:
        modules: what workers have to import.
        directory: a private directory for its log, and for what the DSL writes beside objects.
        dsl_roots: directories that the DSL may be imported from; empty for anywhere.
        sources: module to the SHA-256 that its source file must have.
        hash_seed: of Python's hashes, in it and its workers.
    """

    modules: tuple[str, ...]
    directory: Path
    dsl_roots: tuple[Path, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    hash_seed: str = SETTINGS["PYTHONHASHSEED"]
    process: subprocess.Popen[bytes] | None = None
    _channel: socket.socket | None = None
    _ready: bool = False

    def start(self) -> None:
        """Start the process and return at once; it imports in the background.

        The thread that calls this has to live as long as the process is needed, which ends with it.
        """
        if self.process is not None:
            return
        ours, theirs = socket.socketpair()
        environment = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
        # Set the builder's own search path before anything is imported: the interpreter would look first in
        # the current directory, which may hold any package.
        program = (
            f"import sys; sys.path[:] = {[str(Path(path).absolute()) for path in sys.path if path]!r}; "
            # First of all, since the imports that follow take seconds.
            f"from cutlass_aot.programs.start.parent import end_with_parent; end_with_parent(); "
            f"from cutlass_aot.builder.compile.fork_server import main; "
            f"main({theirs.fileno()}, {list(self.modules)!r})"
        )
        with theirs, self._log.open("wb") as log:
            try:
                self.process = subprocess.Popen(
                    [sys.executable, "-c", program],
                    pass_fds=[theirs.fileno()],
                    env={
                        **environment,
                        **SETTINGS,
                        **private_cache(self.directory),
                        "PYTHONHASHSEED": self.hash_seed,
                    },
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                raise ToolchainError(f"the process that forks workers cannot be started: {error}") from None
        self._channel = ours

    def fork(self, log: Path) -> tuple[int, socket.socket]:
        """Fork a worker that prints to ``log``; returns its process id and our end of its channel."""
        self.start()
        channel = self._open_channel
        if not self._ready:
            self._await_imports(channel)
            self._ready = True
        forked: Forked | None
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                messages.send(channel, Fork(str(log)))
                socket.send_fds(channel, [b"\0"], [theirs.fileno()])
            forked = messages.receive(channel, Forked)
        except OSError:
            forked = None
        if forked is None:
            ours.close()
            raise self._died()
        return forked.pid, ours

    def reap(self, pid: int) -> int:
        """Wait for a worker to end; returns its exit status, negative for a signal."""
        reaped: Reaped | None
        try:
            messages.send(self._open_channel, Reap(pid))
            reaped = messages.receive(self._open_channel, Reaped)
        except OSError:
            reaped = None
        # Without a reply the fork server has ended, and its workers were killed with it.
        return reaped.status if reaped else -signal.SIGKILL

    def end(self) -> None:
        """End the process and every worker."""
        if self._channel is not None:
            self._channel.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    @property
    def _open_channel(self) -> socket.socket:
        if self._channel is None:
            raise RuntimeError("the fork server was not started")
        return self._channel

    @property
    def _log(self) -> Path:
        return self.directory / "fork-server.log"

    def _await_imports(self, channel: socket.socket) -> None:
        imported: Imported | WorkerFailure | None
        channel.settimeout(_IMPORT_SECONDS)
        try:
            imported = messages.receive(channel, Imported, WorkerFailure)
        except TimeoutError:
            raise ToolchainError(
                f"importing the build side took longer than {_IMPORT_SECONDS} s; see `cutlass-aot doctor`"
            ) from None
        channel.settimeout(None)
        if imported is None:
            raise self._died()
        if isinstance(imported, WorkerFailure):
            raise ToolchainError(
                f"a module that workers need cannot be imported: {imported.message}\n"
                "if it is not one of yours, see `cutlass-aot doctor`"
            )
        package, dsl = imported.package, imported.dsl
        if Path(package).resolve() != Path(cutlass_aot.__file__).resolve():
            raise ToolchainError(
                f"workers import cutlass_aot from {package}, this is {cutlass_aot.__file__}: kernels would "
                "be kept under the keys of other code; run the cutlass-aot command of this environment"
            )
        if dsl and self.dsl_roots and not _lies_in(Path(dsl), self.dsl_roots):
            raise ToolchainError(
                f"the DSL was imported from {dsl}, which is not the installed one: expected it under "
                f"{', '.join(str(root) for root in self.dsl_roots)}; take the other one off the search path"
            )
        changed = [name for name, sha256 in self.sources.items() if imported.sources.get(name) != sha256]
        if changed:
            raise ToolchainError(f"{', '.join(sorted(changed))} changed while the build ran: build again")

    def _died(self) -> ToolchainError:
        status: int | str = "unknown"
        if self.process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = self.process.wait(timeout=5)
        words = read_log(self._log).strip() or "it said nothing"
        return ToolchainError(
            f"the process that forks workers died (exit status {status}; -9 is often a lack of memory: "
            f"use fewer -j): {words}"
        )


def read_log(path: Path) -> str:
    """The end of a log, where the error is, without the colours that compilers print."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _LOG_BYTES))
            return without_colors(file.read().decode("utf-8", "replace"))
    except OSError:
        return ""


def _lies_in(file: Path, roots: tuple[Path, ...]) -> bool:
    """Whether a file's directory is under one of the roots; the file itself may be a link to elsewhere."""
    folders = (file.parent, file.parent.resolve())
    resolved = tuple(root.resolve() for root in roots)
    return any(folder.is_relative_to(root) for folder in folders for root in (*roots, *resolved))

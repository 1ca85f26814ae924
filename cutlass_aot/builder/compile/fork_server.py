"""A process that imports the DSL once and forks workers from there.

:class:`~cutlass_aot.builder.compile.fork_client.ForkServer` starts it with one end of a socket pair. It stays
single-threaded, since a fork copies the calling thread alone. It and its workers ignore the terminal's
interrupt: the builder decides what ends. If the builder is killed, the kernel kills them.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterable

import cutlass_aot
from cutlass_aot.builder.compile import messages
from cutlass_aot.builder.compile.messages import Fork, Forked, Imported, Reap, Reaped, WorkerFailure
from cutlass_aot.builder.compile.worker import serve
from cutlass_aot.generators.compile_errors import explain
from cutlass_aot.generators.registry import source_of
from cutlass_aot.programs.start.parent import end_with_parent
from cutlass_aot.schema.encoding import digest


def main(descriptor: int, modules: Iterable[str]) -> None:
    """Import modules, then fork a worker for each request until the channel closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=descriptor)
    # Imported modules stay: looking for cycles in them would take a quarter of the time in vain.
    gc.disable()
    sources = {}
    module = ""
    try:
        for module in modules:
            importlib.import_module(module)
            # Read right after the import: the builder compares it with the source that keys were made from.
            path = source_of(module)
            sources[module] = digest(path.read_bytes()) if path else ""
        module = "tvm_ffi"
        import_tvm_ffi()
    except BaseException as error:
        messages.send(channel, WorkerFailure(message=f"{module}: {explain(error)}"))
        return
    # Keeps the workers' collectors from scanning it, and from writing to pages that workers share.
    gc.freeze()
    dsl = sys.modules.get("cutlass")
    messages.send(channel, Imported(getattr(dsl, "__file__", None), cutlass_aot.__file__, sources))
    order: Fork | Reap | None
    while (order := messages.receive(channel, Fork, Reap)) is not None:
        if isinstance(order, Fork):
            _, (own,), _, _ = socket.recv_fds(channel, 1, 1)
            messages.send(channel, Forked(_fork(channel, own, order.log)))
        else:
            _, status = os.waitpid(order.pid, 0)
            messages.send(channel, Reaped(os.waitstatus_to_exitcode(status)))


def import_tvm_ffi() -> None:
    """Import tvm_ffi, as compiling does: once for all workers, and without torch unless it is there already.

    tvm_ffi imports torch where it can, for calls with torch's tensors. A worker makes none, and torch takes
    seconds. A generator that compiles with torch imports it at the top of one of its ``modules``.
    """
    hidden = "torch" not in sys.modules
    if hidden:
        sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        with contextlib.suppress(ImportError):
            importlib.import_module("tvm_ffi")
    finally:
        if hidden:
            del sys.modules["torch"]


def _fork(channel: socket.socket, descriptor: int, log: str) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            channel.close()
            end_with_parent()
            serve(socket.socket(fileno=descriptor), log)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            # Not sys.exit, which would run the fork server's exit handlers.
            os._exit(status)
    os.close(descriptor)
    return pid

"""A process that imports the DSL once and forks workers from there.

:class:`~cutlass_aot.builder.compile.fork_client.ForkServer` starts it with one end of a socket pair. It stays
single-threaded, since a fork copies the calling thread alone. It and its workers ignore the terminal's
interrupt: the builder decides what ends.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import socket
import sys
import traceback
from typing import Any

import cutlass_aot
from cutlass_aot.builder.compile import messages
from cutlass_aot.builder.compile.worker import serve
from cutlass_aot.generators.registry import source_of
from cutlass_aot.schema.encoding import digest


def main(descriptor: int) -> None:
    """Import what the builder names, then fork a worker for each request until the channel closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=descriptor)
    request = messages.receive(channel)
    if request is None:
        return
    # What is imported stays: to look for cycles in it meanwhile takes a quarter of the time, for nothing.
    gc.disable()
    sources = {}
    try:
        for module in request["modules"]:
            importlib.import_module(module)
            # Read at once: the builder compares with what it made the kernels' keys from.
            path = source_of(module)
            sources[module] = digest(path.read_bytes()) if path else ""
    except BaseException:
        messages.send(channel, {"error": traceback.format_exc()})
        return
    # No worker's collector has to look through it, or writes to its pages, which workers share until then.
    gc.freeze()
    dsl = sys.modules.get("cutlass")
    answer = {"dsl": getattr(dsl, "__file__", None), "package": cutlass_aot.__file__, "sources": sources}
    messages.send(channel, answer)
    while True:
        data, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        if not data:
            return
        if data == b"F":
            _fork(channel, descriptors[0])
        elif data == b"W":
            _wait(channel)


def _fork(channel: socket.socket, descriptor: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            channel.close()
            _end_with_parent()
            serve(socket.socket(fileno=descriptor))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            # Not sys.exit: the fork server's own exit handlers are not this process's.
            os._exit(status)
    os.close(descriptor)
    messages.send(channel, {"pid": pid})


def _end_with_parent() -> None:
    """Have the kernel kill this process when the fork server ends, also in the middle of a compile."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL), 0, 0, 0)


def _wait(channel: socket.socket) -> None:
    request: dict[str, Any] | None = messages.receive(channel)
    if request is None:
        return
    _, status = os.waitpid(int(request["pid"]), 0)
    messages.send(channel, {"status": os.waitstatus_to_exitcode(status)})

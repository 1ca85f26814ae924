"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

_POLL_SECONDS = 0.5


def end_with_parent() -> None:
    """Have the operating system kill this process, even a stopped one, when the thread that started it ends.

    For processes that a thread has started which lives as long as its process does, such as the main thread.
    """
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL), 0, 0, 0)


def end_after(parent: int) -> None:
    """Kill this process, from a thread of it, soon after the process that started it has ended.

    For processes that were started by a thread which may end before its process does.

    Args:
        parent: number of the process that started it, which that process has to ask for before.
    """
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)

"""A lock of one process: a forked child gets its own, as it could inherit one that another thread held."""

from __future__ import annotations

import os
import threading
from types import TracebackType


class ProcessLock:
    """A context manager that one thread of a process can be in at a time."""

    def __init__(self) -> None:
        self._of_process = (os.getpid(), threading.Lock())

    def __enter__(self) -> None:
        process = os.getpid()
        if self._of_process[0] != process:
            # No race: a child begins with one thread.
            self._of_process = (process, threading.Lock())
        self._of_process[1].acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._of_process[1].release()

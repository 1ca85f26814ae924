"""A process that ends with the one that started it, whatever becomes of either."""

from __future__ import annotations

import ctypes
import signal


def end_with_parent() -> None:
    """Have the kernel kill this process, even a stopped one, when the thread that started it ends."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG of prctl(2)
    ctypes.CDLL(None).prctl(set_parent_death_signal, int(signal.SIGKILL), 0, 0, 0)

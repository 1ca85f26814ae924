"""Which machine this is, as files on a disk that machines share say it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def identity() -> str:
    """This machine's name, and an id that changes when it is restarted, as a line of text."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    with contextlib.suppress(OSError):
        return f"{os.uname().nodename} {boot.read_text(encoding='utf-8').strip()}\n"
    return f"{os.uname().nodename} -\n"


def is_this_machine(other: str) -> bool:
    """Whether an identity is or was this machine's: containers share its id, a restart keeps its name."""
    name, _, boot = identity().strip().partition(" ")
    other_name, _, other_boot = other.strip().partition(" ")
    return (boot != "-" and boot == other_boot) or name == other_name

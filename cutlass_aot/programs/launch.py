"""Run a program with a plan, and hand on its signals and its exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from cutlass_aot.errors import OperandError
from cutlass_aot.programs.start import program_environment

_HANDED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
GRACE_SECONDS = 5.0
"""What an interrupted program has to end, before each stronger signal."""


class Ran(NamedTuple):
    """What came of a program.

    Attributes:
        status: its exit status, negative if a signal ended it.
        interrupted: whether it was interrupted from here, and so ended early.
    """

    status: int
    interrupted: bool

    def problem(self) -> str:
        """Why it did not come to a good end, in words; ``""`` if it did."""
        if self.interrupted:
            return "the program was interrupted"
        if self.status < 0:
            return f"the program was ended by signal {-self.status}"
        return f"the program ended with status {self.status}" if self.status else ""


def run_program(command: Sequence[str], plan: Mapping[str, Any], folder: Path) -> Ran:
    """Run a program to its end, or until it is interrupted.

    Args:
        command: the program and its arguments.
        plan: what its processes begin with (:mod:`cutlass_aot.programs.start`).
        folder: private; takes the plan, and whatever the program's processes write.

    Raises:
        OperandError: if there is no such program.
    """
    try:
        process = subprocess.Popen(list(command), env=program_environment(plan, folder, os.environ))
    except OSError as error:
        raise OperandError(f"{command[0]} cannot be run: {error.strerror or error}") from None
    try:
        with _handed_on(process):
            return Ran(process.wait(), False)
    except KeyboardInterrupt:
        return Ran(_end(process), True)


@contextmanager
def _handed_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Within the block: the program gets the signals by which servers are ended and told of changes, and ends
    in its own time."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, lambda given, frame: process.send_signal(given))
        for number in _HANDED_ON
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> int:
    """Have an interrupted program end: from a terminal it was interrupted too, else it is told here.

    Another interrupt sends the next stronger signal at once.
    """
    for number in (None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            if number is not None:
                process.send_signal(number)
            return process.wait(GRACE_SECONDS)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            continue
    return process.wait()

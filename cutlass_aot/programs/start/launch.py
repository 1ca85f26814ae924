"""Run a program with a plan, and hand on its signals and its exit status."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from cutlass_aot.errors import OperandError
from cutlass_aot.programs.start.environment import program_environment

_HANDED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


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
        plan: what its processes begin with (:mod:`cutlass_aot.programs.start.start`).
        folder: private; takes the plan, and whatever the program's processes write.
    """
    with _handed_on() as started:
        try:
            process = subprocess.Popen(list(command), env=program_environment(plan, folder, os.environ))
        except OSError as error:
            raise OperandError(f"{command[0]} cannot be run: {error.strerror or error}") from None
        started(process)
        try:
            return Ran(process.wait(), False)
        except KeyboardInterrupt:
            return Ran(_end(process), True)


@contextmanager
def _handed_on() -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Within the block: the program gets the signals by which servers are ended and told of changes, and ends
    in its own time. Gives what takes the program once it has started, with the signals until then."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda process: None
        return
    running: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def hand_on(number: int, frame: Any) -> None:
        if running:
            running[0].send_signal(number)
        else:
            early.append(number)

    def started(process: subprocess.Popen[bytes]) -> None:
        running.append(process)
        for number in early:
            process.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in _HANDED_ON}
    try:
        yield started
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> int:
    """Wait for an interrupted program, which may take its time: a server answers what it has begun.

    From a terminal the program was interrupted too, else it is told here. Another interrupt sends the next
    stronger signal.
    """
    if not _is_on_terminal():
        process.send_signal(signal.SIGINT)
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        try:
            if number is not None:
                process.send_signal(number)
            return process.wait()
        except KeyboardInterrupt:
            continue
    return process.wait()


def _is_on_terminal() -> bool:
    """Whether an interrupt comes from a terminal, which sends it to all processes in its foreground."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)

"""Run a program with a plan, forward signals to it, and return its exit status."""

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
    """A program's exit status, negative if a signal ended it, and whether it was interrupted from here."""

    status: int
    interrupted: bool

    def problem(self) -> str:
        """Why the program failed, in words; ``""`` if it did not."""
        if self.interrupted:
            return "the program was interrupted"
        if self.status < 0:
            return f"the program was ended by signal {-self.status}"
        return f"the program ended with status {self.status}" if self.status else ""


def run_program(command: Sequence[str], plan: Mapping[str, Any], folder: Path) -> Ran:
    """Run a program to its end, or until it is interrupted.

    Its processes begin with ``plan`` (:mod:`cutlass_aot.programs.start.start`) and write into the private
    ``folder``.
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
    """Within the block: forward the signals that end a server or notify it to the program.

    Yields a function to call with the started program: it gets the signals that came earlier.
    """
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
    """Wait for an interrupted program without a limit: a server may finish its open requests first.

    A terminal interrupts the program too; otherwise SIGINT is sent here. Each further interrupt sends the
    next stronger signal.
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
    """Whether this process is in a terminal's foreground, all of whose processes an interrupt reaches."""
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

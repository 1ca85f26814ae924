"""Run a program, and gather what its processes found."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cutlass_aot.capture import site
from cutlass_aot.capture.child import FOLDER_VARIABLE, SUFFIX
from cutlass_aot.capture.found import Found
from cutlass_aot.errors import CutlassAotError, OperandError
from cutlass_aot.runtime.policy import ENVIRONMENT_VARIABLE

MAX_BYTES = 1 << 26
"""Most bytes that one process may have found."""

GRACE_SECONDS = 5.0
"""What an interrupted program has to end, before each stronger word."""


class Ran(NamedTuple):
    """What came of a program.

    Attributes:
        status: its exit status, negative if a signal ended it.
        interrupted: whether it was interrupted from here, and so ended early.
        found: of all its processes.
    """

    status: int
    interrupted: bool
    found: Found

    def problem(self) -> str:
        """Why it did not come to a good end, in words; ``""`` if it did."""
        if self.interrupted:
            return "the program was interrupted"
        if self.status < 0:
            return f"the program was ended by signal {-self.status}"
        return f"the program ended with status {self.status}" if self.status else ""


def run(program: Sequence[str]) -> Ran:
    """Run a program to its end, or until it is interrupted.

    An interrupt ends the program, not the capture: what was found until then is there.

    Raises:
        OperandError: if there is no such program.
    """
    # A process of the program that outlives it may still write there, and finds the folder gone.
    with tempfile.TemporaryDirectory(prefix="cutlass-aot-capture-", ignore_cleanup_errors=True) as folder:
        environment = dict(os.environ)
        environment[FOLDER_VARIABLE] = folder
        environment.setdefault(ENVIRONMENT_VARIABLE, "jit")
        paths = [str(Path(site.__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        try:
            process = subprocess.Popen(list(program), env=environment)
        except OSError as error:
            raise OperandError(f"{program[0]} cannot be run: {error.strerror or error}") from None
        interrupted = False
        try:
            status = process.wait()
        except KeyboardInterrupt:
            interrupted = True
            status = _end(process)
        return Ran(status, interrupted, _gathered(Path(folder)))


def _end(process: subprocess.Popen[bytes]) -> int:
    """Have an interrupted program end: from a terminal it was interrupted too, else it is told here.

    Another interrupt is a stronger word at once.
    """
    for word in (None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        try:
            if word is not None:
                process.send_signal(word)
            return process.wait(GRACE_SECONDS)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            continue
    return process.wait()


def _gathered(folder: Path) -> Found:
    """What all processes found; of one whose file cannot be read, that."""
    found = Found()
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            with path.open("rb") as file:
                found.merge(Found.from_bytes(file.read(MAX_BYTES), path.name))
        except (CutlassAotError, OSError) as error:
            found.others[f"what process {path.stem} found"] = str(error)
    return found

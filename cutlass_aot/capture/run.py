"""Run a program, and gather what its processes found."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cutlass_aot.capture import site
from cutlass_aot.capture.child import FOLDER_VARIABLE, SUFFIX
from cutlass_aot.capture.found import Found
from cutlass_aot.errors import OperandError
from cutlass_aot.runtime.policy import ENVIRONMENT_VARIABLE

MAX_BYTES = 1 << 26
"""Most bytes that one process may have found."""


def run(program: Sequence[str]) -> tuple[int, Found]:
    """Run a program to its end: its exit status, and what was found.

    Raises:
        OperandError: if there is no such program.
    """
    with tempfile.TemporaryDirectory(prefix="cutlass-aot-capture-") as folder:
        environment = dict(os.environ)
        environment[FOLDER_VARIABLE] = folder
        environment.setdefault(ENVIRONMENT_VARIABLE, "jit")
        paths = [str(Path(site.__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        try:
            status = subprocess.run(list(program), env=environment, check=False).returncode
        except OSError as error:
            raise OperandError(f"{program[0]} cannot be run: {error.strerror or error}") from None
        found = Found()
        for path in sorted(Path(folder).glob(f"*{SUFFIX}")):
            with path.open("rb") as file:
                found.merge(Found.from_bytes(file.read(MAX_BYTES), str(path.name)))
        return status, found

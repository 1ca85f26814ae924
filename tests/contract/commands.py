"""Run a page's commands as a reader would: one after the other, in a shell, in the repository."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def run_commands(commands: Iterable[str]) -> list[str]:
    """What each of them prints; every one has to succeed."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    printed = []
    for line in commands:
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=REPOSITORY,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
        printed.append(result.stdout)
    return printed

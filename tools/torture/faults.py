"""Run builders in a strange environment: another clock, file operations that fail. See faults.c.

A builder starts its workers with few of its own environment variables. An interpreter that sets the others
first, named by ``sys.executable``, brings them to the workers too.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


def compile_shim(directory: Path) -> Path:
    """Compile ``faults.c`` into a library to preload.

    Raises:
        RuntimeError: with the compiler's words, if it fails.
    """
    library = directory / "faults.so"
    command = [
        sys.executable, "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.28",
        "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", str(SOURCE), "-o", str(library), "-ldl",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{SOURCE} does not compile:\n{done.stderr}")
    return library


def write_interpreter(path: Path, environment: Mapping[str, str]) -> Path:
    """Write a program that is this Python with more environment variables; what is set to ``""`` is unset."""
    lines = ["#!/bin/sh"]
    for name, value in sorted(environment.items()):
        lines.append(f"export {name}={shlex.quote(value)}" if value else f"unset {name}")
    lines.append(f'exec {shlex.quote(sys.executable)} "$@"')
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    path.chmod(0o755)
    return path

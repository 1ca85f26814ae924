"""Run a page's commands as a reader would: one after the other, in a shell, in the repository or a folder."""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.paths import REPOSITORY


class Block(NamedTuple):
    """A fenced block: its language, the file that the line above names (or none), and its text."""

    language: str
    file: str
    text: str


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a page, or of a part of one."""
    found = []
    for match in re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        above = text[: match.start()].rstrip("\n").rsplit("\n", 1)[-1]
        named = re.fullmatch(r"(?:.* )?`([\w./-]+\.(?:py|toml|json))`:?", above)
        found.append(Block(match.group(1), named.group(1) if named else "", match.group(2)))
    return found


def run_commands(
    commands: Iterable[str], folder: Path = REPOSITORY, environment: Mapping[str, str] | None = None
) -> list[str]:
    """What each of them prints; every one has to succeed."""
    if environment is None:
        commands_of_this = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        environment = {**os.environ, "PATH": commands_of_this}
    printed = []
    for line in commands:
        result = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert result.returncode == 0, f"{line}\n{result.stdout}{result.stderr}"
        printed.append(result.stdout)
    return printed


def own_environment(folder: Path) -> dict[str, str]:
    """Make a virtual environment that has what this one has, and into which a command may install.

    Returns:
        The environment variables that commands are to have.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    names = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", "venv", names))
    # As a site, so that packages which are installed in place are found too.
    lines = [f"import site; site.addsitedir({path!r})\n" for path in site.getsitepackages()]
    (packages / "outer.pth").write_text("".join(lines), encoding="utf-8")
    for name, program in (("cutlass-aot", "cutlass_aot"), ("pip", "pip")):
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{folder}/bin/python" -m {program} "$@"\n', encoding="utf-8")
        script.chmod(0o755)
    ours = ("PYTHON", "CUTLASS_AOT_")
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(ours)},
        "PATH": os.pathsep.join([str(folder / "bin"), os.environ["PATH"]]),
        "PIP_CONSTRAINT": str(REPOSITORY / "constraints.txt"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }

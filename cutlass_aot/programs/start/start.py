"""Begin what a program was started for, in each of its Python processes and before its first line.

Whoever starts a program writes a plan into a private folder and names it by an environment variable;
processes that the program starts itself inherit it. Where nobody does, and the environment names bundles,
``cutlass_aot.pth``, which is installed beside this package, has the process begin to serve them.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cutlass_aot.errors import ProgramError
from cutlass_aot.programs.start.environment import PLAN_VARIABLE, SERVE_VARIABLE

_MAX_BYTES = 1 << 24


def begin_after_site() -> None:
    """Have :func:`begin` called once Python's search path is complete, and before the program's first line.

    Called while Python still goes through the ``.pth`` files, of which a later one may add directories.
    """
    sys.meta_path.insert(0, _AfterSite())


class _AfterSite:
    """A finder that finds nothing: it waits for ``sitecustomize``, which Python looks for when it has gone
    through all ``.pth`` files, whether there is one or not."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
        """Begin, if it is the time for it."""
        if name == "sitecustomize":
            sys.meta_path.remove(self)
            begin()


_begun = False


def begin() -> None:
    """Do what the plan of this process says; nothing without one."""
    global _begun
    if _begun:
        return  # The environment names both a plan and bundles.
    _begun = True
    path = os.environ.get(PLAN_VARIABLE)
    if path:
        plan = _read(Path(path))
        importlib.import_module(str(plan["begin"])).begin(plan)
    elif os.environ.get(SERVE_VARIABLE) and not _is_own_command():
        importlib.import_module("cutlass_aot.programs.serve.serve").begin({})


def _is_own_command() -> bool:
    """Whether this process runs ``cutlass-aot``, which compiles, and starts programs, itself."""
    return Path(sys.argv[0]).name == "cutlass-aot" or sys.orig_argv[1:3] == ["-m", "cutlass_aot"]


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            plan = json.loads(file.read(_MAX_BYTES))
        if not isinstance(plan, dict) or not isinstance(plan.get("begin"), str):
            raise ValueError("it names no module to begin with")
    except (OSError, ValueError, RecursionError) as error:
        raise ProgramError(
            f"{path}, named by {PLAN_VARIABLE}, is not a plan for a program: {error}"
        ) from None
    return plan

"""Begin recording or serving in each Python process of a program, before its first line.

The parent writes a plan into a private folder and names it in an environment variable, which child processes
inherit. Without a plan, if the environment names bundles, ``cutlass_aot.pth``, which is installed beside this
package, makes the process serve them.
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

    This function is called from a ``.pth`` file, and later ``.pth`` files may add directories to the path.
    """
    sys.meta_path.insert(0, _AfterSite())


class _AfterSite:
    """A finder that finds nothing: it calls :func:`begin` when Python looks for ``sitecustomize``.

    Python does so after all ``.pth`` files, whether the module exists or not.
    """

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
        if name == "sitecustomize":
            sys.meta_path.remove(self)
            begin()


_begun = False


def begin() -> None:
    """Carry out the plan of this process, or serve the bundles of the environment, if there are any."""
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
    """Whether this process runs ``cutlass-aot``, which compiles and starts programs itself."""
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

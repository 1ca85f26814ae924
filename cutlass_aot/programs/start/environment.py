"""The environment of a program that is recorded or served: its variables, and the plan that one names."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutlass_aot.programs import site

PLAN_VARIABLE = "CUTLASS_AOT_PROGRAM"
"""Names the plan: a JSON file whose ``begin`` names the module to begin with, and what it is to know."""

SERVE_VARIABLE = "CUTLASS_AOT_SERVE"
"""Names bundles to answer a program from, where no plan does: the same as :func:`cutlass_aot.serve`."""


def program_environment(
    plan: Mapping[str, Any] | None, folder: Path, environment: Mapping[str, str]
) -> dict[str, str]:
    """The environment of a program that is to begin with a plan.

    Args:
        plan: with ``begin``, the module whose function ``begin`` takes the plan.
        folder: private; takes the plan.
        environment: what the program would see.
    """
    path = folder / "plan.json"
    path.write_text(json.dumps(plan, sort_keys=True), encoding="utf-8")
    paths = [str(Path(site.__file__).resolve().parent), environment.get("PYTHONPATH", "")]
    own = {PLAN_VARIABLE: str(path), "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    return {**environment, **own}

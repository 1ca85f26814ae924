"""The environment variables of a program that is recorded or served, one of which names its plan."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cutlass_aot.programs import site

PLAN_VARIABLE = "CUTLASS_AOT_PROGRAM"
"""Names the plan: a JSON file for the function ``begin`` of the module that it names as ``begin``."""

SERVE_VARIABLE = "CUTLASS_AOT_SERVE"
"""Names bundles to serve a program from if there is no plan, as :func:`cutlass_aot.serve` does."""


def program_environment(
    plan: Mapping[str, Any] | None, folder: Path, environment: Mapping[str, str]
) -> dict[str, str]:
    """``environment`` with what a program needs to begin with a plan, which is written into ``folder``."""
    path = folder / "plan.json"
    path.write_text(json.dumps(plan, sort_keys=True), encoding="utf-8")
    paths = [str(Path(site.__file__).resolve().parent), environment.get("PYTHONPATH", "")]
    own = {PLAN_VARIABLE: str(path), "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    return {**environment, **own}

"""Imported by Python at the start of a recorded, captured or served program, before the site's own module."""

import importlib
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def _begin() -> None:
    # Hide this folder from the program; its child processes find it through the environment.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE]
    try:
        importlib.import_module("cutlass_aot.programs.start.start").begin()
    except Exception as error:
        # Such as an interpreter without this package: the program runs all the same.
        print(f"cutlass-aot is not active in {sys.executable}: {error}", file=sys.stderr)
    # Import the module of the same name that this one hides, if there is one.
    this = sys.modules.pop(__name__, None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if this is not None:
            sys.modules[__name__] = this


_begin()

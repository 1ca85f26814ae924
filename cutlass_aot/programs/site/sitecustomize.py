"""Python imports it at the start of a program that is recorded, captured or served, before the site's own."""

import importlib
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def _begin() -> None:
    # The program is not to find this folder; what it starts itself finds it by the environment.
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != _HERE]
    try:
        importlib.import_module("cutlass_aot.programs.start.start").begin()
    except Exception as error:
        # An interpreter that this package is not for, maybe: the program runs as it would.
        print(f"cutlass-aot is not active in {sys.executable}: {error}", file=sys.stderr)
    # The module of the same name that this one stands before, if there is one.
    this = sys.modules.pop(__name__, None)
    try:
        importlib.import_module("sitecustomize")
    except ImportError:
        if this is not None:
            sys.modules[__name__] = this


_begin()

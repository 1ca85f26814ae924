"""Run a program that is written for the CuTe DSL without installing the DSL: bundles answer it.

After :func:`activate`, ``import cutlass`` gives placeholders of the DSL's names. With them a program can be
imported, and its calls of ``cute.compile`` be described. The description has the same digest as with the DSL,
so that a bundle has the kernel. Any other use of a placeholder raises
:class:`~cutlass_aot.errors.DslNeeded`, which says what it was::

    import cutlass_aot
    from cutlass_aot.programs import without_dsl

    without_dsl.activate()
    cutlass_aot.serve("fa4")
    from flash_attn.cute import flash_attn_func

The names are those of one release of the DSL (``names-4.8.1.json``, written by ``tools/check/dsl_names.py``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from cutlass_aot.errors import DslNeeded, ProgramError
from cutlass_aot.programs.without_dsl.names import RELEASE

PACKAGE = "cutlass"

_active = False
_fingerprint: Callable[[], str] | None = None


def activate(fingerprint: str = "") -> None:
    """Replace the DSL by placeholders in this process, whether it is installed or not.

    Call it before anything imports the DSL, and before or after :func:`cutlass_aot.serve`.

    Args:
        fingerprint: of the DSL, as in requests; that of the served bundles if left out.
    """
    global _active
    if _active:
        return
    if PACKAGE in sys.modules:
        raise ProgramError(
            f"the package {PACKAGE} is imported already: call cutlass_aot.without_dsl.activate before the "
            "program's packages are imported"
        )
    from cutlass_aot.programs.without_dsl.finder import Finder

    if fingerprint:
        take_fingerprint(lambda: fingerprint)
    # Before Python's own finders, which are classes, and after AfterImport, which has to see the imports.
    places = (index for index, item in enumerate(sys.meta_path) if isinstance(item, type))
    sys.meta_path.insert(next(places, len(sys.meta_path)), Finder())
    _active = True


def is_active() -> bool:
    """Whether placeholders replace the DSL."""
    return _active


def take_fingerprint(of_bundles: Callable[[], str]) -> None:
    """Set the function from which :func:`fingerprint` gets the fingerprint of the served bundles."""
    global _fingerprint
    _fingerprint = of_bundles


def fingerprint() -> str:
    """Version and digest of the DSL that the bundles were built with, for requests."""
    found = _fingerprint() if _fingerprint is not None else ""
    if not found:
        raise DslNeeded(
            "the fingerprint of the DSL was requested, which the requests of a bundle have: serve a bundle "
            "of a program's kernels (cutlass_aot.serve)"
        )
    release = found.partition(" ")[0]
    if release != RELEASE:
        raise DslNeeded(
            f"the bundles were built by nvidia-cutlass-dsl {release}, and the names known here are those of "
            f"{RELEASE}: install the DSL, or build the bundles by that release"
        )
    return found

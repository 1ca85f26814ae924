"""Which CUDA toolkit the installed DSL compiles with, and the targets that it compiles for.

The DSL's libraries come as a package for each CUDA version, ``nvidia-cutlass-dsl-libs-cu12`` and ``-cu13``,
each with the assembler of a toolkit of that version. Both can be installed. Only metadata is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from cutlass_aot.errors import CutlassAotError
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.machine.host import installed_version
from cutlass_aot.schema.targets import HARDWARE

_LIBRARIES = re.compile(r"nvidia[-_.]cutlass[-_.]dsl[-_.]libs[-_.]cu([0-9]+)", re.IGNORECASE)


def dsl_toolkit(names: Iterable[str] | None = None) -> int | None:
    """Major CUDA version of the toolkit that the DSL compiles with in this environment; None if not known.

    Of several, the DSL takes the newest that the machine's driver supports, and the newest where there is no
    driver (``cutlass/_mlir/_mlir_libs/__init__.py``). ``names`` are those of the installed distributions;
    None looks.
    """
    if names is None:
        # Those alone: metadata of others may be damaged.
        majors = {hardware.cuda[0] for hardware in HARDWARE.values()}
        packages = (f"nvidia-cutlass-dsl-libs-cu{major}" for major in sorted(majors))
        names = [name for name in packages if installed_version(name)]
    found = {int(match[1]) for match in map(_LIBRARIES.fullmatch, names) if match}
    if len(found) > 1:
        try:
            driver = cuda_driver.driver_version()[0]
        except CutlassAotError:
            driver = 0
        found = {toolkit for toolkit in found if not driver or toolkit <= driver} or found
    return max(found, default=None)


def not_compiled(targets: Iterable[str], toolkit: int | None) -> list[str]:
    """Those of the targets that a toolkit's assembler does not know; none if the toolkit is not known."""
    if toolkit is None:
        return []
    return [name for name in targets if name in HARDWARE and HARDWARE[name].cuda[0] > toolkit]


def toolkit_for(target: str) -> str:
    """What has to be installed for a DSL that compiles for a target."""
    toolkit = HARDWARE[target].cuda[0]
    version = installed_version("nvidia-cutlass-dsl")
    release = f"=={version}" if version else ""
    return f'pip install "nvidia-cutlass-dsl[cu{toolkit}]{release}"'

"""Groups of entry points by which installed distributions add to this package."""

from __future__ import annotations

BUNDLES = "cutlass_aot.bundles"
"""Bundles that wheels bring: the bundle's name, and the package that holds its directory."""

GENERATORS = "cutlass_aot.generators"
"""Generators, and kernels that are declared: a name, and the object."""

PROGRAMS = "cutlass_aot.programs"
"""What packages read from the environment of a program: a name, and a ``ProgramPackage``."""

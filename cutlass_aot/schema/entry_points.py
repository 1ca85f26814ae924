"""Entry point groups through which installed distributions extend this package."""

from __future__ import annotations

BUNDLES = "cutlass_aot.bundles"
"""Bundles in wheels: the bundle's name, and the package that contains its directory."""

GENERATORS = "cutlass_aot.generators"
"""Generators and declared kernels: a name, and the object."""

PROGRAMS = "cutlass_aot.programs"
"""Packages that programs use, and what they read from the environment: a name, and a ``ProgramPackage``."""

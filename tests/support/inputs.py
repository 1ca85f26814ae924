"""Inputs of a build made by hand, with a compiler that is not installed."""

from __future__ import annotations

from types import SimpleNamespace

from cutlass_aot.builder.inputs.file_digests import Files
from cutlass_aot.builder.inputs.inputs import Inputs, Tools
from cutlass_aot.builder.plan.plan import load_sources
from cutlass_aot.builder.toolchain import CompilerToolchain


def inputs(manifest, devices, heuristics=None, compiler="4.8.1"):
    """What a parsed manifest leads to."""
    toolchain = CompilerToolchain({"nvidia-cutlass-dsl": compiler}, {"nvidia-cutlass-dsl": compiler}, ())
    model = SimpleNamespace(packages=heuristics) if heuristics else None
    tools = Tools(load_sources(manifest), toolchain, {"cli/build.py": "0" * 64}, {}, {})
    return Inputs(manifest, devices, model, tools, Files())


def plan_digest(manifest, devices, heuristics=None, compiler="4.8.1"):
    """Digest of everything that a selection follows from."""
    return inputs(manifest, devices, heuristics, compiler).plan_digest

"""Export compiled kernels so that objects do not depend on the compiling machine. Runs only in workers.

The DSL optimises host code as it exports it, for the CPU that it runs on: vectors are as wide as that CPU's.
Host code is therefore exported unoptimised, and optimised when it is compiled for a host
(:mod:`cutlass_aot.builder.link.linker`). ``tools/check/builder_host.py`` compares machines.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cutlass_aot.builder.link.kernel_object import KernelObject
from cutlass_aot.errors import ToolchainError
from cutlass_aot.generators.protocol import CompiledFunction
from cutlass_aot.runtime.machine.installation import command_for

_EXPORTER = "cutlass.cutlass_dsl.tvm_ffi_provider"


def export(compiled: CompiledFunction, symbol: str, scratch: Path) -> KernelObject:
    """Export a generator's compiled function as an object that is the same on every machine.

    ``symbol`` is the name of the exported function. ``scratch`` is a file that is written and removed; its
    name must end in ``.ll``, by which the DSL knows that LLVM text is requested.
    """
    try:
        with _as_it_is():
            compiled.export_to_c(str(scratch), function_name=symbol, export_only_tvm_ffi_symbols=True)
        return KernelObject.from_llvm(scratch.read_text(encoding="utf-8"), symbol)
    finally:
        scratch.unlink(missing_ok=True)


@contextmanager
def _as_it_is() -> Iterator[None]:
    """Make the DSL, if it is imported, export without optimising, for which it has no option."""
    exporter: Any = sys.modules.get(_EXPORTER)
    if exporter is None:
        yield
        return
    try:
        support = exporter._aot_support
        real = support.export_module_to_bytes
    except AttributeError:
        raise ToolchainError(
            f"{_EXPORTER} of the installed DSL exports in a way that is not known: "
            f"install the release that this package pins: {command_for('build')}"
        ) from None

    def unoptimised(module: Any, *, format: str, opt_level: int, enable_pic: bool) -> bytes:
        data: bytes = real(module, format=format, opt_level=0, enable_pic=enable_pic)
        return data

    exporter._aot_support = SimpleNamespace(export_module_to_bytes=unoptimised)
    try:
        yield
    finally:
        exporter._aot_support = support

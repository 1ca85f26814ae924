"""Ahead-of-time build system and loader for CuTe DSL kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutlass_aot import errors as errors
    from cutlass_aot.runtime.bundle import Bundle as Bundle
    from cutlass_aot.runtime.bundle import open_bundle as open
    from cutlass_aot.runtime.handle import KernelHandle as KernelHandle
    from cutlass_aot.runtime.installed import installed_bundles as installed_bundles
    from cutlass_aot.runtime.installed import open_installed as open_installed
    from cutlass_aot.schema.operands import Accepted as Accepted
    from cutlass_aot.schema.operands import OperandDescription as OperandDescription
    from cutlass_aot.schema.operands import Rejected as Rejected
    from cutlass_aot.schema.operands import describe as describe

__version__ = "0.1.0"

_PUBLIC = {
    "Accepted": ("cutlass_aot.schema.operands", "Accepted"),
    "Bundle": ("cutlass_aot.runtime.bundle", "Bundle"),
    "KernelHandle": ("cutlass_aot.runtime.handle", "KernelHandle"),
    "OperandDescription": ("cutlass_aot.schema.operands", "OperandDescription"),
    "Rejected": ("cutlass_aot.schema.operands", "Rejected"),
    "describe": ("cutlass_aot.schema.operands", "describe"),
    "errors": ("cutlass_aot.errors", None),
    "installed_bundles": ("cutlass_aot.runtime.installed", "installed_bundles"),
    "open": ("cutlass_aot.runtime.bundle", "open_bundle"),
    "open_installed": ("cutlass_aot.runtime.installed", "open_installed"),
}

__all__ = [
    "Accepted",
    "Bundle",
    "KernelHandle",
    "OperandDescription",
    "Rejected",
    "__version__",
    "describe",
    "errors",
    "installed_bundles",
    "open",
    "open_installed",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: importing the package alone costs nothing."""
    try:
        module_name, attribute = _PUBLIC[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    from importlib import import_module

    module = import_module(module_name)
    value = module if attribute is None else getattr(module, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})

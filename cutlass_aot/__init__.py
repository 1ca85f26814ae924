"""Ahead-of-time build system and loader for CuTe DSL kernels."""

from __future__ import annotations

# Not from `typing`, whose import takes longer than all else here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any

    from cutlass_aot import errors
    from cutlass_aot.errors import *
    from cutlass_aot.programs import without_dsl
    from cutlass_aot.programs.serve.serve import serve
    from cutlass_aot.runtime import narrow, policy, scales
    from cutlass_aot.runtime.bundle import Bundle
    from cutlass_aot.runtime.bundle import open_bundle as open
    from cutlass_aot.runtime.declared import kernel
    from cutlass_aot.runtime.files.trust import trust
    from cutlass_aot.runtime.installed import open_installed
    from cutlass_aot.runtime.launching.tensors import view_as
    from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
    from cutlass_aot.runtime.search_path import installed_bundles
    from cutlass_aot.schema.kernels.declaration import Operand
    from cutlass_aot.schema.kernels.operands import Accepted, OperandDescription, Rejected, describe

__version__ = "0.1.0"

__all__ = [
    "Accepted", "ArtifactError", "Bundle", "BundleError", "CompileError", "CorruptFile",
    "CutlassAotError", "DeclarationError", "DeviceError", "DslNeeded", "ExecutorError", "FactsError",
    "GeneratorError", "Incompatible", "KernelHandle", "KernelNotFound", "LaunchError", "LinkError",
    "ManifestError", "MisplacedOperand", "Operand", "OperandDescription", "OperandError",
    "ParameterError", "PolicyError", "ProgramError", "RegistryError", "RegistryNameError", "Rejected",
    "ReportError", "RequestError", "RequestNotFound", "SchemaTooNew", "SignatureError", "StoreError",
    "ToolchainError", "TuningError", "UntrustedBundle", "__version__", "describe", "errors",
    "installed_bundles", "kernel", "narrow", "open", "open_installed", "policy", "scales", "serve",
    "trust", "view_as", "without_dsl",
]  # fmt: skip

_DEFINED_IN = {
    "Accepted": "schema.kernels.operands:Accepted",
    "Bundle": "runtime.bundle:Bundle",
    "KernelHandle": "runtime.opened.kernel_handle:KernelHandle",
    "Operand": "schema.kernels.declaration:Operand",
    "OperandDescription": "schema.kernels.operands:OperandDescription",
    "Rejected": "schema.kernels.operands:Rejected",
    "describe": "schema.kernels.operands:describe",
    "errors": "errors",
    "installed_bundles": "runtime.search_path:installed_bundles",
    "kernel": "runtime.declared:kernel",
    "narrow": "runtime.narrow",
    "open": "runtime.bundle:open_bundle",
    "open_installed": "runtime.installed:open_installed",
    "policy": "runtime.policy",
    "scales": "runtime.scales",
    "serve": "programs.serve.serve:serve",
    "trust": "runtime.files.trust:trust",
    "view_as": "runtime.launching.tensors:view_as",
    "without_dsl": "programs.without_dsl",
}
"""Where each public name is defined, or the module that it is; every other name is in ``errors``."""


def __getattr__(name: str) -> Any:
    """Import a public name at its first use: importing the package alone costs nothing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import gc

    # What an import makes stays. A full collection meanwhile would go through every object that torch made.
    # Where it is disabled it stays so: the program wants that, or another thread, which imports, enables it.
    collects = gc.isenabled()
    if collects:
        gc.disable()
    try:
        from importlib import import_module

        module, _, attribute = _DEFINED_IN.get(name, f"errors:{name}").partition(":")
        value: Any = import_module(f"{__name__}.{module}")
    finally:
        if collects:
            gc.enable()
    if attribute:
        value = getattr(value, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Ahead-of-time build system and loader for CuTe DSL kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cutlass_aot import errors as errors
    from cutlass_aot.errors import ArtifactError as ArtifactError
    from cutlass_aot.errors import BundleError as BundleError
    from cutlass_aot.errors import CompileError as CompileError
    from cutlass_aot.errors import CorruptFile as CorruptFile
    from cutlass_aot.errors import CutlassAotError as CutlassAotError
    from cutlass_aot.errors import DeviceError as DeviceError
    from cutlass_aot.errors import DslNeeded as DslNeeded
    from cutlass_aot.errors import ExecutorError as ExecutorError
    from cutlass_aot.errors import FactsError as FactsError
    from cutlass_aot.errors import GeneratorError as GeneratorError
    from cutlass_aot.errors import Incompatible as Incompatible
    from cutlass_aot.errors import KernelNotFound as KernelNotFound
    from cutlass_aot.errors import LaunchError as LaunchError
    from cutlass_aot.errors import LinkError as LinkError
    from cutlass_aot.errors import ManifestError as ManifestError
    from cutlass_aot.errors import OperandError as OperandError
    from cutlass_aot.errors import PolicyError as PolicyError
    from cutlass_aot.errors import ProgramError as ProgramError
    from cutlass_aot.errors import RegistryError as RegistryError
    from cutlass_aot.errors import RegistryNameError as RegistryNameError
    from cutlass_aot.errors import ReportError as ReportError
    from cutlass_aot.errors import RequestError as RequestError
    from cutlass_aot.errors import RequestNotFound as RequestNotFound
    from cutlass_aot.errors import SchemaTooNew as SchemaTooNew
    from cutlass_aot.errors import SignatureError as SignatureError
    from cutlass_aot.errors import StoreError as StoreError
    from cutlass_aot.errors import ToolchainError as ToolchainError
    from cutlass_aot.errors import TuningError as TuningError
    from cutlass_aot.errors import UntrustedBundle as UntrustedBundle
    from cutlass_aot.programs import without_dsl as without_dsl
    from cutlass_aot.programs.serve.serve import serve as serve
    from cutlass_aot.runtime import narrow as narrow
    from cutlass_aot.runtime import policy as policy
    from cutlass_aot.runtime import scales as scales
    from cutlass_aot.runtime.bundle import Bundle as Bundle
    from cutlass_aot.runtime.bundle import open_bundle as open
    from cutlass_aot.runtime.declared import kernel as kernel
    from cutlass_aot.runtime.files.trust import trust as trust
    from cutlass_aot.runtime.installed import open_installed as open_installed
    from cutlass_aot.runtime.launching.tensors import view_as as view_as
    from cutlass_aot.runtime.opened.kernel_handle import KernelHandle as KernelHandle
    from cutlass_aot.runtime.search_path import installed_bundles as installed_bundles
    from cutlass_aot.schema.kernels.declaration import Operand as Operand
    from cutlass_aot.schema.kernels.operands import Accepted as Accepted
    from cutlass_aot.schema.kernels.operands import OperandDescription as OperandDescription
    from cutlass_aot.schema.kernels.operands import Rejected as Rejected
    from cutlass_aot.schema.kernels.operands import describe as describe

__version__ = "0.1.0"

_PUBLIC = {
    "Accepted": ("cutlass_aot.schema.kernels.operands", "Accepted"),
    "ArtifactError": ("cutlass_aot.errors", "ArtifactError"),
    "Bundle": ("cutlass_aot.runtime.bundle", "Bundle"),
    "BundleError": ("cutlass_aot.errors", "BundleError"),
    "CompileError": ("cutlass_aot.errors", "CompileError"),
    "CorruptFile": ("cutlass_aot.errors", "CorruptFile"),
    "CutlassAotError": ("cutlass_aot.errors", "CutlassAotError"),
    "DeviceError": ("cutlass_aot.errors", "DeviceError"),
    "DslNeeded": ("cutlass_aot.errors", "DslNeeded"),
    "ExecutorError": ("cutlass_aot.errors", "ExecutorError"),
    "FactsError": ("cutlass_aot.errors", "FactsError"),
    "GeneratorError": ("cutlass_aot.errors", "GeneratorError"),
    "Incompatible": ("cutlass_aot.errors", "Incompatible"),
    "KernelHandle": ("cutlass_aot.runtime.opened.kernel_handle", "KernelHandle"),
    "KernelNotFound": ("cutlass_aot.errors", "KernelNotFound"),
    "LaunchError": ("cutlass_aot.errors", "LaunchError"),
    "LinkError": ("cutlass_aot.errors", "LinkError"),
    "ManifestError": ("cutlass_aot.errors", "ManifestError"),
    "Operand": ("cutlass_aot.schema.kernels.declaration", "Operand"),
    "OperandDescription": ("cutlass_aot.schema.kernels.operands", "OperandDescription"),
    "OperandError": ("cutlass_aot.errors", "OperandError"),
    "PolicyError": ("cutlass_aot.errors", "PolicyError"),
    "ProgramError": ("cutlass_aot.errors", "ProgramError"),
    "RegistryError": ("cutlass_aot.errors", "RegistryError"),
    "RegistryNameError": ("cutlass_aot.errors", "RegistryNameError"),
    "ReportError": ("cutlass_aot.errors", "ReportError"),
    "RequestError": ("cutlass_aot.errors", "RequestError"),
    "RequestNotFound": ("cutlass_aot.errors", "RequestNotFound"),
    "Rejected": ("cutlass_aot.schema.kernels.operands", "Rejected"),
    "SchemaTooNew": ("cutlass_aot.errors", "SchemaTooNew"),
    "SignatureError": ("cutlass_aot.errors", "SignatureError"),
    "StoreError": ("cutlass_aot.errors", "StoreError"),
    "ToolchainError": ("cutlass_aot.errors", "ToolchainError"),
    "TuningError": ("cutlass_aot.errors", "TuningError"),
    "UntrustedBundle": ("cutlass_aot.errors", "UntrustedBundle"),
    "describe": ("cutlass_aot.schema.kernels.operands", "describe"),
    "errors": ("cutlass_aot.errors", None),
    "installed_bundles": ("cutlass_aot.runtime.search_path", "installed_bundles"),
    "narrow": ("cutlass_aot.runtime.narrow", None),
    "open": ("cutlass_aot.runtime.bundle", "open_bundle"),
    "open_installed": ("cutlass_aot.runtime.installed", "open_installed"),
    "kernel": ("cutlass_aot.runtime.declared", "kernel"),
    "policy": ("cutlass_aot.runtime.policy", None),
    "scales": ("cutlass_aot.runtime.scales", None),
    "serve": ("cutlass_aot.programs.serve.serve", "serve"),
    "trust": ("cutlass_aot.runtime.files.trust", "trust"),
    "view_as": ("cutlass_aot.runtime.launching.tensors", "view_as"),
    "without_dsl": ("cutlass_aot.programs.without_dsl", None),
}

__all__ = [
    "Accepted",
    "ArtifactError",
    "Bundle",
    "BundleError",
    "CompileError",
    "CorruptFile",
    "CutlassAotError",
    "DeviceError",
    "DslNeeded",
    "ExecutorError",
    "FactsError",
    "GeneratorError",
    "Incompatible",
    "KernelHandle",
    "KernelNotFound",
    "LaunchError",
    "LinkError",
    "ManifestError",
    "Operand",
    "OperandDescription",
    "OperandError",
    "PolicyError",
    "ProgramError",
    "RegistryError",
    "RegistryNameError",
    "Rejected",
    "ReportError",
    "RequestError",
    "RequestNotFound",
    "SchemaTooNew",
    "SignatureError",
    "StoreError",
    "ToolchainError",
    "TuningError",
    "UntrustedBundle",
    "__version__",
    "describe",
    "errors",
    "installed_bundles",
    "kernel",
    "narrow",
    "open",
    "open_installed",
    "policy",
    "scales",
    "serve",
    "trust",
    "view_as",
    "without_dsl",
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

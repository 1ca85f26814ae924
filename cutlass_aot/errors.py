"""Errors: one root class; each says what was found, what was expected and what to do next.

Exit codes follow the command line's convention: 1, something failed; 2, it was used wrongly; 3, a bundle that
no trusted key has signed.

Docstrings of the public interface list the errors that a call raises. Everywhere else these are to be
expected, and a docstring names only what is not among them:

- whatever reads a file of a bundle, a store or a recording raises :class:`CorruptFile` if it is truncated,
  altered or foreign, :class:`SchemaTooNew` if a newer release wrote it, and :class:`BundleError` or
  :class:`StoreError` if it cannot be read or written;
- whatever opens a bundle raises :class:`UntrustedBundle` and :class:`SignatureError` where keys are required,
  and :class:`Incompatible` if this machine cannot load it;
- whatever asks the driver raises :class:`DeviceError`; whatever takes operands raises :class:`OperandError`,
  and a launch :class:`LaunchError`;
- whatever reads a manifest raises :class:`ManifestError`, and whatever calls a generator
  :class:`GeneratorError`;
- whatever needs the build side raises :class:`ToolchainError` if it is not installed, and
  :class:`CompileError`, :class:`ArtifactError` or :class:`LinkError` if a kernel cannot be made with it.
"""

from __future__ import annotations

__all__ = [
    "ArtifactError",
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
    "KernelNotFound",
    "LaunchError",
    "LinkError",
    "ManifestError",
    "OperandError",
    "PolicyError",
    "ProgramError",
    "RegistryError",
    "RegistryNameError",
    "ReportError",
    "RequestError",
    "RequestNotFound",
    "SchemaTooNew",
    "SignatureError",
    "StoreError",
    "ToolchainError",
    "TuningError",
    "UntrustedBundle",
]


class CutlassAotError(Exception):
    """Root of every error that this package raises on purpose."""

    exit_code = 1


class ManifestError(CutlassAotError):
    """A manifest is malformed, or asks for something that does not exist."""

    exit_code = 2


class GeneratorError(CutlassAotError):
    """A generator is unknown, registered twice, or raised."""


class ToolchainError(CutlassAotError):
    """A part of the build side (the DSL, ziglang, the CUDA runtime archive) is missing."""


class CompileError(CutlassAotError):
    """One kernel could not be compiled."""


class ArtifactError(CutlassAotError):
    """A compiled object is not what was requested (wrong target, undefined symbols)."""


class LinkError(CutlassAotError):
    """Linking a library failed."""


class ExecutorError(CutlassAotError):
    """A scheduler cannot be reached, or its workers have not got what the builder has."""


class FactsError(CutlassAotError):
    """A file that should describe a machine does not."""

    exit_code = 2


class StoreError(CutlassAotError):
    """The store cannot be read or written."""


class CorruptFile(CutlassAotError):
    """A file is truncated, altered or not of the expected format."""


class SchemaTooNew(CutlassAotError):
    """A file was written with a schema version that this package does not know."""


class BundleError(CutlassAotError):
    """A bundle or a wheel is missing, incomplete or unknown."""


class RegistryError(CutlassAotError):
    """A registry cannot be reached, refused, or has something other than a bundle."""


class RegistryNameError(CutlassAotError):
    """A name of something in a registry is malformed, or names too little for what is requested."""

    exit_code = 2


class Incompatible(CutlassAotError):
    """A bundle cannot be used on this machine (GPU, driver, host, tvm-ffi)."""


class DeviceError(CutlassAotError):
    """There is no usable GPU, or the driver refused a call."""


class OperandError(CutlassAotError):
    """An operand is not something that can be described or launched on."""

    exit_code = 2


class PolicyError(CutlassAotError):
    """There is no policy of that name."""

    exit_code = 2


class ReportError(CutlassAotError):
    """A page about a build cannot be written."""


class KernelNotFound(CutlassAotError):
    """No kernel of the bundle supports the operands."""


class RequestError(CutlassAotError):
    """A request of a program cannot be described soundly, so that it is neither recorded nor answered."""


class RequestNotFound(KernelNotFound):
    """No bundle at hand has the kernel that a program asks ``cute.compile`` for."""


class ProgramError(CutlassAotError):
    """A program whose requests are to be recorded failed, or made none."""


class DslNeeded(CutlassAotError):
    """A program that runs without the DSL needs something that only the DSL can do."""


class LaunchError(CutlassAotError):
    """A kernel refused its operands, or could not be launched."""


class TuningError(CutlassAotError):
    """A tuning file is missing, cannot be written, or was measured on another GPU or with other kernels."""


class SignatureError(CutlassAotError):
    """A key or a signature cannot be read or made, or what that needs is not installed."""


class UntrustedBundle(CutlassAotError):
    """Keys are required, and none of them has signed the bundle."""

    exit_code = 3

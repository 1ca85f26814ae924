"""The errors of this package. Each message says what was found, what was expected and what to do next.

The command line exits with an error's ``exit_code``, which is an :class:`ExitCode`.

Docstrings of the public interface list the errors that a call raises. Other docstrings leave out these:

- Reading a file of a bundle, a store or a recording: :class:`CorruptFile` if it is truncated, altered or not
  of its format, :class:`SchemaTooNew` if a newer release wrote it, :class:`BundleError` or
  :class:`StoreError` if it cannot be read or written.
- Opening a bundle: :class:`UntrustedBundle` and :class:`SignatureError` where keys are required,
  :class:`Incompatible` if this machine cannot load it.
- Calling the driver: :class:`DeviceError`. Taking operands: :class:`OperandError`. Launching:
  :class:`LaunchError`.
- Reading a manifest: :class:`ManifestError`. Calling a generator: :class:`GeneratorError`.
- Building: :class:`ToolchainError` if the build side is not installed, :class:`CompileError`,
  :class:`ArtifactError` or :class:`LinkError` if a kernel cannot be built.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = [
    "ArtifactError",
    "BundleError",
    "CompileError",
    "CorruptFile",
    "CutlassAotError",
    "DeclarationError",
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
    "MisplacedOperand",
    "OperandError",
    "ParameterError",
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


def printable(text: str, kept: str = "") -> str:
    """Text with every character that a terminal may act on as an escape, such as ``\\x1b``.

    So are line breaks and tabs, with which a name could look like lines of our own, unless they are in
    ``kept``, for text that has lines. Characters that change the direction of writing, and halves of
    surrogate pairs, are escaped too.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in kept
        else character.encode("unicode_escape").decode()
        for character in text
    )


class ExitCode(IntEnum):
    """The exit statuses of the command line; ``meaning`` says in words when it exits with one."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> ExitCode:
        """A status and its meaning."""
        made = int.__new__(cls, code)
        made._value_ = code
        made.meaning = meaning
        return made

    GOOD = 0, "all that was asked for is done, and nothing is wrong"
    FAILED = 1, "something failed or was not found, or what was checked is not good"
    MISUSED = 2, "wrong use: an option or its value, an argument, a manifest, or operands"
    UNTRUSTED = 3, "a bundle that no trusted key has signed"
    INTERRUPTED = 130, "interrupted, from the terminal or by SIGTERM"


class CutlassAotError(Exception):
    """Root of every error that this package raises on purpose.

    Its text may quote names of bundles, files and registries, which come from strangers. Wherever it is
    shown, in a traceback or a log too, it has no character that a terminal acts on but line breaks and tabs,
    which names cannot have where they are read from a bundle (:data:`~.schema.codec.Line`).
    """

    exit_code = ExitCode.FAILED

    def __str__(self) -> str:
        return printable(super().__str__(), "\n\t")


class ManifestError(CutlassAotError):
    """A manifest is malformed, or asks for something that does not exist."""

    exit_code = ExitCode.MISUSED


class GeneratorError(CutlassAotError):
    """A generator is unknown, registered twice, or raised."""


class DeclarationError(GeneratorError):
    """The declaration of a kernel is wrong; the message names its file and line."""


class ToolchainError(CutlassAotError):
    """A part of the build side (the DSL, ziglang, the CUDA runtime archive) is missing."""


class CompileError(CutlassAotError):
    """One kernel could not be compiled."""


class ArtifactError(CutlassAotError):
    """A compiled object is not what was requested (wrong target, undefined symbols)."""


class LinkError(CutlassAotError):
    """Linking a library failed."""


class ExecutorError(CutlassAotError):
    """A scheduler cannot be reached, or its workers lack something that the builder has."""


class FactsError(CutlassAotError):
    """A file that should hold the facts of a machine does not."""

    exit_code = ExitCode.MISUSED


class StoreError(CutlassAotError):
    """The store cannot be read or written."""


class CorruptFile(CutlassAotError):
    """A file is truncated, altered or not of the expected format."""


class SchemaTooNew(CutlassAotError):
    """A file was written with a schema version that this package does not know."""


class BundleError(CutlassAotError):
    """A bundle or a wheel is missing, incomplete or unknown."""


class RegistryError(CutlassAotError):
    """A registry cannot be reached, refused a request, or has something other than a bundle."""


class RegistryNameError(CutlassAotError):
    """The name of something in a registry is malformed, or lacks a part that the command needs."""

    exit_code = ExitCode.MISUSED


class Incompatible(CutlassAotError):
    """A bundle cannot be used on this machine (GPU, driver, host, tvm-ffi)."""


class DeviceError(CutlassAotError):
    """There is no usable GPU, or the driver refused a call."""


class OperandError(CutlassAotError):
    """An operand cannot be described, or a kernel cannot be launched on it."""

    exit_code = ExitCode.MISUSED


class ParameterError(OperandError, TypeError):
    """A call names a parameter or an operand that there is not, has too many, or lacks one."""


class PolicyError(CutlassAotError):
    """There is no policy of that name."""

    exit_code = ExitCode.MISUSED


class ReportError(CutlassAotError):
    """A build's report page cannot be written."""


class KernelNotFound(CutlassAotError):
    """No kernel of the bundle supports the operands."""


class MisplacedOperand(OperandError, KernelNotFound):
    """An operand is not on a CUDA device, or not on that of the others, so that no kernel serves the call."""


class RequestError(CutlassAotError):
    """A program's request cannot be described with certainty, so it is neither recorded nor answered."""


class RequestNotFound(KernelNotFound):
    """None of the bundles has the kernel that a program asks ``cute.compile`` for."""


class ProgramError(CutlassAotError):
    """A program whose requests are to be recorded failed, or made none."""


class DslNeeded(CutlassAotError):
    """A program that runs without the DSL needs something that only the DSL does."""


class LaunchError(CutlassAotError):
    """A kernel refused its operands, or could not be launched."""


class TuningError(CutlassAotError):
    """A tuning file is missing, cannot be written, or was measured on another GPU or with other kernels."""


class SignatureError(CutlassAotError):
    """A key or a signature cannot be read or made, or the package for that is not installed."""


class UntrustedBundle(CutlassAotError):
    """Keys are required, and none of them has signed the bundle."""

    exit_code = ExitCode.UNTRUSTED

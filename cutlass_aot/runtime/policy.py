"""The policy on misses: what :meth:`cutlass_aot.Bundle.gemm` does if the bundle has no kernel.

``required`` (the default): the miss is an error. ``warn``: the operands' own framework computes the result,
with a warning once for each problem. ``jit``: the DSL, if it is installed, compiles a kernel in this process,
with a warning once for each kernel. Under every policy each miss is counted and written to the logger
``cutlass_aot``.

The policy is that of the innermost :func:`use` block of this thread or task, else what :func:`set` set for
the process, else the environment variable ``CUTLASS_AOT_POLICY`` when a policy is first needed, else
``required``.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol

from cutlass_aot.errors import CutlassAotError, KernelNotFound, MisplacedOperand, PolicyError
from cutlass_aot.runtime.machine import host
from cutlass_aot.runtime.machine.process_lock import ProcessLock
from cutlass_aot.runtime.selection.query import Parameters, Query

POLICIES = ("required", "warn", "jit")
"""Their names."""

ENVIRONMENT_VARIABLE = "CUTLASS_AOT_POLICY"
"""Read once, when a policy is first needed that nothing in the process has set."""

MAX_SIGNATURES = 10_000
"""Most problems with a count of their own; further ones are counted together, under :data:`OTHERS`."""

OTHERS = "other problems"

# A name, imported only on a miss: the runtime side does not depend on the build side.
_JIT = "cutlass_aot.builder.jit"

_of_block: ContextVar[str | None] = ContextVar("cutlass_aot_policy", default=None)


class MissedKernel(Protocol):
    """What a miss needs to know of a declared kernel."""

    def call_text(self, values: Parameters, /) -> str:
        """A call with these parameters, for messages."""


class MissWarning(UserWarning):
    """A problem that the bundle has no kernel for was computed another way."""


class Misses(dict[str, int]):
    """How often each problem was missed, by its signature: operands, accumulator and GPU in words."""

    @property
    def total(self) -> int:
        """Number of all misses."""
        return sum(self.values())


class _Process:
    def __init__(self) -> None:
        self.policy: str | None = None
        self.misses = Misses()
        self.warned: dict[str, None] = {}
        self.lock = ProcessLock()


_process = _Process()


def get() -> str:
    """The policy in force here.

    Raises:
        PolicyError: if the environment variable decides and names no policy.
    """
    chosen = _of_block.get() or _process.policy
    if chosen is None:
        text = os.environ.get(ENVIRONMENT_VARIABLE, "") or POLICIES[0]
        chosen = _process.policy = _checked(text, f"environment variable {ENVIRONMENT_VARIABLE}")
    return chosen


def set(policy: str) -> None:
    """Set the policy of the process; :func:`use` overrides it.

    Raises:
        PolicyError: if there is no such policy.
    """
    _process.policy = _checked(policy, "policy")


@contextmanager
def use(policy: str) -> Iterator[None]:
    """Use this policy within the block, in this thread or task only.

    Raises:
        PolicyError: if there is no such policy.
    """
    token = _of_block.set(_checked(policy, "policy"))
    try:
        yield
    finally:
        _of_block.reset(token)


def _checked(policy: str, what: str) -> str:
    if policy not in POLICIES:
        from cutlass_aot.schema.words import did_you_mean

        raise PolicyError(
            f"{what}: expected one of {', '.join(POLICIES)}, got {policy!r}{did_you_mean(policy, POLICIES)}"
        )
    return policy


def misses() -> Misses:
    """A copy of the counts since the process began, or since :func:`reset_misses`."""
    with _process.lock:
        return Misses(_process.misses)


def reset_misses() -> None:
    """Count from zero, and issue warnings again that were issued before."""
    with _process.lock:
        _process.misses.clear()
        _process.warned.clear()


def on_miss(
    error: KernelNotFound, query: Query, operands: Sequence[Any], stream: Any, workspace: Any
) -> None:
    """Count a miss, write it to the log, and do what the policy says.

    Args:
        error: what the miss raises under ``required``, and where the framework cannot compute the problem. It
            is the cause of any other error.
        query: what no kernel matches.
        operands: in the order of the query.
        stream: the caller's, as for a launch.
        workspace: the caller's, as for a launch.
    """
    counted, policy = _note(str(query))
    if policy == "required" or (policy == "jit" and isinstance(error, MisplacedOperand)):
        raise error
    try:
        if policy == "warn":
            from cutlass_aot.runtime.framework import gemm

            gemm(error, query, operands, stream)
            warn_once(counted, f"{error}; computed by torch instead")
        else:
            importlib.import_module(_JIT).gemm(query, operands, stream, workspace)
    except CutlassAotError as failure:
        if failure is error:
            raise
        raise failure from error


def on_declared_miss(
    error: KernelNotFound, declared: MissedKernel, values: Parameters, ordinal: int
) -> tuple[Any, tuple[str, ...]]:
    """Count a miss of a declared kernel, write it to the log, and do what the policy says.

    Args:
        error: what the miss raises under ``required`` and ``warn`` (no framework computes such a kernel). It
            is the cause of any error under ``jit``.
        declared: the kernel.
        values: its parameters.
        ordinal: CUDA device ordinal; nothing is compiled for -1, which means that no GPU is given.

    Returns:
        The compiled kernel, called like a prebuilt kernel's ``launch``, and the names of its operands.
    """
    _, policy = _note(f"{declared.call_text(values)} on {f'GPU {ordinal}' if ordinal >= 0 else 'any GPU'}")
    if policy != "jit" or ordinal < 0:
        raise error
    try:
        launch, names = importlib.import_module(_JIT).declared(declared, values, ordinal)
    except CutlassAotError as failure:
        raise failure from error
    return launch, names


def has_compiler() -> bool:
    """Whether the DSL is installed, without which nothing is compiled under ``jit``."""
    return host.installed_version("nvidia-cutlass-dsl") is not None


def warn_once(what: str, message: str) -> None:
    """Issue a :class:`MissWarning`, unless there was one for the same thing."""
    if what in _process.warned:
        return
    # Marked after it: if a filter turns the warning into an error, it is raised each time.
    warnings.warn(message, MissWarning, stacklevel=_level_of_caller())
    with _process.lock:
        _process.warned[what] = None


def _level_of_caller() -> int:
    """The ``stacklevel``, for the calling function, of the first frame outside of this package."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("cutlass_aot."):
        level, frame = level + 1, frame.f_back
    return level


def _note(signature: str) -> tuple[str, str]:
    """Count a miss and write it to the log; returns the signature counted and the policy in force."""
    counted, count = count_miss(signature)
    policy = get()
    _logger().warning("no kernel for %s (miss %d of it, policy %s)", signature, count, policy)
    return counted, policy


def count_miss(signature: str) -> tuple[str, int]:
    """Count a miss; returns the signature counted, and its count."""
    with _process.lock:
        counts = _process.misses
        if signature not in counts and len(counts) >= MAX_SIGNATURES:
            signature = OTHERS
        counts[signature] = counts.get(signature, 0) + 1
        return signature, counts[signature]


def _logger() -> logging.Logger:
    logger = logging.getLogger("cutlass_aot")
    if not logger.handlers:
        # Without a handler, an application that configures no logging would get each line on standard error.
        logger.addHandler(logging.NullHandler())
    return logger

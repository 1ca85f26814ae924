"""Run one kernel on a GPU against its author's reference function, and time it. torch has memory and events.

Operands are random: normal numbers for floating types, 0 and 1 for integers, which may be positions of
something. The error of an output is the largest difference from the reference, relative to the element's
magnitude plus the root mean square of the output; that of an integer output is absolute.
"""

from __future__ import annotations

import math
import statistics
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from cutlass_aot.errors import OperandError, TuningError
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.operands import OperandDescription, extent_names, packed
from cutlass_aot.schema.words import did_you_mean
from cutlass_aot.tuning.reference import UNIT_ROUNDOFF

Reference = Callable[..., Any]
"""Takes the operands of a kernel in their order, as they are before the launch, and returns those that it
writes: one, or a tuple in their order."""

NUMBER = 1.5
"""The value of operands that are passed by value; integers are 1."""

SEED = 20_000
_ROUNDS, _WARM_UP = 5, 3
_ROUND_SECONDS = 0.02
_MOST_LAUNCHES = 1000
_USUAL_EXTENTS = {0: 1, 1: 1 << 24, 2: 4096, 3: 256}
_SMALL_EXTENT = 32


class Outcome(NamedTuple):
    """What a run gave.

    Attributes:
        error: largest error of an output; None without a reference.
        allowed: the largest error that rounding explains.
        microseconds: of a launch, the median of several rounds; operands that fit stay in the L2 cache.
        megabytes: of all operands, each counted once.
    """

    error: float | None
    allowed: float
    microseconds: float
    megabytes: float

    @property
    def good(self) -> bool:
        """Whether the result is right, as far as it was looked at."""
        return self.error is None or self.error <= self.allowed

    @property
    def gigabytes_per_second(self) -> float:
        """The bandwidth, if each operand is moved once."""
        return self.megabytes * 1e3 / self.microseconds


def usual_extents(operands: Sequence[OperandConstraint], given: Mapping[str, int]) -> dict[str | int, int]:
    """An extent for each name of a kernel's operands: the given ones, else such that a GPU is busy.

    Raises:
        OperandError: for a name that the kernel does not have.
    """
    names = extent_names(operands)
    unknown = sorted(set(given) - set(names))
    if unknown:
        known = ", ".join(names) or "none"
        raise OperandError(
            f"no operand has an extent {unknown[0]!r}: expected one of {known}"
            + did_you_mean(unknown[0], names)
        )
    extent = _USUAL_EXTENTS.get(len(names), _SMALL_EXTENT)
    return {name: given.get(name, extent) for name in names}


def run(
    torch: Any,
    ordinal: int,
    kernel: KernelHandle,
    reference: Reference | None,
    extents: Mapping[str | int, int],
) -> Outcome:
    """Launch a kernel once, compare what it wrote, and time further launches.

    Raises:
        OperandError: if the kernel does not support these extents, or torch has none of its element types.
        TuningError: if the reference fails, or returns something else than the written operands.

    What torch raises where the GPU's memory is full, or where it lacks an operation, passes through.
    """
    constraints = kernel.group.operands
    descriptions = packed(constraints, extents)
    torch.manual_seed(SEED)
    device = torch.device("cuda", ordinal)
    operands = [
        _operand(torch, device, constraint, description)
        for constraint, description in zip(constraints, descriptions, strict=True)
    ]
    expected = None
    if reference is not None:
        before = [item.clone() if hasattr(item, "clone") else item for item in operands]
        expected = _outputs(_computed(torch, reference, before), constraints)
    kernel.launch(*operands)
    torch.cuda.current_stream().synchronize()
    written = [item for item, constraint in zip(operands, constraints, strict=True) if constraint.written]
    error = None
    if expected is not None:
        error = max(_error(torch, *pair) for pair in zip(written, expected, strict=True))
    dtypes = [constraint.dtype for constraint in constraints if constraint.written]
    megabytes = sum(item.nbytes for item in operands if hasattr(item, "nbytes")) / 1e6
    return Outcome(error, max(map(_allowed, dtypes)), _microseconds(torch, kernel, operands), megabytes)


def _operand(torch: Any, device: Any, constraint: OperandConstraint, description: OperandDescription) -> Any:
    if constraint.is_none:
        return None
    if constraint.is_number:
        return NUMBER if DTYPES[constraint.dtype].is_float else 1
    dtype = DTYPES[constraint.dtype]
    if not dtype.torch or dtype.torch_packs != 1:
        raise OperandError(
            f"operand `{constraint.name}`: torch makes no random elements of {constraint.dtype}"
        )
    span = 1 + sum((n - 1) * stride for n, stride in zip(description.shape, description.strides, strict=True))
    wide = torch.empty((span,), dtype=torch.float32, device=device)
    values = wide.normal_() if dtype.is_float else wide.random_(0, 2)
    return values.to(getattr(torch, dtype.torch)).as_strided(description.shape, description.strides)


def _computed(torch: Any, reference: Reference, operands: Sequence[Any]) -> Any:
    try:
        return reference(*operands)
    except (torch.cuda.OutOfMemoryError, NotImplementedError):
        raise
    except Exception as error:
        steps = traceback.extract_tb(error.__traceback__)[1:]
        code = getattr(reference, "__code__", None)
        own = [step for step in steps if code is not None and step.filename == code.co_filename]
        where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
        name = getattr(reference, "__qualname__", repr(reference))
        raise TuningError(
            f"the reference function {name}{where} failed: {type(error).__name__}: {error}"
        ) from error


def _outputs(found: Any, constraints: Sequence[OperandConstraint]) -> tuple[Any, ...]:
    outputs = found if isinstance(found, (tuple, list)) else (found,)
    names = [constraint.name for constraint in constraints if constraint.written]
    if len(outputs) != len(names) or not all(hasattr(item, "shape") for item in outputs):
        raise TuningError(
            f"the reference returned {len(outputs)} of {', '.join(type(item).__name__ for item in outputs)}: "
            f"expected the tensors {', '.join(names)}, which the kernel writes, in this order"
        )
    return tuple(outputs)


def _error(torch: Any, found: Any, expected: Any) -> float:
    if tuple(found.shape) != tuple(expected.shape):
        raise TuningError(
            f"the reference returned a tensor of shape {tuple(expected.shape)}, expected {tuple(found.shape)}"
        )
    if found.device != expected.device:
        raise TuningError(
            f"the reference returned a tensor on {expected.device}, expected {found.device}, as its operands"
        )
    left, right = found.to(torch.float64), expected.to(torch.float64)
    difference = (left - right).abs()
    if found.is_floating_point():
        finite = torch.where(right.isfinite(), right, 0.0)
        difference = difference / (right.abs() + finite.square().mean().sqrt() + 1e-300)
    # Equal infinities differ by NaN.
    error = float(difference.masked_fill(left == right, 0.0).max())
    # NaN where the output was not written, or the reference has none.
    return error if error == error else math.inf


def _allowed(dtype: str) -> float:
    if not DTYPES[dtype].is_float:
        return 0.0
    return max(4 * UNIT_ROUNDOFF.get(dtype, 2.0**-4), 1e-12 if dtype == "f64" else 1e-5)


def _microseconds(torch: Any, kernel: KernelHandle, operands: Sequence[Any]) -> float:
    """The time of a launch: launches one after the other between two events, the median of some rounds."""

    def timed(launches: int) -> float:
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(launches):
            kernel.launch(*operands)
        end.record()
        torch.cuda.current_stream().synchronize()
        return float(begin.elapsed_time(end)) * 1e3 / launches

    once = timed(_WARM_UP)
    launches = max(1, min(_MOST_LAUNCHES, int(_ROUND_SECONDS * 1e6 / max(once, 1e-3))))
    return statistics.median(timed(launches) for _ in range(_ROUNDS))

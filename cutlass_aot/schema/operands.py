"""Does a kernel support these operands? One pure rule over descriptions, with a reason for each refusal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cutlass_aot.errors import OperandError
from cutlass_aot.schema.dtypes import DTYPES
from cutlass_aot.schema.kernel import OperandConstraint

MAX_EXTENT = 2**31 - 1
"""Extents are passed as signed 32-bit integers to compiled code."""

MAX_STRIDE_BYTES = 2**40 - 1
"""Bound of a TMA descriptor's stride. Source: CUDA driver API, ``cuTensorMapEncodeTiled``."""


MAX_REACH = 2**63 - 1
"""Elements that an extent may reach over by its stride: launch code computes with signed 64-bit integers."""


@dataclass(frozen=True, slots=True)
class OperandDescription:
    """What can be known of a tensor without its data.

    Attributes:
        dtype: element type.
        shape: extents, outermost first; rank 2, or rank 3 with the batch first.
        strides: elements, one a mode.
        address: data pointer, or 0 where there is no memory behind the description.
        device: CUDA device ordinal, -1 for a tensor that is not on a CUDA device, None if it is on no device.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int = 0
    device: int | None = None


def describe(
    shape: Sequence[int],
    dtype: str,
    *,
    strides: Sequence[int] | None = None,
    address: int = 0,
    device: int | None = None,
) -> OperandDescription:
    """Describe an operand without having it, e.g. on a machine without a GPU.

    Args:
        shape: extents, such as ``(m, k)`` or ``(batch, m, k)``.
        dtype: element type, such as ``"bf16"``.
        strides: elements; row-major and compact if left out.
        address: data pointer; 0 counts as aligned.
        device: CUDA device ordinal, if it is on one.

    Raises:
        OperandError: for an unknown dtype, or strides of another rank.
    """
    if dtype not in DTYPES:
        raise OperandError(f"unknown dtype {dtype!r}: expected one of {', '.join(DTYPES)}")
    extents = tuple(int(extent) for extent in shape)
    if any(extent < 0 for extent in extents):
        raise OperandError(f"shape {extents} has a negative extent")
    if strides is None:
        steps, step = [], 1
        for extent in reversed(extents):
            steps.append(step)
            step *= max(extent, 1)
        strides = steps[::-1]
    if len(strides) != len(extents):
        raise OperandError(f"shape {extents} and strides {tuple(strides)} differ in rank")
    return OperandDescription(dtype, extents, tuple(int(s) for s in strides), address, device)


class Accepted(NamedTuple):
    """The operands are supported. True in a boolean context."""

    reason: str = ""

    def __bool__(self) -> bool:
        return True


class Rejected(NamedTuple):
    """The operands are not supported, and why. False in a boolean context.

    Attributes:
        reason: a sentence without a full stop.
        rank: how far the check came; of two rejections, the higher is nearer to a match.
    """

    reason: str
    rank: int = 0

    def __bool__(self) -> bool:
        return False


Verdict = Accepted | Rejected

ACCEPTED = Accepted()


def supports(constraints: Sequence[OperandConstraint], operands: Sequence[OperandDescription]) -> Verdict:
    """Whether operands satisfy constraints.

    The checks go from what a caller can change least (dtypes) to what a copy can mend (alignment), over all
    operands at each step, so that the reason given is the most telling one.
    """
    if len(constraints) != len(operands):
        return Rejected(f"expected {len(constraints)} operands, got {len(operands)}")
    for step, check in enumerate((_dtype, _rank, _device, _layout, _extents, _strides, _alignment)):
        for constraint, operand in zip(constraints, operands, strict=True):
            problem = check(constraint, operand)
            if problem:
                return Rejected(f"operand `{constraint.name}` is unsupported: {problem}", step)
    return _agreement(constraints, operands)


def _dtype(constraint: OperandConstraint, operand: OperandDescription) -> str:
    if operand.dtype == constraint.dtype:
        return ""
    return f"expected element type {constraint.dtype}, got {operand.dtype}"


def _rank(constraint: OperandConstraint, operand: OperandDescription) -> str:
    rank = len(constraint.extents)
    if len(operand.shape) in (rank, rank - 1):
        return ""
    return f"expected rank {rank - 1}, or {rank} with the batch first, got shape {operand.shape}"


def _device(constraint: OperandConstraint, operand: OperandDescription) -> str:
    return "expected a tensor on a CUDA device" if operand.device == -1 else ""


def _layout(constraint: OperandConstraint, operand: OperandDescription) -> str:
    stride = operand.strides[constraint.contiguous]
    if stride == 1 or operand.shape[constraint.contiguous] == 1:
        return ""
    order = "row-major" if constraint.contiguous == -1 else "column-major"
    return (
        f"expected {order} ({constraint.layout}), stride 1 in mode {constraint.contiguous}, "
        f"got strides {operand.strides}"
    )


def _extents(constraint: OperandConstraint, operand: OperandDescription) -> str:
    for extent in operand.shape:
        if extent < 1:
            return f"expected extents of at least 1, got shape {operand.shape}"
        if extent > MAX_EXTENT:
            return f"expected extents up to {MAX_EXTENT}, got shape {operand.shape}"
    extent = operand.shape[constraint.contiguous]
    if extent % constraint.divisibility:
        return (
            f"expected extent {constraint.extents[constraint.contiguous]} divisible by "
            f"{constraint.divisibility}, got {extent}"
        )
    return ""


def _strides(constraint: OperandConstraint, operand: OperandDescription) -> str:
    rank = len(operand.shape)
    width = DTYPES[constraint.dtype].bytes
    for mode, (extent, stride) in enumerate(zip(operand.shape, operand.strides, strict=True)):
        if extent == 1 or mode == rank + constraint.contiguous:
            continue
        if stride < 0 or (stride == 0 and constraint.written):
            return f"expected positive strides, got {operand.strides}"
        if stride % constraint.divisibility:
            return f"expected strides divisible by {constraint.divisibility}, got {operand.strides}"
        if stride * width > MAX_STRIDE_BYTES:
            return f"expected strides up to {MAX_STRIDE_BYTES} bytes, got {operand.strides}"
        if extent * stride > MAX_REACH - constraint.divisibility:
            return f"expected an operand within 2^63 elements, got {operand.shape} by {operand.strides}"
    return ""


def _alignment(constraint: OperandConstraint, operand: OperandDescription) -> str:
    off = operand.address % constraint.alignment
    return f"expected data aligned to {constraint.alignment} bytes, got {off} bytes off" if off else ""


def _agreement(constraints: Sequence[OperandConstraint], operands: Sequence[OperandDescription]) -> Verdict:
    """Extents of one name are equal, ranks are equal, and all operands are on one device."""
    extents: dict[str, tuple[int, str]] = {}
    for constraint, operand in zip(constraints, operands, strict=True):
        if len(operand.shape) != len(operands[0].shape):
            return Rejected(
                f"operand `{constraint.name}` is unsupported: expected rank {len(operands[0].shape)} "
                f"as `{constraints[0].name}` has, got shape {operand.shape}",
                7,
            )
        if operand.device != operands[0].device:
            return Rejected(
                f"operand `{constraint.name}` is unsupported: expected device "
                f"{operands[0].device} as `{constraints[0].name}` has, got {operand.device}",
                7,
            )
        names = constraint.extents[len(constraint.extents) - len(operand.shape) :]
        for name, extent in zip(names, operand.shape, strict=True):
            known, owner = extents.setdefault(name, (extent, constraint.name))
            if known != extent:
                return Rejected(
                    f"operand `{constraint.name}` is unsupported: expected extent {name} = {known} "
                    f"as `{owner}` has, got {extent}",
                    8,
                )
    return ACCEPTED

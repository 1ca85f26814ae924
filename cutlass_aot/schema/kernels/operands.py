"""Whether a kernel supports operands: a pure function of their descriptions, with a reason for a refusal."""

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import gcd, prod
from typing import Any

from cutlass_aot.errors import OperandError
from cutlass_aot.schema.kernels.constraints import (
    ANY_SHAPE,
    BATCH,
    NONE,
    Extent,
    OperandConstraint,
    Scale,
    are_plain_gemm,
    extent_of,
)
from cutlass_aot.schema.kernels.dtypes import DTYPES, DType
from cutlass_aot.schema.named_tuple import NamedTuple

MAX_EXTENT = 2**31 - 1
"""Extents are passed to compiled code as signed 32-bit integers, unless a kernel says otherwise."""

MAX_STRIDE_BYTES = 2**40 - 1
"""Bound of a TMA descriptor's stride. Source: CUDA driver API, ``cuTensorMapEncodeTiled``."""


MAX_REACH = 2**63 - 1
"""Bound of extent times stride, in elements: launch code computes with signed 64-bit integers."""


OTHER_DEVICES = {-1: "cpu", -3: "cpu (pinned)", -8: "mps", -12: "a device that is not CUDA's", -14: "xpu"}
"""Devices other than CUDA's, by minus their DLPack device type; -12 also stands for those not listed."""


class OperandDescription(NamedTuple):
    """An operand without its data.

    Attributes:
        dtype: element type; :data:`~.constraints.NONE` for an operand that is None.
        shape: extents in elements, outermost first, with or without a batch; empty for a number.
        strides: elements, one a mode.
        address: data pointer, 0 if the description has no memory.
        device: CUDA device ordinal; minus its DLPack device type (:data:`OTHER_DEVICES`) for a tensor that is
            on another device; None if it is on no device.
        is_number: whether it is passed by value, as None is too; a tensor of rank 0 is not.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int = 0
    device: int | None = None
    is_number: bool = False


def describe(
    shape: Sequence[int],
    dtype: str,
    *,
    strides: Sequence[int] | None = None,
    address: int = 0,
    device: int | None = None,
) -> OperandDescription:
    """Describe an operand without its memory, for example on a machine without a GPU.

    Args:
        shape: extents, such as ``(m, k)`` or ``(batch, m, k)``; ``()`` for a number that is passed by value.
        dtype: element type, such as ``"bf16"``.
        strides: elements; row-major and compact if left out.
        address: data pointer; 0 counts as aligned.
        device: CUDA device ordinal, if it is on one.

    Raises:
        OperandError: for an unknown dtype, strides of another rank, and what is not a whole number.
    """
    _checked_dtype(dtype)
    extents = _whole_numbers(shape, "shape")
    if any(extent < 0 for extent in extents):
        raise OperandError(f"shape {extents} has a negative extent")
    steps = compact_strides(extents, -1) if strides is None else _whole_numbers(strides, "strides")
    if len(steps) != len(extents):
        raise OperandError(f"shape {extents} and strides {steps} differ in rank")
    (pointer,) = _whole_numbers((address,), "address")
    if pointer < 0:
        raise OperandError(f"expected an address of 0 or more, got {pointer}")
    if device is not None:
        (device,) = _whole_numbers((device,), "device")
    return OperandDescription(dtype, extents, steps, pointer, device, is_number=not extents)


NOTHING = OperandDescription(NONE, (), (), is_number=True)
"""The description of an operand that is None."""


def _checked_dtype(name: Any) -> DType:
    found = DTYPES.get(name) if isinstance(name, str) else None
    if found is None:
        from cutlass_aot.schema.words import did_you_mean

        raise OperandError(
            f"unknown dtype {name!r}: expected one of {', '.join(DTYPES)}{did_you_mean(name, DTYPES)}"
        )
    return found


def _whole_numbers(values: Iterable[Any], what: str) -> tuple[int, ...]:
    """The numbers as they are; anything else, such as a fraction or text, is an OperandError."""
    try:
        return tuple(map(operator.index, values))
    except TypeError:
        raise OperandError(f"{what}: expected whole numbers, got {values!r}") from None


def read_as(found: OperandDescription, dtype: str) -> OperandDescription:
    """The description of a tensor whose memory is read as another element type.

    The extent of the mode with stride 1 and all strides are counted in elements of that type; each has to be
    a whole number of them. If elements are smaller than a byte, the first is in the lowest bits.
    """
    other = _checked_dtype(dtype)
    if found.is_number:
        raise OperandError(f"expected a tensor to be read as {dtype}, got {in_words(found)}")
    own = DTYPES[found.dtype]
    if own.bits == other.bits:
        return found._replace(dtype=dtype)
    contiguous = next((mode for mode in reversed(range(len(found.shape))) if found.strides[mode] == 1), None)
    if contiguous is None:
        raise OperandError(f"expected a mode of stride 1 to read as {dtype}, got strides {found.strides}")
    shape = tuple(
        _elements(extent, own, other, "an extent") if mode == contiguous else extent
        for mode, extent in enumerate(found.shape)
    )
    strides = tuple(
        1 if mode == contiguous else _elements(stride, own, other, "a stride") if extent > 1 else stride
        for mode, (extent, stride) in enumerate(zip(found.shape, found.strides, strict=True))
    )
    return found._replace(dtype=dtype, shape=shape, strides=strides)


def _elements(count: int, own: DType, other: DType, what: str) -> int:
    bits = count * own.bits
    if bits % other.bits:
        step = other.bits // gcd(own.bits, other.bits)
        raise OperandError(
            f"expected {what} that holds whole elements of {other.name}, a multiple of {step} elements of "
            f"{own.name}, got {count}"
        )
    return bits // other.bits


def compact_strides(shape: Sequence[int], contiguous: int) -> tuple[int, ...]:
    """Strides without gaps: stride 1 for the mode ``contiguous``, then the other modes, innermost first.

    ``shape`` is outermost first, and ``contiguous`` is counted from the end.
    """
    rank = len(shape)
    first = rank + contiguous
    strides, step = [0] * rank, 1
    for mode in (first, *(mode for mode in reversed(range(rank)) if mode != first)) if rank else ():
        strides[mode] = step
        step *= max(shape[mode], 1)
    return tuple(strides)


def packed(
    constraints: Sequence[OperandConstraint], extents: Mapping[str | int, int]
) -> list[OperandDescription]:
    """Compact operands of a problem, each in the layout that its constraint asks for.

    ``constraints`` are those of all operands of a kernel. ``extents`` are by name; without the batch,
    operands have no batch mode, and any other missing name is a KeyError. An extent that follows from a named
    one need not be among them.
    """
    names = {
        constraint.name: [extent for extent in constraint.extents if extent != BATCH or BATCH in extents]
        for constraint in constraints
    }
    found = []
    for constraint in constraints:
        if constraint.is_none:
            found.append(NOTHING)
            continue
        of = constraint.name if constraint.scale is None else constraint.scale.of
        shape = tuple(_value(name, extents) for name in names[of])
        if constraint.scale is not None:
            shape = (_factors(constraint.scale, dict(zip(names[of], shape, strict=True))),)
        strides = compact_strides(shape, constraint.contiguous)
        found.append(describe(shape, constraint.dtype, strides=strides))
    return found


def _value(extent: str | int, extents: Mapping[str | int, int]) -> int:
    if isinstance(extent, int) or extent in extents:
        return extent if isinstance(extent, int) else extents[extent]
    relation = _relation(extent)
    # A batch that is not there is one of 1.
    named = extents.get(BATCH, 1) if relation.name == BATCH else extents[relation.name]
    return relation.of(named)


def told(name: str, extent: int) -> tuple[str, int | None]:
    """The named extent that an extent of a record tells, with its value: ``"4 * G"`` of 8 tells 2 for G.

    A quotient such as ``"K / 128"`` tells None for K.
    """
    if name.isidentifier():
        return name, extent
    relation = _relation(name)
    return relation.name, relation.named(extent)


def extent_names(constraints: Iterable[OperandConstraint]) -> list[str]:
    """Names of the extents that a call decides, each once, in the order of the operands.

    A relation such as ``"4 * G"`` has G, also where G stands nowhere alone; so has a quotient.
    """
    return list(_extent_names(tuple(constraint.extents for constraint in constraints)))


@lru_cache(maxsize=256)
def _extent_names(shapes: tuple[tuple[str | int, ...], ...]) -> tuple[str, ...]:
    extents = (extent for shape in shapes if shape != ANY_SHAPE for extent in shape)
    return tuple(dict.fromkeys(_relation(extent).name for extent in extents if isinstance(extent, str)))


def _relation(extent: str) -> Extent:
    """The meaning of an extent of a record, which was checked when it was made or read."""
    found = extent_of(extent)
    if found is None:
        raise ValueError(f"{extent!r} is not an extent")
    return found


def _factors(scale: Scale, shape: Mapping[str | int, int]) -> int:
    """Number of scale factors of an operand with these extents, by name."""
    others = dict(shape)
    extent, batch = others.pop(scale.along), others.pop(BATCH, 1)
    return scale.factors(batch, prod(others.values()), extent)


class Accepted(NamedTuple):
    """The operands are supported. True in a boolean context."""

    reason: str = ""

    def __bool__(self) -> bool:
        return True


class Rejected(NamedTuple):
    """The operands are not supported. False in a boolean context.

    Attributes:
        reason: a sentence without a full stop.
        rank: position of the check that failed; of two rejections, the higher is nearer to a match.
        failing: operands that fail it; of two rejections of one rank, that of fewer is nearer.
    """

    reason: str
    rank: int = 0
    failing: int = 1

    def __bool__(self) -> bool:
        return False


Verdict = Accepted | Rejected

ACCEPTED = Accepted()

_EXTENTS = 3
"""Rank of a refusal for an extent."""

_AGREEMENT = 6
"""Rank of a refusal for a device or a batch that the operands do not share."""


def writes_nothing(constraints: Sequence[OperandConstraint], operands: Sequence[OperandDescription]) -> bool:
    """Whether nothing that a kernel writes has any elements, so that a launch has nothing to do."""
    written = [
        operand for constraint, operand in zip(constraints, operands, strict=True) if constraint.written
    ]
    return bool(written) and all(0 in operand.shape for operand in written)


def supports(constraints: Sequence[OperandConstraint], operands: Sequence[OperandDescription]) -> Verdict:
    """Whether operands satisfy constraints. Extents of 0 do where :func:`writes_nothing`.

    The reason is the first of the checks of :func:`_problem` that any operand fails, from what is hardest for
    a caller to change (dtypes) to what a copy corrects (alignment): the most useful one.
    """
    if len(constraints) != len(operands):
        return Rejected(f"expected {len(constraints)} operands, got {len(operands)}")
    nearest: Rejected | None = None
    for constraint, operand in zip(constraints, operands, strict=True):
        step, problem = _problem(constraint, operand)
        if problem and (nearest is None or step < nearest.rank):
            nearest = Rejected(f"operand `{constraint.name}` is unsupported: {problem}", step)
        elif problem and nearest is not None and step == nearest.rank:
            nearest = nearest._replace(failing=nearest.failing + 1)
    if nearest is not None:
        return nearest
    for operand in operands:
        if 0 in operand.shape and not writes_nothing(constraints, operands):
            return _without_elements(constraints, operands)
    return _agreement(constraints, operands)


def misplaced(names: Iterable[str], operands: Iterable[OperandDescription]) -> str:
    """Which operand is not where a launch could use it, and what to do; ``""`` if there is none.

    ``names`` are those of the operands. Descriptions on no device fit everywhere.
    """
    first: tuple[str, int] | None = None
    for name, operand in zip(names, operands, strict=True):
        device = operand.device
        if operand.is_number or device is None:
            continue
        if device < 0:
            return (
                f"operand `{name}` is on {OTHER_DEVICES.get(device, OTHER_DEVICES[-12])}: kernels run on "
                "CUDA devices; move it to one, for example a torch tensor with .cuda()"
            )
        first = first or (name, device)
        if device != first[1]:
            return (
                f"operand `{name}` is on GPU {device}, and `{first[0]}` on GPU {first[1]}: a launch runs on "
                f"one GPU; move them to the same one, for example a torch tensor with .cuda({first[1]})"
            )
    return ""


def _without_elements(
    constraints: Sequence[OperandConstraint], operands: Sequence[OperandDescription]
) -> Rejected:
    """The refusal of a launch that would write, on operands of which one has no elements."""
    pairs = list(zip(constraints, operands, strict=True))
    name, shape = next((one.name, found.shape) for one, found in pairs if 0 in found.shape)
    filled = next((f"`{one.name}` {found.shape}" for one, found in pairs if one.written), "what is written")
    return Rejected(
        f"operand `{name}` is unsupported: expected extents of at least 1, got shape {shape}: no kernel "
        f"takes fewer; fill {filled} yourself",
        _EXTENTS,
    )


def in_words(operand: OperandDescription) -> str:
    """An operand in words, for messages."""
    if operand.dtype == NONE:
        return "None"
    if operand.is_number:
        return f"a number ({operand.dtype})"
    return f"{operand.dtype} {operand.shape} with strides {operand.strides}"


def _dtype(constraint: OperandConstraint, operand: OperandDescription) -> str:
    if operand.dtype == constraint.dtype:
        return ""
    if NONE in (operand.dtype, constraint.dtype):
        expected = "None" if constraint.is_none else f"element type {constraint.dtype}"
        return f"expected {expected}, got {in_words(operand)}"
    if constraint.is_number and operand.is_number:
        # A whole number can be passed for any type of number that has room for it.
        number = DTYPES[constraint.dtype]
        if number.is_float or operand.dtype == "i32":
            return ""
        return f"expected a whole number of {number.bits} bits, got one of type {operand.dtype}"
    return f"expected element type {constraint.dtype}, got {operand.dtype}"


def _problem(constraint: OperandConstraint, operand: OperandDescription) -> tuple[int, str]:
    """The first check that an operand fails, as its number and the problem, which is ``""`` if it fails none.

    The checks of plain tensors, nearly all, are in this function: a first call waits for it.
    """
    # Unpacked, as looking fields up would take most of the time.
    _, dtype, extents, contiguous, divisibility, alignment, written, compact, scale, multiples, width = (
        constraint
    )
    found, shape, strides, address, _, is_number = operand
    if found != dtype and (problem := _dtype(constraint, operand)):
        return 0, problem
    if not extents or is_number or scale is not None:
        return _problem_of_others(constraint, operand)
    rank = len(shape)
    if rank != len(extents):
        full = len(extents)
        # The batch cannot be missing where it is the contiguous mode.
        if extents[0] != BATCH or rank == full - 1 < -contiguous:
            return 1, f"expected rank {full}, got shape {shape}"
        if rank != full - 1:
            return 1, f"expected rank {full - 1}, or {full} with the batch first, got shape {shape}"
        extents = extents[1:]
    inner = shape[contiguous]
    if strides[contiguous] != 1 and inner != 1 and 0 not in shape:
        return 2, f"expected {_order(constraint)}, got strides {strides}"
    if min(shape) < 0 or max(shape) >= 1 << width - 1:
        return 3, _out_of_bounds(constraint, operand)
    for mode, name in _not_free(extents):
        if isinstance(name, int):
            if shape[mode] != name:
                return 3, f"expected an extent of {name}, got shape {shape}"
        elif not _relation(name).is_possible(shape[mode]):
            return 3, f"expected an extent of {name}, got {shape[mode]} in shape {shape}"
    if inner % divisibility:
        return 3, f"expected extent {extents[contiguous]} divisible by {divisibility}, got {inner}"
    if multiples:
        for name, extent, multiple in zip(extents, shape, multiples[-rank:], strict=True):
            if extent % multiple:
                return 3, f"expected extent {name} divisible by {multiple}, got {extent}"
    if 0 in shape:
        return 5, ""
    if compact and (problem := _gaps(operand, contiguous)):
        return 4, problem
    most = MAX_STRIDE_BYTES * 8 // DTYPES[dtype].bits
    for mode, stride in enumerate(strides, -rank):
        if mode == contiguous or shape[mode] == 1:
            continue
        if stride < 0 or (stride == 0 and written):
            return 4, f"expected positive strides, got {strides}"
        if stride % divisibility:
            return 4, f"expected strides divisible by {divisibility}, got {strides}"
        if stride > most:
            return 4, f"expected strides up to {MAX_STRIDE_BYTES} bytes, got {strides}"
        if shape[mode] * stride > MAX_REACH - divisibility:
            return 4, f"expected an operand within 2^63 elements, got {shape} by {strides}"
    return 5, _misaligned(constraint, operand) if address % alignment else ""


def _order(constraint: OperandConstraint) -> str:
    """In words, which mode of a tensor is contiguous."""
    if len(constraint.extents) == 1:
        return "stride 1"
    order, step = ("row-major", "column") if constraint.contiguous == -1 else ("column-major", "row")
    return f"{order} ({constraint.layout}): stride 1 from {step} to {step} (mode {constraint.contiguous})"


def _problem_of_others(constraint: OperandConstraint, operand: OperandDescription) -> tuple[int, str]:
    """:func:`_problem` where a number or scale factors are expected, or a number is given."""
    if constraint.scale is not None:
        if operand.is_number:
            return 1, "expected a tensor of scale factors, got a number"
    elif not constraint.is_number:
        return 1, f"expected a tensor of rank {len(constraint.extents)}, got a number"
    elif not operand.is_number:
        return 1, f"expected a number, got a tensor of shape {operand.shape}"
    if problem := _out_of_bounds(constraint, operand):
        return 3, problem
    if operand.shape and 0 not in operand.shape and (problem := _gaps(operand, -1)):
        return 4, problem
    return 5, _misaligned(constraint, operand)


@lru_cache(maxsize=256)
def _not_free(extents: tuple[str | int, ...]) -> tuple[tuple[int, str | int], ...]:
    """The fixed extents and those that follow from others, each with its mode."""
    return tuple(
        (mode, name) for mode, name in enumerate(extents) if isinstance(name, int) or not name.isidentifier()
    )


def _out_of_bounds(constraint: OperandConstraint, operand: OperandDescription) -> str:
    most = constraint.max_extent
    for extent in operand.shape:
        if extent < 0:
            return f"expected extents of at least 0, got shape {operand.shape}"
        if extent > most:
            return f"expected extents up to {most}, got shape {operand.shape}"
    return ""


def _gaps(operand: OperandDescription, contiguous: int) -> str:
    compact = compact_strides(operand.shape, contiguous)
    modes = zip(operand.shape, operand.strides, compact, strict=True)
    if any(extent != 1 and stride != step for extent, stride, step in modes):
        return f"expected a compact tensor, with strides {compact}, got {operand.strides}"
    return ""


def _misaligned(constraint: OperandConstraint, operand: OperandDescription) -> str:
    off = 0 if 0 in operand.shape else operand.address % constraint.alignment
    return f"expected data aligned to {constraint.alignment} bytes, got {off} bytes off" if off else ""


def _agreement(constraints: Sequence[OperandConstraint], operands: Sequence[OperandDescription]) -> Verdict:
    """Check that devices and extents of one name are equal, and a batch is in all operands or none."""
    if are_plain_gemm(constraints) and _agree_as_gemm(*operands):
        # As nearly all calls do; else the reason is found below.
        return ACCEPTED
    device = operands[0].device if operands else None
    alike = len({operand.device for operand in operands}) < 2
    if not alike or (device is not None and device < 0):
        problem = misplaced([constraint.name for constraint in constraints], operands)
        if problem:
            return Rejected(problem, _AGREEMENT)
    extents: dict[str, int] = {}
    for constraint, operand in zip(constraints, operands, strict=True):
        if len(operand.shape) < len(constraint.extents) and constraint.has_batch:
            # A batch that is not there is 1, also for what follows from it.
            extents[BATCH] = 1
            break
    scaling = []
    quotients = []
    batched: tuple[str, int] | None = None
    first: tuple[str, int | None] | None = None
    for constraint, operand in zip(constraints, operands, strict=True):
        if operand.is_number:
            continue
        names, shape = constraint.extents, operand.shape
        missing = len(names) - len(shape)
        if names and names[0] == BATCH:
            batched = batched or (constraint.name, missing)
            if missing != batched[1]:
                rank = len(names) - batched[1]
                return Rejected(
                    f"operand `{constraint.name}` is unsupported: expected rank {rank} "
                    f"as `{batched[0]}` has, got shape {shape}",
                    _AGREEMENT,
                )
        if not alike:
            first = first or (constraint.name, operand.device)
            if operand.device != first[1]:
                return Rejected(
                    f"operand `{constraint.name}` is unsupported: expected it to be on {_place(first[1])} as "
                    f"`{first[0]}` is, and it is on {_place(operand.device)}",
                    _AGREEMENT,
                )
        if constraint.scale is not None:
            scaling.append((constraint, constraint.scale, operand))
            continue
        for name, extent in zip(names[missing:], shape, strict=True):
            if isinstance(name, int):
                continue
            base, named = (name, extent) if name.isidentifier() else told(name, extent)
            if named is None:
                quotients.append((constraint.name, name, extent))
            elif extents.setdefault(base, named) != named:
                return _disagreement(constraint.name, name, extent, base, constraints, operands)
    for operand_name, name, extent in quotients:
        # Some operand tells the named extent (``check_operands``), perhaps a later one.
        quotient = _relation(name)
        if quotient.of(extents[quotient.name]) != extent:
            return _disagreement(operand_name, name, extent, quotient.name, constraints, operands)
    for constraint, scale, operand in scaling:
        of_scaled = _shape_of(scale.of, constraints, operands)
        if problem := _scale_count(constraint.dtype, scale, operand, of_scaled):
            return Rejected(f"operand `{constraint.name}` is unsupported: {problem}", _AGREEMENT + 1)
    return ACCEPTED


def _agree_as_gemm(a: OperandDescription, b: OperandDescription, out: OperandDescription) -> bool:
    """Whether matrices, or batches of them, are A, B and the output of one GEMM, on one device or on none."""
    return (
        a.shape[:-1] == out.shape[:-1]
        and a.shape[:-2] == b.shape[:-2]
        and a.shape[-1] == b.shape[-2]
        and b.shape[-1] == out.shape[-1]
        and a.device == b.device == out.device
        and (a.device is None or a.device >= 0)
    )


def _disagreement(
    refused: str,
    name: str,
    extent: int,
    base: str,
    constraints: Sequence[OperandConstraint],
    operands: Sequence[OperandDescription],
) -> Rejected:
    """The refusal of an operand's extent, since another operand tells another named extent ``base``."""
    owner, there, known = next(_telling(base, constraints, operands))
    why = f" as `{owner}` has"
    if there != name:
        why = f", since `{owner}` has {there} = {_relation(there).of(known)}"
    return Rejected(
        f"operand `{refused}` is unsupported: expected extent {name} = "
        f"{_relation(name).of(known)}{why}, got {extent}",
        _AGREEMENT + 1,
    )


def _telling(
    base: str, constraints: Sequence[OperandConstraint], operands: Sequence[OperandDescription]
) -> Iterator[tuple[str, str, int]]:
    """Each operand that tells a named extent: its name, its extent as it is written, and the named one."""
    pairs = list(zip(constraints, operands, strict=True))
    for constraint, operand in pairs:
        if base == BATCH and constraint.has_batch and len(operand.shape) < len(constraint.extents):
            yield constraint.name, BATCH, 1
    for constraint, operand in pairs:
        if constraint.scale is None:
            names = constraint.extents[len(constraint.extents) - len(operand.shape) :]
            for text, extent in zip(names, operand.shape, strict=True):
                if isinstance(text, str):
                    found, named = told(text, extent)
                    if found == base and named is not None:
                        yield constraint.name, text, named


def _place(device: int | None) -> str:
    return "no device" if device is None else f"GPU {device}"


def _shape_of(
    name: str, constraints: Sequence[OperandConstraint], operands: Sequence[OperandDescription]
) -> dict[str | int, int]:
    """The extents of one operand by their names."""
    found = zip(constraints, operands, strict=True)
    constraint, operand = next(pair for pair in found if pair[0].name == name)
    missing = len(constraint.extents) - len(operand.shape)
    return dict(zip(constraint.extents[missing:], operand.shape, strict=True))


def _scale_count(
    dtype: str, scale: Scale, operand: OperandDescription, shape: Mapping[str | int, int]
) -> str:
    for name, multiple in scale.multiples(tuple(shape), dtype).items():
        if shape[name] % multiple:
            return f"expected extent {name} of `{scale.of}` divisible by {multiple}, got {shape[name]}"
    expected, found = _factors(scale, shape), prod(operand.shape)
    if found == expected:
        return ""
    layout = f", laid out as {scale.swizzle}" if scale.swizzle else ""
    return (
        f"expected {expected} scale factors, one for each {scale.block} elements of `{scale.of}` along "
        f"{scale.along}{layout}, got shape {operand.shape}"
    )

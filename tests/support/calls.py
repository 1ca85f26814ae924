"""Calls of kernels for call_kernel.c: one that is right, and one for each thing that can be wrong."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from cutlass_aot.runtime.opened.group import launcher_numbers
from cutlass_aot.schema.kernels.artifact import EXPORT_PREFIX
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.kernel import Kernel
from tests.support.replace import replace

EXTENTS = {"L": 2, "M": 128, "N": 256, "K": 192}
CUDA, HOST = 2, 1
"""Kinds of devices, of DLPack."""


@dataclass(frozen=True)
class Tensor:
    """A tensor as call_kernel.c takes it; there is no memory at its address."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    kind: int = CUDA
    device: int = 0

    def __str__(self) -> str:
        code, bits = DTYPES[self.dtype].dlpack
        numbers = (code, bits, 1, self.kind, self.device, self.address)
        modes = (",".join(map(str, values)) for values in (self.shape, self.strides))
        return ":".join([*map(str, numbers), *modes])


def tensor(constraint: OperandConstraint, address: int, **extents: int) -> Tensor:
    """A compact operand that a kernel takes, but for the extents that are given by name."""
    known = {**EXTENTS, **extents}
    shape = tuple(known[extent] if isinstance(extent, str) else extent for extent in constraint.extents)
    inner = len(shape) + constraint.contiguous
    strides, stride = [0] * len(shape), 1
    for mode in [inner, *(mode for mode in reversed(range(len(shape))) if mode != inner)]:
        strides[mode], stride = stride, stride * shape[mode]
    return Tensor(constraint.dtype, shape, tuple(strides), address)


def operands(kernel: Kernel, **extents: int) -> tuple[Tensor, ...]:
    """Operands that a kernel takes: far enough apart, on GPU 0."""
    return tuple(
        tensor(constraint, position << 32, **extents)
        for position, constraint in enumerate(kernel.operands, 1)
    )


def wrong(kernel: Kernel) -> Iterator[tuple[str, tuple[object, ...]]]:
    """What is wrong, and the arguments: compiled code refuses each."""
    good = operands(kernel)
    yield "no arguments", ()
    yield "one argument less", good[:-1]
    yield "one argument more", (*good, good[-1])
    for position, (constraint, given) in enumerate(zip(kernel.operands, good, strict=True)):

        def with_this(changed: object, position: int = position) -> tuple[object, ...]:
            return (*good[:position], changed, *good[position + 1 :])

        name = constraint.name
        other = "f16" if constraint.dtype != "f16" else "bf16"
        yield f"{name}: a number", with_this(3)
        yield f"{name}: element type", with_this(replace(given, dtype=other))
        yield (
            f"{name}: another rank",
            with_this(replace(given, shape=(1, *given.shape), strides=(given.strides[0], *given.strides))),
        )
        for extent in dict.fromkeys(constraint.extents):
            changed = tensor(constraint, given.address, **{str(extent): 2 * EXTENTS[str(extent)]})
            yield f"{name}: extent {extent}", with_this(changed)
        contiguous = str(constraint.extents[constraint.contiguous])
        if constraint.divisibility > 1:
            uneven = operands(kernel, **{contiguous: EXTENTS[contiguous] + 1})
            yield f"{name}: divisibility of {contiguous}", uneven
        yield f"{name}: layout", with_this(replace(given, strides=tuple(2 * s for s in given.strides)))
        yield f"{name}: in host memory", with_this(replace(given, kind=HOST))
        yield f"{name}: on another GPU", with_this(replace(given, device=1))
        yield (
            f"{name}: alignment",
            with_this(replace(given, address=given.address + constraint.alignment // 2)),
        )
    yield "all in host memory", tuple(replace(given, kind=HOST) for given in good)
    yield "on a GPU too many", tuple(replace(given, device=64) for given in good)


def refused_by_launcher(kernel: Kernel) -> Iterator[tuple[str, tuple[object, ...]]]:
    """What the launcher refuses by itself."""
    good = operands(kernel)
    first, last = good[0], good[-1]
    yield (
        "without a batch in one",
        (replace(first, shape=first.shape[1:], strides=first.strides[1:]), *good[1:]),
    )
    yield "empty", (replace(first, shape=(0, *first.shape[1:])), *good[1:])
    yield "too long", tuple(replace(given, shape=(1 << 31, *given.shape[1:])) for given in good)
    yield "backwards", (replace(first, strides=(-first.strides[0], *first.strides[1:])), *good[1:])
    yield "written twice", (*good[:-1], replace(last, strides=(0, *last.strides[1:])))
    yield "far apart", (replace(first, strides=(1 << 50, *first.strides[1:])), *good[1:])


def without_batch(kernel: Kernel) -> tuple[Tensor, ...]:
    """Operands of rank 2, which the launcher alone takes."""
    return tuple(
        replace(given, shape=given.shape[1:], strides=given.strides[1:]) for given in operands(kernel)
    )


def commands(kernel: Kernel) -> list[tuple[str, str]]:
    """What is called, in words and for call_kernel.c: compiled code itself, and through the launcher."""
    function = f"{EXPORT_PREFIX}{kernel.symbol}"
    numbers = ",".join(map(str, launcher_numbers(kernel.operands)))
    bare = f"call {function}"
    launched = f"launch {function} {numbers}"
    labelled = [(f"compiled: {label}", bare, given) for label, given in wrong(kernel)]
    labelled += [
        (f"launcher: {label}", launched, given)
        for label, given in itertools.chain(wrong(kernel), refused_by_launcher(kernel))
    ]
    return [(label, " ".join([how, *map(str, given)])) for label, how, given in labelled]


def good_commands(kernel: Kernel) -> list[tuple[str, str]]:
    """The calls that go to the GPU's driver."""
    function = f"{EXPORT_PREFIX}{kernel.symbol}"
    numbers = ",".join(map(str, launcher_numbers(kernel.operands)))
    words = {
        "compiled": ("call", function, *operands(kernel)),
        "launcher": ("launch", function, numbers, *operands(kernel)),
        "launcher: without a batch": ("launch", function, numbers, *without_batch(kernel)),
    }
    return [(label, " ".join(map(str, given))) for label, given in words.items()]

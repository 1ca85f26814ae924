"""Describe a kernel's operands to the DSL, and compile for a target. Import it inside a worker only.

This module imports the DSL, which takes seconds and reads its environment once: a generator imports it in
its ``compile``, never at the top of the module that holds the generator's class.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import cutlass
import cutlass.cute as cute
from cutlass.base_dsl.tvm_ffi_builder import spec
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from cutlass_aot.errors import GeneratorError
from cutlass_aot.generators.epilogue_functions import ELEMENTARY, Function, functions_of
from cutlass_aot.generators.protocol import CompiledFunction
from cutlass_aot.schema.kernels.constraints import ANY_SHAPE, OperandConstraint, extent_of
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.formula import PAIRWISE
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.words import did_you_mean

__all__ = [
    "EPILOGUE_FUNCTIONS",
    "as_bytes",
    "compile_for",
    "dsl_dtype",
    "each",
    "environment_stream",
    "fake_operands",
]


def _elements(x: Any) -> Any:
    """Registers with a vector's elements."""
    registers = cute.make_rmem_tensor(x.shape, cutlass.Float32)
    registers.store(x)
    return registers


def _rotated(x: Any) -> Any:
    found, given = _elements(x), _elements(x)
    for index in range(0, cute.size(given), 2):
        found[index], found[index + 1] = -given[index + 1], given[index]
    return found.load()


def _of_pairs(x: Any, which: int) -> Any:
    found, given = _elements(x), _elements(x)
    for index in range(cute.size(given)):
        found[index] = given[index // 2 * 2 + which]
    return found.load()


def each(function: Function, *given: Any) -> Any:
    """A function of numbers, of each element of vectors."""
    arguments = [_elements(x) for x in given]
    found = cute.make_rmem_tensor(given[0].shape, cutlass.Float32)
    for index in range(cute.size(found)):
        found[index] = function(*(elements[index] for elements in arguments))
    return found.load()


_SPELT = {
    # Exact ones take a branch: a thread would work out one element after the other.
    "div": partial(each, partial(cute.math.div, full=True)),
    "exp2": partial(each, cute.arch.exp2),
    "full_like": cute.full_like,
    "reciprocal": partial(each, cute.arch.rcp_approx),
    "round": cute.math.roundeven,
    "where": cute.where,
}
"""What the DSL spells otherwise than torch. Quotients and powers of 2 are off by two units in the last place,
at most, and reciprocals by one; of the latter two, what is below 2^-126 is 0. Source: PTX ISA,
``div.full.f32``, ``ex2.approx.ftz.f32`` and ``rcp.approx.ftz.f32``."""

EPILOGUE_FUNCTIONS: Mapping[str, Function] = {
    **functions_of(
        {name: _SPELT[name] if name in _SPELT else getattr(cute.math, name) for name in ELEMENTARY}, _rotated
    ),
    **{name: partial(_of_pairs, which=which) for which, name in enumerate(PAIRWISE)},
    "/": _SPELT["div"],
}
"""The functions and operators of an epilogue, on vectors of f32 in a kernel: neighbours of a row, from an
even column on, where the function reads neighbours. What has half as many columns has each value twice."""


def dsl_dtype(name: str) -> Any:
    """The DSL's element type of a name such as ``"f64"``."""
    try:
        return getattr(cutlass, DTYPES[name].dsl)
    except KeyError:
        raise GeneratorError(
            f"unknown element type {name!r}: expected one of {', '.join(DTYPES)}{did_you_mean(name, DTYPES)}"
        ) from None


def extent_divisibilities(operands: Iterable[OperandConstraint]) -> dict[str, int]:
    """The number that each extent is a multiple of, by the extent's name.

    An operand demands a multiple of its contiguous extent, and of others if it is moved in whole tiles; scale
    factors demand multiples of what they scale. Operands that share an extent share its value too, so that
    the least common multiple of their demands holds for all of them. What a named extent is a multiple of
    says nothing of its quotient.
    """
    divisibilities: dict[str, int] = {}
    operands = tuple(operands)
    for operand in operands:
        for name in operand.extents:
            extent = extent_of(name) if isinstance(name, str) else None
            if extent is not None:
                divisibilities.setdefault(str(extent), 1 if extent.offset else extent.factor)
        name = operand.extents[operand.contiguous] if operand.extents else ""
        if name in divisibilities:
            divisibilities[name] = math.lcm(divisibilities[name], operand.divisibility)
        for name, multiple in zip(operand.extents, operand.multiples, strict=False):
            if name in divisibilities:
                divisibilities[name] = math.lcm(divisibilities[name], multiple)
    shapes = {operand.name: operand.extents for operand in operands}
    for operand in operands:
        if operand.scale is not None:
            for name, multiple in operand.scale.multiples(shapes[operand.scale.of], operand.dtype).items():
                divisibilities[name] = math.lcm(divisibilities[name], multiple)
    return divisibilities


def fake_operands(kernel: Kernel) -> list[Any]:
    """One placeholder for each operand, in the order of the call, for ``cute.compile``.

    The compiled function then checks what :class:`~.OperandConstraint` says: element type, rank, equal
    extents under one name, divisibility, the contiguous mode and alignment. An extent that follows from a
    named one is another one to it: the launcher compares them. Extents have the operand's width. Strides are
    independent of each other, so that padded and broadcast operands are taken, and 64-bit, so that an offset
    into a large operand does not wrap around; strides of a compact operand are fixed where they follow from
    fixed extents. Scale factors have one extent of their own, and numbers are passed by value. What is
    None at each call is None here too.
    """
    wide = {name for operand in kernel.operands if operand.extent_bits == 64 for name in operand.extents}
    extents = {
        name: (cute.sym_int64 if name in wide else cute.sym_int32)(
            divisibility=divisibility, symbol=_symbol(name)
        )
        for name, divisibility in extent_divisibilities(kernel.operands).items()
    }
    return [_fake(operand, extents) for operand in kernel.operands]


def _fake(operand: OperandConstraint, extents: dict[str, Any]) -> Any:
    if operand.is_none:
        return None
    if operand.is_number:
        return dsl_dtype(operand.dtype)(0)
    if operand.extents == ANY_SHAPE:
        shape: tuple[Any, ...] = (
            cute.sym_int32(divisibility=operand.divisibility, symbol=f"{operand.name}_count"),
        )
    else:
        shape = tuple(extent if isinstance(extent, int) else extents[extent] for extent in operand.extents)
    return make_fake_tensor(
        dsl_dtype(operand.dtype), shape, _strides(operand), assumed_align=operand.alignment
    )


def _symbol(extent: str) -> str:
    """The name of an extent for the DSL, in one word: ``4 * G + 1`` is ``4_times_G_plus_1``."""
    words = {"*": "times", "+": "plus", "-": "minus", "/": "over"}
    return "_".join(words.get(word, word) for word in extent.split())


def _strides(operand: OperandConstraint) -> tuple[Any, ...]:
    rank = len(operand.extents)
    contiguous = rank + operand.contiguous
    strides: list[Any] = [1] * rank
    reach: int | None = 1 if operand.compact else None
    # From the innermost mode outwards, as long as the inner extents are fixed.
    for mode in (contiguous, *(mode for mode in reversed(range(rank)) if mode != contiguous)):
        if mode != contiguous:
            symbol = f"{operand.name}_stride_{_symbol(str(operand.extents[mode]))}"
            free = cute.sym_int64(divisibility=operand.divisibility, symbol=symbol)
            strides[mode] = free if reach is None else reach
        extent = operand.extents[mode]
        reach = reach * extent if reach is not None and isinstance(extent, int) else None
    return tuple(strides)


def as_bytes(tensor: Any) -> Any:
    """An operand in a kernel; a tensor of bool as the bytes that are in memory, of u8."""
    if not isinstance(tensor, cute.Tensor) or tensor.element_type is not cutlass.Boolean:
        return tensor
    return cute.make_tensor(cute.recast_ptr(tensor.iterator, dtype=cutlass.Uint8), tensor.layout)


def environment_stream() -> Any:
    """A placeholder for the stream: compiled code takes the caller's current one from TVM-FFI.

    The compiled function then has no parameter for it.
    """
    return make_fake_stream(use_tvm_ffi_env_stream=True)


def compile_for(target: str, function: Any, *arguments: Any) -> CompiledFunction:
    """Compile a ``@cute.jit`` function for a GPU code target such as ``"sm_90a"``, whatever GPU is present.

    ``function`` is the host function that launches the kernel; ``arguments`` are placeholders, and values
    that are compiled in. Whatever the DSL raises passes through: the worker turns it into a failure of this
    kernel alone.
    """
    compiler = cute.compile[cute.GPUArch(target), cute.EnableTVMFFI(True)]
    with _four_bit_floats_by_element():
        return cast(CompiledFunction, compiler(function, *arguments))


@contextmanager
def _four_bit_floats_by_element() -> Iterator[None]:
    """In this context, the shape of a placeholder of 4-bit floats counts elements, like any other.

    Otherwise the compiled function takes torch's pairs, which have extents of their own: a K that differs
    between two operands would pass its checks.
    """
    saved = spec.create_map_tensor_dtype_f4x2_to_f4_spec
    spec.create_map_tensor_dtype_f4x2_to_f4_spec = lambda tensor: tensor
    try:
        yield
    finally:
        spec.create_map_tensor_dtype_f4x2_to_f4_spec = saved

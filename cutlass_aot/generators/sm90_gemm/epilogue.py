"""The fused epilogue of the SM90 GEMM: a formula on a few neighbouring elements of a row, in f32.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute

from cutlass_aot.generators import dsl
from cutlass_aot.generators.epilogue_functions import Function
from cutlass_aot.generators.sm90_gemm.conversions import as_f4e2m1
from cutlass_aot.generators.sm90_gemm.statements import (
    BY_BLOCK,
    distance,
    of_blocks,
    of_elements,
    shared_by_both,
    with_reciprocals,
    with_shared,
)
from cutlass_aot.schema.kernels.epilogue import (
    COLUMN,
    ELEMENT,
    NUMBER,
    ROW,
    STRIDED_COLUMN,
    STRIDED_ROW,
    Epilogue,
    EpilogueOperand,
)
from cutlass_aot.schema.kernels.formula import ACCUMULATOR, OUT, Expression, Statement, evaluate, names_in

VECTOR = 4
"""Neighbouring elements of a row that are computed at once."""

WHOLE_WARP = (1, 2, 4, 8, 16)
"""Bits of the numbers of the lanes of a warp."""

NEUTRAL = {"sum": 0.0, "max": -math.inf, "min": math.inf}
"""The value of each reduction that changes nothing."""


def _quotient(x: Any, y: Any, reciprocal: Any) -> Any:
    """x / y, rounded exactly, for many x and one y, whose reciprocal is rounded exactly.

    What is left of x after a first quotient corrects it; nothing does where that is 0, infinite or not a
    number. Where x is below 2^-100, or the quotient below 2^-126, it may be a neighbour of the exact one.
    Source: P. Markstein, "Computation of elementary functions on the IBM RISC System/6000 processor",
    theorem 8.5.
    """
    found = x * reciprocal
    left = cute.math.fma(-found, y, x)
    size = cute.math.abs(left)
    # A comparison with infinity would become one of bits, which takes longer.
    correctable = (size > 0.0) & (size < 2.0**127)
    return cutlass.Float32(cutlass.select_(correctable, cute.math.fma(left, reciprocal, found), found))


_FUNCTIONS: Mapping[str, Function] = {
    **dsl.EPILOGUE_FUNCTIONS,
    BY_BLOCK: functools.partial(dsl.each, _quotient),
}


class Output(NamedTuple):
    """Where results are stored, and what is made of sums before.

    Attributes:
        tensor: (L, M, N), whatever is exchanged.
        operands: the tensors and numbers of ``epilogue.operands``.
        epilogue: the formula, None to store the sums converted.
    """

    tensor: Any
    operands: Sequence[Any]
    epilogue: Epilogue | None

    def by_name(self) -> dict[str, tuple[EpilogueOperand, Any]]:
        """The operands of the epilogue and what is given for them."""
        if self.epilogue is None:
            return {}
        operands = self.epilogue.operands
        return {
            operand.name: (operand, given) for operand, given in zip(operands, self.operands, strict=True)
        }


def emit(
    inside: Any,
    values: Sequence[Any],
    at: tuple[Any, Any, Any],
    output: Output,
    partial: tuple[Any, ...],
    row: int = 0,
) -> None:
    """Store or reduce what :func:`results` made of neighbouring sums of a row, if they are ``inside``.

    ``at`` is row, column and batch of the first, ``partial`` what this thread has reduced, and ``row`` the
    place of the row in it.
    """
    epilogue = output.epilogue
    if epilogue is None:
        store_plain(inside, values[0], at, output.tensor)
        return
    given = output.by_name()
    for statement, value in zip(of_elements(epilogue), values, strict=True):
        if statement.name == OUT and epilogue.halves:
            row_of, column, batch = at
            # A division would ask for the sign.
            store_if(inside, output.tensor, (row_of, column >> 1, batch), _once(value))
        elif not statement.reduction:
            tensor = given[statement.name][1] if statement.name in given else output.tensor
            store_if(inside, tensor, at, value)
    take(inside, epilogue, partial, values, row)


def place_within(extents: tuple[Any, Any, Any], at: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """The place ``at`` of an output (L, M, N), or the nearest that is there; of :data:`VECTOR` neighbours."""
    batches, rows, columns = extents
    row, column, batch = at
    return (
        cutlass.max(cutlass.min(row, rows - 1), 0),
        cutlass.max(cutlass.min(column, columns - VECTOR), 0),
        cutlass.min(batch, batches - 1),
    )


def results(
    sums: Any, at: tuple[Any, Any, Any], output: Output, known: Mapping[str, Any] = MappingProxyType({})
) -> list[Any]:
    """Values of each statement of :func:`~.of_elements` for some neighbours; without an epilogue, the sums.

    ``at`` is row, column and batch of the first. Where it is not a place of the output, the values are those
    of another one, so that no branch keeps a thread from having the results of several under way. ``known``
    are registers with what has been worked out of the formula.
    """
    epilogue = output.epilogue
    if epilogue is None:
        return [sums]
    statements = of_elements(epilogue)
    shared = shared_by_both(epilogue)
    blocks = {statement.name for statement in of_blocks(epilogue)}
    expressions = [
        with_reciprocals(with_shared(statement.expression, shared), blocks) for statement in statements
    ]
    place = place_within(output.tensor.shape, at)
    values = evaluated(epilogue, expressions, sums, output.operands, place, known)
    truths = {operand.name for operand in epilogue.operands if operand.dtype == "bool"}
    unequal = dsl.EPILOGUE_FUNCTIONS["!="]
    return [
        unequal(value, _like(sums, 0.0)) if statement.name in truths else value
        for statement, value in zip(statements, values, strict=True)
    ]


def evaluated(
    epilogue: Epilogue,
    expressions: Sequence[Expression],
    total: Any,
    operands: Sequence[Any],
    at: tuple[Any, Any, Any],
    known: Mapping[str, Any] = MappingProxyType({}),
    functions: Mapping[str, Function] = _FUNCTIONS,
) -> list[Any]:
    """Values of expressions for some neighbouring elements of a row.

    ``total`` has their sums along K in f32, ``operands`` the tensors and numbers of ``epilogue.operands``,
    and ``at`` row, column and batch of the first element; the column is a multiple of their number. ``known``
    are registers with what else they read by name.
    """
    read = frozenset[str]().union(*map(names_in, expressions))
    values = {ACCUMULATOR: total, **{name: registers.load() for name, registers in known.items()}}
    for operand, given in zip(epilogue.operands, operands, strict=True):
        if operand.name in read and not operand.written:
            values[operand.name] = _loaded(operand, given, total, at)
    return [
        evaluate(expression, values, functions, lambda number: _like(total, number))
        for expression in expressions
    ]


def _loaded(operand: EpilogueOperand, given: Any, total: Any, at: tuple[Any, Any, Any]) -> Any:
    row, column, batch = at
    if operand.extents == NUMBER:
        return _like(total, given)
    if operand.extents in (ELEMENT, COLUMN, STRIDED_COLUMN):
        place = {ELEMENT: 0, COLUMN: row, STRIDED_COLUMN: (row, 0)}[operand.extents]
        return _like(total, cutlass.Float32(given[place]))
    count = cute.size(total.shape)
    loaded = cute.make_rmem_tensor(count, given.element_type)
    if operand.extents == STRIDED_ROW:
        for index in range(count):
            loaded[index] = given[column + index, 0]
    else:
        offset = column if operand.extents == ROW else cute.crd2idx((batch, row, column), given.layout)
        cute.autovec_copy(neighbours(given.iterator, offset, count), loaded)
    return loaded.load().to(cutlass.Float32)


@cute.jit  # type: ignore[untyped-decorator]
def store_plain(inside: Any, values: Any, at: tuple[Any, Any, Any], tensor: Any) -> None:
    """If ``inside``, store neighbouring results of a row without an epilogue.

    Nothing is worked out where they are not stored, other than by :func:`store_if`: there is hardly anything
    to work out.
    """
    if inside:
        row, column, batch = at
        count = cute.size(values.shape)
        offset = cute.crd2idx((batch, row, column), tensor.layout)
        converted = cute.make_rmem_tensor(count, tensor.element_type)
        converted.store(values.to(tensor.element_type))
        cute.autovec_copy(converted, neighbours(tensor.iterator, offset, count))


def store_if(inside: Any, tensor: Any, at: tuple[Any, Any, Any], values: Any) -> None:
    """If ``inside``, store neighbouring elements of a row of a (L, M, N) tensor, as its element type."""
    row, column, batch = at
    offset = cute.crd2idx((batch, row, column), tensor.layout)
    if tensor.element_type is cutlass.Float4E2M1FN:
        packed = as_f4e2m1(values)
        copy_if(inside, packed, cute.recast_ptr(tensor.iterator, dtype=packed.element_type), offset // 2)
        return
    converted = cute.make_rmem_tensor(cute.size(values.shape), tensor.element_type)
    converted.store(values.to(tensor.element_type))
    copy_if(inside, converted, tensor.iterator, offset)


@cute.jit  # type: ignore[untyped-decorator]
def copy_if(inside: Any, source: Any, memory: Any, offset: Any) -> None:
    """If ``inside``, copy registers to memory at an offset, which is a multiple of their number."""
    if inside:
        cute.autovec_copy(source, neighbours(memory, offset, cute.size(source)))


def neighbours(memory: Any, offset: Any, count: int) -> Any:
    """``count`` contiguous elements from an offset, which is a multiple of ``count``."""
    return cute.make_tensor(memory + cute.assume(offset, divby=count), cute.make_layout(count))


def _once(values: Any) -> Any:
    """Of values of which each two neighbours are the same, one each."""
    twice = cute.make_rmem_tensor(VECTOR, cutlass.Float32)
    twice.store(values)
    once = cute.make_rmem_tensor(VECTOR // 2, cutlass.Float32)
    for index in range(VECTOR // 2):
        once[index] = twice[2 * index]
    return once.load()


def _like(total: Any, number: Any) -> Any:
    return cute.full_like(total, number, cutlass.Float32)


# ---- reductions ------------------------------------------------------------------------------------------

# A thread combines what it has of a row, a column or all; threads of a warp that have others of the same
# combine theirs; one of them combines the result with memory.


def reductions(epilogue: Epilogue | None) -> Iterator[tuple[Statement, tuple[str | int, ...]]]:
    """The statements that blocks reduce in memory, in their order, with the extents of their destinations."""
    if epilogue is not None:
        extents = {operand.name: operand.extents for operand in epilogue.operands}
        for statement in of_elements(epilogue):
            if statement.reduction:
                yield statement, extents[statement.name]


def partial_results(epilogue: Epilogue | None, rows: int) -> tuple[Any, ...]:
    """Registers for what a thread reduces: for each reduction so many rows, :data:`VECTOR` columns or one."""
    found = []
    for statement, extents in reductions(epilogue):
        count = {COLUMN: rows, ROW: VECTOR, ELEMENT: 1}[extents]
        found.append(cute.make_rmem_tensor(count, cutlass.Float32))
        found[-1].fill(NEUTRAL[statement.reduction])
    return tuple(found)


def take(inside: Any, epilogue: Epilogue, partial: tuple[Any, ...], values: Sequence[Any], row: int) -> None:
    """Combine the statements' values for some neighbours, of one of a thread's rows, with what it has.

    Those that are not inside do not count.
    """
    reduced = [value for value, of in zip(values, of_elements(epilogue), strict=True) if of.reduction]
    for (statement, extents), kept, value in zip(reductions(epilogue), partial, reduced, strict=True):
        elements = cute.make_rmem_tensor(VECTOR, cutlass.Float32)
        elements.store(value)
        for index in range(0, VECTOR, distance(statement.expression)):
            place = {COLUMN: row, ROW: index, ELEMENT: 0}[extents]
            kept[place] = combined_if(inside, statement.reduction, kept[place], elements[index])


def combined(reduction: str, one: Any, other: Any) -> Any:
    """Two values as one; of a value that is not a number and another, ``max`` and ``min`` give the other."""
    if reduction == "sum":
        return one + other
    return cute.arch.fmax(one, other) if reduction == "max" else cute.arch.fmin(one, other)


def combined_if(inside: Any, reduction: str, one: Any, other: Any) -> Any:
    """Two values as one if ``inside``, else the first of them."""
    neutral = cutlass.Float32(NEUTRAL[reduction])
    return combined(reduction, one, cutlass.Float32(cutlass.select_(inside, other, neutral)))


def flush(
    output: Output,
    partial: tuple[Any, ...],
    kept: tuple[str | int, ...],
    sharing: Sequence[int],
    places: Sequence[tuple[Any, Any]],
) -> None:
    """Combine the reductions whose destinations have the extents ``kept`` with memory, and start anew.

    ``sharing`` are the bits of the numbers of the lanes that have others of the same elements; all lanes come
    here. ``places`` are, for each register of a reduction, its place in memory, and whether there is one.
    """
    given = output.by_name()
    leads = cutlass.Boolean(cute.arch.lane_idx() & sum(sharing) == 0)
    for (statement, extents), registers in zip(reductions(output.epilogue), partial, strict=True):
        if extents == kept:
            destination = given[statement.name][1]
            for index, (place, exists) in enumerate(places):
                value = registers[index]
                for bit in sharing:
                    other = cute.arch.shuffle_sync_bfly(value, bit)
                    value = combined(statement.reduction, value, other)
                combine_in_memory(statement.reduction, destination.iterator + place, value, leads & exists)
                registers[index] = cutlass.Float32(NEUTRAL[statement.reduction])


def flush_all(output: Output, partial: tuple[Any, ...]) -> None:
    """Combine the reductions over all elements with memory."""
    flush(output, partial, ELEMENT, WHOLE_WARP, [(0, True)])


@cute.jit  # type: ignore[untyped-decorator]
def combine_in_memory(reduction: cutlass.Constexpr, destination: Any, value: Any, if_: Any) -> None:
    """Combine a value with one in memory, atomically, if ``if_`` holds.

    The order of floating numbers is that of their bits as signed integers if they are not negative, and the
    reverse of that as unsigned ones if they are; -0 counts as below 0. Source: IEEE 754, section 3.4.
    """
    if if_:
        if cutlass.const_expr(reduction == "sum"):
            cute.arch.atomic_add(destination, value)
        elif cutlass.const_expr(reduction == "max"):
            cute.arch.atomic_fmax(destination, value)
        else:
            bits = value.bitcast(cutlass.Int32)
            if bits < 0:
                cute.arch.atomic_max(destination, bits.bitcast(cutlass.Uint32))
            else:
                cute.arch.atomic_min(destination, bits)

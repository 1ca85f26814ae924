"""Values of blocks of columns, such as the scales of an output: reductions over a few columns of a row.

The lanes of a warp that store elements of the same row hold the whole block, so that no other warp takes
part. Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.generators import dsl
from cutlass_aot.generators.sm90_gemm.conversions import as_f8e8m0, from_f8e8m0
from cutlass_aot.generators.sm90_gemm.epilogue import (
    NEUTRAL,
    VECTOR,
    Output,
    combined,
    combined_if,
    evaluated,
    place_within,
)
from cutlass_aot.generators.sm90_gemm.statements import (
    of_blocks,
    reciprocal_of,
    reductions_of,
    shared_by_both,
    with_shared,
)
from cutlass_aot.schema.kernels.epilogue import Epilogue
from cutlass_aot.schema.kernels.formula import without_reductions

SMALLEST = {"f32": 2.0**-126, "f8e8m0": 2.0**-127, "f8e4m3": 2.0**-9}
"""The least that is stored, by element type: above 0, so that a block of zeros can be divided by it."""


_EXACT = {name: function for name, function in dsl.EPILOGUE_FUNCTIONS.items() if name != "/"}
"""Functions with a division that is rounded exactly: a power of two, of which the next one is twice as large,
stays one. There are few values of blocks."""


@cute.jit  # type: ignore[untyped-decorator]
def reduce_block(
    pieces: Sequence[tuple[Any, tuple[Any, Any, Any], Any]],
    epilogue: Epilogue,
    output: Output,
    sharing: cutlass.Constexpr,
    block: cutlass.Constexpr,
) -> list[dict[str, Any]]:
    """Work out and store what a formula has for one block of columns of a row; all lanes of a warp come here.

    Args:
        pieces: what this thread has of the block, from left to right: whether it is there, row, column and
            batch of its first element, and the sums of :data:`~.epilogue.VECTOR` neighbours.
        epilogue: the formula.
        output: where to store.
        sharing: bits of the numbers of the lanes that have others of the same block. Of them, the first one's
            first piece begins the block.
        block: columns of the accumulator that a block has.

    Returns:
        For each piece, registers by name: the block's values as they were stored and their reciprocals, and
        what the reductions have in common with other statements; where a piece is not there, any values.
    """
    reductions = reductions_of(epilogue)
    reduced = {}
    for text in reductions:
        reduced[text] = cute.make_rmem_tensor(VECTOR, cutlass.Float32)
        reduced[text].fill(NEUTRAL[reductions[text].operation])
    shared = []
    for inside, at, sums in pieces:
        registers = {}
        for text in shared_by_both(epilogue):
            registers[text] = cute.make_rmem_tensor(VECTOR, cutlass.Float32)
        shared.append(registers)
        place = place_within(output.tensor.shape, at)
        take_piece(inside, sums.load(), place, epilogue, output, reduced, registers)
    for text in reductions:
        value = reduced[text][0]
        for bit in sharing:
            value = combined(reductions[text].operation, value, cute.arch.shuffle_sync_bfly(value, bit))
        reduced[text].fill(value)
    values = {}
    for statement in of_blocks(epilogue):
        for name in (statement.name, reciprocal_of(statement.name)):
            values[name] = cute.make_rmem_tensor(VECTOR, cutlass.Float32)
    inside, at, sums = pieces[0]
    leads = inside & (cute.arch.lane_idx() & sum(sharing) == 0)
    place = place_within(output.tensor.shape, at)
    store_values(sums.load(), place, epilogue, output, reduced, values, leads, block)
    return [{**values, **registers} for registers in shared]


def take_piece(
    inside: Any,
    sums: Any,
    at: tuple[Any, Any, Any],
    epilogue: Epilogue,
    output: Output,
    reduced: dict[str, Any],
    registers: dict[str, Any],
) -> None:
    """Work out what is shared for some neighbours, and combine what reductions are of with what there is."""
    shared, reductions = shared_by_both(epilogue), reductions_of(epilogue)
    values = evaluated(epilogue, list(shared.values()), sums, output.operands, at)
    for text, value in zip(shared, values, strict=True):
        registers[text].store(value)
    inner = [with_shared(reduction.arguments[0], shared) for reduction in reductions.values()]
    values = evaluated(epilogue, inner, sums, output.operands, at, registers)
    for (text, reduction), value in zip(reductions.items(), values, strict=True):
        elements = cute.make_rmem_tensor(VECTOR, cutlass.Float32)
        elements.store(value)
        # Of outputs with half as many columns, neighbours have the same value.
        for place in range(0, VECTOR, 2 if epilogue.halves else 1):
            reduced[text][0] = combined_if(inside, reduction.operation, reduced[text][0], elements[place])


@cute.jit  # type: ignore[untyped-decorator]
def store_values(
    sums: Any,
    at: tuple[Any, Any, Any],
    epilogue: Epilogue,
    output: Output,
    reduced: dict[str, Any],
    values: dict[str, Any],
    leads: Any,
    block: cutlass.Constexpr,
) -> None:
    """Work out the values of a block from its reductions, and store them if this thread leads."""
    row, column, batch = at
    given = output.by_name()
    statements = of_blocks(epilogue)
    expressions = [without_reductions(statement.whole)[0] for statement in statements]
    found = evaluated(epilogue, expressions, sums, output.operands, at, reduced, _EXACT)
    for index in cutlass.range_constexpr(len(statements)):
        operand, tensor = given[statements[index].name]
        elements = cute.make_rmem_tensor(VECTOR, cutlass.Float32)
        elements.store(found[index])
        stored, value = rounded(elements[0], operand.dtype)
        values[statements[index].name].fill(value)
        values[reciprocal_of(statements[index].name)].fill(cutlass.Float32(1.0) / value)
        offset = cute.crd2idx((batch, row, cutlass.Int32(column) // block), tensor.layout)
        place = cute.recast_ptr(tensor.iterator, dtype=type(stored)) + offset
        if leads:
            cute.make_tensor(place, cute.make_layout(1))[0] = stored


def rounded(value: Any, dtype: str) -> tuple[Any, Any]:
    """A value of a block as it is stored, in an element type or the bytes of one, and in f32 again.

    It is at least the smallest number of :data:`SMALLEST`, also if it is not a number.
    """
    value = cute.arch.fmax(value, cutlass.Float32(SMALLEST[dtype]))
    if dtype == "f32":
        return value, value
    if dtype == "f8e8m0":
        exponent = as_f8e8m0(value)
        return cutlass.Uint8(exponent), from_f8e8m0(exponent)
    # The instruction converts several.
    several = cute.make_rmem_tensor(VECTOR, dsl.dsl_dtype(dtype))
    several.store(cute.full((VECTOR,), value, cutlass.Float32).to(several.element_type))
    again = cute.make_rmem_tensor(VECTOR, cutlass.Float32)
    again.store(several.load().to(cutlass.Float32))
    return cute.recast_tensor(several, cutlass.Uint8)[0], again[0]

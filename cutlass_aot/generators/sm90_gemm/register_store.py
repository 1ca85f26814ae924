"""Results that are stored from registers: threads of a warp exchange some, so that each has four neighbours.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm
from cutlass.cutlass_dsl import dsl_user_op

from cutlass_aot.generators.sm90_gemm.blocks import reduce_block
from cutlass_aot.generators.sm90_gemm.epilogue import (
    VECTOR,
    Output,
    emit,
    flush,
    flush_all,
    partial_results,
    results,
)
from cutlass_aot.generators.sm90_gemm.plan import ROWS, THREADS, WARP, WARPS
from cutlass_aot.generators.sm90_gemm.registers import settled
from cutlass_aot.generators.sm90_gemm.tiles import Corner, Tile
from cutlass_aot.schema.kernels.epilogue import COLUMN, ROW

STORES = 8
"""Vectors of results that the threads of a warp exchange before they store the first, at least. Of blocks of
columns of which a value is stored, they are those of one or several."""

COLUMNS = 16
"""Neighbouring columns of a row that four threads store together."""

SAME_ROW, SAME_COLUMN = (1, 2), (4, 8, 16)
"""Bits of the numbers of the lanes that store elements of the same rows, and of the same columns."""


@cute.jit  # type: ignore[untyped-decorator]
def store_sums(
    total: Any,
    thread: Any,
    tile: Tile,
    corner: Corner,
    output: Output,
    plan: cutlass.Constexpr,
) -> None:
    """Store a tile of sums from registers.

    Args:
        total: of this thread: two neighbours of each eight columns, in two of each 64 rows.
        thread: of those that compute.
        tile: what the cluster computes.
        corner: where the block's part of it begins.
        output: where to, and what is done before.
        plan: everything else that is compiled in.
    """
    batches, _, columns = output.tensor.shape
    rows = tile.end
    first_row, first_column, own_row, own_column = corner
    lane = thread % WARP
    # Of the tile, the row and the column of the output where this thread's first four neighbours begin.
    row, column = lane // 4, lane % 2 * 8 + lane % 4 // 2 * 4
    warp_row = thread // THREADS * ROWS + thread % THREADS // WARP * (ROWS // WARPS)
    if cutlass.const_expr(plan.swap):
        first_row, first_column, own_row, own_column = first_column, first_row, own_column, own_row
        column = column + warp_row
    else:
        row = row + warp_row
    if tile.batch >= batches:
        rows = cutlass.Int32(0)
    row_offset, row_count = stored_part(row, first_row, own_row, rows)
    column_offset, column_count = stored_part(column, first_column, own_column, columns)
    todo = pieces(plan)
    # The rows of which this thread has some, and what it has reduced of them.
    own_rows = sorted({more_rows for *_, more_rows, _ in todo})
    partial = partial_results(output.epilogue, len(own_rows))
    # Pieces of a block of columns of which a value is stored.
    in_block = max(plan.scale_columns // COLUMNS, 1)
    known_of_block: list[dict[str, Any]] = [{}] * in_block
    stores = max(STORES, in_block)
    for begin in cutlass.range_constexpr(0, len(todo), stores):
        # The threads exchange what several vectors need before any is stored: an exchange takes long.
        pending = []
        for first, second, more_rows, more_columns in todo[begin : begin + stores]:
            inside = (row_offset + more_rows < row_count) & (column_offset + more_columns < column_count)
            at = (
                first_row + (row + more_rows),
                first_column + (column + more_columns),
                cutlass.Int64(tile.batch),
            )
            one, two = (converted_pair(total, index, output) for index in (first, second))
            if cutlass.const_expr(plan.swap):
                one, two = transposed(one), transposed(two)
            pending.append((inside, at, four_neighbours(one, two, lane % 2 == 1)))
        # What is read comes before what is stored: the compiler cannot know that they are apart.
        found = []
        for place in cutlass.range_constexpr(len(pending)):
            inside, at, result = pending[place]
            if cutlass.const_expr(plan.scale_columns > 1 and place % in_block == 0):
                of_block = pending[place : place + in_block]
                known_of_block = reduce_block(of_block, output.epilogue, output, SAME_ROW, plan.scale_columns)
            found.append(results(result.load(), at, output, known_of_block[place % in_block]))
        for place in cutlass.range_constexpr(len(pending)):
            inside, at, _ = pending[place]
            _, _, more_rows, more_columns = todo[begin + place]
            emit(inside, found[place], at, output, partial, own_rows.index(more_rows))
            ends = place + 1 == len(pending) or todo[begin + place + 1][3] != more_columns
            if cutlass.const_expr(len(partial) > 0 and ends):
                columns_are = column_offset + more_columns < column_count
                across = [(at[1] + index, columns_are) for index in range(VECTOR)]
                flush(output, partial, ROW, SAME_COLUMN, across)
    if cutlass.const_expr(len(partial) > 0):
        down = [(first_row + (row + more), row_offset + more < row_count) for more in own_rows]
        flush(output, partial, COLUMN, SAME_ROW, down)
        flush_all(output, partial)


def stored_part(place: Any, first: Any, own: Any, extent: Any) -> tuple[Any, Any]:
    """What says whether a place of a tile is to be stored: an offset, which then is below a count.

    ``place`` is counted from the tile's ``first`` row or column; those from ``own`` to ``extent`` are stored.
    Unsigned, so that one comparison suffices: an offset before the first is a large one.
    """
    count = cutlass.max(extent - own, 0)
    most = cutlass.Int64((1 << 31) - 1)
    offset = cutlass.Int32(first - own) + place
    return cutlass.Uint32(offset), cutlass.Uint32(cutlass.min(count, most))


def pieces(plan: Any) -> list[tuple[int, int, int, int]]:
    """What a thread stores at once of a tile: two pairs of sums, of which an exchange makes four neighbours.

    Each is the indices of the first and the second pair, and the rows and columns of the tile of the output
    before what the warp stores, which has eight rows and 16 columns. Where an epilogue has values of blocks
    of columns, those of a block come one after the other.
    """
    rows, columns, _ = plan.tile
    found = []
    for block in range(rows // (ROWS * plan.warp_groups)):
        for group in range(columns // 8):
            index, down, across = (
                (block * columns // 8 + group) * 4,
                block * ROWS * plan.warp_groups,
                group * 8,
            )
            if plan.swap:
                # The tensor core's 16 rows of a warp are columns of the output.
                found.append((index, index + 2, across, down))
            elif group % 2 == 0:
                found += [(index + half, index + half + 4, down + half * 4, across) for half in (0, 2)]
    return found if plan.scale_columns == 1 else sorted(found, key=lambda piece: piece[2:])


def converted_pair(total: Any, index: int, output: Output) -> Any:
    """Two neighbouring sums as results, or as they are for an epilogue."""
    pair = cute.make_rmem_tensor(2, cutlass.Float32)
    pair[0], pair[1] = settled(total[index]), settled(total[index + 1])
    if output.epilogue is not None:
        return pair
    converted = cute.make_rmem_tensor(2, output.tensor.element_type)
    converted.store(pair.load().to(output.tensor.element_type))
    return converted


def four_neighbours(first: Any, second: Any, odd: Any) -> Any:
    """Four neighbours of eight columns, of two from each of two threads: of the first eight, or the second.

    Of two threads next to each other, the even one gets those of ``first``, the odd one those of ``second``.
    """
    four = cute.make_rmem_tensor(4, first.element_type)
    words, one, two = (cute.recast_tensor(tensor, cutlass.Int32) for tensor in (four, first, second))
    count = cute.size(one)
    for word in range(count):
        given = cutlass.Int32(cutlass.select_(odd, one[word], two[word]))
        taken = cutlass.Int32(cute.arch.shuffle_sync_bfly(given, 1))
        words[word] = cutlass.Int32(cutlass.select_(odd, taken, one[word]))
        words[count + word] = cutlass.Int32(cutlass.select_(odd, two[word], taken))
    return four


def transposed(pair: Any) -> Any:
    """Of eight rows of which each thread of a warp has two neighbours of one, two neighbours of a column."""
    result = cute.make_rmem_tensor(2, pair.element_type)
    word = cute.recast_tensor(pair, cutlass.Int32)[0]
    cute.recast_tensor(result, cutlass.Int32)[0] = move_matrix(word)
    return result


@dsl_user_op  # type: ignore[untyped-decorator]
def move_matrix(word: Any, *, loc: Any = None, ip: Any = None) -> Any:
    """Transpose a matrix of 8 x 8 elements of 16 bits, of which each thread of a warp has two.

    Source: PTX ISA, "movmatrix".
    """
    return cutlass.Int32(
        llvm.inline_asm(
            cutlass.Int32.mlir_type,
            [cutlass.Int32(word).ir_value(loc=loc, ip=ip)],
            "movmatrix.sync.aligned.m8n8.trans.b16 $0, $1;",
            "=r,r",
            has_side_effects=True,
            asm_dialect=llvm.AsmDialect.AD_ATT,
            loc=loc,
            ip=ip,
        )
    )

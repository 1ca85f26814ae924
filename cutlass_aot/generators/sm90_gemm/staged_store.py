"""Results that are stored from shared memory: those that several blocks add up, and those of narrow tiles.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

import math
from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.generators.sm90_gemm.epilogue import Output, emit, flush, flush_all, partial_results, results
from cutlass_aot.generators.sm90_gemm.plan import ROWS, THREADS, WARP
from cutlass_aot.generators.sm90_gemm.registers import settled, unknown
from cutlass_aot.generators.sm90_gemm.tiles import Block, Corner, Tile
from cutlass_aot.schema.kernels.epilogue import COLUMN, ROW

LOADS = 6
"""Vectors of results that a thread loads before it stores the first."""

RESULTS_BARRIER = 1
"""Named barrier of the warp groups that compute."""


@cute.jit  # type: ignore[untyped-decorator]
def meet(plan: cutlass.Constexpr) -> None:
    """Wait for all threads that compute."""
    cute.arch.barrier(barrier_id=RESULTS_BARRIER, number_of_threads=plan.warp_groups * THREADS)


@cute.jit  # type: ignore[untyped-decorator]
def lay_down(total: Any, writes: Any, part: cutlass.Constexpr, plan: cutlass.Constexpr) -> None:
    """Convert some columns of a tile of sums into shared memory.

    Args:
        total: of this thread: two neighbours of each eight columns, in two of each 64 rows.
        writes: where those of one part lie.
        part: its number.
        plan: everything else that is compiled in.
    """
    rows, columns, _ = plan.tile
    count = plan.staged_columns // 2
    for block in cutlass.range_constexpr(rows // (ROWS * plan.warp_groups)):
        for index in cutlass.range_constexpr(0, count, 2):
            first = block * (columns // 2) + part * count + index
            pair = cute.make_rmem_tensor(2, cutlass.Float32)
            pair[0], pair[1] = settled(total[first]), settled(total[first + 1])
            converted = cute.make_rmem_tensor(2, writes.element_type)
            converted.store(pair.load().to(writes.element_type))
            place = block * count + index
            if cutlass.const_expr(plan.swap):
                writes[place], writes[place + 1] = converted[0], converted[1]
            else:
                target = writes.iterator + writes.layout(place)
                cute.autovec_copy(converted, cute.make_tensor(target, cute.make_layout(2)))


@cute.jit  # type: ignore[untyped-decorator]
def finish(
    staged: Any,
    block: Block,
    tile: Tile,
    corner: Corner,
    skipped: cutlass.Constexpr,
    output: Output,
    plan: cutlass.Constexpr,
) -> None:
    """Store what lies in shared memory, or this block's part of what several blocks add up.

    Args:
        staged: results, or sums over slices of K, a line after the other.
        block: this one.
        tile: what the cluster computes.
        corner: where the block's part of it begins.
        skipped: columns of the tile before those in shared memory.
        output: where to, and what is done before.
        plan: everything else that is compiled in.
    """
    tile_m, width, vector = plan.tile[0], plan.staged_columns, plan.vector
    in_plane = plan.cluster[0] * plan.cluster[1]
    batches, _, columns = output.tensor.shape
    batch, rows = tile.batch, tile.end
    first_row, first_column, own_row, own_column = corner
    first_column = first_column + skipped
    if cutlass.const_expr(plan.swap):
        own_row, own_column = own_column, own_row
    thread, rank = block.thread, block.rank
    threads = plan.warp_groups * THREADS
    along = (tile_m if plan.swap else width) // vector
    vectors = tile_m * width // vector // plan.split
    turns = (vectors + threads - 1) // threads
    partial = partial_results(output.epilogue, 1)
    # As many neighbouring lanes as a power of two have elements of the same row of the output.
    neighbours = math.gcd(WARP, math.gcd(along, vectors))
    same_row = [1 << bit for bit in range(neighbours.bit_length() - 1)]
    if cutlass.const_expr(plan.split == 1 and not plan.swap and plan.staged_bits == 32):
        # The many places of wide results are the same for each tile. They are worked out anew: kept, they
        # would take the registers of the sums.
        thread = unknown(thread, cutlass.Int32, "=r,0")
    for batch_of_turns in cutlass.range_constexpr((turns + LOADS - 1) // LOADS):
        # All of a batch are loaded before any is stored: another block's memory is far away.
        pending = []
        for turn in cutlass.range_constexpr(batch_of_turns * LOADS, min(turns, (batch_of_turns + 1) * LOADS)):
            mine = turn * threads + thread
            whole = cutlass.const_expr((turn + 1) * threads <= vectors)
            linear = rank // in_plane * vectors + (mine if whole else cutlass.min(mine, vectors - 1))
            line = linear // along
            place_in_line = linear % along * vector
            if cutlass.const_expr(plan.swap):
                row, column = first_column + line, first_row + place_in_line
            else:
                row, column = first_row + line, first_column + place_in_line
            inside = (row < rows) & (column < columns) & (batch < batches)
            inside = inside & (row >= own_row) & (column >= own_column)
            if cutlass.const_expr(not whole):
                inside = inside & (mine < vectors)
            offset = cute.assume(line * plan.staged_stride + place_in_line, divby=vector)
            pending.append(
                (inside, (row, column, cutlass.Int64(batch)), loaded(staged, offset, rank % in_plane, plan))
            )
        # What is read comes before what is stored: the compiler cannot know that they are apart.
        found = [results(sums, at, output) for _, at, sums in pending]
        for place in cutlass.range_constexpr(len(pending)):
            inside, at, _ = pending[place]
            emit(inside, found[place], at, output, partial)
            if cutlass.const_expr(len(partial) > 0):
                row_is = (at[0] >= own_row) & (at[0] < rows) & (batch < batches)
                flush(output, partial, COLUMN, same_row, [(at[0], row_is)])
                across = [(at[1] + index, inside) for index in range(plan.vector)]
                flush(output, partial, ROW, (), across)
    if cutlass.const_expr(len(partial) > 0):
        flush_all(output, partial)


@cute.jit  # type: ignore[untyped-decorator]
def loaded(staged: Any, offset: Any, rank_mn: Any, plan: cutlass.Constexpr) -> Any:
    """Neighbouring results, or their sum over the blocks that share the sum along K, in the order of K."""
    parts = []
    for slice_k in cutlass.range_constexpr(plan.split):
        memory = staged
        if cutlass.const_expr(plan.split > 1):
            memory = cute.arch.map_dsmem_ptr(staged, rank_mn + slice_k * plan.cluster[0] * plan.cluster[1])
        part = cute.make_rmem_tensor(plan.vector, staged.dtype)
        cute.autovec_copy(cute.make_tensor(memory + offset, cute.make_layout(plan.vector)), part)
        parts.append(part.load())
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total

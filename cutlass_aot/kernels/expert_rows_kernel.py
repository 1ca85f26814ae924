"""Where the rows of tokens go when they are sorted by expert, in CuTe DSL. It imports the DSL.

For the experts index[t, j] of each token, in the order of t and then of j::

    offsets[e]        = rows of experts 0 to e: the end of e's rows
    destination[t, j] = the row of token t for its choice j; -1 if there is no such expert
    source[r]         = the token of row r; -1 behind the last row

Rows of an expert are in the order of their tokens: the result does not depend on timing. A block computes
one expert: it counts the choices of experts below, which gives its first row, and its own in each warp's part
of the choices; each warp then numbers its part. There are no atomic operations and no memory between.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

WARP = 32
WARPS = 32
LOADS = 4
"""Choices that a thread loads before it looks at one. With more of them a thread takes more than 32
registers, and a multiprocessor has room for one block instead of two."""


@cute.jit  # type: ignore[untyped-decorator]
def _load(choices: cute.Tensor, base: Any, lane: Any, end: Any, held: cute.Tensor) -> None:
    """Load this lane's choices from ``base`` on: -1 from ``end`` on."""
    for i in cutlass.range_constexpr(LOADS):
        place = base + i * WARP + lane
        value = choices[cutlass.min(place, end - 1)]
        held[i] = value if place < end else cutlass.Int32(-1)


@cute.jit  # type: ignore[untyped-decorator]
def _ballot(condition: Any) -> Any:
    """The lanes for which a condition holds, as bits."""
    return cute.arch.vote_ballot_sync(condition)


@cute.kernel  # type: ignore[untyped-decorator]
def expert_rows_kernel(
    choices: cute.Tensor,
    offsets: cute.Tensor,
    destination: cute.Tensor,
    source: cute.Tensor,
    k: cutlass.Constexpr,
) -> None:
    """Number the rows of one expert.

    Args:
        choices: (P) i32, the experts of each token's choices.
        offsets: (E) i32.
        destination: (P) i32.
        source: (P) i32.
        k: choices of a token.
    """
    thread, _, _ = cute.arch.thread_idx()
    expert, _, _ = cute.arch.block_idx()
    lane, warp = thread % WARP, thread // WARP
    experts, pairs = offsets.shape[0], choices.shape[0]
    below = cute.make_tensor(cute.arch.alloc_smem(cutlass.Int32, WARPS), cute.make_layout(WARPS))
    own = cute.make_tensor(cute.arch.alloc_smem(cutlass.Int32, WARPS), cute.make_layout(WARPS))
    held = cute.make_rmem_tensor(LOADS, cutlass.Int32)

    # A part of the choices for each warp, in whole steps.
    part = cute.ceil_div(pairs, WARPS * WARP * LOADS) * (WARP * LOADS)
    first = cutlass.min(warp * part, pairs)
    end = first + cutlass.min(part, pairs - first)
    lower, equal = cutlass.Int32(0), cutlass.Int32(0)
    for base in cutlass.range(first, end, WARP * LOADS, unroll=1):
        _load(choices, base, lane, end, held)
        for i in cutlass.range_constexpr(LOADS):
            lower += cutlass.Int32(held[i] >= 0 and held[i] < expert)
            equal += cutlass.Int32(held[i] == expert)
    lower = cute.arch.warp_reduction_sum(lower)
    equal = cute.arch.warp_reduction_sum(equal)
    if lane == 0:
        below[warp] = lower
        own[warp] = equal
    cute.arch.sync_threads()
    # The first row of this warp's part, and the end of the expert's rows.
    row, after = cutlass.Int32(0), cutlass.Int32(0)
    for other in cutlass.range_constexpr(WARPS):
        row += below[other]
        row += own[other] if other < warp else cutlass.Int32(0)
        after += below[other] + own[other]
    if thread == 0:
        offsets[expert] = after

    earlier = (cutlass.Int32(1) << lane) - 1
    for base in cutlass.range(first, end, WARP * LOADS, unroll=1):
        _load(choices, base, lane, end, held)
        for i in cutlass.range_constexpr(LOADS):
            place = base + i * WARP + lane
            matches = _ballot(held[i] == expert)
            if held[i] == expert:
                found = row + cute.arch.popc(matches & earlier)
                destination[place] = found
                source[found] = place // k
            elif expert == 0 and place < end and (held[i] < 0 or held[i] >= experts):
                destination[place] = cutlass.Int32(-1)
            row += cute.arch.popc(matches)
    if expert == experts - 1:
        for place in cutlass.range(after + thread, pairs, WARPS * WARP, unroll=1):
            source[place] = cutlass.Int32(-1)


@cute.jit  # type: ignore[untyped-decorator]
def expert_rows(
    index: cute.Tensor, offsets: cute.Tensor, destination: cute.Tensor, source: cute.Tensor, stream: Any
) -> None:
    """Launch the kernel.

    Args:
        index: (T, k) i32.
        offsets: (E) i32.
        destination: (T, k) i32.
        source: (T * k) i32.
        stream: CUDA stream.
    """
    tokens, k = index.shape
    flat = cute.make_layout((tokens * k,))
    expert_rows_kernel(
        cute.make_tensor(index.iterator, flat),
        offsets,
        cute.make_tensor(destination.iterator, flat),
        source,
        k,
    ).launch(grid=(offsets.shape[0], 1, 1), block=(WARPS * WARP, 1, 1), stream=stream)

"""What a thread keeps of a row, in registers or in shared memory. It imports the DSL.

All loads of a row are issued before the first of its vectors is used. Into shared memory they are bulk
copies, one for each step of a block, which take no registers and complete at a barrier of their own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cutlass
import cutlass.cute as cute

from cutlass_aot.kernels import vectors
from cutlass_aot.kernels.row_designs import VECTOR_BYTES, RowDesign
from cutlass_aot.kernels.rows import load_row, vector_elements


class KeptRow(NamedTuple):
    """The vectors of a row that a thread keeps.

    Attributes:
        vectors: (vector, step), in registers or in shared memory.
        barriers: in shared memory, one for each step, by which it is known that its vectors are there; else
            None.
    """

    vectors: Any
    barriers: Any


@cute.jit  # type: ignore[untyped-decorator]
def _begin_copies(
    source: Any, row: Any, count: Any, memory: Any, barriers: Any, design: cutlass.Constexpr
) -> None:
    """Have this block's part of a row copied into shared memory: each step by a thread of its own."""
    thread, _, _ = cute.arch.thread_idx()
    if thread < design.steps:
        barrier = barriers + thread
        cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
        first = thread * design.threads
        if cutlass.const_expr(design.blocks > 1):
            first += cute.arch.block_idx_in_cluster() * design.block_threads
        found = cutlass.max(cutlass.min(count - first, design.block_threads), 0)
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, found * VECTOR_BYTES)
        if found > 0:
            cute.arch.inline_ptx(
                "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                " [{$r0}], [{$r1}], {$r2}, [{$r3}];",
                read_only_args=[
                    (memory + thread * design.block_threads * VECTOR_BYTES).toint(),
                    source[(None, (row, first))].iterator.toint(),
                    found * VECTOR_BYTES,
                    barrier.toint(),
                ],
            )
    cute.arch.sync_threads()


def keep_row(source: Any, row: Any, lane: Any, count: Any, design: RowDesign) -> KeptRow:
    """Begin to load what this thread keeps of a row.

    In registers, a vector beyond the row's ``count`` is the row's last. In shared memory its contents are
    undefined.

    Args:
        source: the matrix, by :func:`.vectors.in_vectors`.
        row: the row.
        lane: this thread among the row's.
        count: vectors of the row.
        design: the design.
    """
    dtype = source.element_type
    elements = vector_elements(dtype)
    if not design.staged:
        held = cute.make_rmem_tensor(((1, elements), design.steps), dtype)
        load_row(source, row, lane, count, held, design.threads, design.streamed)
        return KeptRow(held, None)
    smem = cutlass.utils.SmemAllocator()
    barriers = smem.allocate_array(cutlass.Int64, design.steps)
    memory = smem.allocate(design.staged_bytes, 128)
    _begin_copies(source, row, count, memory, barriers, design)
    thread, _, _ = cute.arch.thread_idx()
    layout = cute.make_layout(((1, elements), design.steps), stride=((0, 1), design.block_threads * elements))
    own = cute.recast_ptr(memory, dtype=dtype) + thread * elements
    return KeptRow(cute.make_tensor(own, layout), barriers)


def wait_for(row: KeptRow, step: int) -> None:
    """Wait until the vectors of a step are there, before they are read for the first time."""
    if row.barriers is not None:
        cute.arch.mbarrier_wait(row.barriers + step, 0)


def keep_packed(row: KeptRow) -> None:
    """Have the code after this convert a row's vectors to f32 anew, as :func:`.vectors.keep_packed`."""
    if row.barriers is None:
        vectors.keep_packed(row.vectors)
    else:
        # Behind it the compiler reads shared memory again.
        cute.arch.sync_warp()

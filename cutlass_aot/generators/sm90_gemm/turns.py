"""Two warp groups that take turns (ping-pong): one multiplies while the other stores what it has.

Each begins its main loop when the other has seen the last stage of its own. Without, a warp group could wait
for a stage that was not yet filled for the other: a barrier tells one filling from the next, not from the
second.
Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot.generators.sm90_gemm.plan import THREADS

FIRST_BARRIER = 5
"""Named barrier by which the first warp group waits; the second has the next one."""


@cute.jit  # type: ignore[untyped-decorator]
def begin_turns(turn: Any) -> None:
    """Let the first warp group begin. ``turn`` is the number of this one, 0 or 1."""
    if turn == 1:
        end_turn(turn)


def wait_for_turn(turn: Any) -> None:
    """Wait until the other warp group has ended its turn."""
    cute.arch.barrier(barrier_id=FIRST_BARRIER + turn, number_of_threads=2 * THREADS)


def end_turn(turn: Any) -> None:
    """Let the other warp group begin."""
    other = cutlass.Int32(FIRST_BARRIER + 1) - turn
    cute.arch.barrier_arrive(barrier_id=other, number_of_threads=2 * THREADS)

"""Designs of kernels that reduce rows: the threads of a row, and the vectors that each of them keeps.

A design is a pair: threads of a row, and vectors of eight elements that a thread keeps in registers. Each
computes rows of any length; the cost formula takes one that keeps the whole row, with few threads and many
loads each where there are many rows, and with many threads where there are few.
"""

from __future__ import annotations

WARP = 32
ELEMENTS = 8
"""Elements of a vector of 16 bytes, of 16 bits each."""

BLOCK_THREADS = 128
"""Least threads of a block: those of several rows where a row has few."""

DESIGNS = ((16, 1), (32, 4), (128, 4), (256, 4), (512, 2), (512, 4), (1024, 4))
"""Threads of a row, and vectors that a thread keeps: up to 32,768 elements."""

SMALLER_DESIGNS = DESIGNS[:-1]
"""Those for kernels that read a residual too, for which 1024 threads have too few registers."""



def cost(n: str) -> str:
    """The cost formula, with the number of elements of a row by its name or a formula.

    Clock cycles, roughly: the waves of blocks that fit on the GPU, by registers, times the time of one, in
    which a vector beyond those that are kept waits for memory once more, and the cycles to issue
    instructions. The bytes to move are the same for each design.
    """
    vectors = f"ceil({n} / {ELEMENTS} / row_0)"
    return (
        "ceil(T / sm_count / minimum(2048, 65536 / (32 + 10 * row_1)) * row_0)"
        f" * (1500 + 60 * {vectors} + 1500 * maximum(0, {vectors} - row_1))"
        " + T / sm_count * row_0 / 128 * (60 + 60 * row_1)"
    )


def design_for(n: int) -> tuple[int, int]:
    """The design for rows of a length that is compiled in: the first that keeps them, or the largest."""
    fits = [design for design in DESIGNS if design[0] * design[1] * ELEMENTS >= n]
    return fits[0] if fits else DESIGNS[-1]

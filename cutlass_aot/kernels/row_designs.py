"""Designs of kernels that reduce rows: the threads of a row, and the vectors that each of them keeps.

A design is a pair: threads of a row, and vectors of eight elements that a thread keeps in registers. Each
computes rows of any length; the cost formula takes one that keeps the whole row, with few threads and many
loads each where there are many rows, and with many threads where there are few.
"""

from __future__ import annotations

from collections.abc import Mapping

from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.targets import Target

WARP = 32
ELEMENTS = 8
"""Elements of a vector of 16 bytes, of 16 bits each."""

BLOCK_THREADS = 128
"""Least threads of a block: those of several rows where a row has few."""

MOST_BLOCK_THREADS = 512
"""Most threads of a block: a row of more threads has several blocks, which are a cluster."""

DESIGNS = ((256, 4), (16, 1), (32, 4), (128, 4), (512, 2), (512, 4), (1024, 4))
"""Threads of a row, and vectors that a thread keeps: up to 32,768 elements. The first is what a program under
policy ``jit`` compiles."""

LONGER_DESIGNS = (*DESIGNS, (2048, 4), (4096, 4), (4096, 8))
"""Those for rows as long as a vocabulary: up to 262,144 elements, in a cluster of up to eight blocks."""


def available(target: str, values: Mapping[str, DesignValue]) -> bool:
    """Whether a target has a design: clusters are there from compute capability 9.0 on.

    Source: CUDA Programming Guide, "Thread Block Clusters".
    """
    row = values["row"]
    return Target.parse(target).major >= 9 or (isinstance(row, tuple) and row[0] <= MOST_BLOCK_THREADS)


def cost(n: str) -> str:
    """The cost formula, with the number of elements of a row by its name or a formula.

    Clock cycles, roughly. First the waves of blocks that fit on the GPU, by registers, times the time of one:
    the latency of memory, a little for each vector of a thread and for each warp of a row, that of a cluster
    where there is one, and the latency of memory once more for each vector beyond those that are kept. Then
    the time to move the bytes, 20 in a cycle for each multiprocessor, or to issue the instructions, whichever
    is longer.
    """
    vectors = f"ceil({n} / {ELEMENTS} / row_0)"
    beyond = f"maximum(0, {vectors} - row_1)"
    return (
        "ceil(T / sm_count / minimum(2048, 65536 / (32 + 10 * row_1)) * row_0)"
        f" * (1500 + 60 * {vectors} + row_0 / 8 + 1500 * {beyond}"
        f" + 600 * minimum(1, maximum(0, row_0 / {MOST_BLOCK_THREADS} - 1)))"
        f" + T / sm_count * maximum({n} / 5 + row_0 * {beyond},"
        f" row_0 / 128 * (80 + 80 * row_1 + 200 * {beyond}))"
    )


def design_for(n: int) -> tuple[int, int]:
    """The design for rows of a length that is compiled in: the least that keeps them, or the largest."""
    fits = [(threads * held, threads, held) for threads, held in DESIGNS if threads * held * ELEMENTS >= n]
    return min(fits)[1:] if fits else DESIGNS[-1]

"""Designs of kernels that reduce rows: the threads of a row, and the vectors that each of them keeps.

``row`` is a pair: threads of a row, and vectors of eight elements that a thread keeps. ``staged`` says where:
in registers, or in shared memory, to which bulk copies bring them. Registers are faster where there are few
rows, since nothing lies between memory and them. Shared memory is faster where there are many: more of them
are on their way at once, 128 to 192 KB on an SM where registers take 64.

Each design computes rows of any length. The cost formula takes one that keeps the whole row, or most of it,
with few threads and many loads each where there are many rows, and with many threads where there are few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.targets import HARDWARE, Target

MODULES = tuple(
    f"cutlass_aot.kernels.{name}"
    for name in ("kept_rows", "row_designs", "row_reductions", "row_weights", "rows", "vectors")
)
"""Modules that decide the code of a kernel of these designs, beside its own."""

WARP = 32
ELEMENTS = 8
"""Elements of a vector of 16 bytes, of 16 bits each."""

VECTOR_BYTES = 16

BLOCK_THREADS = 128
"""Least threads of a block: those of several rows where a row has few."""

MOST_BLOCK_THREADS = 512
"""Most threads of a block: a row of more threads has several blocks, which are a cluster."""

SM_REGISTERS, SM_SHARED_BYTES = 65536, 228 * 1024
"""Registers and shared memory of an SM that staged designs are made for: those of compute capability 9.0.
Source: CUDA Programming Guide, "Technical Specifications per Compute Capability"."""

IN_REGISTERS = (
    (256, 4),
    (16, 1),
    (32, 4),
    *((128, vectors) for vectors in (2, 3, 4, 6)),
    *((256, vectors) for vectors in (3, 6)),
    (512, 2),
    (512, 4),
    (1024, 4),
)
"""Designs that keep a row in registers: up to 32,768 elements. The first is what a program under policy
``jit`` compiles."""

STAGED = ((256, 8), (512, 8))
"""Designs that keep a row in shared memory: up to 32,768 elements."""

LONGER_IN_REGISTERS = ((2048, 4), (4096, 4))
LONGER_STAGED = ((1024, 8), (2048, 8), (4096, 8))
"""Those for rows as long as a vocabulary: up to 262,144 elements, in a cluster of up to eight blocks."""

DESIGNS: Mapping[str, tuple[DesignValue, ...]] = {
    "row": (*IN_REGISTERS, *STAGED),
    "staged": (False, True),
}
"""Parameters of tuning, with their values; :func:`available` says which go together."""

LONGER_DESIGNS: Mapping[str, tuple[DesignValue, ...]] = {
    "row": (*IN_REGISTERS, *LONGER_IN_REGISTERS, *STAGED, *LONGER_STAGED),
    "staged": (False, True),
}
"""The same for rows as long as a vocabulary."""


@dataclass(frozen=True)
class RowDesign:
    """A design for an element type.

    Attributes:
        threads: of a row.
        steps: vectors of 16 bytes that a thread keeps.
        staged: whether it keeps them in shared memory.
    """

    threads: int
    steps: int
    staged: bool

    @property
    def blocks(self) -> int:
        """Blocks of a row: one, or those of a cluster."""
        return max(1, self.threads // MOST_BLOCK_THREADS)

    @property
    def block_threads(self) -> int:
        """Threads of a block."""
        return max(BLOCK_THREADS, self.threads // self.blocks)

    @property
    def staged_bytes(self) -> int:
        """Bytes of a row that a block keeps in shared memory."""
        return VECTOR_BYTES * self.block_threads * self.steps if self.staged else 0

    @property
    def streamed(self) -> bool:
        """Whether loads into registers take no room in the L1 cache.

        Designs of many threads are for few rows. On an H200, RMSNorm of 64 rows of 7,168 takes 4.8 µs so
        and 5.3 µs otherwise; of 65,536 rows, with fewer threads each, it takes up to 6% longer so
        (docs/results/kernels.md).
        """
        return self.threads >= MOST_BLOCK_THREADS

    def resident_blocks(self, registers: int, rows: int) -> int:
        """Blocks that an SM has room for, by its registers and its shared memory.

        Args:
            registers: of a thread.
            rows: that a block keeps.
        """
        # Beside rows, a block has barriers, numbers that its warps share, and 1,024 bytes of the system's.
        bytes_of_block = rows * self.staged_bytes + 2048
        return min(SM_REGISTERS // (registers * self.block_threads), SM_SHARED_BYTES // bytes_of_block)


def available(target: str, values: Mapping[str, DesignValue]) -> bool:
    """Whether a target has a design.

    Clusters and bulk copies are there from compute capability 9.0 on. GPUs of 12.0 and 12.1 have too little
    shared memory. Source: CUDA Programming Guide, "Thread Block Clusters" and "Asynchronous Data Copies".
    """
    row, modern = values["row"], Target.parse(target).major >= 9
    if values["staged"]:
        fits = modern and HARDWARE[target].sm.shared_bytes >= SM_SHARED_BYTES
        return fits and row in (*STAGED, *LONGER_STAGED)
    if row not in (*IN_REGISTERS, *LONGER_IN_REGISTERS):
        return False
    return modern or (isinstance(row, tuple) and row[0] <= MOST_BLOCK_THREADS)


def cost(n: str, moved: str) -> str:
    """The cost formula, in clock cycles; ``row_0`` and ``row_1`` in it are the two numbers of ``row``.

    First the waves of blocks, times what another wave takes: the latency of memory as far as other rows do
    not hide it, a little for each vector of a thread and for each thread of a row, the vectors that are read
    again, and the latency of shared memory for a staged design. Then the longer of two times for the rows of
    an SM: to move their bytes, or to begin and end them as many at a time as there is room for and to read
    again what is not kept. That is where staged designs are ahead, the more the faster the memory is.

    The constants were fitted to times of six kernels with bf16 on an H100 and an H200, with 16 to 16,384 rows
    of 384 to 201,088 elements, so that what is taken needs 1.008 to 1.017 times as long as the fastest. The
    room on an SM was fitted too: threads of a staged design count as if they had 35 registers.
    ``tools/bench/gpu.py --part designs`` prints how much longer than the fastest the chosen design takes.
    Shorter rows and kernels with f32 were not measured.

    Args:
        n: the number of elements of a row, by its name or a formula.
        moved: bytes that are read and written for an element of 16 bits.
    """
    vectors = f"ceil({n} / {ELEMENTS} / row_0)"
    beyond = f"maximum(0, {vectors} - row_1)"
    resident = f"minimum(2048, {SM_REGISTERS} / (35 * staged + (16 + 10 * row_1) * (1 - staged)))"
    return (
        f"ceil(T / sm_count / {resident} * row_0)"
        f" * (820 + 23 * {vectors} + row_0 / 12 + 640 * {beyond} + 1620 * staged)"
        f" + T / sm_count * maximum("
        f"({moved}) * {n} * sm_count * sm_mhz / memory_bandwidth / 1000,"
        f" (5400 + 10800 * staged) * row_0 / {resident} + 3.3 * row_0 * {beyond})"
    )


def design_for(n: int) -> tuple[int, int]:
    """The design in registers for rows of a length that is compiled in: the least that keeps them."""
    return min(
        ((threads, held) for threads, held in IN_REGISTERS if threads * held * ELEMENTS >= n),
        key=lambda row: row[0] * row[1],
        default=IN_REGISTERS[-1],
    )

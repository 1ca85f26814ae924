"""How many blocks of a kernel an SM holds at once, and what limits them: the arithmetic of the CUDA occupancy
calculator.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": registers are given to
warps in units of 256 (8 a thread), to a multiple of four warps an SM, and each block takes 1 KB of shared
memory beside its own.
"""

from __future__ import annotations

from typing import NamedTuple

from cutlass_aot.schema.targets import Target

WARP = 32
REGISTERS = 65536
"""Registers of an SM, and the most of a block, for every target."""

BLOCK_THREADS = 1024
"""Most threads of a block, for every target."""

_REGISTER_UNIT = 256
_WARP_UNIT = 4
_RESERVED_BYTES = 1024


class Limits(NamedTuple):
    """Of an SM: the most threads and blocks at once, and its shared memory in bytes."""

    threads: int
    blocks: int
    shared_bytes: int

    @property
    def block_bytes(self) -> int:
        """Most shared memory of one block."""
        return self.shared_bytes - _RESERVED_BYTES


_LIMITS = {
    (8, 0): Limits(2048, 32, 164 << 10),
    (8, 6): Limits(1536, 16, 100 << 10),
    (8, 9): Limits(1536, 24, 100 << 10),
    (9, 0): Limits(2048, 32, 228 << 10),
    (10, 0): Limits(2048, 32, 228 << 10),
    (10, 3): Limits(2048, 32, 228 << 10),
    (12, 0): Limits(1536, 24, 100 << 10),
}


class Occupancy(NamedTuple):
    """How much of an SM a kernel fills.

    Attributes:
        blocks: that an SM holds at once; 0 if not even one can be launched.
        warps: of those blocks.
        most_warps: that an SM can hold.
        limit: what allows no more blocks: ``threads``, ``blocks``, ``registers`` or ``shared memory``.
    """

    blocks: int
    warps: int
    most_warps: int
    limit: str


def limits_of(target: str) -> Limits | None:
    """The limits of the GPUs that a target is for; None if they are not known."""
    parsed = Target.parse(target)
    return _LIMITS.get((parsed.major, parsed.minor))


def occupancy(limits: Limits, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """The occupancy by threads and shared memory of a block, and registers of a thread."""
    warps = -(-threads // WARP)
    a_warp = -(-registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    by_registers = REGISTERS // max(a_warp, 1) // _WARP_UNIT * _WARP_UNIT // warps
    counts = {
        "threads": limits.threads // WARP // warps,
        "blocks": limits.blocks,
        "registers": by_registers,
        "shared memory": limits.shared_bytes // (shared_bytes + _RESERVED_BYTES),
    }
    if threads > BLOCK_THREADS:
        counts["threads"] = 0
    limit = min(counts, key=counts.__getitem__)
    return Occupancy(counts[limit], counts[limit] * warps, limits.threads // WARP, limit)

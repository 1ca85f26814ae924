"""How many blocks of a kernel an SM holds at once, and what limits them: the arithmetic of the CUDA occupancy
calculator.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": registers are given to
warps in units of 256 (8 a thread), to a multiple of four warps an SM, and each block takes 1 KB of shared
memory beside its own.
"""

from __future__ import annotations

from typing import NamedTuple

from cutlass_aot.schema.targets import HARDWARE, RESERVED_BYTES, Multiprocessor

WARP = 32
REGISTERS = 65536
"""Registers of an SM, and the most of a block, for every target."""

BLOCK_THREADS = 1024
"""Most threads of a block, for every target."""

_REGISTER_UNIT = 256
_WARP_UNIT = 4


class Occupancy(NamedTuple):
    """How much of an SM a kernel fills.

    Attributes:
        blocks: that an SM holds at once; 0 if not even one can be launched.
        warps: of those blocks.
        most_warps: that an SM can hold.
        limit: what allows no more blocks: ``threads``, ``blocks``, ``registers``, ``shared memory``; equals
            with ``and`` between them.
    """

    blocks: int
    warps: int
    most_warps: int
    limit: str


def limits_of(target: str) -> Multiprocessor | None:
    """The limits of the GPUs that a target is for; None if they are not known."""
    hardware = HARDWARE.get(target)
    return hardware.sm if hardware else None


def occupancy(limits: Multiprocessor, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """The occupancy by threads and shared memory of a block, and registers of a thread."""
    warps = -(-threads // WARP)
    a_warp = -(-registers * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    by_registers = REGISTERS // max(a_warp, 1) // _WARP_UNIT * _WARP_UNIT // warps
    counts = {
        "threads": limits.threads // WARP // warps,
        "blocks": limits.blocks,
        "registers": by_registers,
        "shared memory": limits.shared_bytes // (shared_bytes + RESERVED_BYTES),
    }
    if threads > BLOCK_THREADS:
        counts["threads"] = 0
    blocks = min(counts.values())
    limit = " and ".join(name for name, count in counts.items() if count == blocks)
    return Occupancy(blocks, blocks * warps, limits.threads // WARP, limit)

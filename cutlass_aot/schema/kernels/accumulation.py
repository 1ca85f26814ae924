"""How sums are added up: exactly, or faster, with fewer bits than the accumulator has.

The words are torch's: ``use_fast_accum`` of ``torch._scaled_mm``.
"""

from typing import Final, Literal

RequestedAccumulation = Literal["exact", "fast"]
"""What a caller or a manifest asks for."""

Accumulation = Literal["", "exact", "fast"]
"""What a kernel does; ``""`` where its computation has one kind of kernels, which no caller tells apart."""

EXACT: Final = "exact"
FAST: Final = "fast"
ACCUMULATIONS: tuple[RequestedAccumulation, ...] = (EXACT, FAST)

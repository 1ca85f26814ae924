"""What the parameters of a forward convolution mean, as plain numbers. It imports no DSL."""

from __future__ import annotations

from dataclasses import dataclass

WARP = 32
ELEMENT_BYTES = 2
"""Of activations, filters and output: f16 or bf16."""
VECTOR = 8
"""Elements that are stored at once: 16 bytes."""
ALIGNMENT = 1024
"""Bytes; the ring of stages begins at a multiple, as the 128-byte swizzle repeats."""

SHARED_BYTES = 228 * 1024
"""Shared memory of a multiprocessor of compute capability 9.0 or 10.x. Source: CUDA Programming Guide."""
RESERVED_BYTES = 1024
"""Of these, what the system keeps for each block that runs there. Source: as above."""
FRONT_BYTES = 2048
"""Of shared memory before the ring: barriers, and where each pixel of a tile lies in the output."""
MOST_STAGES = 12
LEAST_STAGES = 3
"""Of a ring: one that is taken out of, one that is let go of, one that is loaded into."""
MOST_SUMS = 2 * 128 * 128
"""Of the tiles of all blocks on a multiprocessor: half of its registers, or of its tensor memory."""

LEAST_CORNER = -128
"""Of a tensor map's pixel box with two spatial modes. Source: CUDA driver API, cuTensorMapEncodeIm2col."""
MOST_OFFSET = 255
"""Of a filter tap from the pixel, with two spatial modes. Source: PTX ISA, im2col mode of tensor copies."""
MOST_TRAVERSAL_STRIDE = 8
"""Source: CUDA driver API, cuTensorMapEncodeIm2col, elementStrides."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """One forward convolution, as far as it is compiled in. Pairs are those of H, then of W.

    Attributes:
        filter: rows and columns of the filter, R and S.
        stride: pixels from one output to the next.
        padding: zeros around the image, on each side.
        dilation: pixels from one tap of the filter to the next.
        tile: output pixels, filters, and channels that a block takes in one step.
        blocks: that share a multiprocessor, so that one loads or stores while another computes.
    """

    filter: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    tile: tuple[int, int, int]
    blocks: int

    @property
    def reach(self) -> tuple[int, int]:
        """Pixels from the first tap to the last."""
        return (self.filter[0] - 1) * self.dilation[0], (self.filter[1] - 1) * self.dilation[1]

    @property
    def is_possible(self) -> bool:
        """Whether each output has a tap in the padded image, a tensor map can say so, and blocks fit."""
        return (
            all(
                0 <= padding <= min(reach, -LEAST_CORNER)
                and reach - padding <= -LEAST_CORNER
                and reach <= MOST_OFFSET
                and 1 <= stride <= MOST_TRAVERSAL_STRIDE
                for padding, reach, stride in zip(self.padding, self.reach, self.stride, strict=True)
            )
            and self.blocks * self.tile[0] * self.tile[1] <= MOST_SUMS
            and self.stages >= LEAST_STAGES
            and self.ring_bytes <= self.capacity
        )

    @property
    def stage_bytes(self) -> int:
        """Of one stage of the ring: channels of one tap, for all pixels and all filters of a tile."""
        pixels, filters, channels = self.tile
        return (pixels + filters) * channels * ELEMENT_BYTES

    @property
    def capacity(self) -> int:
        """Bytes of shared memory for the ring of one block."""
        return SHARED_BYTES // self.blocks - RESERVED_BYTES - FRONT_BYTES

    @property
    def stages(self) -> int:
        """As many as there is room for."""
        return min(MOST_STAGES, self.capacity // self.stage_bytes)

    @property
    def staged_stride(self) -> int:
        """Elements from one pixel of the tile of results to the next, padded against bank conflicts."""
        return self.tile[1] + VECTOR

    @property
    def ring_bytes(self) -> int:
        """Of the ring, in which the tile of results comes to lie later."""
        return max(self.stages * self.stage_bytes, self.tile[0] * self.staged_stride * ELEMENT_BYTES)

    def outputs(self, height: int, width: int) -> tuple[int, int]:
        """P and Q, the extents of the output, for an image of these extents."""
        rows, columns = (
            (extent + 2 * padding - reach - 1) // stride + 1
            for extent, padding, reach, stride in zip(
                (height, width), self.padding, self.reach, self.stride, strict=True
            )
        )
        return rows, columns

"""Forward convolution, declared. What it computes is in ``conv2d_fprop_kernel``."""

from __future__ import annotations

from functools import partial
from typing import Any

from cutlass_aot.kernels.conv2d_fprop_plan import ELEMENT_BYTES, VECTOR, Convolution
from cutlass_aot.runtime.declared import kernel
from cutlass_aot.schema.kernels.declaration import Operand
from cutlass_aot.schema.targets import targets_with

Pair = tuple[int, int]


@kernel(
    name="conv2d_fprop",
    params={
        "filter": [(1, 1), (3, 3), (5, 5), (7, 7)],
        "stride": [(1, 1), (2, 2)],
        "padding": [(0, 0), (1, 1), (2, 2), (3, 3)],
        "dilation": [(1, 1), (2, 2)],
        "dtype": ["bf16", "f16"],
        "tile_shape": [(128, 64, 16), (128, 64, 64), (128, 128, 64), (128, 256, 64)],
        "blocks_per_sm": [1, 2, 3],
    },
    targets=[*targets_with("wgmma"), *targets_with("tcgen05")],
    modules=[
        "cutlass_aot.kernels.conv2d_fprop_kernel",
        "cutlass_aot.kernels.conv2d_fprop_plan",
        "cutlass_aot.kernels.conv2d_fprop_sm90",
        "cutlass_aot.kernels.conv2d_fprop_sm100",
        "cutlass_aot.kernels.conv2d_fprop_tiles",
    ],
)
def conv2d_fprop(
    filter: Pair,
    stride: Pair,
    padding: Pair,
    dilation: Pair,
    dtype: str,
    tile_shape: tuple[int, int, int],
    blocks_per_sm: int,
) -> Any:
    """The convolution of a batch of images, (N, H, W, C), with filters, (K, R, S, C): out is (N, P, Q, K).

    Pairs are those of H, then of W. P is (H + 2 padding - dilation (R - 1) - 1) / stride + 1, rounded down,
    and Q likewise; the launch refuses an output of other extents. There is no kernel with more padding than
    the filter reaches, and none that dilates a single tap.

    Args:
        filter: R and S.
        stride: pixels from one output to the next.
        padding: zeros around the image, on each side.
        dilation: pixels from one tap to the next.
        dtype: of all operands: ``bf16`` or ``f16``; sums are f32.
        tile_shape: output pixels, filters, and channels of a step; 16 channels are for images with few.
        blocks_per_sm: blocks that a multiprocessor has room for: one with a deep pipeline, or several that
            overlap.
    """
    convolution = Convolution(filter, stride, padding, dilation, tile_shape, blocks_per_sm)
    if not convolution.is_possible or (filter == (1, 1) and dilation != (1, 1)):
        return None
    from cutlass_aot.kernels.conv2d_fprop_kernel import conv2d_fprop

    operand = partial(Operand, dtype=dtype, alignment=VECTOR * ELEMENT_BYTES, divisibility=VECTOR)
    return (
        conv2d_fprop,
        [
            operand("x", extents=("N", "H", "W", "C")),
            operand("filter", extents=("K", *filter, "C")),
            operand("out", extents=("N", "P", "Q", "K"), written=True),
        ],
        (convolution,),
    )

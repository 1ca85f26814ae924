"""Forward convolution as an implicit GEMM, in CuTe DSL. It imports the DSL.

    out[n, p, q, k] = sum over r, s, c of
        x[n, p * stride + r * dilation - padding, q * stride + s * dilation - padding, c] * filter[k, r, s, c]

in f32, rounded once; pixels outside of the image are zero. As a GEMM its rows are the output's pixels
(n, p, q), its columns the filters, and its depth is (r, s, c). The matrix of rows and depth exists nowhere:
for each tap (r, s) and some of the channels, TMA's im2col mode reads the pixels that a tile of outputs needs
from the image into shared memory, padding included. docs/internals/convolution.md says how that works.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.base_dsl import Arch
from cutlass.cutlass_dsl import CuTeDSL

from cutlass_aot.kernels import conv2d_fprop_sm90 as sm90
from cutlass_aot.kernels import conv2d_fprop_sm100 as sm100

MOST_PIXELS = 2**31 - 1024
"""Output pixels of a call: they are numbered with 32 bits, and the last tile reaches beyond them."""


@cute.jit  # type: ignore[untyped-decorator]
def conv2d_fprop(
    x: cute.Tensor, filter: cute.Tensor, out: cute.Tensor, convolution: cutlass.Constexpr, stream: Any
) -> None:
    """Launch the kernel.

    An output of other extents than the formula gives is refused by a grid of no blocks, which CUDA answers
    with "invalid argument": code of ours has no other way to raise an error.

    Args:
        x: (N, H, W, C), f16 or bf16.
        filter: (K, R, S, C), like x.
        out: (N, P, Q, K), like x.
        convolution: a :class:`~cutlass_aot.kernels.conv2d_fprop_plan.Convolution`.
        stream: CUDA stream.
    """
    images, height, width, _ = x.shape
    _, rows, columns, filters = out.shape
    tile_pixels, tile_filters, _ = convolution.tile

    # Modes from the inside: ((W, H, N), C), (K, (C, S, R)), ((Q, P, N), K).
    pixels = cute.make_tensor(x.iterator, cute.select(x.layout, [2, 1, 0, 3]))
    pixels = cute.group_modes(pixels, 0, 3)
    taps = cute.make_tensor(filter.iterator, cute.select(filter.layout, [0, 3, 2, 1]))
    taps = cute.group_modes(taps, 1, 4)
    results = cute.make_tensor(out.iterator, cute.select(out.layout, [2, 1, 0, 3]))
    results = cute.group_modes(results, 0, 3)

    expected_rows, expected_columns = convolution.outputs(height, width)
    reach_rows, reach_columns = convolution.reach
    padded_rows, padded_columns = height + 2 * convolution.padding[0], width + 2 * convolution.padding[1]
    # Without the second line, one pixel too few would be an output if the division rounds towards zero.
    is_right = (rows == expected_rows) & (columns == expected_columns)
    is_right = is_right & (padded_rows > reach_rows) & (padded_columns > reach_columns)
    is_right = is_right & (cutlass.Int64(images) * rows * columns <= MOST_PIXELS)
    tiles = cute.ceil_div(images * rows * columns, tile_pixels) * cute.ceil_div(filters, tile_filters)
    blocks = tiles if is_right else cutlass.Int32(0)

    # What is compiled for, as operations of the DSL ask for it: it is not a parameter of a declared kernel.
    arch = CuTeDSL._get_dsl().get_arch_enum()
    if cutlass.const_expr(arch.major == Arch.sm_90.major):
        sm90.launch(pixels, taps, results, blocks, convolution, stream)
    else:
        sm100.launch(pixels, taps, results, blocks, convolution, stream)

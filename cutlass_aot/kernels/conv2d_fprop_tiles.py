"""Loads and stores of a forward convolution's tiles, on whatever tensor cores. It imports the DSL."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.utils import LayoutEnum
from cutlass.utils import hopper_helpers as hopper

from cutlass_aot.kernels.conv2d_fprop_plan import VECTOR


def shared_layout(dtype: Any, rows: int, convolution: Any) -> Any:
    """Layout of the ring of one operand in shared memory: rows, channels, stages; swizzled as TMA does.

    The tensor cores of SM90 and of SM100 read the same swizzles.
    """
    channels = convolution.tile[2]
    kind = hopper.get_smem_layout_atom(LayoutEnum.ROW_MAJOR, dtype, channels)
    atom = warpgroup.make_smem_layout_atom(kind, dtype)
    return cute.tile_to_shape(atom, (rows, channels, convolution.stages), (0, 1, 2))


def im2col_load(pixels: Any, convolution: Any) -> tuple[Any, Any]:
    """TMA's im2col load of activations.

    The box's corners bound the pixels that the first tap meets; each tap is an offset from there.

    Args:
        pixels: ((W, H, N), C).
        convolution: the geometry.

    Returns:
        The copy atom, and its tensor (output pixels, (C, S, R)) of TMA coordinates.
    """
    (stride_h, stride_w), (padding_h, padding_w) = convolution.stride, convolution.padding
    (dilation_h, dilation_w), (reach_h, reach_w) = convolution.dilation, convolution.reach
    tile_pixels, _, tile_channels = convolution.tile
    ring = shared_layout(pixels.element_type, tile_pixels, convolution)
    atom, tensor = cpasync.make_im2col_tma_atom(
        cpasync.CopyBulkTensorIm2ColG2SOp(),
        pixels,
        cute.slice_(ring, (None, None, 0)),
        (tile_pixels, (tile_channels,)),
        lower_corner_whd=(-padding_w, -padding_h),
        upper_corner_whd=(padding_w - reach_w, padding_h - reach_h),
        lower_padding_whd=(padding_w, padding_h),
        upper_padding_whd=(padding_w, padding_h),
        stride_whd=(stride_w, stride_h),
        lower_srt=(0, 0),
        stride_srt=(dilation_w, dilation_h),
    )
    return atom, tensor


def filter_load(taps: Any, convolution: Any) -> tuple[Any, Any]:
    """TMA's load of filters: channels beyond the last one of a tap are zero, and not the next tap's.

    Args:
        taps: (K, (C, S, R)).
        convolution: the geometry.

    Returns:
        The copy atom, and its tensor (K, (C, S, R)) of TMA coordinates.
    """
    _, tile_filters, tile_channels = convolution.tile
    ring = shared_layout(taps.element_type, tile_filters, convolution)
    atom, tensor = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SOp(),
        taps,
        cute.slice_(ring, (None, None, 0)),
        (tile_filters, (tile_channels,)),
    )
    return atom, tensor


@cute.jit  # type: ignore[untyped-decorator]
def im2col_tiles(tensor: Any, tile_row: Any, convolution: cutlass.Constexpr) -> Any:
    """What is loaded for one tile of output pixels: (pixels, channels, (steps of channels, S, R)).

    TMA itself counts on from a tile's first pixel, to the next row and the next image. That one is worked out
    here, once, since its two divisions take longer than a load.

    Args:
        tensor: (output pixels, (C, S, R)) of TMA coordinates, which takes the number of a pixel apart.
        tile_row: number of the tile.
        convolution: the geometry.
    """
    tile_pixels, _, tile_channels = convolution.tile
    by_modes = tensor.layout.inner
    (columns, rows, _), (channels, *taps) = by_modes.shape
    (along_columns, _, _), (along_channels, *along_taps) = by_modes.stride
    pixel = tile_row * tile_pixels
    first = (pixel % columns, pixel // columns % rows, pixel // columns // rows)
    start = cute.domain_offset((first, (0, 0, 0)), cute.make_tensor(tensor.iterator, by_modes))
    return cute.make_tensor(
        start.iterator,
        cute.make_layout(
            (tile_pixels, tile_channels, (cute.ceil_div(channels, tile_channels), *taps)),
            stride=(along_columns, along_channels, (tile_channels * along_channels, *along_taps)),
        ),
    )


@cute.jit  # type: ignore[untyped-decorator]
def load_tiles(
    load_a: Any,
    tiles_a: Any,
    shared_a: Any,
    load_b: Any,
    tiles_b: Any,
    shared_b: Any,
    full: Any,
    empty: Any,
    convolution: cutlass.Constexpr,
) -> None:
    """What the loading warp does: fill the ring, a step at a time, as stages become empty.

    Args:
        load_a: TMA atom of the activations.
        tiles_a: (pixels, channels, steps) of TMA coordinates; steps run over channels, then S, then R.
        shared_a: (pixels, channels, stages) in shared memory.
        load_b: TMA atom of the filters.
        tiles_b: as ``tiles_a``.
        shared_b: as ``shared_a``.
        full: barriers, one a stage.
        empty: likewise.
        convolution: the geometry.
    """
    to_a, from_a = cpasync.tma_partition(
        load_a, 0, cute.make_layout(1), cute.group_modes(shared_a, 0, 2), cute.group_modes(tiles_a, 0, 2)
    )
    to_b, from_b = cpasync.tma_partition(
        load_b, 0, cute.make_layout(1), cute.group_modes(shared_b, 0, 2), cute.group_modes(tiles_b, 0, 2)
    )
    stage = cutlass.Int32(0)
    phase = cutlass.Int32(1)
    # Counted mode by mode: to take a number of all steps apart takes longer than to load what it stands for.
    rows, columns = convolution.filter
    for r in cutlass.range(rows, unroll=1):
        for s in cutlass.range(columns, unroll=1):
            for c in cutlass.range(cute.size(tiles_a, mode=[2, 0]), unroll=1):
                cute.arch.mbarrier_wait(empty + stage, phase)
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full + stage, convolution.stage_bytes)
                at = (None, (c, s, r))
                cute.copy(load_a, from_a[at], to_a[None, stage], tma_bar_ptr=full + stage)
                cute.copy(load_b, from_b[at], to_b[None, stage], tma_bar_ptr=full + stage)
                stage += 1
                if stage == convolution.stages:
                    stage = cutlass.Int32(0)
                    phase = phase ^ 1


@cute.jit  # type: ignore[untyped-decorator]
def find_pixels(
    places: Any, results: Any, tile_row: Any, thread: Any, convolution: cutlass.Constexpr
) -> None:
    """Note where in the output each pixel of a tile lies, one a thread, while the first loads are under way.

    Args:
        places: of shared memory, 64 bits a pixel: offsets in elements, or below zero for one beyond the last.
        results: ((Q, P, N), K), the output.
        tile_row: number of the tile along the pixels.
        thread: this one.
        convolution: the geometry.
    """
    tile_pixels, _, _ = convolution.tile
    if thread < tile_pixels:
        pixel = tile_row * tile_pixels + thread
        place = cutlass.Int64(-1)
        if pixel < cute.size(results, mode=[0]):
            place = cutlass.Int64(cute.crd2idx((pixel, 0), results.layout))
        places[thread] = place


@cute.jit  # type: ignore[untyped-decorator]
def store_tile(
    staged: Any,
    places: Any,
    results: Any,
    tile_column: Any,
    thread: Any,
    threads: cutlass.Constexpr,
    convolution: cutlass.Constexpr,
) -> None:
    """Store a tile of results from shared memory, 16 bytes a thread, as far as it lies within the output.

    Args:
        staged: pointer to it, pixel by pixel.
        places: what :func:`find_pixels` noted.
        results: ((Q, P, N), K), the output.
        tile_column: number of the tile along the filters.
        thread: this one.
        threads: that take part.
        convolution: the geometry.
    """
    tile_pixels, tile_filters, _ = convolution.tile
    filters = cute.size(results, mode=[1])
    a_pixel = tile_filters // VECTOR
    for turn in cutlass.range(tile_pixels * a_pixel // threads, unroll=4):
        vector = turn * threads + thread
        line = vector // a_pixel
        within = vector % a_pixel * VECTOR
        column = tile_column * tile_filters + within
        place = places[line]
        if (place >= 0) & (column < filters):
            read = cute.make_rmem_tensor(VECTOR, results.element_type)
            offset = cute.assume(line * convolution.staged_stride + within, divby=VECTOR)
            cute.autovec_copy(cute.make_tensor(staged + offset, cute.make_layout(VECTOR)), read)
            to = cute.assume(place + column, divby=VECTOR)
            cute.autovec_copy(read, cute.make_tensor(results.iterator + to, cute.make_layout(VECTOR)))

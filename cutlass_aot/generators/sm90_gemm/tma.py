"""An operand's tiles in shared memory: how they lie there, and the TMA loads that bring them.

Import it inside a worker only: it imports the DSL.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.utils import hopper_helpers as hopper

from cutlass_aot.generators.sm90_gemm.plan import whole_groups


def shared_layout(major: Any, dtype: Any, tile: tuple[int, int], stages: int | None) -> Any:
    """Layout of an operand's tile in shared memory, swizzled as TMA writes and WGMMA reads it.

    Args:
        major: layout of the operand, by its non-contracted mode and K.
        dtype: element type.
        tile: its extents.
        stages: of them, in a third mode; None for one tile without it.
    """
    # The depth of a tile has whole lines of 128 bytes; along the other mode a line is what fits.
    along_k = major.sm90_mma_major_mode() == cute.nvgpu.OperandMajorMode.K
    atom = warpgroup.make_smem_layout_atom(
        hopper.get_smem_layout_atom(major, dtype, tile[1] if along_k else tile[0]), dtype
    )
    order = (0, 1) if along_k else (1, 0)
    if stages is None:
        return cute.tile_to_shape(atom, tile, order)
    return cute.tile_to_shape(atom, (*tile, stages), (*order, 2))


def unswizzled(memory: Any, dtype: Any, shape: tuple[int, int, int]) -> Any:
    """A ring of tiles (rows, K, stages) of one line of 128 bytes a row, each line where its bytes lie."""
    rows, depth, _ = shape
    layout = cute.make_layout(shape, stride=(depth, 1, rows * depth))
    return cute.make_tensor(cute.recast_ptr(memory, dtype=dtype), layout)


def tma_load(tensor: Any, major: Any, tile: tuple[int, int], sharers: int) -> Any:
    """TMA atom by which each of so many blocks loads its share of an operand's tile, and the coordinates."""
    dtype, operation = tensor.element_type, load_operation(sharers)
    layout = shared_layout(major, dtype, tile, None)
    if whole_groups(tile[0], sharers):
        return cpasync.make_tiled_tma_atom(operation, tensor, layout, tile, sharers)
    rows, depth = tile[0] // sharers, tile[1]
    share = cute.make_composed_layout(layout.inner, 0, cute.make_layout((rows, depth), stride=(depth, 1)))
    return cpasync.make_tiled_tma_atom(operation, tensor, share, (rows, depth))


def load_operation(sharers: int) -> Any:
    """TMA load into one block, or into all blocks that share the operand."""
    if sharers > 1:
        return cpasync.CopyBulkTensorTileG2SMulticastOp()
    return cpasync.CopyBulkTensorTileG2SOp()


def tma_parts(
    load: cute.CopyAtom,
    tensor: cute.Tensor,
    shared: cute.Tensor,
    shape: tuple[int, int],
    begin: tuple[Any, Any],
    sharing: tuple[Any, int],
    batch: Any,
) -> tuple[Any, Any]:
    """What a block loads of an operand: where to, by stage, and where from, by tile along its rows and K.

    ``shape`` is that of a tile, ``begin`` the row from which tiles are counted, and its number from there,
    ``sharing`` the block's rank among those that share the operand, and their number: each loads its share of
    the rows for all. ``shared`` is the swizzled ring, or, where shares are not whole groups, that of
    :func:`unswizzled`.
    """
    rank, sharers = sharing
    from_row, number = begin
    rows = shape[0]
    if not whole_groups(rows, sharers):
        # TMA swizzles by the address in shared memory, so that a share can begin anywhere among eight rows.
        whole, (rows, depth) = shared, (rows // sharers, shape[1])
        places = cute.make_layout((rows, depth, whole.shape[2]), stride=whole.stride)
        shared = cute.make_tensor(whole.iterator + cute.assume(rank * (rows * depth), divby=depth), places)
        from_row, number = from_row + rank * rows, number * sharers
        rank, sharers = cutlass.Int32(0), 1
    tiles = cute.local_tile(
        cute.domain_offset((from_row, 0, 0), tensor), (rows, shape[1]), (None, None, batch)
    )
    to, where = cpasync.tma_partition(
        load,
        rank,
        cute.make_layout(sharers),
        cute.group_modes(shared, 0, 2),
        cute.group_modes(tiles, 0, 2),
    )
    return to, where[None, number, None]

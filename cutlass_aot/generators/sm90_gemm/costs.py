"""Cost formulas: by which kernels are chosen whose registers add up sums, or of groups.

``tools/check/group_costs.py`` judges the formula of groups by measured times, and fits its constants.
"""

from __future__ import annotations

from typing import NamedTuple

from cutlass_aot.generators.gemm import GROUPED_EXTENTS, GROUPED_GEMM, MASKED_GROUPED_GEMM
from cutlass_aot.generators.sm90_gemm.plan import LINE_BYTES, ROWS, SCALED_BLOCK
from cutlass_aot.schema.kernels.cost import ROWS_PER_EXPECTED


def cost_of(operation: str, bits: int) -> str:
    """The formula by which kernels whose registers add up sums, or of groups, are chosen: microseconds.

    ``bits`` are those of an element of A and B. Tiles take turns on the multiprocessors, and a tile along K
    takes what its products or its loads from the L2 cache take. The numbers were fitted to times of all
    kernels on an H200, on problems drawn at random and those of ``tools/bench/experts.py``; those of 16-bit
    groups on drawn problems alone (docs/results/experts.md).
    """
    if operation in GROUPED_EXTENTS:
        return cost_of_groups(operation, bits, group_times(operation, bits))
    height, width = "tile_shape_0", "tile_shape_1"
    blocks = f"(L * ceil(M / {height}) * ceil(N / {width}) * cluster_shape_2)"
    beside = f"minimum(blocks_per_sm, ceil({blocks} / sm_count))"
    products = f"1.68e-5 * {height} * {width}"
    loads = f"1.15e-3 * ({height} + {width})"
    step = f"(maximum({products}, {loads}) + 0.187 * minimum({products}, {loads}))"
    # Of two blocks on a multiprocessor, each has half of its memory; three warp groups overlap more than two.
    factor = (
        f"(1 + 0.184 * minimum(blocks_per_sm - 1, 1) + 0.271 * swap_operands * minimum({height} / 16, 1)"
        f" + (0.025 + 0.018 * {_is_about(height, 64)}) * persistent"
        f" + 0.008 * {_is_about(height, 128)} - 0.101 * {_is_about(height, 192)})"
    )
    steps = f"ceil(ceil(K / {SCALED_BLOCK}) / cluster_shape_2)"
    # A persistent block stores a tile of results while it computes the next.
    tile = f"1.24e-4 * {height} * {width}"
    end = f"{tile} * (0.011 * persistent + {beside} * (1 - persistent)) + 0.62"
    compute = (
        f"ceil({blocks} / sm_count / {beside}) * ({steps} * {beside} * {step} * {factor} + {end})"
        f" + 0.868 * {tile} * persistent + 1.82 * minimum(cluster_shape_2 - 1, 1)"
    )
    memory = "(M * K + N * K + 2 * M * N) * L / (1000 * memory_bandwidth)"
    return f"0.5 + maximum({compute}, {memory}) + 0.704 * minimum({compute}, {memory})"


def _is_about(height: str, rows: int) -> str:
    """1 for tiles of so many rows, 0 for those of 64 rows more or less; exchanged ones may lie between."""
    return f"maximum(1 - maximum({height} - {rows}, {rows} - {height}) / {ROWS}, 0)"


_FEW_COLUMNS = 16
"""Columns up to which an instruction of exchanged operands takes longer by all of
:attr:`GroupTimes.exchanged`; with more columns, by a part that is inverse to them."""


class GroupTimes(NamedTuple):
    """What the cost formula of groups takes for known, fitted to times of one layout of groups.

    Attributes:
        more: rows of tiles that a group has in the mean beyond those that its rows fill.
        step: microseconds of a tile along K, whatever its shape.
        load: microseconds of a row or column of it.
        product: microseconds of an element of the tile of results.
        less: which part of the shorter of loads and products is not hidden behind the longer.
        exchanged: how much longer products take where operands are exchanged and a tile has 16 rows; with
            more rows, by less.
        one: how much longer they take where one warp group computes; in part, for exchanged tiles of about 64
            rows too.
        three: how much less long they take where three do; in part, for exchanged tiles of about 192 rows
            too. Of 16-bit operands, no others have such tiles.
        shared: how much longer a step takes in a cluster.
        tile: microseconds of a tile of results.
        element: microseconds of an element of it.
        turn: which part of that is not hidden behind the next tile.
        start: microseconds of a launch.
        bandwidth: by which the GPU's is multiplied.
        hidden: which part of the shorter of computing and reading memory is not hidden behind the longer.
    """

    more: float
    step: float
    load: float
    product: float
    less: float
    exchanged: float
    one: float
    three: float
    shared: float
    tile: float
    element: float
    turn: float
    start: float
    bandwidth: float
    hidden: float


_GROUP_TIMES = {
    GROUPED_GEMM: GroupTimes(
        more=0.831, step=0.0866, load=7.02e-4, product=1.61e-5, less=0.693, exchanged=4, one=0.02,
        three=0.044, shared=0.027, tile=1.75, element=1.36e-4, turn=0.232, start=0.32, bandwidth=1,
        hidden=0.04,
    ),
    MASKED_GROUPED_GEMM: GroupTimes(
        more=0.565, step=0.0521, load=2.75e-4, product=1.59e-5, less=0.562, exchanged=4.28, one=0.025,
        three=0.044, shared=0.19, tile=2, element=5.3e-5, turn=0.357, start=0.35, bandwidth=1, hidden=0.397,
    ),
}  # fmt: skip
"""Of FP8, by operation."""

_GROUP_TIMES_16_BIT = GroupTimes(
    more=0.523, step=0.00427, load=3.93e-4, product=3.79e-6, less=3.48, exchanged=1.27, one=0.00563,
    three=0.11, shared=0.326, tile=0.142, element=3.29e-5, turn=0.552, start=3.98, bandwidth=0.863,
    hidden=0.325,
)  # fmt: skip
"""Of 16-bit operands, fitted to groups that lie one after the other, on an H100 and then on an H200. No
design has a cluster now: ``shared`` is of an earlier fit."""


def group_times(operation: str, bits: int) -> GroupTimes:
    """The constants for an operation of groups whose elements of A and B have so many bits."""
    return _GROUP_TIMES[operation] if bits == 8 else _GROUP_TIMES_16_BIT


def cost_of_groups(operation: str, bits: int, times: GroupTimes) -> str:
    """The formula for groups, of whose rows the mean is known."""
    height, width, clusters = "tile_shape_0", "tile_shape_1", "cluster_shape_0 * cluster_shape_1"
    each = f"{height} / cluster_shape_0"
    if operation == MASKED_GROUPED_GEMM:
        of_one, groups = f"M / {ROWS_PER_EXPECTED}", "G"
        rows = f"G * {of_one}"
        down = f"(ceil({of_one} / {each}) + (G - 1) * maximum({of_one} / {each} + {times.more}, 1))"
    else:
        # No more groups have rows than there are rows.
        rows, groups = "M", "minimum(G, M)"
        down = f"(ceil(M / {each}) + ({groups} - 1) * {times.more})"
    blocks = f"{down} * ceil(N / {width} / cluster_shape_1) * {clusters}"
    loads = f"{times.load} * ({height} / cluster_shape_1 + {width} / cluster_shape_0)"
    warp_groups = f"(1 + {times.one} * {_is_about(height, 64)} - {times.three} * {_is_about(height, 192)})"
    exchanged = f"(1 + {times.exchanged} * swap_operands * minimum({_FEW_COLUMNS} / {height}, 1))"
    products = f"{times.product} * {height} * {width} * {warp_groups} * {exchanged}"
    together = f"maximum({loads}, {products}) + {times.less} * minimum({loads}, {products})"
    step = f"({times.step} + {together}) * (1 + {times.shared} * minimum({clusters} - 1, 1))"
    tile = f"({times.tile} + {times.element} * {height} * {width})"
    steps = f"ceil(K / {LINE_BYTES * 8 // bits})"
    compute = f"ceil({blocks} / sm_count) * ({steps} * {step} + {times.turn} * {tile}) + {tile}"
    moved = f"({rows} + {groups} * N) * K * {bits // 8} + 2 * {rows} * N"
    memory = f"({moved}) / ({times.bandwidth * 1000:g} * memory_bandwidth)"
    return f"{times.start} + maximum({compute}, {memory}) + {times.hidden} * minimum({compute}, {memory})"

"""How a GEMM kernel divides its work among blocks (its tiling), and what its operands move (its traffic)."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, TypeGuard

from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.named_tuple import NamedTuple

if TYPE_CHECKING:
    from cutlass_aot.schema.kernels.constraints import OperandConstraint
    from cutlass_aot.schema.kernels.kernel import Kernel

TILING_VALUES = (
    "tile_shape", "cluster_shape", "use_2cta_mma", "family", "tile_scheduler", "blocks_per_sm", "persistent",
    "swap_operands",
)  # fmt: skip
"""Names of the design values that a tiling is made of."""

_MOST, _MOST_EXTENTS = 1 << 20, 8
"""Of an extent or a count, and of extents in a shape; others are not those of a tiling."""

_SCHEDULERS = {"clc": 0, "static": 1}
_UNKNOWN_TILE = (64, 64, 64)
_TILES_SWAPPED = ("TgvGemm",)
"""Families that compute the transposed problem: the first extent of their tile runs along N."""
_WITHIN = ("Sm90ClusterGemm", "Sm90PingPongGemm")
"""Families whose last tile along an extent begins early, so that none reaches over the edge of the output."""


class Tiling(NamedTuple):
    """The properties of a kernel that decide its time; kernels that agree in all of them share one.

    Attributes:
        cluster_m: rows of the output that a cluster computes.
        cluster_n: columns of it.
        block_m: rows of the output that one block computes.
        block_n: columns of it.
        depth: elements of K that a block multiplies in a step.
        split: blocks of a cluster that share the sums of one tile, each a part of K.
        blocks: blocks of a cluster.
        blocks_per_sm: blocks that one multiprocessor has room for.
        active_clusters: clusters that run at once by the device profile it was compiled with; 0 without one.
        scheduler: rank of the tile scheduler among kernels of equal time.
        within: whether no tile reaches over the edge of the output, unless the output is smaller than a tile.
        kind: the kernel's family, and what sets kernels of one family apart beside numbers.
    """

    cluster_m: int
    cluster_n: int
    block_m: int
    block_n: int
    depth: int
    split: int
    blocks: int
    blocks_per_sm: int
    active_clusters: int
    scheduler: int
    within: bool
    kind: str

    @classmethod
    def of(cls, kernel: "Kernel") -> "Tiling":
        """The tiling of a kernel."""
        design = dict(kernel.design)
        return cls.make([design.get(name) for name in TILING_VALUES], dict(kernel.constants))

    @classmethod
    def make(cls, values: Sequence[DesignValue | None], constants: Mapping[str, int]) -> "Tiling":
        """The tiling of a design; missing values get the usual ones.

        ``values`` are in the order of :data:`TILING_VALUES`, None for those that the design does not have;
        ``constants`` are the numbers of the device profile that it has compiled in.
        """
        tile, cluster, use_2cta_mma, family, scheduler, blocks_per_sm, persistent, swap_operands = values
        m, n, depth = (*tile, *_UNKNOWN_TILE[len(tile) :])[:3] if _is_tile(tile) else _UNKNOWN_TILE
        blocks_m, blocks_n, split = (*cluster, 1, 1, 1)[:3] if _is_shape(cluster) else (1, 1, 1)
        pair = 2 if use_2cta_mma is True else 1
        blocks = max(prod(cluster) if _is_shape(cluster) else 1, pair)
        swapped = family in _TILES_SWAPPED
        cluster_m, cluster_n, block_m = m * max(1, blocks_m // pair), n * blocks_n, m // pair or 1
        marks = {"persistent": persistent is True, "swapped": swap_operands is True, "split": split > 1}
        return cls(
            cluster_m=cluster_n if swapped else cluster_m,
            cluster_n=cluster_m if swapped else cluster_n,
            block_m=n if swapped else block_m,
            block_n=block_m if swapped else n,
            depth=depth,
            split=split,
            blocks=blocks,
            blocks_per_sm=_count(blocks_per_sm, 1),
            active_clusters=_count(constants.get(f"max_active_clusters_{blocks}"), 0),
            scheduler=_SCHEDULERS.get(str(scheduler), len(_SCHEDULERS)),
            within=family in _WITHIN,
            kind=" ".join([str(family or ""), *(word for word, holds in marks.items() if holds)]),
        )

    @property
    def preference(self) -> tuple[int, int, int]:
        """Sort key of kernels of equal time: larger tiles, smaller clusters, then the dynamic scheduler."""
        return (-self.cluster_m * self.cluster_n // self.blocks, self.blocks, self.scheduler)


class Traffic(NamedTuple):
    """Bytes of device memory for each element of a GEMM's operands.

    ``a`` is for each element of the (M, K) operands, ``b`` for those of (K, N), ``out`` for those of (M, N),
    added up; ``input_bits`` is the width of the first operand's elements.
    """

    a: float
    b: float
    out: float
    input_bits: int

    @classmethod
    def of(cls, operands: Sequence["OperandConstraint"]) -> "Traffic":
        """The traffic of a kernel's operands."""
        found: dict[tuple[str | int, ...], float] = {("M", "K"): 0, ("K", "N"): 0, ("M", "N"): 0}
        for operand in operands:
            matrix = operand.extents[-2:]
            if matrix in found and operand.scale is None:
                found[matrix] += DTYPES[operand.dtype].bits / 8
        bits = DTYPES[operands[0].dtype].bits if operands and not operands[0].is_none else 16
        return cls(found["M", "K"], found["K", "N"], found["M", "N"], bits)

    @property
    def of_gemm(self) -> bool:
        """Whether the operands are those of a GEMM, whose work the cost model knows."""
        return self.a > 0 and self.b > 0


def are_of_gemm(operands: Sequence["OperandConstraint"]) -> bool:
    """:attr:`Traffic.of_gemm` of operands."""
    matrices = [operand.extents[-2:] for operand in operands if operand.scale is None]
    return ("M", "K") in matrices and ("K", "N") in matrices


def _count(value: object, otherwise: int) -> int:
    """A number of something that a kernel has, if it is one."""
    return value if type(value) is int and 1 <= value <= _MOST else otherwise


def _is_shape(value: DesignValue | None) -> TypeGuard[tuple[int, ...]]:
    if not isinstance(value, (tuple, list)) or not 1 <= len(value) <= _MOST_EXTENTS:
        return False
    return all(_count(extent, 0) for extent in value)


def _is_tile(value: DesignValue | None) -> TypeGuard[tuple[int, ...]]:
    return _is_shape(value) and len(value) >= 2

"""The default order of kernels for a problem: a stated estimate of time, not the first that fits.

The estimate is in multiply-adds of one streaming multiprocessor (SM), for each step along K::

    blocks   = L * (blocks along M) * (blocks along N), both rounded up to the cluster
    waves    = ceil(blocks / SMs)
    a wave   = tile_m * tile_n + 32 * (tile_m + tile_n)          for the part of a tile that one SM computes
    estimate = waves * a wave

The second term of a wave is the traffic of its operands, which weighs more in small tiles; its factor is a
mild preference for larger ones, not a measurement. A kernel whose two blocks share a tile
(``use_2cta_mma``) gives each SM half of it. K is left out: it is the same for all. Among equals: larger
tiles, then smaller clusters, then the dynamic scheduler ("clc"), then the name.

It knows neither memory bandwidth nor latency: where the last 20 % matter, measure and choose.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from cutlass_aot.schema.kernel import DesignValue, Kernel
from cutlass_aot.schema.ranking import Extents
from cutlass_aot.schema.targets import Target

TRAFFIC = 32
"""Weight of loading one element of an operand, in multiply-adds."""

_USUAL_SMS = {8: 108, 9: 132, 10: 148, 12: 170}
"""SMs of a typical GPU by major compute capability, where no device was asked: A100, H100, B200, RTX 5090."""

_SCHEDULERS = {"clc": 0, "static": 1}
_UNKNOWN_TILE = (64, 64)
_TILES_SWAPPED = ("TgvGemm",)
"""Families that compute the transposed problem: the first extent of their tile runs along N."""

SortKey = tuple[float, int, int, int, str]


def sort_key(kernel: Kernel, extents: Extents, sm_count: int | None = None) -> SortKey:
    """What functionally equivalent kernels of one target are sorted by: the estimate, then what breaks ties.

    Args:
        kernel: one of them.
        extents: of the problem.
        sm_count: SMs of the GPU; None for that of a typical GPU of the kernel's target.
    """
    design = dict(kernel.design)
    tile_m, tile_n = _tile(design)
    cluster = _shape(design, "cluster_shape")
    return (
        estimate(kernel, extents, sm_count),
        -tile_m * tile_n,
        prod(cluster) if cluster else 1,
        _SCHEDULERS.get(str(design.get("tile_scheduler", "")), len(_SCHEDULERS)),
        kernel.name,
    )


def estimate(kernel: Kernel, extents: Extents, sm_count: int | None = None) -> float:
    """Estimated time for each step along K, in multiply-adds of one SM; see the module's description."""
    sms = sm_count or _USUAL_SMS.get(Target.parse(kernel.target).major, 132)
    design = dict(kernel.design)
    tile_m, tile_n = _tile(design)
    pair = 2 if design.get("use_2cta_mma") is True else 1
    if design.get("family") in _TILES_SWAPPED:
        rows, columns = extents.n, extents.m
    else:
        rows, columns = extents.m, extents.n
    cluster = (*(_shape(design, "cluster_shape") or ()), 1, 1)
    blocks_m = _round_up(-(-rows // tile_m) * pair, cluster[0])
    blocks_n = _round_up(-(-columns // tile_n), cluster[1])
    waves = -(-max(extents.batch, 1) * blocks_m * blocks_n // sms)
    wave = tile_m / pair * tile_n + TRAFFIC * (tile_m / pair + tile_n)
    return waves * wave


def _tile(design: Mapping[str, DesignValue]) -> tuple[int, int]:
    shape = _shape(design, "tile_shape")
    return (shape[0], shape[1]) if shape and len(shape) >= 2 else _UNKNOWN_TILE


def _shape(design: Mapping[str, DesignValue], name: str) -> tuple[int, ...] | None:
    value = design.get(name)
    if isinstance(value, tuple) and all(isinstance(e, int) and e > 0 for e in value):
        return value
    return None


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple

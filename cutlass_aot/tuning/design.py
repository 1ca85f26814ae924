"""Problems that teach the cost model most, for ``cutlass-aot tune --design``.

A list of a model's layers has few n and k, and m at powers of two. There tiles fit, or none of them does, and
what an edge costs, a wave that is not full or a short sum is never seen. These problems are drawn at random,
on logarithmic scales, over all that is usual.
"""

from __future__ import annotations

import math
import random

from cutlass_aot.schema.kernels.constraints import Operands
from cutlass_aot.schema.tuning.ranking import Extents

SEED = 16
"""Of the sequence: a measurement that goes on, with the same release, finds the problems that it has."""

MOST_M, MOST_N, MOST_K = 8192, 32768, 16384
_MOST_PRODUCT = 2**38
"""Largest m * n * k: larger problems take long and teach nothing new."""

_DRAWS = 20
"""Most draws for each problem; large ones, and what was drawn before, are drawn again."""

_FEW_ROWS = 512
_NARROW = 1024
_FEW_TILES = range(128, 2049)
"""Rows, and columns, of an output with few tiles."""
_LEAST_LONG = 4096
"""Least k of a long sum."""

_TILE = 128
"""Rows, and columns, of the tiles by which :data:`_ABOUT_A_WAVE` counts."""
_ABOUT_A_WAVE = 32, 336
"""Tiles of an output that has a fourth of as many as a GPU computes at once, to two and a half times as many:
it computes 132 on an H100 or H200."""
_LEAST_IN_A_WAVE = 768
"""Least k of such a problem: with less, the start and the end of a launch are most of it."""

_FEW_COLUMNS = 8, 256
"""Columns of an output with many rows and few columns, as of a low-rank adapter, a classifier or a router."""

_MANY_ROWS, _MANY_COLUMNS, _SHORT = 1024, 8192, 1024
"""Least rows and columns of a large output, and the most k of a short sum."""


def design(
    operands: Operands,
    count: int,
    seed: int = SEED,
    *,
    few_tiles: float = 0.125,
    about_a_wave: float = 0.25,
    few_columns: float = 0.0625,
    large_outputs: float = 0.0625,
) -> list[Extents]:
    """The first ``count`` problems of a sequence, no two equal, that the operands of a GEMM allow.

    Fewer, where the operands allow so few that the draws run out.

    Most have fewer than 512 rows, a third fewer than 1,024 columns. A share of them, ``few_tiles``, has few
    tiles and long sums; ``about_a_wave`` is the share with about as many tiles as a GPU computes at once:
    there kernels differ most. ``few_columns`` is the share with many rows and few columns, and
    ``large_outputs`` that with large outputs of short sums, which chance seldom gives. Half of the k are
    multiples of 128, as those of most layers are; the others leave part of a step empty.
    """
    multiples = {"M": 1, "N": 1, "K": 1}
    for operand in operands:
        name = operand.extents[operand.contiguous]
        if isinstance(name, str) and name in multiples:
            multiples[name] = math.lcm(multiples[name], operand.divisibility)
    chance = random.Random(seed)  # noqa: S311
    found: dict[Extents, None] = {}
    for _ in range(_DRAWS * count):
        if len(found) == count:
            break
        least_k, most_k = 256, MOST_K
        kind = chance.random()
        if kind < few_tiles:
            m, n = (_between(chance, _FEW_TILES[0], _FEW_TILES[-1], multiples[name]) for name in "MN")
            least_k = _LEAST_LONG
        elif kind < few_tiles + about_a_wave:
            m = _between(chance, _TILE // 2, MOST_M, multiples["M"])
            area = _between(chance, *_ABOUT_A_WAVE, 1) * _TILE**2
            n = _nearest(area / m, multiples["N"])
            least_k = _LEAST_IN_A_WAVE
        elif kind >= 1 - few_columns:
            m = _between(chance, _FEW_ROWS, MOST_M, multiples["M"])
            n = _between(chance, *_FEW_COLUMNS, multiples["N"])
        elif kind >= 1 - few_columns - large_outputs:
            m = _between(chance, _MANY_ROWS, MOST_M, multiples["M"])
            n = _between(chance, _MANY_COLUMNS, MOST_N, multiples["N"])
            most_k = _SHORT
        else:
            m = _between(chance, 1, _FEW_ROWS if chance.random() < 0.5 else MOST_M, multiples["M"])
            narrow = chance.random() < 0.25
            n = _between(chance, 8 if narrow else _NARROW, _NARROW if narrow else MOST_N, multiples["N"])
        k = _between(chance, least_k, most_k, math.lcm(128 if chance.random() < 0.5 else 1, multiples["K"]))
        if n <= MOST_N and m * n * k <= _MOST_PRODUCT:
            found[Extents(1, m, n, k)] = None
    return list(found)


def _between(chance: random.Random, least: int, most: int, multiple: int) -> int:
    """A multiple of ``multiple``, evenly spread on a logarithmic scale."""
    return _nearest(math.exp(chance.uniform(math.log(least), math.log(most))), multiple)


def _nearest(extent: float, multiple: int) -> int:
    return max(1, round(extent / multiple)) * multiple

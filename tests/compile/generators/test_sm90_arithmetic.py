"""Integers near the largest extent, and conversions, of the SM90 GEMM: compiled code on the CPU."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise, product

import numpy
import pytest

from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.compile

MAX = 2**31 - 1
EXTENTS = (1, 7, 8, 96, 127, 128, 129, 4096, MAX - 255, MAX - 15, MAX - 7, MAX)
TILES = {8: 8, 96: 32, 128: 128, 256: 64}
"""Widths, and of what tiles that are moved back begin at a multiple, with scale factors."""


def compute(calls: Sequence[Sequence[object]]) -> list[int]:
    """The results of calls, see tests/support/sm90_arithmetic.py."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.sm90_arithmetic"],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "CUTE_DSL_ARCH": "sm_80"},
        cwd=REPOSITORY,
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: list[int] = json.loads(done.stdout)
    return found


def test_tiles_of_any_extent() -> None:
    cases = list(product((0, *EXTENTS), TILES))
    expected = [-(-extent // width) for extent, width in cases]
    assert compute([("tiles", *case) for case in cases]) == expected


def test_the_last_tile_ends_with_the_extent() -> None:
    calls, expected = [], []
    for extent, (width, piece) in product(EXTENTS, TILES.items()):
        for multiple in {1, piece}:
            end = -(-extent // multiple) * multiple
            last = (extent - 1) // width
            calls += [("moved", last, extent, width, multiple), ("moved", last // 2, extent, width, multiple)]
            back = min(end - (last + 1) * width, 0) if extent >= width else 0
            expected += [back, back if last == 0 else 0]
    assert compute(calls) == expected


SHAPES = ((1, 1), (1, 9), (9, 1), (3, 8), (43, 3), (13, 8), (13, 9), (16, 20))


def test_tiles_are_numbered_down_bands_or_row_by_row() -> None:
    """Row by row where few are across, if it says what few are."""
    calls, expected = [], []
    for (band, most_across), (down, across) in product(((8, 0), (4, 0), (8, 8), (1, 8)), SHAPES):
        calls += [("placed", number, down, across, band, most_across) for number in range(down * across)]
        height = 1 if across <= most_across else band
        bands = [range(first, min(first + height, down)) for first in range(0, down, height)]
        expected += [row * across + column for rows in bands for column in range(across) for row in rows]
    assert compute(calls) == expected


def test_factors_are_loaded_of_rows_that_are_there() -> None:
    """A block's tile can begin behind the last row, where others of its cluster have rows of a group."""
    rows_behind = product(EXTENTS, (-255, -1, 0, 1, 127, 255, 256), (8, 128, 256))
    cases = [(rows - behind, rows, count) for rows, behind, count in rows_behind if rows >= behind]
    expected = [min(rows - first, count) for first, rows, count in cases]
    assert compute([("there", *case) for case in cases]) == expected


F4E2M1 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def bits(values: Sequence[float]) -> list[int]:
    """Numbers of f32 as integers with a sign."""
    found: list[int] = numpy.array(values, numpy.float32).view(numpy.int32).tolist()
    return found


def test_f4e2m1_is_the_nearest_and_of_two_the_even_one() -> None:
    borders = [(low + high) / 2 for low, high in pairwise(F4E2M1)]
    near = [numpy.nextafter(numpy.float32(border), numpy.float32(to)) for border in borders for to in (0, 9)]
    sizes = [*F4E2M1, *borders, *map(float, near), 6.5, 1e30, float("inf"), 1e-40]
    expected = []
    for size in sizes:
        distances = [(abs(size - value), code % 2, code) for code, value in enumerate(F4E2M1)]
        expected.append(min(distances)[2] if size < 6 else 7)
    assert compute([("f4e2m1", size) for size in bits(sizes)]) == expected
    negative = compute([("f4e2m1", size) for size in bits([-float(size) for size in sizes])])
    assert negative == [code + 8 for code in expected]
    # What is not a number is positive, whatever its sign.
    assert compute([("f4e2m1", bits([value])[0]) for value in (math.nan, -math.nan)]) == [7, 7]


def test_f8e8m0_is_the_power_of_two_that_is_not_below() -> None:
    powers = [2.0**exponent for exponent in (-127, -126, -125, -9, -1, 0, 1, 100, 127)]
    above = [float(numpy.nextafter(numpy.float32(power), numpy.float32(numpy.inf))) for power in powers]
    exact = compute([("f8e8m0", size) for size in bits(powers)])
    assert exact == [int(numpy.log2(power)) + 127 for power in powers]
    # The largest has none above it.
    assert compute([("f8e8m0", size) for size in bits(above)]) == [min(code + 1, 254) for code in exact]
    assert compute([("f8e8m0", bits([float("inf")])[0])]) == [254]
    assert compute([("power", code) for code in exact]) == bits(powers)

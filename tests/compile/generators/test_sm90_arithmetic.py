"""Integers of the SM90 GEMM near the largest extent that is taken, computed by compiled code on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import product

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


def test_factors_are_loaded_of_rows_that_are_there() -> None:
    """A block's tile can begin behind the last row, where others of its cluster have rows of a group."""
    rows_behind = product(EXTENTS, (-255, -1, 0, 1, 127, 255, 256), (8, 128, 256))
    cases = [(rows - behind, rows, count) for rows, behind, count in rows_behind if rows >= behind]
    expected = [min(rows - first, count) for first, rows, count in cases]
    assert compute([("there", *case) for case in cases]) == expected

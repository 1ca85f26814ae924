"""Which group a tile of a grouped GEMM for Hopper is of: its PTX, run on the CPU, for random groups."""

from __future__ import annotations

import random

import numpy
import pytest

from tests.support.ptx_kernels import Kernel, Tensor, compile_kernels

pytestmark = pytest.mark.compile

ACROSS = 3
CASES = [(64, "grouped_gemm", 16), (1000, "grouped_gemm", 192), (1000, "masked_grouped_gemm", 128)]
"""Rows, operation, and rows of a cluster's tile."""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> list[Kernel]:
    requests = [
        ("tests.support.group_kernel", "declared", {"rows": rows, "groups": operation, "height": height})
        for rows, operation, height in CASES
    ]
    return compile_kernels(tmp_path_factory.mktemp("ptx"), requests)


def drawn(chance: random.Random, operation: str, rows: int, count: int) -> tuple[list[int], list[int]]:
    """What the operand of groups has, some of it outside the rows, and the rows of each group."""
    numbers = [chance.choice([0, rows, chance.randint(0, rows), rows + 50, -3]) for _ in range(count)]
    if operation == "grouped_gemm":
        numbers.sort()
    inside = [max(0, min(number, rows)) for number in numbers]
    if operation == "masked_grouped_gemm":
        return numbers, inside
    return numbers, [end - start for start, end in zip([0, *inside], inside, strict=False)]


@pytest.mark.parametrize("case", range(len(CASES)), ids=["-".join(map(str, case)) for case in CASES])
@pytest.mark.parametrize("count", [1, 32, 33, 70])
def test_each_tile_is_of_the_group_that_has_its_rows(kernels: list[Kernel], case: int, count: int) -> None:
    rows, operation, height = CASES[case]
    chance = random.Random(count)
    numbers, sizes = drawn(chance, operation, rows, count)
    expected: list[tuple[int, ...]] = []
    start = 0
    for group, size in enumerate(sizes):
        tiles = -(-size // height) * ACROSS
        expected += [(group, len(expected), start, size)] * tiles
        start += size if operation == "grouped_gemm" else 0
    # Clusters behind the last one find how many there are, too.
    written = Tensor(numpy.full((len(expected) + 2, 5), 77, numpy.int32), True)
    (found,) = kernels[case].launch(
        [Tensor(numpy.array(numbers, numpy.int32)), written], (len(expected) + 2,)
    )
    assert [tuple(row[:4]) for row in found[: len(expected)]] == expected
    assert (found[:, 4] == len(expected)).all()

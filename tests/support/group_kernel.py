"""A kernel that writes which group each cluster's tile is of, as the grouped GEMM for Hopper finds it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import cutlass
import cutlass.cute as cute

from cutlass_aot import Operand, kernel
from cutlass_aot.generators.gemm import GROUPED_GEMM, MASKED_GROUPED_GEMM
from cutlass_aot.generators.sm90_gemm.groups import group_of

ACROSS = 3
"""Clusters of a group along the columns."""


@cute.kernel
def write_groups(
    ends: cute.Tensor, found: cute.Tensor, rows: cutlass.Constexpr, plan: cutlass.Constexpr
) -> None:
    lane, _, _ = cute.arch.thread_idx()
    cluster, _, _ = cute.arch.block_idx()
    numbers = group_of(cluster, ends, cutlass.Int32(rows), cutlass.Int32(ACROSS), lane, plan)
    if lane == 5:  # Any lane: all find the same.
        for at in cutlass.range_constexpr(len(numbers)):
            found[cluster, at] = numbers[at]


@cute.jit
def launch(
    ends: cute.Tensor, found: cute.Tensor, rows: cutlass.Constexpr, plan: cutlass.Constexpr, stream: Any
) -> None:
    write_groups(ends, found, rows, plan).launch(grid=(found.shape[0], 1, 1), block=(32, 1, 1), stream=stream)


@kernel(
    name="write_groups",
    params={"rows": [64, 1000], "groups": [GROUPED_GEMM, MASKED_GROUPED_GEMM], "height": [16, 128, 192]},
    modules=["tests.support.group_kernel"],
)
def declared(rows: int, groups: str, height: int) -> Any:
    """``found``: number, first cluster, first row and rows of each cluster's group, and all clusters."""
    plan = SimpleNamespace(operation=groups, rows_per_cluster=height)
    operands = [Operand("ends", "i32", ("G",)), Operand("found", "i32", ("C", 5), written=True)]
    return launch, operands, (rows, plan)

"""Epilogues with scales of blocks that ``block_kernel.py`` stores, without the DSL."""

from __future__ import annotations

from cutlass_aot.generators.sm90_gemm.generator import columns_of_block
from cutlass_aot.generators.sm90_gemm.plan import ROWS, Plan, make_plan
from cutlass_aot.schema.kernels.epilogue import Epilogue, parse_epilogue

CASES: dict[str, tuple[str, str, dict[str, str], tuple[int, int]]] = {
    "f32": (
        "x = accum + bias; scale = max(abs(x)) / 448; D = x / scale",
        "f8e4m3", {"extents": "MN/128", "layout": "n"}, (128, 256),
    ),
    "f8e8m0": (
        "x = accum + bias; scale = max(abs(x)) / 448; D = x / scale",
        "f8e4m3", {"extents": "MN/32", "dtype": "f8e8m0"}, (64, 96),
    ),
    "f8e4m3": (
        "x = accum + bias; scale = max(abs(x)) / 6; D = x / scale",
        "bf16", {"extents": "MN/16", "dtype": "f8e4m3"}, (64, 48),
    ),
    "sum": (
        "scale = sum(accum) + max(accum) + 1; D = accum + scale + bias",
        "f32", {"extents": "MN/32"}, (64, 64),
    ),
    "pairs": (
        "x = maximum(even(accum), 0) * odd(accum + bias); scale = max(abs(x)) / 448; D = x / scale",
        "f8e4m3", {"extents": "MN/128"}, (128, 256),
    ),
    "pairs-and-count": (
        "x = maximum(even(accum), 0) * odd(accum + bias); scale = max(abs(x)) / sum(1); D = x / scale",
        "f8e4m3", {"extents": "MN/128"}, (128, 256),
    ),
}  # fmt: skip
"""A formula, the element type of its output, its scale, and the rows and columns of a tile."""


def epilogue_of(case: str) -> Epilogue:
    """The epilogue of a case."""
    text, _, scale, _ = CASES[case]
    return parse_epilogue(text, {"scale": scale, "bias": {"extents": "N"}})


def plan_of(case: str) -> Plan:
    """The plan of a case."""
    rows, columns = CASES[case][3]
    return make_plan(
        tile=(rows, columns, 64), cluster=(1, 1, 1), warp_groups=rows // ROWS, blocks=1, swap=False,
        input_bits=16, output_bits=32, fused=True, scale_columns=columns_of_block(epilogue_of(case)),
    )  # fmt: skip

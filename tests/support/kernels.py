"""Kernel records for tests."""

from __future__ import annotations

from typing import Any

from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.kernel import Kernel

EXTENTS = {"a": ("L", "M", "K"), "b": ("L", "K", "N"), "out": ("L", "M", "N")}


def operand(name: str, dtype: str = "f16", layout: str = "t", **changes: Any) -> OperandConstraint:
    values: dict[str, Any] = {
        "name": name,
        "dtype": dtype,
        "extents": EXTENTS[name],
        "contiguous": -1 if layout == "t" else -2,
        "divisibility": 8,
        "alignment": 16,
        "written": name == "out",
    }
    return OperandConstraint(**{**values, **changes})


def gemm(
    dtypes: tuple[str, str, str] = ("f16", "f16", "f16"),
    layouts: str = "tnt",
    target: str = "sm_90a",
    accumulator: str = "f32",
    design: dict[str, Any] | None = None,
    **changes: Any,
) -> Kernel:
    operands = tuple(
        operand(name, dtype, layout)
        for name, dtype, layout in zip(("a", "b", "out"), dtypes, layouts, strict=True)
    )
    values: dict[str, Any] = {
        "operation": "gemm",
        "generator": "cutlass.operators",
        "operands": operands,
        "accumulator": accumulator,
        "design": design or {"family": "F", "tile_shape": (128, 128, 64), "cluster_shape": (1, 1, 1)},
        "target": target,
    }
    return Kernel.make(**{**values, **changes})

"""Objects that look like those of the CUTLASS Operator API, for tests without it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from cutlass_aot.schema.kernels.dtypes import DTYPES

STRIDES = {"t": (0, 0, 1), "n": (0, 1, 0)}


class Operator:
    """The base of made-up operators; the names of the classes below are those of real ones."""

    def __init__(
        self,
        dtypes: tuple[str, str, str] = ("f16", "f16", "f16"),
        layouts: str = "tnt",
        accumulator: str = "f32",
        epilogue: Any = None,
        code_tile: tuple[int, ...] | None = None,
        **design: Any,
    ) -> None:
        design = {"tile_shape": (128, 128, 64), "cluster_shape": (1, 1, 1), **design}
        operands = {
            name: SimpleNamespace(
                dtype=element(dtype),
                stride=STRIDES.get(layout),
                divisibility=16 // DTYPES[dtype].bytes,
                ptr_alignment_bytes=16,
            )
            for name, dtype, layout in zip(("A", "B", "out"), dtypes, layouts, strict=True)
        }
        self.metadata = SimpleNamespace(
            operator_name=f"cutedsl.{type(self).__name__}",
            operands=SimpleNamespace(**operands, accumulator_type=element(accumulator)),
            design=SimpleNamespace(**design),
            epilogue=epilogue,
        )
        self.impl = SimpleNamespace() if code_tile is None else SimpleNamespace(cta_tiler=code_tile)


class Sm90StaticPersistentGemmOperator(Operator):
    pass


class PersistentDenseGemmOperator(Operator):
    pass


class PersistentDenseGemmEFCOperator(Operator):
    pass


class Sm80TensorOpGemmOperator(Operator):
    pass


class BlockScaledGemmOperator(Operator):
    pass


class CLCDynamicPersistentTileSchedulerMetadata:
    pass


class StaticPersistentTileSchedulerMetadata:
    pass


def element(name: str) -> type:
    return type(DTYPES[name].dsl if name in DTYPES else name, (), {})

"""Our operators for TF32, registered with a provider of the CUTLASS Operator API.

Import this module inside a worker only. From then on ``cutlass.operators.get_operators`` gives them for
arguments of float32. A and B are rounded to TF32 where they are loaded; sums are f32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import cutlass
from cutlass.operators.arch import TargetSm
from cutlass.operators.arguments import DenseTensor, GemmArguments
from cutlass.operators.metadata import BLASDesignMetadata, OperatorMetadata, Sm100DesignMetadata
from cutlass.operators.metadata.design.tile_scheduler import (
    CLCDynamicPersistentTileSchedulerMetadata,
    StaticPersistentTileSchedulerMetadata,
)
from cutlass.operators.mma import BlackwellTcgen05Mma, HopperWgmma
from cutlass.operators.providers.cutedsl import CuTeDSLProvider
from cutlass.operators.providers.cutedsl.gemm.sm90_static_persistent import Sm90StaticPersistentGemmOperator
from cutlass.operators.providers.cutedsl.gemm.sm100_persistent import PersistentDenseGemmOperator
from cutlass.operators.utils.generate import construct_dense_gemm_operands
from cutlass.operators.utils.tensor import normalized_major_stride

from cutlass_aot.generators.tf32_gemm.sm90 import Sm90Tf32GemmKernel

OUTPUTS = (cutlass.Float32, cutlass.BFloat16, cutlass.Float16)
ROW_MAJOR = (0, 0, 1)
COLUMN_MAJOR = (0, 1, 0)
TILE_K = 32
"""Elements along K of a tile: four instructions of eight."""

Filter = Callable[[OperatorMetadata], bool]


def operands_of(args: Any, a_strides: tuple[Any, ...], b_strides: tuple[Any, ...]) -> Iterator[Any]:
    """The operands that TF32 operators can have for these ``GemmArguments``, or all if ``args`` is None.

    ``a_strides`` and ``b_strides`` are the major modes of A and B that there are kernels for.
    """
    both = (ROW_MAJOR, COLUMN_MAJOR)
    choices: Iterator[Any]
    if args is None:
        choices = product(OUTPUTS, a_strides, b_strides, both)
    else:
        tensors = (args.A, args.B, args.out)
        if not all(isinstance(tensor, DenseTensor) for tensor in tensors):
            return
        found = [normalized_major_stride(t.shape, t.stride, prepend_zeros_to_rank=3) for t in tensors]
        expected = (cutlass.Float32, cutlass.Float32, cutlass.Float32)
        if (
            (args.A.dtype, args.B.dtype, args.accumulator_type) != expected
            or args.out.dtype not in OUTPUTS
            or found[0] not in a_strides
            or found[1] not in b_strides
            or found[2] not in both
        ):
            return
        choices = iter([(args.out.dtype, *found)])
    for out, a, b, c in choices:
        yield construct_dense_gemm_operands(
            cutlass.Float32, cutlass.Float32, out, cutlass.Float32, a, b, c, alignment_bytes=16
        )


def _metadata(operator: type, operands: Any, design: Any) -> OperatorMetadata:
    layouts = "".join("t" if o.stride == ROW_MAJOR else "n" for o in (operands.A, operands.B, operands.out))
    tile, cluster = ("x".join(map(str, shape)) for shape in (design.tile_shape, design.cluster_shape))
    pair = "_2cta" if getattr(design, "use_2cta_mma", False) else ""
    scheduler = type(getattr(design, "tile_scheduler", None)).__name__.partition("PersistentTile")[0]
    return OperatorMetadata(
        operands=operands,
        design=design,
        operator_name=(
            f"cutlass_aot.{operator.__name__}_{layouts}_out{operands.out.dtype}_tile{tile}_cluster{cluster}"
            f"{pair}_{scheduler}"
        ),
        operator_class=operator,
        supported_targets=TargetSm.get_supported_targets(design, operands),
        epilogue=None,
    )


@CuTeDSLProvider.register
class Tf32PersistentDenseGemmOperator(PersistentDenseGemmOperator):  # type: ignore[misc]
    """Persistent TF32 GEMM of SM100, by the package's own kernel, for which it has no TF32 operator."""

    supported_args_type = GemmArguments
    designed_for_min_cc = 100

    @classmethod
    def _generate_operators(
        cls, metadata_filter: Filter, epilogue_args: Any = None, target_sm: Any = None, args: Any = None
    ) -> list[Any]:
        """Every operator that the filter accepts, for ``args`` or for all operands."""
        if epilogue_args is not None:
            return []
        both = (ROW_MAJOR, COLUMN_MAJOR)
        found = []
        for operands in operands_of(args, both, both):
            for pair, tile_m, tile_n, cluster_m, cluster_n, scheduler in product(
                (False, True),
                (64, 128, 256),
                (32, 64, 128, 256),
                (1, 2, 4),
                (1, 2, 4),
                (CLCDynamicPersistentTileSchedulerMetadata(), StaticPersistentTileSchedulerMetadata()),
            ):
                # An instruction has 64 or 128 rows in one block, 128 or 256 in a pair of blocks.
                if tile_m not in ((128, 256) if pair else (64, 128)) or (pair and cluster_m % 2):
                    continue
                design = Sm100DesignMetadata(
                    mma_instruction_type=BlackwellTcgen05Mma,
                    use_2cta_mma=pair,
                    tile_shape=(tile_m, tile_n, TILE_K),
                    cluster_shape=(cluster_m, cluster_n, 1),
                    use_tma_store=True,
                    tile_scheduler=scheduler,
                )
                metadata = _metadata(cls, operands, design)
                if metadata_filter is None or metadata_filter(metadata):
                    found.append(cls(metadata))
        return found


@CuTeDSLProvider.register
class Sm90Tf32PersistentGemmOperator(Sm90StaticPersistentGemmOperator):  # type: ignore[misc]
    """Persistent TF32 GEMM of SM90: A row-major, B column-major, since its instruction takes no others."""

    supported_args_type = GemmArguments
    designed_for_min_cc = 90

    def __init__(self, metadata: OperatorMetadata) -> None:
        super().__init__(metadata)
        tile, cluster = metadata.design.tile_shape, metadata.design.cluster_shape
        self.impl = Sm90Tf32GemmKernel(cutlass.Float32, tuple(tile[:2]), tuple(cluster[:2]))

    @classmethod
    def _generate_operators(
        cls, metadata_filter: Filter, epilogue_args: Any = None, target_sm: Any = None, args: Any = None
    ) -> list[Any]:
        """Every operator that the filter accepts, for ``args`` or for all operands."""
        if epilogue_args is not None:
            return []
        found = []
        for operands in operands_of(args, (ROW_MAJOR,), (COLUMN_MAJOR,)):
            for tile_m, tile_n, cluster_m, cluster_n in product((64, 128), (64, 128, 256), (1, 2), (1, 2)):
                design = BLASDesignMetadata(
                    mma_instruction_type=HopperWgmma,
                    tile_shape=(tile_m, tile_n, TILE_K),
                    cluster_shape=(cluster_m, cluster_n, 1),
                )
                metadata = _metadata(cls, operands, design)
                if metadata_filter is None or metadata_filter(metadata):
                    found.append(cls(metadata))
        return found


OPERATORS = (Tf32PersistentDenseGemmOperator, Sm90Tf32PersistentGemmOperator)

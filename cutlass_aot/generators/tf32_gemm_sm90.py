"""The persistent GEMM of SM90 with TF32 operands. Import it inside a worker only: it imports the DSL.

The pipeline is that of the package's kernel for 8- and 16-bit operands. What is ours is what it takes to feed
it: the instruction, which the DSL 4.8 has no class for, shared memory of TF32, and loads that round.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import cute_nvgpu
from cutlass.cute.atom import make_atom
from cutlass.cute.core import _pack_shape
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.operators.providers.cutedsl.gemm.implementations.sm90_static_persistent_impl import (
    Sm90StaticPersistentGemmKernel,
)
from cutlass.tensor_utils import LayoutEnum

INSTRUCTION_M = 64
INSTRUCTION_K = 8
INSTRUCTIONS_A_TILE = 4
"""Instructions along K of a tile: 128 bytes of each row, the width of the widest swizzle."""


class MmaTF32Op(warpgroup.mma.MmaOp):  # type: ignore[misc]
    """``wgmma.mma_async.sync.aligned.m64nNk8.f32.tf32.tf32``, both operands in shared memory, K contiguous.

    Source of the shape and of what it takes: PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions".
    """

    descriptive_name = "warpgroup TF32 MMA Operation"

    def __init__(self, instruction_n: int) -> None:
        super().__init__(
            cutlass.TFloat32,
            cutlass.TFloat32,
            cutlass.Float32,
            (INSTRUCTION_M, instruction_n, INSTRUCTION_K),
            warpgroup.OperandSource.SMEM,
            OperandMajorMode.K,
            OperandMajorMode.K,
        )

    def _make_trait(self, *, loc: Any = None, ip: Any = None, **_: Any) -> Any:
        atom = cute_nvgpu.MmaAtomSM90Type.get(
            _pack_shape(self.shape_mnk, loc=loc, ip=ip).type.attribute,
            self.a_major_mode._to_ir(),
            self.b_major_mode._to_ir(),
            self.a_dtype.mlir_type,
            self.b_dtype.mlir_type,
            self.acc_dtype.mlir_type,
            self.a_src._to_ir(),
        )
        starts_from_zero = cutlass.Boolean(False).ir_value(loc=loc, ip=ip)
        return warpgroup.mma.MmaTraits(make_atom(atom, [starts_from_zero], loc=loc, ip=ip))


class Sm90Tf32GemmKernel(Sm90StaticPersistentGemmKernel):  # type: ignore[misc]
    """``out = a @ b`` with a and b f32 in memory: a row-major, b column-major, out either."""

    def _setup_attributes(self) -> None:
        """Everything that follows from the tile and from the operands' types."""
        tile_m, tile_n, _ = self.tile_shape_mnk  # type: ignore[has-type]
        # Inherited: two warp groups for tiles whose sums do not fit into the registers of one.
        self.tiled_mma = cute.make_tiled_mma(cute.make_mma_atom(MmaTF32Op(tile_n)), self.atom_layout_mnk)
        self.tile_shape_mnk = (tile_m, tile_n, INSTRUCTION_K * INSTRUCTIONS_A_TILE)
        self.cta_layout_mnk = cute.make_layout((*self.cluster_shape_mn, 1))
        self.num_mcast_ctas_b, self.num_mcast_ctas_a = self.cluster_shape_mn
        self.is_a_mcast = self.num_mcast_ctas_a > 1
        self.is_b_mcast = self.num_mcast_ctas_b > 1
        self.epi_tile = self._sm90_compute_tile_shape_or_override(
            self.tile_shape_mnk, self.c_dtype, is_cooperative=self.num_mma_warp_groups == 2
        )
        self.ab_stage, self.epi_stage = self._compute_stages(
            self.tile_shape_mnk,
            self.a_dtype,
            self.b_dtype,
            self.epi_tile,
            self.c_dtype,
            self.smem_capacity,
            self.occupancy,
        )
        layouts = self._make_smem_layouts(
            self.tile_shape_mnk,
            self.epi_tile,
            self.a_dtype,
            self.a_layout,
            self.b_dtype,
            self.b_layout,
            self.ab_stage,
            self.c_dtype,
            self.c_layout,
            self.epi_stage,
        )
        self.a_smem_layout_staged, self.b_smem_layout_staged, self.epi_smem_layout_staged = layouts

    @cute.jit  # type: ignore[untyped-decorator]
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        c: cute.Tensor,
        max_active_clusters: cutlass.Constexpr,
        stream: Any,
    ) -> None:
        """Launch the kernel.

        Args:
            a: (L, M, K) f32, row-major.
            b: (L, K, N) f32, column-major.
            c: (L, M, N), the output.
            max_active_clusters: clusters that run at once.
            stream: CUDA stream.
        """
        # The kernel counts modes from the inside: (M, K, L), (N, K, L), (M, N, L).
        a = cute.make_tensor(a.iterator, cute.select(a.layout, [1, 2, 0]))
        b = cute.make_tensor(b.iterator, cute.select(b.layout, [2, 1, 0]))
        c = cute.make_tensor(c.iterator, cute.select(c.layout, [1, 2, 0]))
        self.a_dtype = self.b_dtype = cutlass.TFloat32
        self.c_dtype = c.element_type
        self.a_layout, self.b_layout, self.c_layout = (LayoutEnum.from_tensor(t) for t in (a, b, c))
        self._setup_attributes()

        tile_m, tile_n, tile_k = self.tile_shape_mnk
        atom_a, source_a = self._rounding_load(
            a, self.a_smem_layout_staged, (tile_m, tile_k), self.num_mcast_ctas_a
        )
        atom_b, source_b = self._rounding_load(
            b, self.b_smem_layout_staged, (tile_n, tile_k), self.num_mcast_ctas_b
        )
        atom_c, target_c = self._make_tma_store_atoms_and_tensors(
            c, self.epi_smem_layout_staged, self.epi_tile
        )
        scheduler, grid = self._compute_grid(
            c,
            self.tile_shape_mnk,
            self.cluster_shape_mn,
            self.swizzle_size,
            self.raster_along_m,
            max_active_clusters,
        )

        def buffer(dtype: Any, layout: Any) -> Any:
            return cute.struct.Align[
                cute.struct.MemRange[dtype, cute.cosize(layout)], self.buffer_align_bytes
            ]

        @cute.struct
        class SharedStorage:
            mainloop_pipeline_array_ptr: cute.struct.MemRange[cutlass.Int64, self.ab_stage * 2]
            sA: buffer(self.a_dtype, self.a_smem_layout_staged)  # type: ignore[valid-type]
            sB: buffer(self.b_dtype, self.b_smem_layout_staged)  # type: ignore[valid-type]
            sC: buffer(self.c_dtype, self.epi_smem_layout_staged)  # type: ignore[valid-type]

        self.shared_storage = SharedStorage
        self.kernel(
            atom_a,
            source_a,
            atom_b,
            source_b,
            atom_c,
            target_c,
            self.tiled_mma,
            self.cta_layout_mnk,
            self.a_smem_layout_staged,
            self.b_smem_layout_staged,
            self.epi_smem_layout_staged,
            scheduler,
        ).launch(
            grid=grid,
            block=[self.threads_per_cta, 1, 1],
            cluster=(*self.cluster_shape_mn, 1),
            min_blocks_per_mp=1,
            stream=stream,
        )

    @staticmethod
    def _rounding_load(tensor: Any, staged: Any, tile: tuple[int, int], multicast: int) -> tuple[Any, Any]:
        """A TMA load of f32 that rounds to TF32 on the way, and the tensor as it addresses it."""
        if multicast == 1:
            operation = cpasync.CopyBulkTensorTileG2SOp()
        else:
            operation = cpasync.CopyBulkTensorTileG2SMulticastOp()
        atom, source = cpasync.make_tiled_tma_atom(
            operation,
            tensor,
            cute.slice_(staged, (None, None, 0)),
            tile,
            num_multicast=multicast,
            internal_type=cutlass.TFloat32,
        )
        return atom, source

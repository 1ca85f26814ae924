"""The persistent GEMM of SM90 with TF32 operands. Import it inside a worker only: it imports the DSL.

The pipeline is that of the package's kernel for 8- and 16-bit operands. Ours are the instruction, for which
DSL 4.8 has no class, the shared memory of TF32, and loads that round.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
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
from cutlass.utils import hopper_helpers

INSTRUCTION_M = 64
INSTRUCTION_K = 8


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
    """``out = a @ b`` with a and b f32 in memory: a row-major, b column-major, out either.

    It changes the package's kernel in three places: the element type, which is a 16-bit one while the package
    looks at its width, the tensor-core instruction, and the type that loads convert to.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._seen: Any = cutlass.Float16

    @property
    def a_dtype(self) -> Any:
        """Element type of a."""
        return self._seen

    @a_dtype.setter
    def a_dtype(self, of_memory: Any) -> None:
        self._seen = cutlass.Float16

    b_dtype = a_dtype

    def _setup_attributes(self) -> None:
        """Set what follows from the tile and from the operands' types."""
        self._seen = cutlass.TFloat32
        with _replaced(hopper_helpers, "make_trivial_tiled_mma", self._tiled_mma):
            super()._setup_attributes()

    def _tiled_mma(self, *_: Any, tiler_mn: tuple[int, int]) -> Any:
        return cute.make_tiled_mma(cute.make_mma_atom(MmaTF32Op(tiler_mn[1])), self.atom_layout_mnk)

    @staticmethod
    def _make_tma_atoms_and_tensors(*arguments: Any) -> Any:
        """TMA loads of f32 that round to TF32 on the way, and the tensors as they address them."""
        rounding = functools.partial(cpasync.make_tiled_tma_atom, internal_type=cutlass.TFloat32)
        with _replaced(cpasync, "make_tiled_tma_atom", rounding):
            return Sm90StaticPersistentGemmKernel._make_tma_atoms_and_tensors(*arguments)


@contextmanager
def _replaced(module: Any, name: str, value: Any) -> Iterator[None]:
    """Replace a module's attribute within the context, in this worker alone."""
    saved = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, saved)

"""TF32 GEMMs: f32 operands that the tensor cores round. The generator's interface.

``cutlass.operators`` 0.3.0 has no operator for f32 operands. Those used here are our own, registered with the
package.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.protocol import CompiledFunction, Problem
from cutlass_aot.generators.tf32_gemm import NAME
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.targets import targets_with


class Tf32Gemm:
    """Generator of GEMMs whose A and B are f32 in memory and TF32 in the tensor cores."""

    name = NAME
    version = "1"
    operations = ("gemm",)
    modules = (
        "cutlass_aot.generators.cutlass_operators.catalogue",
        "cutlass_aot.generators.cutlass_operators.operands",
        "cutlass_aot.generators.cutlass_operators.records",
        "cutlass_aot.generators.cutlass_operators.worker",
        "cutlass_aot.generators.dsl",
        "cutlass_aot.generators.gemm",
        "cutlass_aot.generators.tf32_gemm.generator",
        "cutlass_aot.generators.tf32_gemm.operators",
        "cutlass_aot.generators.tf32_gemm.sm90",
        "cutlass_aot.generators.tf32_gemm.worker",
    )
    distributions = ("nvidia-cutlass-operators",)
    design: Mapping[str, str] = {
        "family": "Tf32PersistentDenseGemm (SM100) or Sm90Tf32PersistentGemm (A row-major, B column-major)",
        "tile_shape": "tile of a block, or of a pair of blocks with 2-CTA instructions: MxN or MxNxK",
        "cluster_shape": "blocks of a cluster, MxN",
        "use_2cta_mma": "whether two blocks share one tensor-core instruction (SM100)",
        "use_tma_store": "always true (SM100)",
        "tile_scheduler": "clc (hardware, dynamic) or static (from the device profile)",
    }

    def targets(self, operation: str) -> tuple[str, ...]:
        """GPU code targets for an operation; none if it is not ``gemm``."""
        return (*targets_with("wgmma"), *targets_with("tcgen05")) if operation in self.operations else ()

    def enumerate(self, problem: Problem, target: str, device: DeviceProfile) -> Iterable[Kernel]:
        """Every GEMM for ``problem`` on ``target``: A and B are ``tf32``, the output f32, bf16 or f16."""
        from cutlass_aot.generators.tf32_gemm.worker import enumerate_kernels

        return enumerate_kernels(problem, target, device)

    def compile(self, kernel: Kernel) -> CompiledFunction:
        """Compile one kernel."""
        from cutlass_aot.generators.tf32_gemm.worker import compile_kernel

        return compile_kernel(kernel)

"""Kernels of the CUTLASS Operator API (package nvidia-cutlass-operators): the generator's interface.

Modules that need the DSL: :mod:`cutlass_aot.generators.cutlass_operators.worker` and, for ranking,
:mod:`cutlass_aot.generators.cutlass_operators.rank`. Kernel records of operators:
:mod:`cutlass_aot.generators.cutlass_operators.records`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from cutlass_aot.generators.cutlass_operators.operands import FAMILIES as OTHER_FAMILIES
from cutlass_aot.generators.cutlass_operators.records import FAMILIES, GENERATOR
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.protocol import CompiledFunction, Heuristic, Problem, Ranked
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.targets import KNOWN_TARGETS, targets_with
from cutlass_aot.schema.tuning.ranking import Extents


class CutlassOperators:
    """Generator of the GEMMs of ``cutlass.operators``: dense, block-scaled, mixed-input and grouped."""

    name = GENERATOR
    version = "1"
    operations = ("gemm", "grouped_gemm")
    modules = (
        "cutlass_aot.generators.cutlass_operators",
        "cutlass_aot.generators.cutlass_operators.block_scaled",
        "cutlass_aot.generators.cutlass_operators.catalogue",
        "cutlass_aot.generators.cutlass_operators.elementwise",
        "cutlass_aot.generators.cutlass_operators.epilogue",
        "cutlass_aot.generators.cutlass_operators.epilogue_records",
        "cutlass_aot.generators.cutlass_operators.grouped",
        "cutlass_aot.generators.cutlass_operators.mixed_input",
        "cutlass_aot.generators.cutlass_operators.operands",
        "cutlass_aot.generators.cutlass_operators.records",
        "cutlass_aot.generators.cutlass_operators.rubin",
        "cutlass_aot.generators.cutlass_operators.sm80",
        "cutlass_aot.generators.cutlass_operators.worker",
        "cutlass_aot.generators.dsl",
        "cutlass_aot.generators.epilogue_functions",
        "cutlass_aot.generators.gemm",
        "cutlass_aot.generators.hardware",
        "cutlass_aot.schema.kernels.epilogue",
        "cutlass_aot.schema.kernels.formula",
    )
    distributions = ("nvidia-cutlass-operators",)
    # Without the module that ranks: it decides which kernels are kept, never their code.
    design: Mapping[str, str] = {
        "family": "operator class without `Operator`: " + ", ".join([*FAMILIES, *OTHER_FAMILIES]),
        "tile_shape": "tile of a block, or of a pair of blocks with 2-CTA instructions: MxN or MxNxK",
        "cluster_shape": "blocks of a cluster, MxN",
        "fallback_cluster_shape": "smaller cluster for the rest (PersistentDenseGemmPreferredCluster, SM107)",
        "use_2cta_mma": "whether two blocks share one tensor-core instruction",
        "use_tma_store": "whether the result is stored by TMA",
        "enable_breuse": "whether a tile of B is kept for a second product along M (SM107)",
        "tile_scheduler": "clc (hardware, dynamic) or static (from the device profile)",
        "transports": "how operands of an epilogue move where it is not by TMA: C=sync_gmem_load, ...",
        "num_smem_stages": "shared-memory buffers of the pipeline, where the family fixes it",
    }

    heuristics: Mapping[str, Heuristic] = {
        "nvmatmul": Heuristic(
            title="nvMatmulHeuristics",
            package="nvidia-matmul-heuristics",
            version="0.1.0.27",
            gpus={"B200": "NVIDIA B200", "GB200_NVL": "NVIDIA GB200", "GB300_NVL": "NVIDIA GB300"},
        )
    }

    def targets(self, operation: str) -> tuple[str, ...]:
        """GPU code targets for an operation."""
        return targets_with("tcgen05") if operation == "grouped_gemm" else KNOWN_TARGETS

    def enumerate(self, problem: Problem, target: str, device: DeviceProfile) -> Iterable[Kernel]:
        """Every kernel for ``problem`` on ``target``."""
        from cutlass_aot.generators.cutlass_operators.worker import enumerate_kernels

        return enumerate_kernels(problem, target, device)

    def compile(self, kernel: Kernel) -> CompiledFunction:
        """Compile one kernel."""
        from cutlass_aot.generators.cutlass_operators.worker import compile_kernel

        return compile_kernel(kernel)

    def rank(
        self,
        problem: Problem,
        target: str,
        kernels: Sequence[Kernel],
        shapes: Sequence[Extents],
        *,
        heuristic: str,
        gpu: str,
    ) -> Ranked:
        """Rank kernels with one of the package's heuristics."""
        from cutlass_aot.generators.cutlass_operators.rank import rank_kernels

        return rank_kernels(problem, target, kernels, shapes, heuristic=heuristic, gpu=gpu)

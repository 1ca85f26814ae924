"""The built-in FP64 GEMM: which kernels it has. The kernel itself is in ``kernel.py`` beside it.

It is the reference for a generator of one's own (docs/guides/write-a-generator.md). This module imports no
DSL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from cutlass_aot.errors import GeneratorError
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.gemm import EXTENTS, constraints, problem_of_kernel
from cutlass_aot.generators.protocol import CompiledFunction, Problem
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.targets import KNOWN_TARGETS

FAMILY = "SimtF64Gemm"
TILE_SHAPES = ((16, 16), (32, 32))
"""Rows and columns of a tile; a block has as many threads as a tile has elements, at most 1024."""

_ALIGNMENT = 8
"""Bytes of an element."""


class SimtF64Gemm:
    """Generator of FP64 GEMMs that run on any GPU from sm_80 on."""

    name = "simt_f64_gemm"
    version = "1"
    operations = ("gemm",)
    uses_device = False
    modules = (
        "cutlass_aot.generators.dsl",
        "cutlass_aot.generators.gemm",
        "cutlass_aot.generators.simt_f64_gemm.generator",
        "cutlass_aot.generators.simt_f64_gemm.kernel",
    )
    design: Mapping[str, str] = {
        "family": f"always {FAMILY}",
        "tile_shape": "rows and columns of a block's tile, one thread an element: 16x16 or 32x32",
    }

    def targets(self, operation: str) -> tuple[str, ...]:
        """Every known GPU code target; none for an operation other than ``gemm``."""
        return KNOWN_TARGETS if operation in self.operations else ()

    def enumerate(self, problem: Problem, target: str, device: DeviceProfile) -> Iterable[Kernel]:
        """One kernel a tile shape if everything is ``f64``, in any of the eight layouts; else none."""
        return _kernels(problem, target)

    def compile(self, kernel: Kernel) -> CompiledFunction:
        """Compile one kernel."""
        # Imported here, in a worker: the command line imports this module without the DSL.
        from cutlass_aot.generators import dsl
        from cutlass_aot.generators.simt_f64_gemm.kernel import gemm

        if kernel not in _kernels(problem_of_kernel(kernel), kernel.target):
            raise GeneratorError(
                f"{self.name} has no kernel {kernel.name}: expected a record of its enumerate(); plan again"
            )
        tile_shape = dict(kernel.design)["tile_shape"]
        operands = dsl.fake_operands(kernel)
        return dsl.compile_for(kernel.target, gemm, *operands, tile_shape, dsl.environment_stream())


def _kernels(problem: Problem, target: str) -> Iterator[Kernel]:
    of_f64 = Problem("gemm", ("f64",) * len(EXTENTS), problem.layouts, "f64")
    if problem != of_f64 or len(problem.layouts) != len(EXTENTS) or target not in KNOWN_TARGETS:
        return
    for tile_shape in TILE_SHAPES:
        yield Kernel.make(
            operation="gemm",
            generator=SimtF64Gemm.name,
            operands=constraints(problem, _ALIGNMENT),
            accumulator="f64",
            design={"family": FAMILY, "tile_shape": tile_shape},
            target=target,
        )

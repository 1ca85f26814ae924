"""What a generator is: it enumerates the kernels of one source, and compiles one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cutlass_aot.generators.device import DeviceProfile
from cutlass_aot.schema.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Problem:
    """Operands of one operation, without extents: what a manifest asks kernels for.

    Attributes:
        operation: such as ``gemm``.
        dtypes: element types in the order of the call, such as ``("f16", "f16", "f32")`` for a, b and out.
        layouts: one letter an operand, as in ``cutlass.operators``: t is row-major, n column-major.
        accumulator: element type of the accumulator.
    """

    operation: str
    dtypes: tuple[str, ...]
    layouts: str
    accumulator: str


class CompiledFunction(Protocol):
    """What ``cute.compile`` returns with TVM-FFI enabled; only its export is used."""

    def export_to_c(self, path: str, *, function_name: str, export_only_tvm_ffi_symbols: bool) -> None:
        """Write an object file that shows ``__tvm_ffi_<function_name>``."""


@runtime_checkable
class Generator(Protocol):
    """One source of kernels.

    The class, and the module it stands in, are imported by the command line: they must not import the DSL
    at module level. :meth:`enumerate` and :meth:`compile` run in a worker process, where they may.
    """

    name: str
    """Name in manifests."""

    version: str
    """Raised by its author when the same record should give other code."""

    operations: tuple[str, ...]
    """Operations it has kernels for."""

    modules: tuple[str, ...]
    """Modules whose source files are part of a kernel's key: change one, and its kernels are rebuilt."""

    design: Mapping[str, str]
    """Names in a kernel's design that a manifest can filter on, each with one line of explanation."""

    def targets(self, operation: str) -> tuple[str, ...]:
        """GPU code targets it can serve."""

    def enumerate(self, problem: Problem, target: str, device: DeviceProfile) -> Iterable[Kernel]:
        """Every kernel for ``problem`` on ``target``; nothing is compiled. Empty if there is none."""

    def compile(self, kernel: Kernel) -> CompiledFunction:
        """Compile one kernel for its target, taking the stream from the TVM-FFI environment."""

"""The protocol of generators: each enumerates the kernels of one source, compiles one, and may rank them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.manifest.scales import ScaleRequest as ScaleRequest
from cutlass_aot.manifest.scales import Scales
from cutlass_aot.schema.kernels.accumulation import EXACT, RequestedAccumulation
from cutlass_aot.schema.kernels.epilogue import Epilogue
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.tuning.ranking import Extents


@dataclass(frozen=True, slots=True)
class Problem:
    """Operands of one operation, without extents: what a manifest asks kernels for.

    Attributes:
        operation: such as ``gemm``.
        dtypes: element types in the order of the call, such as ``("f16", "f16", "f32")`` for a, b and out.
            Empty for an operation that fixes its operands itself.
        layouts: one letter an operand, as in ``cutlass.operators``: t is row-major, n column-major.
        accumulator: element type of the accumulator, ``""`` where the operation fixes it.
        accumulation: whether sums keep all bits of the accumulator, ``"exact"``, or may lose some for speed,
            ``"fast"``; both are the same but for FP8 on sm_90a (:func:`~.gemm.has_fast_sums`).
        scales: scale factors of a and of b, None for none.
        epilogue: what is done to the accumulator before it is stored; None stores it converted.
    """

    operation: str
    dtypes: tuple[str, ...]
    layouts: str
    accumulator: str
    scales: Scales = (None, None)
    epilogue: Epilogue | None = None
    accumulation: RequestedAccumulation = EXACT

    def __str__(self) -> str:
        words = [self.operation, ".".join(self.dtypes)]
        words += [f"accumulator {self.accumulator}" if self.accumulator else "", self.layouts]
        words += [f"accumulation {self.accumulation}" if self.accumulation != EXACT else ""]
        for name, scale in zip("ab", self.scales, strict=True):
            if scale is not None:
                words.append(f"{name}_scale {scale}")
        if self.epilogue is not None:
            words.append(self.epilogue.formula)
        return " ".join(word for word in words if word)


def uses_device(generator: Generator) -> bool:
    """Whether a generator's kernels depend on the device profile."""
    return bool(getattr(generator, "uses_device", True))


class CompiledFunction(Protocol):
    """What ``cute.compile`` returns with TVM-FFI enabled; only its export is used."""

    def export_to_c(self, path: str, *, function_name: str, export_only_tvm_ffi_symbols: bool) -> None:
        """Write an object file that exports ``__tvm_ffi_<function_name>``."""


@runtime_checkable
class Generator(Protocol):
    """One source of kernels.

    The command line imports the class and its module, which must not import the DSL at module level.
    :meth:`enumerate` and :meth:`compile` run in a worker process, where they may.
    """

    name: str
    """Name in manifests."""

    version: str
    """Its author raises it when the same record is to give other code."""

    operations: tuple[str, ...]
    """Operations it has kernels for."""

    modules: tuple[str, ...]
    """Modules whose source files are part of a kernel's key: change one, and its kernels are rebuilt.

    An attribute ``distributions`` may name installed distributions whose files all are, too. Their code is in
    the kernels, and bundles carry their licences."""

    design: Mapping[str, str]
    """Names in a kernel's design that a manifest can filter on, each with one line of explanation."""

    def targets(self, operation: str) -> tuple[str, ...]:
        """GPU code targets it can serve."""

    def enumerate(self, problem: Problem, target: str, device: DeviceProfile) -> Iterable[Kernel]:
        """Every kernel for ``problem`` on ``target``; nothing is compiled. Empty if there is none.

        ``device`` is None if the manifest names no device profile. It has to, unless the generator has an
        attribute ``uses_device`` that is False.
        """

    def compile(self, kernel: Kernel) -> CompiledFunction:
        """Compile one kernel for its target, taking the stream from the TVM-FFI environment."""


@dataclass(frozen=True, slots=True)
class Heuristic:
    """A model of kernels' speed, and what has to be installed for it.

    Attributes:
        title: its name for readers.
        package: the distribution it comes in.
        version: the release of it that the generator was written for; no other is used.
        gpus: the GPU models it knows, by its own name, with their full name as in a device profile.
    """

    title: str
    package: str
    version: str
    gpus: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Ranked:
    """A heuristic's ranking of some kernels.

    Attributes:
        modelled: digests of the kernels that it can judge; it says nothing of others.
        problems: for each problem asked, in order, digests of kernels, best first; kernels that the
            heuristic cannot tell apart stand together. Empty for a problem without an answer.
        reason: why some problem has no answer, or ``""``.
    """

    modelled: frozenset[str]
    problems: tuple[tuple[tuple[str, ...], ...], ...]
    reason: str = ""


@runtime_checkable
class Ranker(Protocol):
    """A generator that can also say, without a GPU, which of its kernels are likely the fastest."""

    heuristics: Mapping[str, Heuristic]
    """Heuristics by their name in manifests."""

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
        """Rank functionally equivalent kernels, in a worker process.

        Args:
            problem: operands of the kernels.
            target: GPU code target of the kernels.
            kernels: some that :meth:`Generator.enumerate` gave for both, all of one group.
            shapes: problems that all of them support.
            heuristic: name of the heuristic.
            gpu: model of the GPU, by the heuristic's own name.
        """

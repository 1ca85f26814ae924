"""Policy ``jit``: compile a kernel in this process for a problem that the bundle has no kernel for.

:mod:`cutlass_aot.runtime.policy` imports this module only under that policy, at the first such problem. It
asks the registered generators as a build does, takes the first kernel in the default order, and keeps what it
has compiled.
"""

from __future__ import annotations

import importlib
import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from cutlass_aot.builder.plan.known_bad import known_bad
from cutlass_aot.doctor.dsl_toolkit import dsl_toolkit, not_compiled, toolkit_for
from cutlass_aot.errors import (
    CompileError,
    CutlassAotError,
    KernelNotFound,
    MisplacedOperand,
    OperandError,
    ToolchainError,
)
from cutlass_aot.generators.compile_errors import explain
from cutlass_aot.generators.declared import DeclaredGenerator
from cutlass_aot.generators.device_profiles import (
    CLUSTER_SIZES,
    DeviceProfile,
    builtin_profiles,
    load_profile,
)
from cutlass_aot.generators.gemm import with_sums
from cutlass_aot.generators.protocol import Generator, Problem
from cutlass_aot.generators.registry import references
from cutlass_aot.runtime.declared import DeclaredKernel
from cutlass_aot.runtime.launching.call import (
    call,
    current_stream,
    stream_handle,
    translated,
    without_gradients,
    workspace_for,
)
from cutlass_aot.runtime.launching.dlpack import view
from cutlass_aot.runtime.launching.tensors import common_device, describe_operand, exported, is_torch, to_ffi
from cutlass_aot.runtime.machine import cuda_driver, host
from cutlass_aot.runtime.machine.compatibility import runnable_targets
from cutlass_aot.runtime.machine.installation import command_for
from cutlass_aot.runtime.machine.process_lock import ProcessLock
from cutlass_aot.runtime.policy import warn_once
from cutlass_aot.runtime.selection.cost_model import sort_key
from cutlass_aot.runtime.selection.match import arrangement, call_names, usual_accumulator
from cutlass_aot.runtime.selection.query import Parameters, Query
from cutlass_aot.schema.kernels.accumulation import EXACT, FAST
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import (
    OperandDescription,
    Rejected,
    misplaced,
    supports,
    writes_nothing,
)
from cutlass_aot.schema.targets import KNOWN_TARGETS
from cutlass_aot.schema.tuning.ranking import Extents

if TYPE_CHECKING:
    from cutlass_aot.runtime.opened.kernel_handle import Launch

_NEEDED = {
    "cutlass.cute": "nvidia-cutlass-dsl",
    "cutlass.operators": "nvidia-cutlass-operators",
    "torch": "torch",
}
"""Modules that have to be importable, with their distributions."""

MAX_REMEMBERED = 65536
"""Most problems whose kernel is remembered; beyond that all are forgotten, but compiled kernels are kept."""

Signature = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Compiled:
    """A kernel compiled here; ``function`` takes operands with the batch first."""

    kernel: Kernel
    function: Any


@dataclass(frozen=True, slots=True)
class _Gpu:
    ordinal: int
    capability: tuple[int, int]
    sm_count: int
    name: str


# One compilation at a time: the DSL is not thread-safe.
_lock = ProcessLock()
_chosen: dict[Signature, Compiled] = {}
_compiled: dict[tuple[int, str], Compiled] = {}
_enumerated: dict[tuple[str, Problem, str, str], tuple[Kernel, ...]] = {}


def gemm(query: Query, operands: Sequence[Any], stream: Any, workspace: Any) -> None:
    """Run a GEMM or another operation with a kernel compiled now, or compiled earlier for a similar problem.

    ``operands`` are in the query's order; ``stream`` and ``workspace`` are those of
    :meth:`cutlass_aot.runtime.opened.kernel_handle.KernelHandle.launch`.
    """
    _require_compiler(_torch_computes(query))
    if query.operation == "gemm" and (query.names or len(operands) != 3):
        raise KernelNotFound(
            f"policy jit compiles GEMMs of a, b and out alone, and what is not a GEMM, not {query}"
        )
    if problem := misplaced(call_names((), query), query.operands):
        raise MisplacedOperand(problem)
    ordinal = common_device(query.operands)
    if ordinal < 0:
        raise OperandError("policy jit compiles for the GPU that the operands are on, and they are on none")
    chosen = compiled_for(query, _gpu(ordinal))
    order = _order(chosen.kernel, query)
    given, descriptions = [operands[i] for i in order], [query.operands[i] for i in order]
    _launch(chosen, given, descriptions, ordinal, stream, workspace)


def declared(kernel: DeclaredKernel, values: Parameters, ordinal: int) -> tuple[Launch, tuple[str, ...]]:
    """Compile a declared kernel for the GPU with this CUDA device ordinal.

    Returns a function called as a prebuilt kernel's ``launch``, and the names of the kernel's operands.
    """
    _require_compiler(False)
    gpu = _gpu(ordinal)
    targets = runnable_targets(kernel.targets, gpu.capability)
    generator = DeclaredGenerator(kernel)
    with _lock:
        profile = profile_of(gpu.capability, gpu.sm_count, gpu.name)
        # Of those that differ in tuning, the first: no caller waits for the others to be compiled.
        records = (
            generator.kernel(every, target, profile)
            for target in targets[:1]
            for every in kernel.combinations(values)
        )
        record = next(filter(None, records), None)
        if record is None:
            raise KernelNotFound(
                f"{kernel.call_text(values)} has no kernel for compute capability {gpu.capability[0]}."
                f"{gpu.capability[1]}: it is declared for {', '.join(kernel.targets)}"
            )
        key = (os.getpid(), record.digest)
        if key not in _compiled:
            _compiled[key] = compile_record(record, generator)
        compiled = _compiled[key]
    names = tuple(operand.name for operand in record.operands)

    def launch(*operands: Any, stream: Any = None, workspace: Any = None) -> None:
        descriptions = [describe_operand(operand) for operand in operands]
        if len(names) == len(descriptions) and (problem := misplaced(names, descriptions)):
            raise MisplacedOperand(problem)
        verdict = supports(record.operands, descriptions)
        if not verdict:
            raise OperandError(f"kernel {record.name}: {verdict.reason}")
        _launch(compiled, operands, descriptions, ordinal, stream, workspace)

    return launch, names


def _launch(
    chosen: Compiled,
    operands: Sequence[Any],
    descriptions: Sequence[OperandDescription],
    ordinal: int,
    stream: Any,
    workspace: Any,
) -> None:
    """Call a compiled kernel on operands that it supports, unless nothing that it writes has any elements."""
    kernel = chosen.kernel
    if writes_nothing(kernel.operands, descriptions):
        return
    names = [constraint.name for constraint in kernel.operands]
    try:
        operands = without_gradients(names, operands)
        handle = current_stream(operands, ordinal) if stream is None else stream_handle(stream, ordinal)
        arguments = [
            operand if constraint.is_number else _batched(constraint, operand, description, handle)
            for constraint, operand, description in zip(kernel.operands, operands, descriptions, strict=True)
        ]
        if kernel.workspace_bytes:
            arguments.append(
                workspace_for(kernel.workspace_bytes, kernel.name, operands, ordinal, workspace, stream)
            )
        # Arguments that are no longer torch tensors do not carry torch's current stream.
        native = stream is None and all(map(exported, arguments))
        call(chosen.function, arguments, ordinal, None if native else handle)
    except Exception as error:
        raise translated(error, kernel.name, names) from error


def compiled_for(query: Query, gpu: _Gpu) -> Compiled:
    """The kernel for a query on a GPU, compiled unless it has been before."""
    signature = _signature(query, gpu)
    found = _chosen.get(signature)
    if found is None:
        with _lock:
            kernel, generator = _choose(query, gpu)
            # By process: a forked child cannot use what its parent has loaded onto a GPU.
            key = (os.getpid(), kernel.digest)
            found = _compiled.get(key)
            if found is None:
                found = _compiled[key] = compile_record(kernel, generator)
            if len(_chosen) >= MAX_REMEMBERED:
                _chosen.clear()
            _chosen[signature] = found
    return found


def _torch_computes(query: Query) -> bool:
    """Whether policy ``warn`` may serve a query that nothing here does."""
    floating = all("f" in operand.dtype for operand in query.operands)
    return query.operation == "gemm" and not query.epilogue and len(query.operands) == 3 and floating


def _require_compiler(torch_computes: bool) -> None:
    missing = []
    for module, distribution in _NEEDED.items():
        try:
            importlib.import_module(module)
        except ImportError as error:
            missing.append(f"{distribution} ({error})")
            torch_computes = torch_computes and distribution != "torch"
    if missing:
        raise ToolchainError(
            f"policy jit has to compile a kernel, and this installation has no compiler: missing "
            f"{', '.join(missing)}. Install it with: {command_for('build')}; or build the kernel "
            f"into the bundle{', or choose policy warn' if torch_computes else ''}"
        )


def dsl_version() -> str:
    """Version of the installed DSL, which the table of known-bad kernels is looked up with."""
    return host.installed_version(_NEEDED["cutlass.cute"]) or "0"


def _gpu(ordinal: int) -> _Gpu:
    return _Gpu(
        ordinal,
        cuda_driver.compute_capability(ordinal),
        cuda_driver.sm_count(ordinal),
        cuda_driver.device_name(ordinal),
    )


def _signature(query: Query, gpu: _Gpu) -> Signature:
    """Everything that the choice of a kernel depends on."""
    operands = tuple(
        # No kernel requires more than 128-byte alignment.
        (operand.dtype, operand.shape, operand.strides, operand.address % 128)
        for operand in query.operands
    )
    requested = (
        query.operation, query.epilogue, query.accumulator, query.names, query.parameters,
        query.accumulation,
    )  # fmt: skip
    return (os.getpid(), gpu, requested, operands)


def _choose(query: Query, gpu: _Gpu) -> tuple[Kernel, Generator]:
    """The first kernel in the default order for a query, for the best target that has any."""
    generators = [reference.load() for reference in references().values()]
    version = dsl_version()
    profile = profile_of(gpu.capability, gpu.sm_count, gpu.name)
    extents = _extents(query.operands)
    running = runnable_targets(KNOWN_TARGETS, gpu.capability)
    lacking = not_compiled(running, dsl_toolkit())
    for target in (name for name in running if name not in lacking):
        for accumulation in (FAST, EXACT) if query.accumulation == FAST else (EXACT,):
            found = [
                (kernel, generator)
                for generator in generators
                if target in generator.targets(query.operation)
                for problem in problems_of(query)
                for kernel in _kernels(generator, with_sums(problem, accumulation, target), target, profile)
                if _serves(kernel, query) and not known_bad(kernel, version)
            ]
            if found:
                return min(found, key=lambda item: sort_key(item[0], extents, gpu.sm_count))
    more = ", or choose policy warn" if _torch_computes(query) else ""
    if lacking:
        more += f", or install a DSL that compiles for {lacking[0]}: {toolkit_for(lacking[0])}"
    raise KernelNotFound(
        f"no generator ({', '.join(generator.name for generator in generators)}) has a kernel for {query} "
        f"either: change the operands{more}"
    )


def _serves(kernel: Kernel, query: Query) -> bool:
    """Whether a kernel computes what a query requests, on its operands."""
    order = _order(kernel, query)
    return (
        bool(order)
        and bool(supports(kernel.operands, [query.operands[index] for index in order]))
        and query.epilogue in (None, kernel.epilogue)
        and query.accumulator in (None, kernel.accumulator)
        and kernel.parameters == query.parameters
        and (kernel.accumulation != FAST or query.accumulation == FAST)
    )


def _order(kernel: Kernel, query: Query) -> tuple[int, ...]:
    """The position of each operand of a kernel among those of a query; empty if the operands differ."""
    names = [operand.name for operand in kernel.operands]
    order = arrangement(names, len(query.operands), query.names)
    return () if isinstance(order, Rejected) else order


def _kernels(
    generator: Generator, problem: Problem, target: str, profile: DeviceProfile
) -> tuple[Kernel, ...]:
    if problem.operation not in generator.operations:
        return ()
    key = (generator.name, problem, target, profile.name)
    if key not in _enumerated:
        _enumerated[key] = tuple(generator.enumerate(problem, target, profile))
    return _enumerated[key]


def problems_of(query: Query) -> Iterator[Problem]:
    """The problems to ask generators about: the query's own, and one without operands unless it is a GEMM.

    A matrix is asked for in every layout that its strides allow: an extent of 1 allows both.
    """
    if query.operation != "gemm":
        yield Problem(query.operation, (), "", "")
    if any(len(operand.shape) < 2 for operand in query.operands):
        return
    dtypes = tuple(operand.dtype for operand in query.operands)
    accumulator = query.accumulator or usual_accumulator(dtypes[-1])
    letters = [
        "".join(
            letter
            for letter, mode in (("t", -1), ("n", -2))
            if operand.strides[mode] == 1 or operand.shape[mode] == 1
        )
        for operand in query.operands
    ]
    for layouts in product(*letters):
        yield Problem(query.operation, dtypes, "".join(layouts), accumulator)


def _extents(operands: Sequence[OperandDescription]) -> Extents:
    first, last = ((1, 1, 1, *operand.shape) for operand in (operands[0], operands[-1]))
    return Extents(*(max(extent, 1) for extent in (first[-3], first[-2], last[-1], first[-1])))


def profile_of(capability: tuple[int, int], sm_count: int, name: str) -> DeviceProfile:
    """The device profile of a GPU: one that comes with the package, or one derived from its number of SMs."""
    fitting = [
        known
        for known in map(load_profile, builtin_profiles())
        if (known.compute_capability, known.sm_count) == (capability, sm_count)
    ]
    if fitting:
        return next((known for known in fitting if known.gpu == name), fitting[0])
    return DeviceProfile(
        name=f"{name}-{sm_count}",
        gpu=name,
        compute_capability=capability,
        sm_count=sm_count,
        max_active_clusters={size: max(1, sm_count // size) for size in CLUSTER_SIZES},
        measured=False,
        source="SMs divided by the cluster's blocks",
    )


def compile_record(kernel: Kernel, generator: Generator) -> Compiled:
    """Compile a kernel in this process, with a warning that it took time."""
    start = time.monotonic()
    try:
        function: Any = generator.compile(kernel)
    except CutlassAotError:
        raise
    except Exception as error:
        raise CompileError(f"{kernel.name} does not compile: {explain(error)}") from error
    if not callable(function) or getattr(function, "engine", function) is None:
        raise CompileError(
            f"{kernel.name} was compiled and cannot be called in this process: the DSL's architecture is "
            f"{os.environ.get('CUTE_DSL_ARCH', 'that of the GPU it found first')}; unset CUTE_DSL_ARCH"
        )
    seconds = time.monotonic() - start
    logging.getLogger("cutlass_aot").warning("policy jit compiled %s in %.1f s", kernel.name, seconds)
    warn_once(
        kernel.digest,
        f"the bundle has no kernel for a problem, so that {kernel.name} was compiled in {seconds:.1f} s "
        "(policy jit): build it into the bundle",
    )
    return Compiled(kernel, function)


def _batched(
    constraint: OperandConstraint, operand: Any, description: OperandDescription, stream: int | None
) -> Any:
    """The operand as compiled code takes it: batch first, with strides that a descriptor can be built from.

    An extent of 1 gets the stride that a compact tensor would have, which changes no element's address.
    """
    missing = len(constraint.extents) - len(description.shape)
    shape = (1,) * missing + description.shape
    strides = (0,) * missing + description.strides
    contiguous = len(shape) + constraint.contiguous
    modes = list(zip(shape, strides, strict=True))
    span = max((extent * stride for extent, stride in modes if extent > 1), default=1)
    beyond = -(-span // constraint.divisibility) * constraint.divisibility
    steps = tuple(
        stride if extent != 1 else 1 if mode == contiguous else beyond
        for mode, (extent, stride) in enumerate(modes)
    )
    # Shapes and strides count our elements; one element of torch's FP4 type holds two of them.
    if is_torch(operand) and DTYPES[description.dtype].torch_packs == 1:
        return operand.as_strided(shape, steps)
    return view(to_ffi(operand, stream), shape, steps, description.dtype)

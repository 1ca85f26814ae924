"""Kernels that :func:`cutlass_aot.kernel` declares, as generators, which call the functions in a worker."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from cutlass_aot.errors import CompileError, GeneratorError, ManifestError
from cutlass_aot.generators import hardware
from cutlass_aot.generators.device_profiles import DeviceProfile
from cutlass_aot.generators.protocol import CompiledFunction, Problem
from cutlass_aot.manifest.kernels import TABLE_KEYS
from cutlass_aot.runtime.declared import DeclaredKernel
from cutlass_aot.runtime.opened.filters import GENERAL_FILTERS
from cutlass_aot.runtime.selection.query import Parameters
from cutlass_aot.schema.kernels.constraints import OperandConstraint, check_operands
from cutlass_aot.schema.kernels.cost import GPU_NAMES, names_of, numbers_of
from cutlass_aot.schema.kernels.declaration import Operand
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import extent_names
from cutlass_aot.schema.words import did_you_mean, plural

OWN_MODULES = (
    "cutlass_aot.generators.declared",
    "cutlass_aot.generators.dsl",
    "cutlass_aot.generators.hardware",
    "cutlass_aot.schema.kernels.declaration",
)
"""Modules of this package that decide the code of a declared kernel."""


class Answer(NamedTuple):
    """What a decorated function returned: a ``@cute.jit`` callable, operands, and values after them."""

    function: Any
    operands: tuple[OperandConstraint, ...]
    values: tuple[Any, ...]


class DeclaredGenerator:
    """The generator of one declared kernel: a record for each combination of its parameters and a target."""

    def __init__(self, declared: DeclaredKernel) -> None:
        self.declared = declared
        self.name = declared.name
        self.version = declared.version
        self.operations: tuple[str, ...] = (declared.name,)
        self.uses_device = declared.device
        self.modules: tuple[str, ...] = tuple(
            sorted({declared.function.__module__, *declared.modules, *OWN_MODULES})
        )
        self.distributions = declared.distributions
        values = {**declared.params, **declared.tuning}
        taken = sorted({*values} & {*TABLE_KEYS, *GENERAL_FILTERS})
        if taken:
            raise declared.refusal(
                f"parameter {taken[0]!r} has the name of a key that manifests or listings have already: give "
                "it another one"
            )
        self.design: Mapping[str, str] = {
            key: f"{'tuning' if key in declared.tuning else 'parameter'}: {', '.join(map(str, known))}"
            for key, known in values.items()
        }

    @property
    def reference(self) -> Callable[..., Any] | None:
        """The function that the author declared to compute the same; None if there is none."""
        return self.declared.reference_function

    def targets(self, operation: str) -> tuple[str, ...]:
        """The declared targets."""
        return self.declared.targets if operation in self.operations else ()

    def enumerate(self, problem: Problem, target: str, device: DeviceProfile | None) -> Iterator[Kernel]:
        """Every declared combination of parameters, if ``problem`` is what it computes."""
        if problem.operation not in self.operations or target not in self.declared.targets:
            return
        for values in self.declared.combinations():
            kernel = self.kernel(values, target, device)
            if kernel is not None and _fits(problem, kernel):
                yield kernel

    def kernel(self, values: Parameters, target: str, device: DeviceProfile | None = None) -> Kernel | None:
        """The record for these values of all parameters; None if there is no kernel for them and the target.

        ``device`` is for a kernel that asks for it.
        """
        if self.declared.available is not None and not self.declared.available(target, values):
            return None
        constants: dict[str, int] = {}
        if self.declared.device:
            if device is None:
                raise GeneratorError(f"kernel {self.name!r} asks for numbers of a GPU: name a device profile")
            constants = hardware.constants_of(device)
        answer = ask(self.declared, values, constants)
        if answer is None:
            return None
        if self.declared.cost:
            self._check_cost(values, answer.operands)
        tuning = self.declared.tuning
        return Kernel.make(
            operation=self.name,
            generator=self.name,
            operands=answer.operands,
            accumulator="",
            design={key: value for key, value in values.items() if key in tuning},
            target=target,
            constants=constants,
            parameters={key: value for key, value in values.items() if key not in tuning},
            cost=self.declared.cost,
        )

    def _check_cost(self, values: Parameters, operands: Sequence[OperandConstraint]) -> None:
        """Refuse a cost formula that could not be evaluated when a kernel is chosen."""
        try:
            names = names_of(self.declared.cost)
        except ManifestError as error:
            raise self.declared.refusal(str(error)) from None
        extents = {*extent_names(operands)}
        own = numbers_of(values)
        known = {*extents, *own, *GPU_NAMES}
        if names - known:
            unknown = min(names - known)
            raise self.declared.refusal(
                f"cost: {unknown!r} is none of the extents, of the parameters that are numbers, or of the "
                f"GPU's numbers: expected some of {', '.join(sorted(known))}{did_you_mean(unknown, known)}"
            )
        twice = sorted(names & ((extents & {*own}) | ({*extents, *own} & {*GPU_NAMES})))
        if twice:
            raise self.declared.refusal(f"cost: {twice[0]!r} means two things: give one another name")

    def compile(self, kernel: Kernel) -> CompiledFunction:
        """Compile one kernel from its record's parameters."""
        # Imported here, in a worker: the command line imports this module without the DSL.
        from cutlass_aot.generators import dsl

        constants = dict(kernel.constants)
        answer = ask(self.declared, {**dict(kernel.parameters), **dict(kernel.design)}, constants)
        if answer is None or answer.operands != kernel.operands:
            raise CompileError(
                f"{kernel.name}: {self.declared.location} describes other operands than when it was planned: "
                "it depends on something that is not a parameter"
            )
        operands = dsl.fake_operands(kernel)
        with hardware.answered(constants, _advice(self.declared)):
            return dsl.compile_for(
                kernel.target, answer.function, *operands, *answer.values, dsl.environment_stream()
            )


def _advice(declared: DeclaredKernel) -> str:
    """What to do about a question to ``HardwareInfo`` that the record does not answer."""
    if declared.device:
        return "device profiles do not have it; make it a parameter"
    return (
        f"declare {declared.name!r} with device=True, and it is answered from the manifest's device profile"
    )


def ask(declared: DeclaredKernel, values: Parameters, constants: Mapping[str, int]) -> Answer | None:
    """Call the decorated function and check what it returns; None if it has no kernel for these values.

    ``constants`` are the numbers of the device profile that it may ask for.
    """
    # A function that does not ask is called where there is no DSL, too.
    asks = declared.device or hardware.is_imported()
    with hardware.answered(constants, _advice(declared)) if asks else nullcontext():
        found = declared.function(**values)
    if found is None:
        return None
    if not isinstance(found, tuple) or len(found) not in (2, 3) or not callable(found[0]):
        raise declared.refusal(
            f"it returned {type(found).__name__}: expected (callable, operands), (callable, operands, values "
            "to compile in), or None",
            values,
        )
    function, operands, *rest = found
    if not isinstance(operands, Sequence) or not all(isinstance(item, Operand) for item in operands):
        raise declared.refusal(
            "expected a list of cutlass_aot.Operand as the second of what it returns", values
        )
    if rest and not isinstance(rest[0], (tuple, list)):
        raise declared.refusal(
            "expected a tuple of values to compile in as the third of what it returns, got "
            f"{type(rest[0]).__name__} {rest[0]!r}: a tuple of one value is written (value,)",
            values,
        )
    try:
        constraints = tuple(operand.constraint() for operand in operands)
    except GeneratorError as error:
        raise declared.refusal(str(error), values) from None
    names = ", ".join(constraint.name for constraint in constraints) or "none"
    try:
        check_operands(constraints)
    except ValueError as error:
        raise declared.refusal(f"operands {names}: {error}", values) from None
    if not any(constraint.written for constraint in constraints):
        raise declared.refusal(f"operands {names}: expected one that is written", values)
    answer = Answer(function, constraints, tuple(rest[0]) if rest else ())
    if problem := _problem_of_arguments(answer):
        raise declared.refusal(problem, values)
    return answer


def _problem_of_arguments(answer: Answer) -> str:
    """Why a callable does not take the operands, then the values, then the stream; ``""`` if it does.

    The DSL, which would find it later, knows nothing of the declaration.
    """
    try:
        signature = inspect.signature(answer.function)
    except (TypeError, ValueError):
        # It does not say what it takes.
        return ""
    try:
        signature.bind(*answer.operands, *answer.values, "the stream")
    except TypeError as error:
        function = getattr(answer.function, "__name__", type(answer.function).__name__)
        operands = ", ".join(operand.name for operand in answer.operands)
        return (
            f"{function}({', '.join(signature.parameters)}) is given the operands {operands}, then "
            f"{plural(len(answer.values), 'value')} to compile in, then the stream: {error}; declare what it "
            "takes, in its order"
        )
    return ""


def _fits(problem: Problem, kernel: Kernel) -> bool:
    """Whether a problem names no operands, or those of the kernel."""
    if not problem.dtypes:
        return True
    dtypes = tuple(operand.dtype for operand in kernel.operands)
    return (dtypes, kernel.layouts) == (problem.dtypes, problem.layouts)

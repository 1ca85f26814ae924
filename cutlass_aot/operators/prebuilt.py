"""A kernel of a bundle as what ``operator.run`` launches; nothing is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cutlass_aot.errors import GeneratorError, KernelNotFound, OperandError
from cutlass_aot.generators.cutlass_operators import records
from cutlass_aot.operators.targets import target_name, targets_of_gpu
from cutlass_aot.runtime.bundle import Bundle
from cutlass_aot.runtime.handle import KernelHandle
from cutlass_aot.schema.catalog import GroupEntry, signature
from cutlass_aot.schema.kernel import DesignValue, OperandConstraint

_STREAM_POSITIONS = {"PersistentDenseGemmEFC": 2}
"""Where ``operator.run`` puts the stream among the arguments; behind the operands if a family is not here."""


class PrebuiltFunction:
    """The ``compiled_obj`` of an artifact: called as the operator calls what it has compiled itself.

    Attributes:
        kernel: what it launches.
    """

    __slots__ = ("_position", "kernel")

    def __init__(self, kernel: KernelHandle) -> None:
        self.kernel = kernel
        operands = len(kernel.kernel.operands)
        self._position = _STREAM_POSITIONS.get(str(kernel.design["family"]), operands)

    def __call__(self, *arguments: Any) -> None:
        """Launch on the operands and the stream that ``operator.run`` passes, in its order.

        Raises:
            CutlassAotError: as :meth:`cutlass_aot.KernelHandle.launch` does.
        """
        expected = len(self.kernel.kernel.operands) + 1
        if len(arguments) != expected:
            raise OperandError(
                f"kernel {self.kernel.name}: expected {expected - 1} operands and a stream as "
                f"`operator.run` passes them, got {len(arguments)} arguments"
            )
        operands = (*arguments[: self._position], *arguments[self._position + 1 :])
        self.kernel.launch(*operands, stream=arguments[self._position])

    def __repr__(self) -> str:
        return f"<PrebuiltFunction {self.kernel.name}>"


def artifact(operator: Any, args: Any, bundle: Bundle, *, target_sm: Any = None) -> Any:
    """The ``CompiledArtifact`` of an operator, from a bundle and without compiling.

    Pass it on: ``operator.run(args, compiled_artifact=artifact(operator, args, bundle))``. It serves other
    arguments with the same operands but for their extents, on every GPU that its target runs on.

    Args:
        operator: of ``cutlass.operators.get_operators``.
        args: its ``GemmArguments``; tensors on the ``meta`` device will do where ``target_sm`` is named.
        bundle: what has the kernel.
        target_sm: exact GPU code target, such as ``"90a"``, ``"sm_90a"`` or a ``TargetSm``. None takes the
            best of the bundle's that run on the operands' GPU.

    Raises:
        KernelNotFound: if the bundle has not exactly this kernel; says whether it is the target, the
            operands or the design, and what comes nearest.
        OperandError: if the operator does not support the arguments, or the target is not to be told.
        DeviceError: if the operands' GPU cannot be asked.
    """
    from cutlass.operators import CompiledArtifact, TargetSm

    kernel = find_kernel(operator, args, bundle, target_sm=target_sm)
    return CompiledArtifact(
        compiled_obj=PrebuiltFunction(kernel),
        operator_obj=operator,
        compiled_for=TargetSm(kernel.target.removeprefix("sm_")),
    )


def find_kernel(operator: Any, args: Any, bundle: Bundle, *, target_sm: Any = None) -> KernelHandle:
    """The kernel of a bundle that is this operator: equal operands, design and target.

    Args:
        operator: see :func:`artifact`, like the others.
        args: its arguments.
        bundle: what has the kernel.
        target_sm: GPU code target.

    Raises:
        KernelNotFound: see :func:`artifact`.
        OperandError: likewise.
        DeviceError: likewise.
    """
    if target_sm is None:
        targets, where = targets_of_gpu(args, bundle.targets)
    else:
        targets = (target_name(target_sm),)
        where = targets[0]
    status = operator.supports(args)
    if not status:
        raise OperandError(f"the operator does not support the arguments: {status.error}")
    wanted = _Wanted.make(operator, args, bundle)
    dtypes = [operand.dtype for operand in wanted.operands]
    layouts = "".join(operand.layout for operand in wanted.operands)
    for target in targets:
        word = signature("gemm", dtypes, layouts, target)
        for group in bundle.groups.with_signature(word):
            if wanted.takes(group):
                for kernel in bundle.kernels(group=group.name, generator=records.GENERATOR):
                    if dict(kernel.design) == wanted.design:
                        return kernel
    raise KernelNotFound(f"{wanted.asked}: {_reason(bundle, wanted, targets, where)}")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is looked for, apart from the target.

    Attributes:
        asked: how messages begin.
        operands: constraints in the order of the call.
        accumulator: its element type.
        design: as in a kernel's record.
    """

    asked: str
    operands: tuple[OperandConstraint, ...]
    accumulator: str
    design: Mapping[str, DesignValue]

    @classmethod
    def make(cls, operator: Any, args: Any, bundle: Bundle) -> _Wanted:
        asked = f"bundle {bundle.name} has no kernel for operator {operator.metadata.operator_name}"
        reason = records.refusal(operator)
        if getattr(args, "epilogue", None) is not None:
            reason = reason or "the arguments have an epilogue: `bundle.gemm` has those of a manifest"
        if reason:
            raise KernelNotFound(f"{asked}: {reason}")
        try:
            problem = records.problem_of(operator)
        except GeneratorError as error:
            raise KernelNotFound(f"{asked}: {error}") from None
        constraints = records.constraints(operator, problem)
        return cls(asked, constraints, problem.accumulator, records.design(operator))

    def takes(self, group: GroupEntry) -> bool:
        return (group.operation, group.operands, group.accumulator, group.epilogue) == (
            "gemm", self.operands, self.accumulator, "",
        )  # fmt: skip

    def likeness(self, group: GroupEntry) -> int:
        """How many of the things that make up its operands a group shares."""
        pairs = list(zip(self.operands, group.operands, strict=False))
        return (
            sum(ours.dtype == theirs.dtype for ours, theirs in pairs) * 4
            + (self.accumulator == group.accumulator) * 2
            + sum(ours.contiguous == theirs.contiguous for ours, theirs in pairs)
        )


def _reason(bundle: Bundle, wanted: _Wanted, targets: Sequence[str], where: str) -> str:
    """Which of target, operands and design the bundle has not, and what comes nearest."""
    if not bundle.groups:
        return "the bundle is empty"
    here = [group for group in bundle.groups if group.target in targets]
    serving = [group for group in bundle.groups if wanted.takes(group)]
    on_target = [group for group in serving if group.target in targets]
    if on_target:
        kernels = [k for group in on_target for k in bundle.kernels(group=group.name)]
        nearest = max(kernels, key=lambda k: (_agreement(wanted.design, k.design), k.name))
        return (
            f"it is the design that is missing, {_design_words(wanted.design)}. Nearest of "
            f"{len(kernels)} is {nearest.name}: {_differences(wanted.design, nearest.design)}"
        )
    if serving or not here:
        having = sorted({group.target for group in serving or bundle.groups})
        what = "with these operands " if serving else ""
        return (
            f"it is the target that is missing: asked for {where}, kernels {what}are for {', '.join(having)}"
        )
    group = max(here, key=lambda group: (wanted.likeness(group), group.name))
    asked, there = (_operand_words(item.operands, item.accumulator) for item in (wanted, group))
    return f"it is the operands that are missing: asked for {asked}; nearest for {where} is {there}"


def _agreement(wanted: Mapping[str, DesignValue], found: Mapping[str, DesignValue]) -> int:
    # The family decides what the other values mean.
    same = sum(found.get(name) == value for name, value in wanted.items())
    return same + len(wanted) * (found.get("family") == wanted["family"])


def _differences(wanted: Mapping[str, DesignValue], found: Mapping[str, DesignValue]) -> str:
    parts = [
        f"{name} {_text(found.get(name))} instead of {_text(wanted.get(name))}"
        for name in sorted({*wanted, *found})
        if wanted.get(name) != found.get(name)
    ]
    return ", ".join(parts) or "the same design, of another generator"


def _design_words(design: Mapping[str, DesignValue]) -> str:
    return ", ".join(f"{name} {_text(value)}" for name, value in sorted(design.items()))


def _operand_words(operands: Sequence[OperandConstraint], accumulator: str) -> str:
    dtypes = ".".join(operand.dtype for operand in operands)
    layouts = "".join(operand.layout for operand in operands)
    multiples = ".".join(str(operand.divisibility) for operand in operands)
    return f"{dtypes} {layouts} with accumulator {accumulator}, extents in multiples of {multiples}"


def _text(value: DesignValue | None) -> str:
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None else str(value)

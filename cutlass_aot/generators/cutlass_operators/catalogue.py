"""Operators of one class of the CUTLASS Operator API by their design. Import it inside a worker only.

``cutlass.operators.get_operators`` takes tensors, and no library has tensors of ``f6e2m3``, ``f6e3m2`` and
``i4``. So this module searches the class's own list of operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from cutlass.operators import TargetSm

from cutlass_aot.errors import CompileError
from cutlass_aot.generators.cutlass_operators import operands
from cutlass_aot.schema.kernels.design import DesignValue
from cutlass_aot.schema.kernels.kernel import Kernel

Design = tuple[tuple[str, DesignValue], ...]


def by_design(
    operator_class: Any, has_operands: Callable[[Any], bool], fits: Callable[[Any], bool]
) -> dict[Design, Any]:
    """Operators of a class by their design in record form.

    ``has_operands`` chooses by operand metadata, and ``fits`` among these by the operator's metadata.
    """
    combinations = [found for found in operator_class._metadata_operand_combinations() if has_operands(found)]

    class OfTheseOperands(operator_class):  # type: ignore[misc]
        """The class with these operands alone: listing all its operators takes seconds."""

        supported_args_type = operator_class.supported_args_type
        designed_for_min_cc = operator_class.designed_for_min_cc

        @staticmethod
        def _metadata_operand_combinations() -> Iterator[Any]:
            return iter(combinations)

    OfTheseOperands.__name__ = operator_class.__name__  # the family's name in records
    return keyed(OfTheseOperands.generate_operators(fits))


def keyed(operators: Iterable[Any]) -> dict[Design, Any]:
    """Operators by their design in record form."""
    return {tuple(sorted(operands.design(operator).items())): operator for operator in operators}


def chosen(operators: Mapping[Design, Any], kernel: Kernel) -> Any:
    """The operator of a kernel's design."""
    operator = operators.get(kernel.design)
    if operator is None:
        raise CompileError(
            f"{kernel.name}: the installed nvidia-cutlass-operators has no such kernel any more; plan again"
        )
    return operator


def runs_on(metadata: Any, target: str) -> bool:
    """Whether an operator supports this target, by its own list."""
    return among(metadata.supported_targets, target)


def among(targets: Iterable[Any], target: str) -> bool:
    """Whether operators for one of these targets of the package can be compiled for this one."""
    return bool(TargetSm(target.removeprefix("sm_")).supports_operators_from(targets))

"""Queries to a bundle: a computation, and the query it becomes with operands."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from cutlass_aot.errors import ManifestError, OperandError
from cutlass_aot.runtime.launching.tensors import View
from cutlass_aot.schema.kernels.accumulation import ACCUMULATIONS, EXACT, RequestedAccumulation
from cutlass_aot.schema.kernels.design import NO_VALUES, DesignValue, Values, is_value
from cutlass_aot.schema.kernels.operands import OperandDescription, in_words
from cutlass_aot.schema.named_tuple import NamedTuple

Parameters = Mapping[str, DesignValue]
"""What an operation leaves open, by name."""


@functools.lru_cache(maxsize=256)
def _as_in_records(epilogue: str, names: tuple[str, ...]) -> str:
    """A formula in its canonical text; text of a third party's generator that does not parse, unchanged."""
    from cutlass_aot.schema.kernels.epilogue import IDENTITY, canonical_formula

    try:
        canonical = canonical_formula(epilogue, names)
    except ManifestError:
        return epilogue
    return "" if canonical == IDENTITY else canonical


def _checked(parameters: Parameters) -> Values:
    """Parameters, refused if a record cannot have them."""
    if not isinstance(parameters, Mapping) or not all(isinstance(name, str) for name in parameters):
        raise OperandError(
            f"parameters: expected values by their names, such as {{'n': 4096}}, got {parameters!r}"
        )
    for name, value in parameters.items():
        if not is_value(value):
            raise OperandError(
                f"parameter {name} = {value!r}: expected text, a number, true or false, or a tuple of whole "
                "numbers"
            )
    return Values.of(parameters)


class Query(NamedTuple):
    """A query to a bundle: a computation on described operands, for some targets.

    Attributes:
        operation: such as ``gemm``.
        epilogue: formula, ``""`` for none; None for the one that takes operands of these names.
        accumulator: element type, None for any.
        targets: GPU code targets to search.
        where: why these targets, for messages, such as ``GPU 0 with compute capability 9.0``.
        operands: descriptions in the order of the call.
        names: of the operands given by name, which come last.
        parameters: what the operation leaves open, sorted by name.
        accumulation: whether sums have to be exact, or may be fast.
    """

    operation: str
    epilogue: str | None
    accumulator: str | None
    targets: tuple[str, ...]
    where: str
    operands: tuple[OperandDescription, ...]
    names: tuple[str, ...] = ()
    parameters: Values = NO_VALUES
    accumulation: RequestedAccumulation = EXACT

    def __str__(self) -> str:
        unnamed = len(self.operands) - len(self.names)
        operands = ", ".join(
            (f"{self.names[index - unnamed]} = " if index >= unnamed else "") + in_words(operand)
            for index, operand in enumerate(self.operands)
        )
        epilogue = f", epilogue {self.epilogue!r}" if self.epilogue else ""
        parameters = "".join(f", {name} = {value}" for name, value in self.parameters)
        fast = "" if self.accumulation == EXACT else f", accumulation {self.accumulation}"
        return (
            f"{self.operation} on {operands}; accumulator {self.accumulator or 'any'}{fast}{epilogue}"
            f"{parameters}; {self.where}"
        )


class Computation(NamedTuple):
    """A computation without its operands. The dispatch cache has one entry for each.

    Attributes:
        operation: such as ``gemm``.
        epilogue: formula in its canonical text, ``""`` for none; None for the one that takes operands of
            these names.
        accumulator: element type, None for any.
        parameters: what the operation leaves open, sorted by name.
        names: of the operands that are given by name, sorted.
        reads: for each operand the element type that its memory is to be read as, ``""`` for its own; empty
            if that holds for all.
        accumulation: whether sums have to be exact, or may be fast.
    """

    operation: str
    epilogue: str | None = ""
    accumulator: str | None = None
    parameters: Values = NO_VALUES
    names: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    accumulation: RequestedAccumulation = EXACT

    @classmethod
    def of(
        cls,
        operation: str,
        epilogue: str | None,
        accumulator: str | None,
        parameters: Parameters | None,
        named: Mapping[str, Any],
        accumulation: RequestedAccumulation = EXACT,
    ) -> Computation:
        """The computation of a call. Without operands by name, there is no epilogue unless one is given."""
        names = tuple(sorted(named)) if named else ()
        if epilogue is not None and not isinstance(epilogue, str):
            raise OperandError(f"epilogue: expected a formula as text, got {epilogue!r}")
        if accumulation not in ACCUMULATIONS:
            raise OperandError(
                f"accumulation: expected {' or '.join(map(repr, ACCUMULATIONS))}, got {accumulation!r}"
            )
        if epilogue:
            epilogue = _as_in_records(epilogue, names)
        return cls(
            operation,
            "" if epilogue is None and not named else epilogue,
            accumulator,
            _checked(parameters) if parameters else NO_VALUES,
            names,
            accumulation=accumulation,
        )

    def reading(self, operands: Sequence[Any]) -> Computation:
        """The same computation, with the element types that the operands' memory is to be read as."""
        if not any(isinstance(operand, View) for operand in operands):
            return self
        reads = (operand.dtype if isinstance(operand, View) else "" for operand in operands)
        return self._replace(reads=tuple(reads))

    def query(self, targets: tuple[str, ...], where: str, operands: tuple[OperandDescription, ...]) -> Query:
        """The query for these operands, those given by name last, and these targets."""
        return Query(
            self.operation,
            self.epilogue,
            self.accumulator,
            targets,
            where,
            operands,
            self.names,
            self.parameters,
            self.accumulation,
        )

"""Statements of an epilogue by what they have values of: elements, or blocks of a row's columns.

It imports no DSL.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from cutlass_aot.schema.kernels.epilogue import Epilogue
from cutlass_aot.schema.kernels.formula import (
    PAIRWISE,
    Apply,
    Expression,
    Name,
    Statement,
    named,
    operations_in,
    without_reductions,
)


def of_blocks(epilogue: Epilogue) -> list[Statement]:
    """The statements that have a value for each block of columns."""
    blocks = {operand.name for operand in epilogue.operands if operand.block > 1}
    return [statement for statement in epilogue.statements if statement.name in blocks]


def of_elements(epilogue: Epilogue) -> list[Statement]:
    """The others, which have a value for each element, or reduce one."""
    blocks = of_blocks(epilogue)
    return [statement for statement in epilogue.statements if statement not in blocks]


def reductions_of(epilogue: Epilogue) -> dict[str, Apply]:
    """The reductions over blocks of columns by their texts, each once."""
    found: dict[str, Apply] = {}
    for statement in of_blocks(epilogue):
        found.update(without_reductions(statement.whole)[1])
    return found


def shared_by_both(epilogue: Epilogue) -> dict[str, Apply]:
    """What reductions over blocks and other statements have in common, by its text: the largest parts."""
    inside = set(_parts(reduction.arguments[0] for reduction in reductions_of(epilogue).values()))
    found: dict[str, Apply] = {}
    for statement in of_elements(epilogue):
        found.update(named(statement.expression, lambda part: part in inside)[1])
    return found


def with_shared(expression: Expression, shared: dict[str, Apply]) -> Expression:
    """An expression with what is shared as names."""
    parts = set(shared.values())
    return named(expression, lambda part: part in parts)[0]


BY_BLOCK = "/ by block"
"""Operation of :func:`with_reciprocals`: a quotient by the value of a block, whose reciprocal is known."""


def reciprocal_of(name: str) -> str:
    """Under which name the reciprocal of a block's value is known."""
    return f"1 / {name}"


def with_reciprocals(expression: Expression, blocks: Collection[str]) -> Expression:
    """An expression whose quotients by one of these names have its reciprocal as a third argument."""
    if not isinstance(expression, Apply):
        return expression
    arguments = tuple(with_reciprocals(argument, blocks) for argument in expression.arguments)
    divisor = arguments[-1]
    if expression.operation == "/" and isinstance(divisor, Name) and divisor.name in blocks:
        arguments = (*arguments, Name(reciprocal_of(divisor.name)))
        return replace(expression, operation=BY_BLOCK, arguments=arguments)
    return replace(expression, arguments=arguments)


def distance(expression: Expression) -> int:
    """How many neighbouring columns of the accumulator have one value of an expression."""
    return 1 if operations_in(expression).isdisjoint(PAIRWISE) else 2


def _parts(expressions: Iterable[Expression]) -> Iterator[Apply]:
    for expression in expressions:
        if isinstance(expression, Apply):
            yield expression
            yield from _parts(expression.arguments)

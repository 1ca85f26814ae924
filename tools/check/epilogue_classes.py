"""Classes of epilogues: each function, operator, kind of operand, reduction and transport that there is.

The list is made of the formula's language and of the operands' kinds, so that what is added there is missed
by ``check_coverage.py`` until a manifest has it, and shown by ``support_tables.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from cutlass_aot.schema.kernels.epilogue import (
    COLUMN,
    ELEMENT,
    MATRIX,
    NUMBER,
    ROW,
    TRANSPORTS,
    Epilogue,
    parse_epilogue,
)
from cutlass_aot.schema.kernels.formula import ACCUMULATOR, FUNCTIONS, REDUCTIONS, Apply, Constant, Expression

OPERATORS = {"+": "accum + 1", "-": "accum - 1", "*": "accum * 2", "/": "accum / 3", "neg": "-accum"}
READ = {
    MATRIX: "matrix", ROW: "row vector", COLUMN: "column vector", ELEMENT: "one element", NUMBER: "number",
}  # fmt: skip
REDUCED = {ROW: "each column", COLUMN: "each row", ELEMENT: "all"}
_WRITTEN = {ROW: "N", COLUMN: "M", ELEMENT: "1"}
_MANIFEST = {MATRIX: "MN", ROW: "N", COLUMN: "M", ELEMENT: "1", NUMBER: ""}
AUXILIARY = "auxiliary store"
CONSTANT = "constant"


def examples() -> dict[str, Epilogue]:
    """An epilogue for each class, by the class's name; in the order of a table."""
    found: dict[str, tuple[str, Mapping[str, Mapping[str, object]]]] = {}
    for name, count in FUNCTIONS.items():
        found[name] = f"D = {name}({', '.join([ACCUMULATOR, '0.5'][:count])})", {}
    for name, text in OPERATORS.items():
        found[name] = f"D = {text}", {}
    found[CONSTANT] = f"D = {ACCUMULATOR} * 2", {}
    for extents, name in READ.items():
        operands = {"x": {"extents": _MANIFEST[extents]}} if extents else {}
        found[name] = f"D = {ACCUMULATOR} + x", operands
    found[AUXILIARY] = f"D = {ACCUMULATOR}; F = {ACCUMULATOR}", {"F": {"extents": "MN"}}
    for reduction in REDUCTIONS:
        for extents, kept in REDUCED.items():
            text = f"D = {ACCUMULATOR}; r = {reduction}({ACCUMULATOR})"
            found[f"{reduction} of {kept}"] = text, {"r": {"extents": _WRITTEN[extents]}}
    for transport in TRANSPORTS:
        operand = {"extents": "MN", "transport": transport}
        written = transport.endswith("store")
        text = f"D = {ACCUMULATOR}; x = {ACCUMULATOR}" if written else f"D = {ACCUMULATOR} + x"
        found[transport] = text, {"x": operand}
    return {name: parse_epilogue(text, operands) for name, (text, operands) in found.items()}


def classes_of(epilogue: Epilogue) -> set[str]:
    """The classes that an epilogue is of."""
    operands = {operand.name: operand for operand in epilogue.operands}
    found = set()
    for statement in epilogue.statements:
        found |= set(_in_expression(statement.expression))
        if statement.name in operands:
            extents = operands[statement.name].extents
            found.add(f"{statement.reduction} of {REDUCED[extents]}" if statement.reduction else AUXILIARY)
    for operand in operands.values():
        if not operand.written:
            found.add(READ[operand.extents])
        # One element and the destination of a reduction are reached by plain loads and atomic operations.
        if operand.extents == MATRIX or (operand.extents in (ROW, COLUMN) and not operand.written):
            found.add(operand.transport or "tma")
    return found


def _in_expression(expression: Expression) -> Iterator[str]:
    if isinstance(expression, Constant):
        yield CONSTANT
    if isinstance(expression, Apply):
        yield expression.operation
        for argument in expression.arguments:
            yield from _in_expression(argument)

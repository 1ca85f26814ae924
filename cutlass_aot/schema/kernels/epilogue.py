"""An epilogue: a formula that is applied to a GEMM's accumulator before it is stored, and its operands.

:mod:`~.formula` has the formula's language. ``accum`` is the accumulator, ``D`` the GEMM's own output, every
other name an operand or a temporary. Epilogues are computed in f32.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from cutlass_aot.errors import ManifestError
from cutlass_aot.schema.kernels.constraints import CALL_NAMES, MAX_OPERANDS
from cutlass_aot.schema.kernels.formula import (
    ACCUMULATOR,
    OUT,
    PAIRWISE,
    REDUCTIONS,
    ROTATION,
    Apply,
    Expression,
    Name,
    Statement,
    canonical_text,
    is_name,
    names_in,
    operations_in,
    parse_formula,
    without_reductions,
)
from cutlass_aot.schema.words import closest, did_you_mean

MATRIX: tuple[str | int, ...] = ("L", "M", "N")
ROW: tuple[str | int, ...] = ("N",)
COLUMN: tuple[str | int, ...] = ("M",)
STRIDED_ROW: tuple[str | int, ...] = ("N", 1)
STRIDED_COLUMN: tuple[str | int, ...] = ("M", 1)
ELEMENT: tuple[str | int, ...] = (1,)
NUMBER: tuple[str | int, ...] = ()

BLOCKS: Mapping[tuple[str | int, ...], int] = {
    ("L", "M", f"N / {columns}"): columns for columns in (128, 32, 16)
}
"""Extents of outputs that have a value for each row and so many columns, rounded up."""

EXTENTS: Mapping[str, tuple[str | int, ...]] = {
    "MN": MATRIX, "LMN": MATRIX, "N": ROW, "M": COLUMN, "N1": STRIDED_ROW, "M1": STRIDED_COLUMN, "1": ELEMENT,
    "": NUMBER, **{f"MN/{columns}": extents for extents, columns in BLOCKS.items()},
}  # fmt: skip
"""Names in a manifest of an operand's extents: a matrix (with or without the batch), a vector along N or M,
one along N or M as a column of a matrix, with any stride, one element in the GPU's memory, a number that is
passed by value, a matrix with a value for each row and so many columns."""

TRANSPORTS = ("tma", "sync_gmem_load", "async_gmem_load", "sync_gmem_store")
"""How a matrix or a vector moves between global memory and registers; ``tma`` is the default."""

DTYPES = ("f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i32", "i8", "u8", "bool")
"""Element types of an epilogue's operands."""

STORED_DTYPES = (*DTYPES, "f4e2m1")
"""Those of matrices that are written."""

BLOCK_DTYPES = ("f32", "f8e8m0", "f8e4m3")
"""Those of values of blocks of columns."""

LOADS = TRANSPORTS[:3]
STORES = (TRANSPORTS[0], TRANSPORTS[3])

MAX_DECLARED = MAX_OPERANDS - 3
"""Operands of an epilogue, beside a, b and out."""

IDENTITY = f"{OUT} = {ACCUMULATOR}"
"""The formula of a GEMM without an epilogue."""

_KEYS = ("dtype", "extents", "layout", "transport")
_OF_THE_CALL = ("a", "b", "out", *CALL_NAMES)


@dataclass(frozen=True, slots=True)
class EpilogueOperand:
    """One operand of an epilogue beside a, b and out.

    Attributes:
        name: as in the formula and in a call.
        dtype: one of :data:`DTYPES`, :data:`STORED_DTYPES` or :data:`BLOCK_DTYPES`.
        extents: a value of :data:`EXTENTS`.
        layout: of a matrix, ``t`` for row-major, ``n`` for column-major, ``""`` for that of out; else ``""``.
            Values of blocks of columns are a matrix.
        transport: one of :data:`TRANSPORTS` other than ``tma``; ``""`` is ``tma``.
        written: whether it is an output; a vector or an element is the destination of a reduction then.
    """

    name: str
    dtype: str
    extents: tuple[str | int, ...]
    layout: str = ""
    transport: str = ""
    written: bool = False

    @property
    def block(self) -> int:
        """Columns of a row that share one of its values, if it has a value for each block of them; else 1."""
        return BLOCKS.get(self.extents, 1)


@dataclass(frozen=True, slots=True)
class Epilogue:
    """A formula as its canonical text, with its operands sorted by name."""

    formula: str
    operands: tuple[EpilogueOperand, ...]

    @property
    def is_identity(self) -> bool:
        """Whether it stores the accumulator unchanged, as a GEMM without an epilogue does."""
        return self.formula == IDENTITY

    @property
    def statements(self) -> tuple[Statement, ...]:
        """The outputs: those that others read, D, then by name."""
        return _statements(self.formula, tuple(operand.name for operand in self.operands if operand.written))

    @property
    def block(self) -> int:
        """Columns of a row of which outputs have a value for each block; 1 if no output has."""
        return max((operand.block for operand in self.operands), default=1)

    @property
    def halves(self) -> bool:
        """Whether D has half as many columns as the accumulator, of each two neighbours one."""
        return any(
            not operations_in(statement.expression).isdisjoint(PAIRWISE) for statement in self.statements
        )


@lru_cache(maxsize=64)
def _statements(formula: str, outputs: tuple[str, ...]) -> tuple[Statement, ...]:
    """Generators ask for those of one epilogue again for every kernel."""
    return parse_formula(formula, outputs)


def parse_epilogue(text: str, operands: Mapping[str, Mapping[str, object]]) -> Epilogue:
    """Parse and check the epilogue of a manifest.

    ``operands`` has by name the keys ``dtype`` (``"f32"`` by default), ``extents`` (a key of :data:`EXTENTS`,
    by default a number by value), ``layout`` (``"t"`` or ``"n"``, by default that of out) and ``transport``.
    A name that the formula reads and ``operands`` lacks is an f32 number by value.
    """
    declared = {name: _declared(name, entries) for name, entries in operands.items()}
    statements = parse_formula(
        text, [name for name, operand in declared.items() if operand.extents != NUMBER]
    )
    outputs = {statement.name: statement for statement in statements}
    if OUT not in outputs:
        raise ManifestError(f"epilogue: {OUT} is not assigned: it is what the GEMM stores in `out`")
    read = frozenset().union(*(names_in(statement.expression) for statement in statements))
    for name in sorted(read & set(outputs)):
        if declared[name].block == 1:
            raise ManifestError(
                f"epilogue: {name} is a reduction: its value is known after the last tile alone; one for "
                'each block of columns, such as extents = "MN/128", can be read'
            )
    if ACCUMULATOR not in read:
        misspelt = closest(ACCUMULATOR, read - set(declared))
        meant = f"; did you mean it by {misspelt!r}?" if misspelt else ""
        raise ManifestError(f"epilogue: nothing uses {ACCUMULATOR}, the product of a and b{meant}")
    unused = sorted(set(declared) - read - set(outputs))
    if unused:
        number = declared[unused[0]].extents == NUMBER
        raise ManifestError(
            f"epilogue: operand {unused[0]!r} is declared and the formula does not read it"
            + ("; a number cannot be assigned: give it extents, or do not declare it" if number else "")
        )
    for name in sorted(read - {ACCUMULATOR} - set(declared)):
        declared[name] = _declared(name, {})
    if len(declared) > MAX_DECLARED:
        raise ManifestError(
            f"epilogue: {len(declared)} operands with the numbers, expected at most {MAX_DECLARED}"
        )
    checked = [
        _output(operand, outputs[name]) if name in outputs else _input(operand)
        for name, operand in sorted(declared.items())
    ]
    if outputs[OUT].reduction:
        raise ManifestError(
            f"epilogue: {OUT} is a matrix: {outputs[OUT].reduction}() needs an output of its own"
        )
    _check_blocks(checked, outputs)
    _check_halves(checked, outputs)
    return Epilogue(canonical_text(statements), tuple(checked))


def canonical_formula(text: str, outputs: Sequence[str]) -> str:
    """The canonical text of a formula, given the names of its outputs beside D."""
    return canonical_text(parse_formula(text, outputs))


def _declared(name: str, entries: Mapping[str, object]) -> EpilogueOperand:
    where = f"operands.{name}"
    if name == OUT:
        raise ManifestError(f"{where}: {OUT} is the GEMM's own output: its type is that of `out`")
    if not is_name(name) or name in _OF_THE_CALL:
        raise ManifestError(
            f"{where}: not a name for an operand: letters, digits and _, and none of {ACCUMULATOR}, a "
            f"function or {', '.join(_OF_THE_CALL)}"
        )
    if not isinstance(entries, Mapping):
        raise ManifestError(
            f'{where}: {entries!r}, expected a table such as {{ dtype = "bf16", extents = "MN" }}'
        )
    for key in entries:
        if key not in _KEYS:
            raise ManifestError(
                f"{where}: unknown key {key!r}: expected one of {', '.join(_KEYS)}{did_you_mean(key, _KEYS)}"
            )
    dtype = _word(where, entries, "dtype", "f32", tuple(dict.fromkeys((*STORED_DTYPES, *BLOCK_DTYPES))))
    extents = EXTENTS[_word(where, entries, "extents", "", tuple(EXTENTS))]
    if extents == NUMBER and dtype != "f32":
        raise ManifestError(f"{where}: a number of {dtype}: a number is passed by value, as f32")
    if "layout" in entries and extents != MATRIX and extents not in BLOCKS:
        raise ManifestError(
            f'{where}.layout: only a matrix (extents = "MN"), or scales of blocks ("MN/128"), has one'
        )
    layout = _word(where, entries, "layout", "", ("t", "n"))
    transport = _word(where, entries, "transport", "tma", TRANSPORTS)
    if "transport" in entries and extents not in (MATRIX, ROW, COLUMN):
        raise ManifestError(f"{where}.transport: only a matrix or a vector has one")
    return EpilogueOperand(name, dtype, extents, layout, "" if transport == "tma" else transport)


def _word(where: str, entries: Mapping[str, object], key: str, default: str, allowed: tuple[str, ...]) -> str:
    if key not in entries:
        return default
    value = entries[key]
    if not isinstance(value, str) or value not in allowed:
        shown = ", ".join(word if word else repr(word) for word in allowed)
        raise ManifestError(
            f"{where}.{key}: unknown {value!r}: expected one of {shown}{did_you_mean(value, allowed)}"
        )
    return value


def _input(operand: EpilogueOperand) -> EpilogueOperand:
    if operand.block > 1:
        raise ManifestError(
            f"operands.{operand.name}: {operand.name} is read and never assigned: a value for each block of "
            f"{operand.block} columns is an output"
        )
    if operand.dtype not in DTYPES:
        raise ManifestError(
            f"operands.{operand.name}.dtype: {operand.dtype} is written alone, and {operand.name} is read: "
            f"expected one of {', '.join(DTYPES)}"
        )
    if operand.transport and operand.transport not in LOADS:
        raise ManifestError(
            f"operands.{operand.name}.transport: {operand.transport} writes, and {operand.name} is read: "
            f"expected one of {', '.join(LOADS)}"
        )
    return operand


def _output(operand: EpilogueOperand, statement: Statement) -> EpilogueOperand:
    where = f"operands.{operand.name}"
    if operand.block > 1:
        return _block_output(operand, statement)
    nested = operations_in(statement.expression) & set(REDUCTIONS)
    if nested and operand.extents != MATRIX:
        raise ManifestError(
            f"{where}: found `{statement}`: {min(nested)}() can only be all of the right side where what is "
            'reduced is more than a block of columns (extents = "MN/128")'
        )
    if operand.extents == MATRIX:
        if statement.reduction or nested:
            raise ManifestError(
                f"{where}.extents: a matrix, but {statement.reduction or min(nested)}() gives less: expected "
                '"N" (one value a column), "M" (one a row) or "1"; "MN/128", "MN/32" or "MN/16" (one a row '
                "and so many columns)"
            )
        if operand.dtype not in STORED_DTYPES:
            raise ManifestError(
                f"{where}.dtype: a matrix of {operand.dtype}: expected one of {', '.join(STORED_DTYPES)}"
            )
        if operand.transport and operand.transport not in STORES:
            raise ManifestError(
                f"{where}.transport: {operand.transport} reads, and {operand.name} is written: expected one "
                f"of {', '.join(STORES)}"
            )
    else:
        if not statement.reduction:
            raise ManifestError(
                f"{where}.extents: {operand.name} is less than a matrix, so its right side has to be sum(), "
                f"max() or min() of something: found `{statement}`"
            )
        if operand.extents in (STRIDED_ROW, STRIDED_COLUMN):
            raise ManifestError(
                f"{where}.extents: the destination of a reduction is contiguous: expected "
                f'"{operand.extents[0]}"'
            )
        if operand.dtype != "f32" or operand.transport:
            raise ManifestError(
                f"{where}: the destination of a reduction is f32 and has no transport: blocks combine it "
                "with atomic operations"
            )
    return EpilogueOperand(
        operand.name, operand.dtype, operand.extents, operand.layout, operand.transport, written=True
    )


def _block_output(operand: EpilogueOperand, statement: Statement) -> EpilogueOperand:
    """An output with a value for each block of columns, checked by itself."""
    where = f"operands.{operand.name}"
    if operand.dtype not in BLOCK_DTYPES:
        raise ManifestError(
            f"{where}.dtype: {operand.dtype}, expected one of {', '.join(BLOCK_DTYPES)}: what there is for "
            "each block of columns is a scale"
        )
    if operations_in(statement.whole).isdisjoint(REDUCTIONS):
        raise ManifestError(
            f"{where}.extents: {operand.name} has a value for each {operand.block} columns, so its right "
            f"side has to have sum(), max() or min() of something: found `{statement}`"
        )
    return replace(operand, written=True)


def _check_blocks(operands: Sequence[EpilogueOperand], outputs: Mapping[str, Statement]) -> None:
    """Refuse outputs of blocks of columns that do not go together, or that differ from column to column."""
    blocks = [operand for operand in operands if operand.block > 1]
    if len({operand.block for operand in blocks}) > 1:
        raise ManifestError(
            "epilogue: blocks of "
            + " and ".join(f"{operand.block} columns ({operand.name})" for operand in blocks)
            + ": all of an epilogue are of as many"
        )
    by_name = {operand.name: operand for operand in operands}
    for operand in blocks:
        for name in sorted(names_in(outputs[operand.name].expression)):
            if name in outputs:
                raise ManifestError(
                    f"epilogue: in `{outputs[operand.name]}`: {name} is a value of a block itself: only what "
                    "is not reduced can read it"
                )
        outside, inside = without_reductions(outputs[operand.name].whole)
        for name in sorted(names_in(outside) - set(inside)):
            if name == ACCUMULATOR or by_name[name].extents not in (NUMBER, ELEMENT, COLUMN, STRIDED_COLUMN):
                raise ManifestError(
                    f"epilogue: in `{outputs[operand.name]}`: {name} has several values in a block of "
                    "columns: it can only be inside of sum(), max() or min()"
                )
        if ROTATION in operations_in(outside):
            raise ManifestError(
                f"epilogue: in `{outputs[operand.name]}`: {ROTATION}() is of two columns: it can only be "
                "inside of sum(), max() or min()"
            )


_EACH, _HALF = "a value for each column of accum", "one for each two columns of accum"


def _check_halves(operands: Sequence[EpilogueOperand], outputs: Mapping[str, Statement]) -> None:
    """Refuse what has half as many columns as the accumulator where D, or something else, has all of them.

    Matrices and vectors along N are those of the accumulator's columns.
    """
    columns = {
        operand.name: _EACH if operand.extents in (MATRIX, ROW, STRIDED_ROW) else "" for operand in operands
    }
    columns[ACCUMULATOR] = _EACH
    by_name = {operand.name: operand for operand in operands}
    found = {name: _columns(statement.expression, statement, columns) for name, statement in outputs.items()}
    for name, has in found.items():
        if name == OUT:
            continue
        extents = by_name[name].extents
        if has == _HALF and (found[OUT] != _HALF or extents in (MATRIX, ROW)):
            raise ManifestError(
                f"epilogue: in `{outputs[name]}`: {PAIRWISE[0]}() and {PAIRWISE[1]}() have {_HALF}, as {OUT} "
                "may: other matrices and vectors along N have all"
            )
        if has == _EACH and found[OUT] == _HALF and by_name[name].block > 1:
            raise ManifestError(
                f"epilogue: in `{outputs[name]}`: its blocks are of columns of {OUT}, which has {_HALF}"
            )


def _columns(expression: Expression, statement: Statement, columns: Mapping[str, str]) -> str:
    """What an expression has: :data:`_EACH`, :data:`_HALF`, or ``""`` if it is the same for all columns."""
    if isinstance(expression, Name):
        return columns[expression.name]
    if not isinstance(expression, Apply):
        return ""
    found = {_columns(argument, statement, columns) for argument in expression.arguments} - {""}
    if len(found) > 1:
        raise ManifestError(f"epilogue: in `{statement}`: something has {_EACH}, and something {_HALF}")
    if expression.operation in PAIRWISE:
        if found != {_EACH}:
            raise ManifestError(
                f"epilogue: in `{statement}`: {expression.operation}() is of what has {_EACH}"
            )
        return _HALF
    if expression.operation == ROTATION and found == {_HALF}:
        raise ManifestError(f"epilogue: in `{statement}`: {ROTATION}() is of what has {_EACH}")
    return min(found, default="")

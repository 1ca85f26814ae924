"""Formulas, over an accumulator or over extents: a bounded parser, canonical text, and an evaluator.

A formula is statements such as ``F = alpha * accum; D = relu(F + bias)``, separated by semicolons or line
ends. It is parsed with :mod:`ast` and never run. Two texts have the same canonical text if they differ only
in white space, redundant parentheses, names of temporaries, the order of statements, the order of the two
operands of a ``+``, ``*``, ``==`` or ``!=``, or the spelling of a number. Nothing is reassociated or
distributed: ``(x + y) + z`` and ``x + (y + z)`` round differently.
"""

from __future__ import annotations

import ast
import keyword
import math
import operator
import re
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cutlass_aot.errors import ManifestError
from cutlass_aot.schema.words import did_you_mean

ACCUMULATOR = "accum"
"""Name of the GEMM's result before the epilogue."""

OUT = "D"
"""Name of the GEMM's own output."""

FUNCTIONS = {
    "abs": 1, "clamp": 3, "cos": 1, "erf": 1, "exp": 1, "gelu": 1, "hardswish": 1, "log": 1, "maximum": 2,
    "minimum": 2, "relu": 1, "rotate_every_two": 1, "round": 1, "rsqrt": 1, "sigmoid": 1, "silu": 1, "sin": 1,
    "softplus": 1, "sqrt": 1, "tanh": 1, "where": 3,
}  # fmt: skip
"""Functions of elements, with their number of arguments."""

ROTATION = "rotate_every_two"
"""The function that reads a neighbour: of each two columns (x, y), counted from the first, (-y, x)."""

POWER = "**"

COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
"""Operators whose result is 1 where they hold, else 0."""

PAIRWISE = ("even", "odd")
"""Functions that have half as many columns as their argument: the first of each two, or the second."""

CALLED = {**FUNCTIONS, **dict.fromkeys((POWER, *COMPARISONS), 2)}
"""What :func:`evaluate` calls of its ``functions`` for an epilogue, with the number of arguments."""

_OF_EPILOGUES = {**CALLED, **dict.fromkeys(PAIRWISE, 1)}

REDUCTIONS = ("sum", "max", "min")
"""Functions of whole rows, columns or matrices, of which each is a statement's whole right side; and of
blocks of a row's columns, where they may be parts of it."""

MAX_TEXT = 4096
"""Characters of a formula."""

MAX_DEPTH = 32
"""Nested parentheses."""

MAX_NODES = 512
"""Operations, names and numbers of one expression after its temporaries are substituted."""

MAX_NESTING = 100
"""Nested operations of one expression after its temporaries are substituted."""

MAX_SHOWN = 100
"""Characters of a statement that an error shows."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)
_ALLOWED = re.compile(r"[A-Za-z0-9_+\-*/<>!().,=;\s]*", re.ASCII)
_ASSIGNMENT = re.compile(r"(?<![<>=!])=(?!=)")
_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.Pow: POWER,
}  # fmt: skip
_COMPARED: dict[type[ast.cmpop], str] = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip
_PRECEDENCE = {**dict.fromkeys(COMPARISONS, 0), "+": 1, "-": 1, "*": 2, "/": 2, "neg": 3, POWER: 4}
_COMMUTATIVE = ("+", "*", "==", "!=")
_OPERATORS: dict[str, Callable[..., Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "neg": operator.neg,
}
# As torch.pow has them, exactly: a general power takes many times as long.
_POWERS: dict[float, Callable[[Any], Any]] = {
    2.0: lambda x: x * x,
    3.0: lambda x: x * x * x,
    -1.0: lambda x: 1.0 / x,
    -2.0: lambda x: 1.0 / (x * x),
}


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, rounded to f32."""

    value: float
    size: int = 1


@dataclass(frozen=True, slots=True)
class Name:
    """The accumulator or an operand."""

    name: str
    size: int = 1


@dataclass(frozen=True, slots=True)
class Apply:
    """An operator or a function of :data:`FUNCTIONS`, applied.

    Attributes:
        operation: ``+``, ``-``, ``*``, ``/``, ``neg`` (one argument), ``**``, one of :data:`COMPARISONS` or a
            function's name.
        arguments: in canonical order for ``+``, ``*``, ``==`` and ``!=``.
        size: number of operations, names and numbers.
        depth: number of nested operations.
    """

    operation: str
    arguments: tuple[Expression, ...]
    size: int
    depth: int = field(default=0, compare=False)


Expression = Constant | Name | Apply


@dataclass(frozen=True, slots=True)
class Statement:
    """One output of a formula: ``expression``, or its ``reduction`` if that is not ``""``."""

    name: str
    expression: Expression
    reduction: str = ""

    @property
    def whole(self) -> Expression:
        """The right side as one expression, in which a reduction is a function like another."""
        expression = self.expression
        return Apply(self.reduction, (expression,), 1 + expression.size) if self.reduction else expression

    def __str__(self) -> str:
        value = text_of(self.expression)
        return f"{self.name} = {self.reduction}({value})" if self.reduction else f"{self.name} = {value}"


def is_name(name: str) -> bool:
    """Whether a word can name an operand or a temporary."""
    taken = (ACCUMULATOR, *FUNCTIONS, *PAIRWISE, *REDUCTIONS)
    return bool(_NAME.fullmatch(name)) and not keyword.iskeyword(name) and name not in taken


def canonical_text(statements: Collection[Statement]) -> str:
    """The canonical text: outputs that others read, then D, then the other outputs, each by name."""
    return "; ".join(str(statement) for statement in _ordered(statements))


def _ordered(statements: Collection[Statement]) -> list[Statement]:
    read = frozenset[str]().union(*(names_in(statement.expression) for statement in statements))
    return sorted(statements, key=lambda found: (found.name not in read, found.name != OUT, found.name))


def names_in(expression: Expression) -> frozenset[str]:
    """The accumulator and the operands that an expression reads."""
    if isinstance(expression, Name):
        return frozenset((expression.name,))
    if isinstance(expression, Constant):
        return frozenset()
    return frozenset().union(*(names_in(argument) for argument in expression.arguments))


def operations_in(expression: Expression) -> frozenset[str]:
    """The operators and functions of an expression."""
    if not isinstance(expression, Apply):
        return frozenset()
    return frozenset((expression.operation,)).union(*map(operations_in, expression.arguments))


def named(expression: Expression, is_named: Callable[[Apply], bool]) -> tuple[Expression, dict[str, Apply]]:
    """An expression with its largest parts of a kind as names, and these by their names, their texts."""
    if not isinstance(expression, Apply):
        return expression, {}
    if is_named(expression):
        name = text_of(expression)
        return Name(name), {name: expression}
    arguments, found = [], dict[str, Apply]()
    for argument in expression.arguments:
        changed, parts = named(argument, is_named)
        arguments.append(changed)
        found.update(parts)
    return replace(expression, arguments=tuple(arguments)), found


def without_reductions(expression: Expression) -> tuple[Expression, dict[str, Apply]]:
    """An expression with each reduction in it as a name, and the reductions by these names."""
    return named(expression, lambda part: part.operation in REDUCTIONS)


def application(
    node: Apply, functions: Mapping[str, Callable[..., Any]]
) -> tuple[Callable[..., Any], tuple[Expression, ...]]:
    """What an operation calls, and on which of its arguments; ``functions`` are those of :func:`evaluate`."""
    power = _POWERS.get(_exponent(node))
    if power is not None:
        return power, node.arguments[:1]
    return functions.get(node.operation) or _OPERATORS[node.operation], node.arguments


def evaluate(
    expression: Expression,
    values: Mapping[str, Any],
    functions: Mapping[str, Callable[..., Any]],
    constant: Callable[[float], Any] = float,
) -> Any:
    """Compute an expression with values of any library that have ``+ - * /`` and unary minus.

    ``values`` of the accumulator and the operands have shapes that broadcast, ``functions`` are those of
    :data:`CALLED` that the expression uses, and operators that are to be others than Python's; ``constant``
    converts a number. A repeated subexpression is computed once. Powers of 2, 3, -1 and -2 are products and
    quotients.
    """
    known: dict[Expression, Any] = {}

    def value(node: Expression) -> Any:
        if node not in known:
            if isinstance(node, Name):
                known[node] = values[node.name]
            elif isinstance(node, Constant):
                known[node] = constant(node.value)
            else:
                apply, arguments = application(node, functions)
                known[node] = apply(*(value(argument) for argument in arguments))
        return known[node]

    return value(expression)


def _exponent(node: Apply) -> float:
    """The exponent of a power, if it is a number; else NaN."""
    last = node.arguments[-1]
    return last.value if node.operation == POWER and isinstance(last, Constant) else math.nan


def parse_formula(text: str, outputs: Collection[str]) -> tuple[Statement, ...]:
    """Parse a formula such as ``"D = relu(alpha * accum + beta * C); F = accum"``.

    ``outputs`` are the declared outputs beside D; any other name that is assigned is a temporary, which is
    substituted. An output that has reductions is read under its own name, as it was stored. The statements
    come with those first that others read, then D, then by name. Text that is not a formula raises
    ManifestError.
    """
    temporaries: dict[str, Expression] = {}
    used: set[str] = set()
    read: set[str] = set()
    found: dict[str, Statement] = {}
    for source in _split(text):
        substituted = {name: s.expression for name, s in found.items() if not _reductions_in(s)}
        reader = _Reader(source, {**temporaries, **substituted}, outputs=outputs)
        name, reduction, expression = reader.statement()
        used |= reader.substituted
        read |= reader.read
        if name in found or name in temporaries:
            raise reader.error(f"{name} is assigned a second time")
        if name in read:
            raise reader.error(
                f"{name} is read before it is assigned: an operand cannot be both, and a temporary comes "
                "first"
            )
        if name == OUT or name in outputs:
            found[name] = Statement(name, expression, reduction)
        elif reduction:
            raise reader.error(
                f"{reduction}() gives an output of its own: declare {name!r} as an operand, or use maximum() "
                "and minimum() for elements"
            )
        else:
            temporaries[name] = expression
    unused = sorted(set(temporaries) - used)
    if unused:
        raise ManifestError(
            f"epilogue: {unused[0]!r} is assigned and never used: declare it as an operand to have it "
            "stored, or leave it out"
        )
    return tuple(_ordered(found.values()))


def _reductions_in(statement: Statement) -> bool:
    return not operations_in(statement.whole).isdisjoint(REDUCTIONS)


def parse_expression(text: str, functions: Mapping[str, int], what: str) -> Expression:
    """Parse one expression over names and numbers, such as ``"N / threads + 2"``.

    ``functions`` maps those that it may call to their number of arguments. ``what`` names the expression in a
    ManifestError for anything else.
    """
    if not text.strip():
        raise ManifestError(f"{what}: empty, expected one expression")
    statements = _split(text, what)
    if len(statements) > 1 or _ASSIGNMENT.search(statements[0]):
        raise ManifestError(f"{what}: found {text[:MAX_SHOWN]!r}, expected one expression")
    return _Reader(f"{what} = {statements[0]}", {}, functions, what, ()).statement()[2]


def text_of(expression: Expression) -> str:
    """The canonical text of an expression, with the fewest parentheses that keep its structure."""
    if isinstance(expression, Name):
        return expression.name
    if isinstance(expression, Constant):
        return repr(expression.value)
    operation, arguments = expression.operation, expression.arguments
    if operation not in _PRECEDENCE:
        return f"{operation}({', '.join(text_of(argument) for argument in arguments)})"
    own = _PRECEDENCE[operation]
    if operation == "neg":
        return f"-{_within(arguments[0], own)}"
    # A power binds to the right; of comparisons, Python makes chains.
    left = own + (operation == POWER or operation in COMPARISONS)
    right = own + (operation != POWER)
    return f"{_within(arguments[0], left)} {operation} {_within(arguments[1], right)}"


def _within(expression: Expression, least: int) -> str:
    """An argument's text, in parentheses if it binds less strongly than ``least``."""
    text = text_of(expression)
    own = least
    if isinstance(expression, Apply):
        own = _PRECEDENCE.get(expression.operation, least)
    elif isinstance(expression, Constant) and text.startswith("-") and least > _PRECEDENCE[POWER]:
        own = _PRECEDENCE["neg"]
    return f"({text})" if own < least else text


def _split(text: str, what: str = "epilogue") -> list[str]:
    """The statements' texts. A line end inside parentheses does not end a statement."""
    if len(text) > MAX_TEXT:
        raise ManifestError(f"{what}: {len(text)} characters, expected at most {MAX_TEXT}")
    allowed = _ALLOWED.match(text)
    if allowed is not None and allowed.end() != len(text):
        raise ManifestError(
            f"{what}: found {text[allowed.end()]!r} after {text[: allowed.end()][-20:]!r}: a formula has "
            "names, numbers, + - * / ** < > ! ( ) , = and ;"
        )
    statements, depth, current = [], 0, ""
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth > MAX_DEPTH:
            raise ManifestError(
                f"{what}: more than {MAX_DEPTH} parentheses inside each other in {text[:60]!r}"
            )
        if character == ";" or (character in "\r\n" and depth <= 0):
            statements.append(current)
            current = ""
        else:
            current += " " if character.isspace() else character
    statements.append(current)
    kept = [statement.strip() for statement in statements if statement.strip()]
    if not kept:
        raise ManifestError(f'{what}: empty, expected a formula such as "{OUT} = relu({ACCUMULATOR})"')
    return kept


class _Reader:
    """Reads one statement."""

    def __init__(
        self,
        source: str,
        known: Mapping[str, Expression],
        functions: Mapping[str, int] = _OF_EPILOGUES,
        what: str = "epilogue",
        reductions: Collection[str] = REDUCTIONS,
        outputs: Collection[str] = (),
    ) -> None:
        self.source = source
        self.outputs = outputs
        self.takes_reductions = False
        self.reductions = reductions
        self.known = known
        self.functions = functions
        self.named = [name for name in functions if name.isidentifier()]
        self.what = what
        self.substituted: set[str] = set()
        self.read: set[str] = set()

    def error(self, message: str) -> ManifestError:
        shown = self.source if len(self.source) <= MAX_SHOWN else f"{self.source[:MAX_SHOWN]}..."
        return ManifestError(f"{self.what}: in `{shown}`: {message}")

    def statement(self) -> tuple[str, str, Expression]:
        """The assigned name, the reduction or ``""``, and the expression."""
        try:
            body = ast.parse(self.source).body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            found = error.msg if isinstance(error, SyntaxError) else str(error)
            raise self.error(f"not a statement: {found}") from None
        node = body[0] if body else None
        if (
            not isinstance(node, ast.Assign)
            or len(node.targets) != 1
            or not isinstance(node.targets[0], ast.Name)
        ):
            raise self.error(f"expected `name = expression`, such as `{OUT} = relu({ACCUMULATOR})`")
        name = node.targets[0].id
        if not is_name(name):
            raise self.error(f"{name!r} cannot be assigned: it is the accumulator, a function or not a name")
        # ast.walk is a loop, so a tree that is too large or too deep is refused before any recursion.
        if sum(1 for _ in ast.walk(node.value)) > 4 * MAX_NODES:
            raise self.error(f"more than {MAX_NODES} operations, names and numbers")
        if _depth(node.value) > 2 * MAX_NESTING:
            raise self.error(self.too_deep())
        value, reduction = node.value, ""
        if (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Name)
            and value.func.id in self.reductions
        ):
            reduction = value.func.id
            value = self.reduced(value, reduction)
        elif name in self.outputs:
            self.takes_reductions = True
        return name, reduction, self.expression(value)

    def reduced(self, call: ast.Call, reduction: str) -> ast.expr:
        """What a reduction is of."""
        if len(call.args) != 1 or call.keywords:
            raise self.error(
                f"{reduction}() takes one expression; what is reduced follows from the output's extents"
            )
        return call.args[0]

    def expression(self, node: ast.expr) -> Expression:
        if isinstance(node, ast.Constant):
            return self.constant(node.value)
        if isinstance(node, ast.Name):
            return self.name(node.id)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd):
            return self.expression(node.operand)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            operand = self.expression(node.operand)
            # -2 and -(2) are the same constant; 0.0 - 0.0 leaves zero without a sign.
            return (
                Constant(0.0 - operand.value) if isinstance(operand, Constant) else self.apply("neg", operand)
            )
        if isinstance(node, ast.BinOp):
            operation = _BINARY.get(type(node.op), "")
            if operation in _OPERATORS or operation in self.functions:
                return self.binary(operation, self.expression(node.left), self.expression(node.right))
        if isinstance(node, ast.Compare) and not set(COMPARISONS).isdisjoint(self.functions):
            return self.comparison(node)
        if isinstance(node, ast.Call):
            return self.call(node)
        symbols = [*"+-*/", *(name for name in self.functions if name not in self.named)]
        raise self.error(
            f"{ast.unparse(node)!r} is not allowed: expected names, numbers, {' '.join(symbols)}, and "
            + ", ".join(self.named)
        )

    def comparison(self, node: ast.Compare) -> Expression:
        if len(node.ops) > 1:
            raise self.error(
                f"{ast.unparse(node)!r} is a chain of comparisons: write a product of them, such as "
                "(0 < x) * (x < 1)"
            )
        operation = _COMPARED.get(type(node.ops[0]))
        if operation is None:
            raise self.error(
                f"{ast.unparse(node)!r} is not allowed: expected one of {', '.join(COMPARISONS)}"
            )
        return self.binary(operation, self.expression(node.left), self.expression(node.comparators[0]))

    def name(self, name: str) -> Expression:
        if name in self.known:
            self.substituted.add(name)
            return self.known[name]
        if name != ACCUMULATOR and not is_name(name):
            raise self.error(f"{name!r} is not a value: expected {ACCUMULATOR}, an operand or a temporary")
        if name == OUT and self.reductions:
            raise self.error(f"{OUT} is read before it is assigned")
        self.read.add(name)
        return Name(name)

    def constant(self, value: object) -> Constant:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"{value!r} is not a number: expected one such as 2 or 0.5")
        try:
            rounded = as_f32(float(value))
        except OverflowError:
            rounded = math.inf
        if not math.isfinite(rounded) or (value != 0 and rounded == 0):
            raise self.error(f"{value!r} is out of the range of f32, in which constants are kept")
        return Constant(rounded)

    def binary(self, operation: str, left: Expression, right: Expression) -> Expression:
        if operation == "/" and isinstance(right, Constant) and right.value == 0:
            raise self.error("it divides by zero")
        if operation in _COMMUTATIVE:
            # Compound operands go first, so that `x + y + z` needs no parentheses.
            left, right = sorted((left, right), key=lambda side: (side.size == 1, text_of(side)))
        return self.apply(operation, left, right)

    def call(self, node: ast.Call) -> Expression:
        function = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if function in self.reductions and self.takes_reductions:
            inner = self.reduced(node, function)
            self.takes_reductions = False
            found = self.apply(function, self.expression(inner))
            self.takes_reductions = True
            return found
        if function in self.reductions:
            raise self.error(
                f"{function}() can only be all of the right side of an output: `total = {function}(...)`, or "
                'part of that of one that [kernels.operands] declares with extents such as "MN/128"; of two '
                "elements, maximum() and minimum()"
            )
        if function not in self.named:
            raise self.error(
                f"unknown function {function!r}: expected one of {', '.join(self.named)}"
                + did_you_mean(function, self.named)
            )
        if node.keywords or any(isinstance(argument, ast.Starred) for argument in node.args):
            raise self.error(f"{function}() takes expressions alone, without names or stars")
        count = self.functions[function]
        if len(node.args) != count:
            raise self.error(f"{function}() takes {count} arguments, found {len(node.args)}")
        return self.apply(function, *(self.expression(argument) for argument in node.args))

    def apply(self, operation: str, *arguments: Expression) -> Apply:
        size = 1 + sum(argument.size for argument in arguments)
        if size > MAX_NODES:
            raise self.error(
                f"more than {MAX_NODES} operations, names and numbers, with its temporaries put in"
            )
        depth = 1 + max(argument.depth if isinstance(argument, Apply) else 0 for argument in arguments)
        if depth > MAX_NESTING:
            raise self.error(self.too_deep())
        return Apply(operation, arguments, size, depth)

    def too_deep(self) -> str:
        """The error for nesting that is too deep for recursion."""
        return f"more than {MAX_NESTING} operations inside each other, with its temporaries put in"


def _depth(node: ast.AST) -> int:
    """Depth of a tree, computed without recursion."""
    depth, level = 0, [node]
    while level:
        depth += 1
        level = [child for parent in level for child in ast.iter_child_nodes(parent)]
    return depth


def as_f32(value: float) -> float:
    """The shortest decimal that rounds to the same f32 as ``value``; OverflowError if it is too large."""
    packed = struct.pack("<f", value)
    (nearest,) = struct.unpack("<f", packed)
    for digits in range(1, 10):
        short = float(f"{nearest:.{digits}g}")
        try:
            if struct.pack("<f", short) == packed:
                return short
        except OverflowError:
            continue  # rounded up beyond the largest f32
    return float(nearest)

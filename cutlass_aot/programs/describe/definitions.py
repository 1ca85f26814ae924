"""Where functions and classes are defined: their modules and names, their decorators and their source."""

from __future__ import annotations

import ast
import functools
import importlib.util
import inspect
import linecache
import sys
import textwrap
import types
from collections.abc import Iterator, Mapping
from typing import Any

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.distributions import is_of_program
from cutlass_aot.schema.requests.request import Value

_MADE_BY_DATACLASSES = "__create_fn__.<locals>."


def qualified_name(thing: Any) -> str:
    """``module:qualified.name`` of a class or a function."""
    return f"{thing.__module__}:{thing.__qualname__}"


_HEAP_TYPE = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``: a class that was made at run time."""


def is_reachable_by_name(thing: Any) -> bool:
    """Whether a module other than ``__main__`` has this very class or function under its qualified name.

    Its name describes it then: the module's source decides what it is.
    """
    if thing.__module__ == "__main__" or not _is_under_its_name(thing):
        return False
    # The variables that a decorator's function closes over are followed with its code.
    return hasattr(thing, "__wrapped__") or not closes_over_values(thing)


def is_made(kind: type) -> bool:
    """Whether a class is made at run time, so that no module has it under its name, and not by the DSL.

    It is described by its members; the DSL makes its own classes by their names.
    """
    module = kind.__module__ or ""
    if module == "builtins" and not kind.__flags__ & _HEAP_TYPE:
        return False  # Python's own, such as that of None.
    return module.partition(".")[0] != "cutlass" and not _is_under_its_name(kind)


def is_described_whole(thing: Any) -> bool:
    """Whether it is a class that is described by its members.

    Those within a function of ``__main__`` are not: they have source of their own.
    """
    return (
        isinstance(thing, type) and is_made(thing) and (thing.__module__ != "__main__" or is_in_main(thing))
    )


def is_in_main(thing: Any) -> bool:
    """Whether ``__main__`` has it under its name. Closures do not count: the request describes them."""
    name = thing.__qualname__
    return "<locals>" not in name and "<lambda>" not in name and not closes_over_values(thing)


def _is_under_its_name(thing: Any) -> bool:
    found: Any = sys.modules.get(getattr(thing, "__module__", None) or "")
    if found is None:
        return False
    for part in thing.__qualname__.split("."):
        found = inspect.getattr_static(found, part, None)
        if isinstance(found, (staticmethod, classmethod)):
            found = found.__func__
    if isinstance(thing, types.FunctionType) and found is not None:
        return unwrapped(found) is unwrapped(thing)
    return found is thing


def is_generated(thing: Any) -> bool:
    """Whether a function was made from text outside any module, so that only its byte code describes it."""
    if not isinstance(thing, types.FunctionType) or sys.modules.get(thing.__module__ or "") is not None:
        return False
    # Python's functions of a named tuple follow from its fields.
    return not (thing.__module__ or "").startswith("namedtuple_")


def closes_over_values(thing: Any) -> bool:
    """Whether a function closes over values, as a decorator's does, which its name does not tell.

    The ``__class__`` of a method that calls ``super()`` does not count.
    """
    return isinstance(thing, types.FunctionType) and not {"__class__"}.issuperset(thing.__code__.co_freevars)


def cells_of(function: types.FunctionType) -> dict[str, types.CellType]:
    """The variables that a function closes over, except empty cells."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell for name, cell in cells if cell != types.CellType()}


def unwrapped(function: Any) -> Any:
    """The function within the decorators of the DSL, of frameworks and of Python's own library.

    Decorators of the program stay: a trace runs them.
    """
    while hasattr(function, "__wrapped__") and not _is_by_program(function):
        function = function.__wrapped__
    return function


def layers(function: Any) -> Iterator[types.FunctionType]:
    """A decorated function and those within it, from the outermost inwards."""
    while isinstance(function, types.FunctionType):
        yield function
        function = getattr(function, "__wrapped__", None)


def _is_by_program(function: Any) -> bool:
    """Whether a decorator of the program's own code made this function."""
    if not isinstance(function, types.FunctionType):
        return False
    # Its `__module__` is that of what it wraps.
    module = sys.modules.get(function.__globals__.get("__name__", ""))
    return module is not None and is_of_program(module)


def is_own(thing: Any) -> bool:
    """Whether a class or function is the program's own code, which may decide kernels."""
    module = sys.modules.get(thing.__module__ or "")
    return is_generated(thing) if module is None else is_of_program(module)


def is_of_dataclasses(member: Any) -> bool:
    """Whether ``dataclasses`` generated a member of a class, so that the fields decide what it does.

    On Python 3.10 it cannot be told from other code without a file, which is refused.
    """
    code = getattr(inspect.unwrap(member) if callable(member) else member, "__code__", None)
    name = getattr(code, "co_qualname", "")
    return code is not None and code.co_filename == "<string>" and name.startswith(_MADE_BY_DATACLASSES)


def source_lines(function: types.FunctionType) -> range:
    """The lines of a function and its decorators in its file, numbered from 1.

    The DSL replaces the code of functions that it has traced by code that begins at another line of the same
    function, so the innermost function of this name around that line is taken.

    Raises:
        OSError: if there is no source, or no such function in it.
        SyntaxError: if the source was edited since and cannot be parsed.
    """
    lines, _ = inspect.findsource(function)
    first = function.__code__.co_firstlineno
    found = _definitions("".join(lines)).get(function.__code__.co_name, ())
    holding = [own for own in found if first in own]
    if not holding:
        raise OSError(f"line {first} is of no function {function.__code__.co_name}")
    return max(holding, key=lambda own: own.start)


def is_defined_at(file: str, name: str, line: int) -> bool:
    """Whether a file's source has a function of this name around a line, numbered from 1."""
    try:
        return any(line in own for own in _definitions("".join(linecache.getlines(file))).get(name, ()))
    except SyntaxError:
        return False


def source_of(function: types.FunctionType) -> str:
    """The source of a function or a lambda, without indentation and the rest of a lambda's line.

    Raises as :func:`source_lines`, and ValueError if a line has several lambdas that it could be.
    """
    if function.__code__.co_name != "<lambda>":
        own = source_lines(function)
        lines, _ = inspect.findsource(function)
        return textwrap.dedent("".join(lines[own.start - 1 : own.stop - 1]))
    lines, _ = inspect.findsource(function)
    first = function.__code__.co_firstlineno
    found = {ast.unparse(node) for node in _lambdas("".join(lines)).get(first, ())}
    if len(found) > 1:
        found = {text for text in found if _compiles_to(text, function)}
    if len(found) != 1:
        raise ValueError(
            f"line {first} has {len(found)} lambdas that it could be: put each on a line of its own"
        )
    return found.pop()


def script_source(thing: Any) -> str:
    """The source of a function or class of ``__main__``."""
    try:
        return inspect.getsource(thing) if isinstance(thing, type) else source_of(thing)
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        raise RequestError(f"the source of {qualified_name(thing)} is not at hand ({error})") from None


def first_line(thing: Any) -> int:
    """The first line of a function, even if a trace has replaced its code; 0 for a class."""
    return original_code(thing).co_firstlineno if hasattr(thing, "__code__") else 0


def original_code(function: Any) -> types.CodeType:
    """The code of a function, even if a trace has replaced it."""
    found: types.CodeType = getattr(function, "_original_code", None) or function.__code__
    return found


@functools.lru_cache(maxsize=64)
def _definitions(text: str) -> Mapping[str, list[range]]:
    """The lines of the functions of a file, by their names."""
    found: dict[str, list[range]] = {}
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            found.setdefault(node.name, []).append(range(first, (node.end_lineno or 0) + 1))
    return found


@functools.lru_cache(maxsize=64)
def _lambdas(text: str) -> Mapping[int, list[ast.Lambda]]:
    found: dict[int, list[ast.Lambda]] = {}
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.Lambda):
            found.setdefault(node.lineno, []).append(node)
    return found


@functools.lru_cache(maxsize=16)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _compiles_to(text: str, function: types.FunctionType) -> bool:
    """Whether the text of a lambda compiles to the function's code; both have the same free variables."""
    names = function.__code__.co_freevars
    inner = f"def outer({', '.join(names)}):\n return ({text})"
    outer = next(c for c in compile(inner, "<lambda>", "exec").co_consts if isinstance(c, types.CodeType))
    made = next((c for c in outer.co_consts if isinstance(c, types.CodeType)), None)
    code = function.__code__
    return made is not None and (made.co_code, made.co_names, _constants(made)) == (
        code.co_code, code.co_names, _constants(code)
    )  # fmt: skip


def _constants(code: types.CodeType) -> list[Any]:
    return [_constants(c) if isinstance(c, types.CodeType) else (type(c), c) for c in code.co_consts]


def code_values(code: types.CodeType) -> Value:
    """Byte code as a value of a request; it differs between minor versions of Python."""
    return [
        importlib.util.MAGIC_NUMBER, code.co_code, list(code.co_names), list(code.co_varnames),
        list(code.co_freevars), code.co_argcount, code.co_kwonlyargcount, code.co_flags,
        [_constant(constant) for constant in code.co_consts],
    ]  # fmt: skip


def _constant(constant: Any) -> Value:
    if isinstance(constant, types.CodeType):
        return code_values(constant)
    if isinstance(constant, tuple):
        return list(map(_constant, constant))
    if isinstance(constant, frozenset):
        return sorted(map(repr, constant))
    return f"{type(constant).__name__} {constant!r}"

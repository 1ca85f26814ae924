"""Functions as values: by their names, or by their source and what they close over."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator
from typing import Any

from cutlass_aot.programs.describe.definitions import (
    cells_of,
    code_values,
    is_generated,
    is_reachable_by_name,
    qualified_name,
    source_of,
    unwrapped,
)
from cutlass_aot.programs.describe.values.classes import class_name
from cutlass_aot.programs.describe.values.description import Description, Passed
from cutlass_aot.programs.describe.values.objects import own_fields
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.schema.requests.request import Value

_MAX_SOURCE = 2000
NO_ATTRIBUTES = (
    "__wrapped__", "set_name_prefix", "__deprecated__",
    # Of the DSL: set by its decorators and by a trace.
    "_dsl_", "_decorator_", "_preprocess", "_original_code", "_cute_dsl_", "_name_prefix", "__pyir_",
    # Of FlashAttention-4: a cached digest of the function.
    "__cute_hash__",
)  # fmt: skip
"""Prefixes of attributes of functions that say no more than the source does."""


def function(description: Description, value: types.FunctionType, passed: Passed) -> Value:
    """A function, without the decorators of the DSL and of frameworks."""
    inner = unwrapped(value)
    if not isinstance(inner, types.FunctionType):
        return description.value(inner)
    if description.is_inside(inner):
        return description.enclosing(inner)
    description.code.setdefault(id(inner), inner)
    attributes = vars(inner) | vars(value)
    attributes = {name: item for name, item in attributes.items() if not name.startswith(NO_ATTRIBUTES)}
    described: dict[str, Value] = {"function": qualified_name(inner)}
    if attributes:
        described["attributes"] = description.fields(attributes)
    if is_reachable_by_name(inner):
        return described
    description.enter(inner)
    described["source"] = _source(description, inner)
    if inner.__name__ != inner.__code__.co_name:
        described["name"] = inner.__name__
    closure = {name: cell.cell_contents for name, cell in cells_of(inner).items()}
    # A function that calls itself closes over itself.
    closure = {name: item for name, item in closure.items() if item is not inner and item is not value}
    if closure:
        described["closure"] = description.fields(closure)
    for key, defaults in (("defaults", inner.__defaults__), ("keywords", inner.__kwdefaults__)):
        if defaults:
            described[key] = description.at(f".{key}", defaults)
    description.leave(inner)
    return described


def _source(description: Description, function: types.FunctionType) -> Value:
    try:
        text = source_of(function)
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        if is_generated(function):
            return {"code": digest(encode(code_values(function.__code__)))}
        description.refuse(f"the source of {qualified_name(function)} is not at hand ({error})")
    return text if len(text) <= _MAX_SOURCE else {"sha256": digest(text.encode())}


def builtin(description: Description, value: types.BuiltinFunctionType, passed: Passed) -> Value:
    """A function written in C, or a method of an object of such a class."""
    described: dict[str, Value] = {"builtin": f"{value.__module__}:{value.__qualname__}"}
    own = getattr(value, "__self__", None)
    if own is not None and not isinstance(own, types.ModuleType):
        described["self"] = description.at(".__self__", own)
    return described


def method(description: Description, value: types.MethodType, passed: Passed) -> Value:
    """A method with its instance."""
    return {
        "method": description.at(".__func__", value.__func__),
        "self": description.at(".__self__", value.__self__),
    }


def partial(description: Description, value: functools.partial[Any], passed: Passed) -> Value:
    """A partial function, with fields that a program has set; one of the DSL's by its name."""
    own = name_in_dsl(value)
    if own:
        return {"partial": own}
    described: dict[str, Value] = {}
    if type(value) is not functools.partial:
        described["of"] = class_name(description, type(value))
    # A partial function of a partial one has the function and the arguments of both.
    inner = _within(value)
    arguments, keywords = list(value.args), dict(value.keywords)
    if inner is not None:
        arguments = arguments[len(inner.args) :]
        keywords = {name: item for name, item in keywords.items() if name not in inner.keywords}
    described |= {
        "partial": description.at(".func", value.func if inner is None else inner),
        "arguments": description.at(".args", arguments),
        "keywords": description.at(".keywords", keywords),
    }
    fields = description.fields(own_fields(value))
    return described | ({"fields": fields} if fields else {})


def name_in_dsl(value: functools.partial[Any]) -> str:
    """``module:name`` of a partial function that the DSL's module of its function has; else empty."""
    names = [name for name, held in _partials_of_dsl(value.func) if held is value]
    return f"{value.func.__module__}:{min(names)}" if names else ""


def _partials_of_dsl(function: Any) -> Iterator[tuple[str, functools.partial[Any]]]:
    """The partial functions that the DSL's module of a function has of it, by name."""
    module = getattr(function, "__module__", None) or ""
    if module.partition(".")[0] == "cutlass" and module in sys.modules:
        for name, held in vars(sys.modules[module]).items():
            if isinstance(held, functools.partial) and held.func is function:
                yield name, held


def _within(value: functools.partial[Any]) -> functools.partial[Any] | None:
    """The DSL's partial function that a program's was made of: of several the one with most arguments."""
    fitting = [
        (len(held.args) + len(held.keywords), name, held)
        for name, held in _partials_of_dsl(value.func)
        if value.args[: len(held.args)] == held.args
        and all(
            name in value.keywords and value.keywords[name] is item for name, item in held.keywords.items()
        )
    ]
    # The last of the most specific ones by name: aliases of one are as good as each other.
    return max(fitting, key=lambda item: item[:2])[2] if fitting else None


def a_property(description: Description, value: property, passed: Passed) -> Value:
    """A property, by its functions."""
    return {"property": [description.at(".fget", item) for item in (value.fget, value.fset, value.fdel)]}

"""Kinds of values that names of modules and classes hold."""

from __future__ import annotations

import argparse
import array
import enum
import operator
import types
from collections import ChainMap, UserDict, UserList, UserString, deque
from contextvars import ContextVar
from typing import Any

from cutlass_aot.programs.describe.definitions import is_own
from cutlass_aot.programs.describe.values.describer import TEXTS
from cutlass_aot.programs.without_dsl.placeholders import Structure
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.requests.request import Value

SCALARS = (bool, int, float, str, bytes, type(None))
_MAX_ITEMS = 64
_MAX_LEVELS = 3
_TEXTS = (*TEXTS, operator.attrgetter, operator.itemgetter, operator.methodcaller)
_TEXTS_OF_TORCH = ("torch:dtype", "torch:device", "torch:layout", "torch:memory_format")
"""Classes whose text describes a value completely."""
_CONTAINERS = (
    tuple, list, dict, set, frozenset, deque, array.array, types.MappingProxyType, ChainMap, UserDict,
    UserList, UserString, types.SimpleNamespace, argparse.Namespace, ContextVar,
)  # fmt: skip


def is_data(value: Any) -> bool:
    """Whether a value is described with each request."""
    return is_plain(value) or is_array(value) or is_container(value)


def is_container(value: Any) -> bool:
    """Whether a value is a container, or an object of a class of the program's own."""
    return isinstance(value, _CONTAINERS) or is_own(type(value))


def is_plain(value: Any, level: int = 0) -> bool:
    """Whether a value is a scalar, or a small container of scalars."""
    if isinstance(value, (*SCALARS, enum.Enum)):
        return True
    if level > _MAX_LEVELS or type(value) not in (tuple, list, frozenset, set, dict):
        return False
    items = [*value, *value.values()] if type(value) is dict else value
    return len(value) <= _MAX_ITEMS and all(is_plain(item, level + 1) for item in items)


def is_array(value: Any) -> bool:
    """Whether a value is an array or a number of NumPy."""
    return _package(value) == "numpy" and hasattr(value, "tobytes")


def array_digest(value: Any) -> Value:
    """Describe an array or a number of NumPy by a digest."""
    return [foreign_name(type(value)), f"{value.dtype} {value.shape}", digest(value.tobytes())]


def is_told_by_text(value: Any) -> bool:
    """Whether the text of a value describes it completely."""
    return (
        isinstance(value, _TEXTS)
        or foreign_name(type(value)) in _TEXTS_OF_TORCH
        or (_package(value) == "numpy" and " at 0x" not in str(value))
    )


def is_of_dsl(value: Any) -> bool:
    """Whether a value is a number of the DSL, or one of its objects with fields."""
    return _package(value) == "cutlass" and (
        hasattr(value, "__dict__") or hasattr(type(value), "width") or isinstance(value, Structure)
    )


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def is_pythons_own(name: str, value: Any) -> bool:
    """Whether it is a ``__name__`` with Python's meaning. One that holds a number is not."""
    is_number = type(value) in (bool, int, float) and name != "__firstlineno__"
    return name.startswith("__") and name.endswith("__") and not is_number


def foreign_name(thing: Any) -> str:
    """The name of a class or function outside the program's code.

    With its module if it is the DSL's; else with the package alone, since versions of a package move it
    between modules.
    """
    module = getattr(thing, "__module__", None) or ""
    package = module.partition(".")[0]
    # C and Python versions of a module differ in a leading underscore.
    home = module if package == "cutlass" else package.removesuffix("_extensions").lstrip("_")
    return f"{home}:{getattr(thing, '__qualname__', '')}"

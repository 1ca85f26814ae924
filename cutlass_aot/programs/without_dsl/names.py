"""The names that the DSL has: a table, written by ``tools/check/dsl_names.py``, of one release."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

RELEASE = "4.8.1"
"""Of nvidia-cutlass-dsl."""

_LISTED = {
    "classes": "class", "functions": "function", "modules": "module", "values": "value",
    "annotations": "annotation",
}  # fmt: skip
_FILE = Path(__file__).with_name(f"names-{RELEASE}.json")


class Name(NamedTuple):
    """What a name of a module is.

    Attributes:
        kind: ``class``, ``function``, ``module``, ``member`` of an enumeration, ``constant``, ``annotation``,
            ``foreign`` (of another package), or ``value`` for whatever else the DSL makes.
        what: of classes and functions the name that their own module has them under,
            ``module:qualified.name``; of modules theirs, of constants the value.
    """

    kind: str
    what: Any


class Option(NamedTuple):
    """A compile option.

    Attributes:
        class_name: of its class in ``cutlass.base_dsl.compiler``.
        option_name: how the compiler calls it; None for one that it does not see.
        flag: of the text that ``options=`` takes, without the hyphens before it; None without one.
        kind: of the value: ``bool``, ``int`` or ``str``.
        default: the value if nothing is said.
        is_left_out: whether text without the flag leaves it as it was.
    """

    class_name: str
    option_name: str | None
    flag: str | None
    kind: str
    default: Any
    is_left_out: bool


@functools.lru_cache(maxsize=1)
def _table() -> Mapping[str, Any]:
    found: Mapping[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return found


def is_module(name: str) -> bool:
    """Whether the DSL has a module."""
    return name in _table()["modules"]


def is_left_out(name: str) -> bool:
    """Whether the table says nothing of a module, though the DSL may have it."""
    return name.startswith(tuple(_table()["left out"]))


@functools.lru_cache(maxsize=1024)
def names_of(module: str) -> Mapping[str, Name]:
    """What a module has."""
    found: dict[str, Name] = {}
    entry = _table()["modules"][module]
    for listed, kind in _LISTED.items():
        separator = "." if kind == "module" else ":"
        for name in entry.get(listed, "").split():
            found[name] = Name(kind, f"{module}{separator}{name}")
    for source, listed in entry.get("from", {}).items():
        kind, where = source.split()
        for name in listed.split():
            found[name] = Name(kind, f"{where}:{name}")
    for name, value in entry.get("constants", {}).items():
        found[name] = Name("constant", as_tuples(value))
    for name, (kind, what) in entry.get("others", {}).items():
        found[name] = Name(kind, what)
    return found


def file_of(module: str) -> str:
    """A file that is named where the DSL's would be: programs tell installed code from their own by it."""
    return f"<without the DSL>/site-packages/{module.replace('.', '/')}.py"


def exported(module: str) -> list[str]:
    """What ``from module import *`` gives."""
    listed = _table()["modules"][module].get("all")
    return listed.split() if listed is not None else [n for n in names_of(module) if not n.startswith("_")]


def class_entry(where: str) -> Mapping[str, Any] | None:
    """What the table has of a class, ``module:qualified.name``."""
    found: Mapping[str, Any] | None = _table()["classes"].get(where)
    return found


def classes_of(module: str) -> list[str]:
    """Names of the classes that a module has itself."""
    return [name for name, item in names_of(module).items() if item == Name("class", f"{module}:{name}")]


def options() -> list[Option]:
    """The compile options, in the order in which the DSL has them."""
    return [Option(*item) for item in _table()["options"]]


def settings() -> list[str]:
    """Environment variables by which the DSL decides what it compiles."""
    return list(_table()["settings"])


def cuda_version() -> tuple[int, int]:
    """CUDA version by which the DSL's libraries were built, where the table was written."""
    major, minor = _table()["cuda"]
    return major, minor


class Wrapper(NamedTuple):
    """What a decorator of the DSL makes.

    Attributes:
        module: that the function is of.
        closure: variable to ``["function"]`` for what is decorated, or ``["constant", value]``.
        names: name that the function reads from its module, to the kind of what it has there and where
            that is.
    """

    module: str
    closure: Mapping[str, list[Any]]
    names: Mapping[str, list[Any]]


def wrapper(decorator: str) -> Wrapper:
    """What one of the decorators makes: ``cute.jit``, ``cute.kernel`` or ``dsl_user_op``."""
    return Wrapper(**_table()["wrappers"][decorator])


def tensor_memory() -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The fewest and the most columns of tensor memory that a block may have, by compute capability."""
    least, most = _table()["tensor memory"]
    return least, most


def shared_memory() -> Mapping[str, int]:
    """Bytes of shared memory that a block may have, by ``sm_`` and compute capability."""
    return dict(_table()["shared memory"])


def parameters(where: str) -> inspect.Signature | None:
    """Of a function that programs are known to inspect; of a default is known that there is one."""
    listed = _table()["parameters"].get(where)
    if listed is None:
        return None
    empty = inspect.Parameter.empty
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect._ParameterKind(kind), default=None if has_default else empty)
            for name, kind, has_default in listed
        ]
    )


def as_tuples(value: Any) -> Any:
    """A value of the table, in which tuples are lists."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value

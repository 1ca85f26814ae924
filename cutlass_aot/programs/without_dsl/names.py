"""The table of the names in one release of the DSL, which ``tools/check/dsl_names.py`` writes."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

RELEASE = "4.8.1"
"""Version of nvidia-cutlass-dsl."""

_LISTED = {
    "classes": "class", "functions": "function", "modules": "module", "values": "value",
    "annotations": "annotation",
}  # fmt: skip
_FILE = Path(__file__).with_name(f"names-{RELEASE}.json")


class Name(NamedTuple):
    """A name in a module.

    Attributes:
        kind: ``class``, ``function``, ``module``, ``member`` of an enumeration, ``constant``, ``annotation``,
            ``partial`` (function), ``foreign`` (of another package), or ``value`` for whatever else the DSL
            makes.
        what: of classes and functions ``module:qualified.name``, of modules the name, of constants the value.
    """

    kind: str
    what: Any


class Option(NamedTuple):
    """A compile option.

    Attributes:
        class_name: of its class in ``cutlass.base_dsl.compiler``.
        option_name: the compiler's name for it; None if it is not passed to the compiler.
        flag: in the text of ``options=``, without the leading hyphens; None without one.
        kind: type of the value: ``bool``, ``int`` or ``str``.
        is_left_out: whether text without the flag leaves its value unchanged.
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
    """Whether the DSL has a module of this name."""
    return name in _table()["modules"]


def is_left_out(name: str) -> bool:
    """Whether the table omits a module, which the DSL may have."""
    return name.startswith(tuple(_table()["left out"]))


@functools.lru_cache(maxsize=1024)
def names_of(module: str) -> Mapping[str, Name]:
    """The names in a module."""
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
    """A file name under ``site-packages``, by which programs tell installed code from their own."""
    return f"<without the DSL>/site-packages/{module.replace('.', '/')}.py"


def exported(module: str) -> list[str]:
    """The names that ``from module import *`` gives."""
    listed = _table()["modules"][module].get("all")
    return listed.split() if listed is not None else [n for n in names_of(module) if not n.startswith("_")]


def class_entry(where: str) -> Mapping[str, Any] | None:
    """The table's entry of a class, ``module:qualified.name``; None if it has none."""
    found: Mapping[str, Any] | None = _table()["classes"].get(where)
    return found


def classes_of(module: str) -> list[str]:
    """Names of the classes that a module defines itself."""
    return [name for name, item in names_of(module).items() if item == Name("class", f"{module}:{name}")]


def options() -> list[Option]:
    """The compile options, in the DSL's order."""
    return [Option(*item) for item in _table()["options"]]


def settings() -> list[str]:
    """Environment variables by which the DSL decides what it compiles."""
    return list(_table()["settings"])


def cuda_version() -> tuple[int, int]:
    """CUDA version (major, minor) of the DSL's libraries from which the table was written."""
    major, minor = _table()["cuda"]
    return major, minor


class Wrapper(NamedTuple):
    """The function that a decorator of the DSL makes.

    Attributes:
        module: its module.
        closure: variable to ``["function"]`` for the decorated function, or ``["constant", value]``.
        names: each name that it reads from its module, to ``[kind, what]`` as in :class:`Name`.
    """

    module: str
    closure: Mapping[str, list[Any]]
    names: Mapping[str, list[Any]]


def wrapper(decorator: str) -> Wrapper:
    """The function that ``cute.jit``, ``cute.kernel`` or ``dsl_user_op`` makes."""
    return Wrapper(**_table()["wrappers"][decorator])


def tensor_memory() -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The fewest and the most columns of tensor memory that a block may have, by compute capability."""
    least, most = _table()["tensor memory"]
    return least, most


def shared_memory() -> Mapping[str, int]:
    """Bytes of shared memory that a block may have, by target such as ``sm_90``."""
    return dict(_table()["shared memory"])


def parameters(where: str) -> inspect.Signature | None:
    """The signature of a function that programs inspect; None if not listed.

    A default that only the DSL can make is None in it.
    """
    listed = _table()["parameters"].get(where)
    if listed is None:
        return None
    empty = inspect.Parameter.empty
    return inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect._ParameterKind(kind),
                default=empty if default == [] else as_tuples(default[0]) if default else None,
            )
            for name, kind, default in listed
        ]
    )


def as_tuples(value: Any) -> Any:
    """A value of the table, in which tuples are lists."""
    return tuple(map(as_tuples, value)) if isinstance(value, list) else value

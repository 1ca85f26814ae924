"""Patches: functions that other code has put into the DSL's modules, and which every trace may run."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.definitions import layers
from cutlass_aot.programs.describe.distributions import OWN_FOLDER, deciding_origin_of_file, joined


class Patches(NamedTuple):
    """Foreign functions in the DSL's modules, and the fingerprints of their distributions, by name."""

    functions: tuple[types.FunctionType, ...]
    code: Mapping[str, str]


def patches() -> Patches:
    """The patches in the modules imported so far."""
    return _patches_of(len(sys.modules))


@functools.lru_cache(maxsize=4)
def _patches_of(_modules: int) -> Patches:
    package = sys.modules.get("cutlass")
    if package is None:
        return Patches((), {})
    file = getattr(package, "__file__", None)
    # Placeholders of the DSL have no file, and are of this package.
    home = f"{Path(file).parent}/" if file else OWN_FOLDER
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    functions: dict[int, types.FunctionType] = {}
    code: dict[str, set[str]] = {}
    seen: set[int] = set()
    for name, module in list(sys.modules.items()):
        if module is None or not (name == "cutlass" or name.startswith("cutlass.")):
            continue
        if not (getattr(module, "__file__", None) or home).startswith(home):
            continue  # Another distribution's, such as `cutlass.operators`.
        # A decorator of the DSL may wrap a patch, and a patch may wrap a function of the DSL.
        for function in (layer for own in _functions_of(module, seen) for layer in layers(own)):
            file = function.__code__.co_filename
            if file == main:
                raise RequestError(
                    f"{name}: the program's script has put {function.__qualname__} into it: move it into a "
                    "module of its own, so that its changes can be told"
                )
            if not file.startswith((home, OWN_FOLDER, "<")):
                origin = deciding_origin_of_file(file)
                if origin is not None:
                    code.setdefault(origin.name, set()).add(origin.fingerprint)
                    functions[id(function)] = function
    return Patches(tuple(functions.values()), {name: joined(items) for name, items in code.items()})


def _functions_of(module: types.ModuleType, seen: set[int]) -> Iterator[types.FunctionType]:
    """Functions of a module and its classes that are not in ``seen``.

    The DSL's modules have a hundred thousand names, several for most functions.
    """
    for value in list(vars(module).values()):
        kind = type(value)
        if kind is types.FunctionType:
            if id(value) not in seen:
                seen.add(id(value))
                yield value
        elif isinstance(value, type) and id(value) not in seen:
            seen.add(id(value))
            if not value.__module__.startswith("cutlass"):
                continue
            for member in list(vars(value).values()):
                inner: Any = member
                if type(member) is property:
                    inner = member.fget
                elif type(member) in (staticmethod, classmethod):
                    inner = member.__func__
                if type(inner) is types.FunctionType:
                    yield inner

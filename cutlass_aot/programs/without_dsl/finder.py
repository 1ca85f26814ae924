"""Placeholder modules for the DSL's, whose names are made from the table on first use."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from cutlass_aot.programs.without_dsl import names
from cutlass_aot.programs.without_dsl.placeholders import (
    Annotation,
    Unknown,
    class_for,
    dotted,
    foreign,
    function,
    refuse,
    unknown_class,
)

_WRITTEN: Mapping[str, str] = {
    "cutlass.base_dsl.enums": "numbers:enumerations",
    "cutlass.base_dsl.typing": "numbers:numbers",
    "cutlass.cute.typing": "symbols:symbols",
    "cutlass.cute.runtime": "tensors:tensors",
    "cutlass.runtime": "streams:streams",
    "cutlass.base_dsl.compiler": "compiler:options",
    "cutlass.base_dsl.dsl": "compiler:dsl",
    "cutlass.cutlass_dsl.cutlass": "compiler:cute_dsl",
    "cutlass.base_dsl.ast_helpers": "compiler:expressions",
    "cutlass._mlir_helpers.op": "compiler:operations",
    "cutlass.cute": "compiler:cute",
    "cutlass.cute.experimental": "compiler:experimental",
    "cutlass.base_dsl.runtime.jit_arg_adapters": "compiler:adapters",
    "cutlass.cute.core": "integers:integers",
    "cutlass.base_dsl.version_info": "machine:cuda",
    "cutlass.base_dsl.common": "machine:versions",
    "cutlass.cute.arch.tmem": "machine:tensor_memory",
    "cutlass.base_dsl.torch": "tensors:torch_dtypes",
    "cutlass.torch": "streams:torch_streams",
    "cutlass.testing": "compiler:arguments",
    "cutlass.utils.smem_allocator": "machine:shared_memory",
    "cutlass.memory": "machine:shared_memory",
    "cutlass.utils.hardware_info": "machine:hardware",
    "cutlass.experimental.task_scheduling.resources": "scheduling:resources",
}
"""Module to ``file:function`` of this package, which makes those of its names that do more than raise."""


_SAME = {
    "CUDA_VERSION": "cutlass.base_dsl.version_info:CUDA_VERSION",
    "register_jit_arg_adapter": "cutlass.cute:register_jit_arg_adapter",
    "get_smem_capacity_in_bytes": "cutlass.memory:get_smem_capacity_in_bytes",
}
"""Names that are the same in every module that has them."""
_NUMBERS = "cutlass.base_dsl.typing:"
"""Where the metaclasses of numbers are."""
_WITH_CUTE = (
    "cutlass.base_dsl.dsl", "cutlass.base_dsl.compiler", "cutlass.base_dsl.typing", "cutlass.cute.typing",
    "cutlass.cute.runtime",
)  # fmt: skip
"""Modules to import with ``cutlass.cute``, since describing a request needs them."""


class Module(ModuleType):
    """A placeholder module."""

    def __getattr__(self, name: str) -> Any:
        if name == "__all__":
            return names.exported(self.__name__)
        known = names.names_of(self.__name__).get(name)
        if known is None:
            if names.is_module(f"{self.__name__}.{name}") and f"{self.__name__}.{name}" in sys.modules:
                return sys.modules[f"{self.__name__}.{name}"]
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        found = _made(self.__name__, name, known)
        self.__dict__.setdefault(name, found)
        return self.__dict__[name]

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *names.names_of(self.__name__)})


class Finder:
    """Finds the DSL's modules, before Python looks for them on disk."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module of the DSL's; None for any other."""
        if name.partition(".")[0] != "cutlass":
            return None
        if names.is_left_out(name):
            refuse(f"the module {name} was imported")
        return ModuleSpec(name, self, is_package=True) if names.is_module(name) else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """An empty module."""
        return Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Make the names that do more than raise."""
        module.__path__ = []
        written = _WRITTEN.get(module.__name__)
        if written is not None:
            file, _, name = written.partition(":")
            make: Callable[[], Mapping[str, Any]] = getattr(
                importlib.import_module(f"cutlass_aot.programs.without_dsl.{file}"), name
            )
            made = make()
            _named(module.__name__, made)
            vars(module).update(made)
        if module.__name__ == "cutlass":
            importlib.import_module("cutlass.cute")
        elif module.__name__ == "cutlass.cute":
            for name in _WITH_CUTE:
                importlib.import_module(name)


def _named(module: str, made: Mapping[str, Any]) -> None:
    """Give functions and classes the modules and names of the DSL's, which requests contain."""
    for name, thing in made.items():
        kind, where = names.names_of(module).get(name, ("", ""))
        if kind in ("class", "function") and thing.__module__.startswith("cutlass_aot."):
            thing.__module__, _, thing.__qualname__ = where.partition(":")


def find(where: str) -> Any:
    """The object with a name of the table, ``module:qualified.name``."""
    module, _, name = where.partition(":")
    if not names.is_module(module):
        return foreign(where)
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def _made(module: str, name: str, known: names.Name) -> Any:
    kind, what = known
    own = f"{module}:{name}"
    if name in _SAME and _SAME[name] != own:
        return find(_SAME[name])
    if kind == "constant":
        return what
    if kind == "module":
        return importlib.import_module(what) if names.is_module(what) else Unknown(what)
    if kind == "foreign":
        try:
            return foreign(what)
        except (ImportError, AttributeError):  # The package is not installed, or of another version.
            return Unknown(dotted(own))
    if kind == "annotation":
        return Annotation(dotted(own))
    if kind == "member":
        where, _, member = what.rpartition(".")
        return getattr(find(where), member)
    if kind == "partial":
        return functools.partial(function(own)) if what == own else find(what)
    if kind in ("class", "function") and what != own:
        home, _, qualified = what.partition(":")
        if names.is_module(home) and _has(home, qualified):
            return find(what)
        return function(what) if kind == "function" else unknown_class(what)
    if kind == "function":
        return function(own)
    if kind == "class":
        entry = names.class_entry(own)
        if entry is None:
            return unknown_class(own)
        # A number of another module is one of the numbers, too.
        meta = str(entry.get("meta"))
        return class_for(own, entry, find, find(meta) if meta.startswith(_NUMBERS) else type)
    return Unknown(dotted(own))


def _has(module: str, qualified: str) -> bool:
    """Whether the table has a name in its own module."""
    return qualified.partition(".")[0] in names.names_of(module)

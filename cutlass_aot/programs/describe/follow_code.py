"""Follow a request's code: every function and class that a trace can reach by name, and what they read.

Functions are followed through the global names in their code, and classes through their members. The slice
has the origin of each (its distribution, or its file), and the values of the names
(:mod:`~cutlass_aot.programs.describe.module_values`).

Names are taken from the code, not from a trace, so that the slice is known before anything is compiled. A
trace that goes beyond it is refused when a request is recorded (:mod:`cutlass_aot.programs.record.audit`).
"""

from __future__ import annotations

import builtins
import contextlib
import enum
import functools
import importlib
import importlib.util
import re
import sys
import types
from collections import OrderedDict, namedtuple
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.byte_code import imported_by, names_in
from cutlass_aot.programs.describe.code_slice import ABSENT, CodeSlice, SliceBuilder, Slot
from cutlass_aot.programs.describe.definitions import (
    cells_of,
    first_line,
    is_described_whole,
    is_in_main,
    is_of_dataclasses,
    is_own,
    layers,
    qualified_name,
    unwrapped,
)
from cutlass_aot.programs.describe.distributions import deciding_origin_of
from cutlass_aot.programs.describe.module_values import ModuleValues
from cutlass_aot.programs.describe.value_kinds import is_pythons_own
from cutlass_aot.programs.describe.values.dsl import adapters_of
from cutlass_aot.programs.describe.values.functions import NO_ATTRIBUTES

_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]*")
"""Texts in code that may name an environment variable; only those that are set count."""
_MAX_SLICES = 1024
_IMPORTERS = {"__import__", "import_module"}
"""Functions by which code imports modules whose names it has as texts."""
_DESCRIPTORS = (
    types.MemberDescriptorType, types.GetSetDescriptorType, type(vars(namedtuple("_", "x"))["x"]),
)  # fmt: skip
"""Descriptors of slots and of a named tuple's fields."""

_known: OrderedDict[tuple[int, ...], tuple[CodeSlice, list[Any]]] = OrderedDict()


def slice_of(roots: Mapping[int, Any], *, anew: bool = False) -> CodeSlice:
    """The slice of the functions and classes in ``roots``; cached while it is valid, unless ``anew``."""
    things = [thing for root in roots.values() for thing in _told_apart_by(root)]
    key = tuple(sorted({id(thing) for thing in things}))
    known = _known.get(key)
    if known is None or anew or not known[0].holds():
        # The roots are kept, so that no other object gets their ids.
        known = _known[key] = (_Follower().run(roots.values()), things)
        if len(_known) > _MAX_SLICES:
            with contextlib.suppress(KeyError):  # Another thread has removed it.
                _known.popitem(last=False)
    return known[0]


def _told_apart_by(root: Any) -> tuple[Any, ...]:
    # A lambda that is made again has the same code; its closure is described with the request. Functions of
    # one decorator have the same code too, so those are told apart by themselves.
    if isinstance(root, types.FunctionType) and not hasattr(root, "__wrapped__"):
        return root.__code__, root.__globals__
    return (root,)


class _Follower:
    def __init__(self) -> None:
        self._notes = SliceBuilder()
        self._values = ModuleValues(self._notes, self._reach)
        self._work: list[types.FunctionType | type] = []
        self._modules: dict[int, types.ModuleType] = {}
        self._read: set[str] = set()
        self._seen: set[tuple[int, str]] = set()

    def run(self, roots: Iterable[Any]) -> CodeSlice:
        for root in roots:
            self._reach(root)
        while self._work or self._attributes():
            while self._work:
                thing = self._work.pop()
                if isinstance(thing, types.FunctionType):
                    self._function(thing)
                else:
                    self._class(thing)
        return self._notes.build()

    def _reach(self, thing: Any) -> bool:
        """Follow an object; returns whether it is code that can be followed."""
        if isinstance(thing, (functools.partial, functools.cached_property, functools.partialmethod)):
            return self._reach(thing.func)
        if isinstance(thing, (staticmethod, classmethod, types.MethodType)):
            return self._reach(thing.__func__)
        if isinstance(thing, types.ModuleType):
            self._notes.followed[id(thing)] = thing
            if self._notes.note_module(thing):
                self._modules[id(thing)] = thing
            return False
        if isinstance(thing, property):
            return any(list(map(self._reach, filter(None, (thing.fget, thing.fset)))))
        if isinstance(thing, functools.singledispatchmethod):
            return any(list(map(self._reach, (thing.func, *thing.dispatcher.registry.values()))))
        if not isinstance(thing, (types.FunctionType, type)):
            return self._reach_callable(thing)
        outer = thing
        thing = unwrapped(thing) if isinstance(thing, types.FunctionType) else thing
        if not isinstance(thing, (types.FunctionType, type)):
            return self._reach(thing)  # A function that wraps a callable object.
        if isinstance(thing, types.FunctionType) and is_own(thing):
            for layer in layers(outer):
                self._notes.layers[id(layer)] = layer
                self._notes.watch(vars(layer))
        if id(thing) not in self._notes.followed:
            self._notes.followed[id(thing)] = thing
            if not is_described_whole(thing) and is_own(thing):
                self._note_home(thing)
                self._work.append(thing)
        return True

    def _reach_callable(self, thing: Any) -> bool:
        """Follow a callable object that wraps a function."""
        wrapped = getattr(thing, "__wrapped__", None) if callable(thing) else None
        if not isinstance(wrapped, types.FunctionType):
            return False
        if is_own(type(thing)) and id(thing) not in self._notes.followed:
            self._notes.followed[id(thing)] = thing
            self._reach(type(thing))
            call = getattr(type(thing).__call__, "__code__", None)
            label = f"{qualified_name(wrapped)} as {qualified_name(type(thing))}"
            self._values.note_given(label, call, vars(thing))
            self._notes.fix_all(vars(thing), label)
        return self._reach(wrapped)

    def _note_home(self, thing: Any) -> None:
        module = sys.modules.get(thing.__module__ or "")
        if module is not None and module.__name__ != "__main__":
            self._notes.note_module(module)
        elif module is not None and is_in_main(thing):
            self._notes.note_script(qualified_name(thing), thing)

    def _class(self, kind: type) -> None:
        names = vars(kind)
        self._notes.watch(names)
        if type(kind) is not type:
            self._reach(type(kind))
        is_enum = issubclass(kind, enum.Enum)
        if is_enum:
            self._values.note_members(kind)
        if "__dataclass_fields__" in names:
            self._values.note_fields(kind)
        for base in kind.__mro__[1:]:
            self._reach(base)
        for name, member in list(names.items()):
            if (
                isinstance(member, _DESCRIPTORS)
                or is_of_dataclasses(member)
                or (is_enum and _is_of_enum(name, member))
            ):
                continue
            slot = Slot(names, name, f"{qualified_name(kind)}.{name}", member)
            if self._reach(member):
                self._values.note_code(slot)
            elif not is_pythons_own(name, member):
                self._values.note_value(slot)
        for scope, adapter in adapters_of(kind):
            self._reach(adapter)
            self._notes.bind(qualified_name(kind), ["adapter", scope, qualified_name(adapter)])

    def _function(self, function: types.FunctionType) -> None:
        self._values.note_defaults(function)
        if function.__module__ != "__main__":
            # The source of its file may define the name more than once.
            self._notes.bind(qualified_name(function), first_line(function))
        if hasattr(function, "__wrapped__"):
            self._values.note_decorator(function)
        names, texts = names_in(function.__code__)
        self._read.update(names)
        self._notes.variables.update(text for text in texts if _VARIABLE.fullmatch(text))
        if "__subclasses__" in names:
            raise RequestError(
                f"{qualified_name(function)} asks for subclasses of a class, which other modules may add to: "
                "name the classes that it uses"
            )
        variables = function.__globals__
        module = variables.get("__name__", "")
        modules: list[types.ModuleType] = []
        for name in names:
            if name in variables:
                modules += self._name(variables, name, f"{module}:")
            elif module == "__main__" and not hasattr(builtins, name):
                # A script may define the name later.
                self._notes.fix(Slot(variables, name, f"{module}:{name}", ABSENT))
        if module != "__main__":
            self._notes.watch(variables)
        modules += self._imports(function)
        for cell in cells_of(function).values():
            self._reach(cell.cell_contents)
        # Names in the modules that are named: the code of `utils.scale` has both names.
        seen = set()
        while modules:
            inner = modules.pop()
            if id(inner) in seen:
                continue
            seen.add(id(inner))
            self._notes.watch(vars(inner))
            for name in names:
                if name in vars(inner):
                    modules += self._name(vars(inner), name, f"{inner.__name__}:")

    def _name(self, namespace: Mapping[str, Any], name: str, owner: str) -> Iterable[types.ModuleType]:
        """Follow a name's value; returns it if it is a module in which names are to be followed."""
        slot = Slot(namespace, name, f"{owner}{name}", namespace[name])
        if is_pythons_own(name, slot.held):
            return ()
        if isinstance(slot.held, types.ModuleType):
            if self._notes.fix(slot):
                self._notes.bind(slot.label, slot.held.__name__)
            # Even if only a constant is read: the state leaves out one that equals its source's literal.
            return (slot.held,) if self._notes.note_module(slot.held) else ()
        if self._reach(slot.held):
            self._values.note_code(slot)
        else:
            self._values.note_value(slot)
        return ()

    def _imports(self, function: types.FunctionType) -> Iterator[types.ModuleType]:
        """Modules that the function imports itself.

        Those of already imported packages are imported now, so that the slice does not depend on what ran
        before.
        """
        package = function.__globals__.get("__package__") or ""
        imported = imported_by(function.__code__)
        names, texts = names_in(function.__code__)
        if not _IMPORTERS.isdisjoint(names):
            imported |= {(0, text) for text in texts if text in sys.modules}
        for level, name in sorted(imported):
            if level and not package:
                continue
            try:
                full = importlib.util.resolve_name("." * level + name, package) if level else name
            except ImportError:
                continue  # Beyond the outermost package.
            steps = full.split(".")
            paths = [".".join(steps[:count]) for count in range(len(steps), 0, -1)]
            nearest = next((module for path in paths if (module := sys.modules.get(path))), None)
            if nearest is None or deciding_origin_of(nearest) is None:
                continue
            with contextlib.suppress(Exception):  # A trace that imports it fails too, or catches the error.
                importlib.import_module(full)
            yield from filter(self._notes.note_module, filter(None, map(sys.modules.get, paths)))

    def _attributes(self) -> bool:
        """Follow attributes of functions and modules that code reads; returns whether there were new ones.

        Such as ``tile.n`` of a function ``tile``, and ``self.config.n`` where ``config`` is a module.
        """
        owners = [(vars(layer), f"{qualified_name(layer)}.") for layer in self._notes.layers.values()]
        owners += [(vars(module), f"{module.__name__}:") for module in self._modules.values()]
        is_new = False
        for names, owner in owners:
            for name in sorted(self._read & names.keys()):
                if name.startswith(NO_ATTRIBUTES) or (id(names), name) in self._seen:
                    continue
                self._seen.add((id(names), name))
                is_new = True
                for module in self._name(names, name, owner):
                    self._reach(module)
        return is_new


def _is_of_enum(name: str, member: Any) -> bool:
    """Whether an attribute of an enumeration is a member, or one that ``enum`` itself adds."""
    if isinstance(member, enum.Enum):
        return True
    return name.startswith("_") and not (isinstance(member, types.FunctionType) and is_own(member))

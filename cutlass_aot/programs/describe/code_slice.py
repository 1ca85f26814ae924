"""The code that a request follows from: every function and class that a trace can reach by name, and what
they read.

From what a request passes, functions are followed through the global names that their code has, and classes
through their members. What is found is the origin of each (its distribution, or its file), and the
module-level values that the functions read: numbers, switches and text, which a program may have changed, or
which were made from the environment. Values that their module's source gives as a literal are left out as
long as they are what it says.

Names are taken from the code, not from a trace, so that the slice is known before anything is compiled. What
a trace does beyond it is found when a request is recorded (:mod:`cutlass_aot.programs.record.audit`).
"""

from __future__ import annotations

import argparse
import array
import builtins
import contextlib
import dataclasses
import enum
import functools
import importlib
import importlib.util
import inspect
import operator
import os
import re
import sys
import types
from collections import ChainMap, OrderedDict, UserDict, UserList, UserString, deque, namedtuple
from collections.abc import Iterable, Mapping, Sized
from contextvars import ContextVar
from typing import Any, NamedTuple

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.byte_code import imported_by, names_in, rebound_by
from cutlass_aot.programs.describe.definitions import (
    closes_over_values,
    is_generated,
    is_made,
    is_of_dataclasses,
    is_reachable_by_name,
    layers,
    qualified_name,
    source_of,
    unwrapped,
)
from cutlass_aot.programs.describe.distributions import Origin, joined, origin_of
from cutlass_aot.programs.describe.literals import is_as_written
from cutlass_aot.programs.describe.values import NO_ATTRIBUTES, OF_ENUM, TEXTS, Describer
from cutlass_aot.programs.without_dsl.placeholders import Structure
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.schema.requests.request import Value

_SCALARS = (bool, int, float, str, bytes, type(None))
_PLAIN = (*_SCALARS, enum.Enum)
_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]*")
"""What may be the name of an environment variable; only those that are set count."""
_MAX_ITEMS = 64
_TEXTS = (*TEXTS, operator.attrgetter, operator.itemgetter, operator.methodcaller)
_TEXTS_OF_TORCH = ("torch:dtype", "torch:device", "torch:layout", "torch:memory_format")
"""Values that their text tells all of."""
_DESCRIBED = (
    complex, range, slice, bytearray, types.BuiltinFunctionType, types.MethodType, functools.partial,
)  # fmt: skip
_ABSENT = object()
_MAX_SLICES = 1024
_IMPORTERS = {"__import__", "import_module"}
"""By these, code imports modules whose names it has as texts."""
_DESCRIPTORS = (
    types.MemberDescriptorType, types.GetSetDescriptorType, type(vars(namedtuple("_", "x"))["x"]),
)  # fmt: skip
"""What Python makes for slots and for the fields of a named tuple."""
_CODE = (types.FunctionType, types.BuiltinFunctionType)


class Slot(NamedTuple):
    """One name that the code reads.

    Attributes:
        namespace: the module's variables, or the class's.
        name: in it.
        label: how a request calls it, ``module:name``.
        found: what it held when the slice was made.
    """

    namespace: Mapping[str, Any]
    name: str
    label: str
    found: Any


class CodeSlice(NamedTuple):
    """What follows from some functions and classes.

    Attributes:
        code: fingerprints of the code's origins, by their names, and of the source of functions and classes
            of ``__main__``: the ``code`` of a request.
        fixed: names that hold functions, classes and modules: while they hold the same, the slice is right.
        defaults: default values of the functions that were followed, likewise.
        sizes: how many names modules, classes and functions have, likewise.
        cells: variables of decorators, with the values that were described, likewise.
        plain: names that hold values.
        variables: environment variables that the code names.
        made: names that hold functions and classes which no module has under their names, such as lambdas:
            they are described with the request.
        bindings: a digest of the other names that hold functions and classes of other names, of the default
            values of functions, which are computed when a module is imported, and of the values that
            decorators were given. Empty if there are none.
        memories: functions of decorators that hold more than plain values, such as a dictionary of what they
            were asked before: a trace must not run them.
        followed: the functions and classes that were followed, by ``id``.
    """

    code: Mapping[str, str]
    fixed: tuple[Slot, ...]
    defaults: tuple[tuple[types.FunctionType, Any, Any], ...]
    sizes: tuple[tuple[Sized, int], ...]
    cells: tuple[tuple[types.CellType, Any], ...]
    plain: tuple[Slot, ...]
    variables: tuple[str, ...]
    made: tuple[Slot, ...]
    bindings: str
    memories: Mapping[types.CodeType, str]
    followed: Mapping[int, Any]

    def holds(self) -> bool:
        """Whether every name that holds code still holds the same, none has been added, and functions still
        have the same default values."""
        return (
            all(slot.namespace.get(slot.name, _ABSENT) is slot.found for slot in self.fixed)
            and all(len(names) == count for names, count in self.sizes)
            and all(
                function.__defaults__ is defaults and function.__kwdefaults__ is by_name
                for function, defaults, by_name in self.defaults
            )
            and all(cell.cell_contents is value for cell, value in self.cells)
        )

    def state(self, given: Mapping[str, str]) -> dict[str, Value]:
        """The ``state`` of a request, as it is now.

        Args:
            given: environment variables with the values by which packages are told of the request's target;
                those with these values are left out, so that a program which asks the GPU itself makes the
                same request.

        Raises:
            Outdated: if a value holds functions or classes that have not been followed.
        """
        found: dict[str, Value] = {}
        for slot in self.plain:
            value = slot.namespace.get(slot.name)
            if not is_as_written(slot.label, value):
                found[slot.label] = self._described(slot.label, value)
        for slot in self.made:
            found[slot.label] = self._described(slot.label, slot.found)
        if self.bindings:
            found["bindings"] = self.bindings
        for name in self.variables:
            value = os.environ.get(name)
            if value is not None and given.get(name) != value:
                found[f"environment:{name}"] = value
        return found

    def _described(self, label: str, value: Any) -> Value:
        if _is_array(value):
            return _array(value)
        describer = Describer()
        described = describer.argument(label, value)
        if not self.followed.keys() >= describer.code.keys():
            raise Outdated(f"{label} makes a new function or class at each access: make it once")
        return described


class Outdated(RequestError):
    """A slice does not have all that follows from the values of today."""


_known: OrderedDict[tuple[int, ...], tuple[CodeSlice, list[Any]]] = OrderedDict()


def slice_of(roots: Mapping[int, Any], *, anew: bool = False) -> CodeSlice:
    """The slice of some functions and classes; remembered while it holds.

    Args:
        roots: functions and classes, by anything.
        anew: whether it is known not to hold any more.
    """
    things = [thing for root in roots.values() for thing in _told_apart_by(root)]
    key = tuple(sorted({id(thing) for thing in things}))
    known = _known.get(key)
    if known is None or anew or not known[0].holds():
        # The roots are kept: what is gone could have its number taken by another.
        known = _known[key] = (_Slicer().run(roots.values()), things)
        if len(_known) > _MAX_SLICES:
            with contextlib.suppress(KeyError):  # Another thread has.
                _known.popitem(last=False)
    return known[0]


def _told_apart_by(root: Any) -> tuple[Any, ...]:
    # A lambda that is made anew has the same code; its closure is described with the request. What a
    # decorator has made of two functions has the same code too.
    if isinstance(root, types.FunctionType) and not hasattr(root, "__wrapped__"):
        return root.__code__, root.__globals__
    return (root,)


class _Slicer:
    def __init__(self) -> None:
        self._followed: dict[int, Any] = {}
        self._work: list[Any] = []
        self._layers: dict[int, types.FunctionType] = {}
        self._modules: dict[int, types.ModuleType] = {}
        self._grown: dict[int, Sized] = {}
        self._read: set[str] = set()
        self._seen: set[tuple[int, str]] = set()
        self._origins: dict[str, set[Origin]] = {}
        self._scripts: dict[str, str] = {}
        self._cells: list[tuple[types.CellType, Any]] = []
        self._fixed: dict[tuple[int, str], Slot] = {}
        self._plain: dict[tuple[int, str], Slot] = {}
        self._variables: set[str] = set()
        self._made: dict[tuple[int, str], Slot] = {}
        self._bindings: list[list[Value]] = []
        self._memories: dict[types.CodeType, str] = {}

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
        code = {name: joined(o.fingerprint for o in origins) for name, origins in self._origins.items()}
        code |= {name: f"- {digest(text.encode())[:32]}" for name, text in self._scripts.items()}
        return CodeSlice(
            dict(sorted(code.items())),
            _in_order(self._fixed.values()),
            tuple((f, f.__defaults__, f.__kwdefaults__) for f in self._layers.values()),
            tuple((names, len(names)) for names in self._grown.values()),
            tuple(self._cells),
            _in_order(self._plain.values()),
            tuple(sorted(self._variables)),
            _in_order(self._made.values()),
            digest(encode(sorted(self._bindings, key=encode)))[:32] if self._bindings else "",
            self._memories,
            self._followed,
        )

    def _reach(self, thing: Any) -> bool:
        """Follow a thing, if it is code that can be followed."""
        if isinstance(thing, functools.partial):
            return self._reach(thing.func)
        if isinstance(thing, (staticmethod, classmethod, types.MethodType)):
            return self._reach(thing.__func__)
        if isinstance(thing, types.ModuleType):
            self._followed[id(thing)] = thing
            origin = origin_of(thing)
            if origin is not None and not origin.is_neutral:
                self._note_origin(origin)
                self._modules[id(thing)] = thing
            return False
        if isinstance(thing, property):
            return any(list(map(self._reach, filter(None, (thing.fget, thing.fset)))))
        if isinstance(thing, (functools.cached_property, functools.partialmethod)):
            return self._reach(thing.func)
        if isinstance(thing, functools.singledispatchmethod):
            return any(list(map(self._reach, (thing.func, *thing.dispatcher.registry.values()))))
        if not isinstance(thing, (types.FunctionType, type)):
            wrapped = getattr(thing, "__wrapped__", None) if callable(thing) else None
            if not isinstance(wrapped, types.FunctionType):
                return False
            if self._is_own(type(thing)) and id(thing) not in self._followed:
                self._followed[id(thing)] = thing
                self._reach(type(thing))
                call = getattr(type(thing).__call__, "__code__", None)
                label = f"{qualified_name(wrapped)} as {qualified_name(type(thing))}"
                self._given(label, call, vars(thing))
                self._hold(vars(thing), list(vars(thing)), label)
            return self._reach(wrapped)
        outer = thing
        thing = unwrapped(thing) if isinstance(thing, types.FunctionType) else thing
        if not isinstance(thing, (types.FunctionType, type)):
            return self._reach(thing)  # A function around an object that can be called.
        if isinstance(thing, types.FunctionType) and self._is_own(thing):
            for layer in layers(outer):
                self._layers[id(layer)] = layer
                self._watch(vars(layer))
        if id(thing) in self._followed:
            return True
        self._followed[id(thing)] = thing
        if not _is_made(thing) and self._own(thing):
            self._work.append(thing)
        return True

    def _own(self, thing: Any) -> bool:
        """Whether it is code that decides kernels; its origin is noted then."""
        module = sys.modules.get(getattr(thing, "__module__", None) or "")
        if module is None:
            return is_generated(thing)
        if module.__name__ == "__main__":
            if is_in_main(thing):
                self._scripts[qualified_name(thing)] = _script_source(thing)
            return True
        origin = origin_of(module)
        if origin is None or origin.is_neutral:
            return False
        self._note_origin(origin)
        return True

    def _note_origin(self, origin: Origin) -> None:
        self._origins.setdefault(origin.name, set()).add(origin)

    def _watch(self, names: Sized) -> None:
        """Have the slice be made anew once something has been added to some names."""
        self._grown[id(names)] = names

    def _enumeration(self, kind: type[enum.Enum]) -> None:
        # Values are computed when the module is imported, and never changed.
        members = [[name, self._told(member.value)] for name, member in kind.__members__.items()]
        self._bindings.append([qualified_name(kind), members])
        for name, member in kind.__members__.items():
            self._watch(vars(member))
            for field in sorted(vars(member).keys() - OF_ENUM):
                label = f"{kind.__module__}:{kind.__qualname__}.{name}.{field}"
                self._value(vars(member), field, label, vars(member)[field])

    def _dataclass(self, kind: type) -> None:
        """What instances get that are made within a trace, where the class itself does not have it."""
        for field in vars(kind)["__dataclass_fields__"].values():
            label = f"{kind.__module__}:{kind.__qualname__}({field.name})"
            for value in (field.default, field.default_factory, dict(field.metadata)):
                if value not in (dataclasses.MISSING, {}) and vars(kind).get(field.name) is not value:
                    self._default(label, value)

    def _default(self, label: str, value: Any) -> None:
        if self._is_data(value) or _is_array(value):
            self._value({label: value}, label, label, value)
        else:
            self._bindings.append([label, self._told(value)])

    def _class(self, kind: type) -> None:
        names = vars(kind)
        self._watch(names)
        if type(kind) is not type:
            self._reach(type(kind))
        if issubclass(kind, enum.Enum):
            self._enumeration(kind)
        if "__dataclass_fields__" in names:
            self._dataclass(kind)
        for base in kind.__mro__[1:]:
            self._reach(base)
        for name, member in list(names.items()):
            if (
                isinstance(member, _DESCRIPTORS)
                or is_of_dataclasses(member)
                or (issubclass(kind, enum.Enum) and self._is_of_enum(name, member))
            ):
                continue
            if self._reach(member):
                self._bind(names, name, f"{kind.__module__}:{kind.__qualname__}.{name}", member)
                continue
            if not _is_pythons_own(name, member):
                self._value(names, name, f"{kind.__module__}:{kind.__qualname__}.{name}", member)

    def _is_of_enum(self, name: str, member: Any) -> bool:
        """Whether something in an enumeration's class is a member, or of what Python makes members by."""
        if isinstance(member, enum.Enum):
            return True
        return name.startswith("_") and not (isinstance(member, types.FunctionType) and self._is_own(member))

    def _bind(self, namespace: Mapping[str, Any], name: str, label: str, value: Any) -> None:
        """A name holds code: which, is told by the source of its module only if nothing has replaced it."""
        slot = Slot(namespace, name, label, value)
        if self._fixed.setdefault((id(namespace), name), slot) is not slot:
            return
        if isinstance(value, (functools.partial, types.MethodType)):
            # With arguments, or an instance, of its own.
            self._plain[id(namespace), name] = slot
            self._reach_within(label, value)
            return
        if isinstance(value, property):
            self._bindings.append([label, [_where(f) for f in (value.fget, value.fset) if f is not None]])
            return
        if isinstance(value, (functools.cached_property, functools.partialmethod)):
            self._bindings.append([label, _where(value.func)])
            if isinstance(value, functools.partialmethod):
                self._default(label, [list(value.args), dict(value.keywords)])
            return
        thing = getattr(value, "__func__", value)
        registry: Any = None
        if isinstance(value, functools.singledispatchmethod):
            registry = value.dispatcher.registry
        elif isinstance(thing, types.FunctionType):
            registry = vars(thing).get("registry")  # Of `functools.singledispatch`.
        if isinstance(registry, Mapping):
            self._watch(registry)
            for kind, function in registry.items():
                self._bindings.append([label, qualified_name(kind), self._told(function)])
        if not isinstance(thing, (types.FunctionType, type)):
            # Such as what `functools.lru_cache` makes of a function.
            thing = getattr(thing, "__wrapped__", thing)
        thing = unwrapped(thing) if isinstance(thing, types.FunctionType) else thing
        if _is_made(thing):
            self._made[id(namespace), name] = Slot(namespace, name, label, thing)
            self._reach_within(label, thing)
            return
        if not isinstance(thing, (types.FunctionType, type)):
            return
        if not self._is_own(thing):
            self._bindings.append([label, _foreign_name(thing)])
            return
        if isinstance(thing, types.FunctionType) and not (
            hasattr(thing, "__wrapped__")
            or is_reachable_by_name(thing)
            or (thing.__module__ == "__main__" and is_in_main(thing))
        ):
            self._made[id(namespace), name] = Slot(namespace, name, label, thing)
        elif qualified_name(thing) != label:
            self._bindings.append([label, qualified_name(thing)])

    def _is_data(self, value: Any) -> bool:
        """Whether a value is a container, or an object of a class of the code's own: described with each
        request."""
        kinds = (
            tuple, list, dict, set, frozenset, deque, array.array, types.MappingProxyType, ChainMap, UserDict,
            UserList, UserString, types.SimpleNamespace, argparse.Namespace, ContextVar,
        )  # fmt: skip
        return isinstance(value, kinds) or self._is_own(type(value))

    def _is_own(self, thing: Any) -> bool:
        module = sys.modules.get(thing.__module__ or "")
        if module is None:
            return is_generated(thing)
        return module.__name__ == "__main__" or self._is_followed(module)

    def _defaults(self, function: types.FunctionType) -> None:
        named = [*enumerate(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).items()]
        values: list[Value] = []
        for name, value in named:
            if isinstance(value, _SCALARS):
                values.append([str(name), value])
            else:
                self._default(f"{qualified_name(function)}({name})", value)
        if values:
            self._bindings.append([qualified_name(function), values])
        by_name = function.__kwdefaults__ or {}
        self._hold(by_name, by_name, qualified_name(function))

    def _hold(self, namespace: Mapping[str, Any], names: Iterable[str], label: str) -> None:
        """Have the slice be made anew once one of some names holds something else."""
        for name in names:
            slot = Slot(namespace, name, f"{label}({name})", namespace[name])
            self._fixed.setdefault((id(namespace), name), slot)

    def _attributes(self) -> bool:
        """Follow what code reads of functions and of modules that are values: ``tile.n`` in one that calls
        ``tile``, ``self.config.n`` where the field is a module.

        Returns:
            Whether there was something new.
        """
        owners = [(vars(layer), f"{qualified_name(layer)}.") for layer in self._layers.values()]
        owners += [(vars(module), f"{module.__name__}:") for module in self._modules.values()]
        found = False
        for names, owner in owners:
            for name in sorted(self._read & names.keys()):
                if name.startswith(NO_ATTRIBUTES) or (id(names), name) in self._seen:
                    continue
                self._seen.add((id(names), name))
                found = True
                modules: list[types.ModuleType] = []
                self._name(names, name, f"{owner}{name}", modules)
                for module in modules:
                    self._reach(module)
        return found

    def _told(self, value: Any) -> Value:
        """What is told of a value that is computed when a module is imported, and not changed after it.

        Of what has no description that is the same in every process, such as a logger, the class alone.
        """
        if isinstance(value, types.ModuleType):
            self._reach(value)
            return value.__name__
        if isinstance(value, (types.FunctionType, type)):
            self._reach(value)
            thing = unwrapped(value) if isinstance(value, types.FunctionType) else value
            if not isinstance(thing, (types.FunctionType, type)) or not self._is_own(thing):
                return _foreign_name(thing)
            if isinstance(thing, type) and not _is_made(thing):
                return qualified_name(thing)
            return [qualified_name(thing), _first_line(thing), _described_or_none(thing)]
        if isinstance(value, _TEXTS) or _foreign_name(type(value)) in _TEXTS_OF_TORCH:
            return [_foreign_name(type(value)), str(value)]
        if _is_array(value):
            return _array(value)
        if type(value).__module__.partition(".")[0] == "numpy" and " at 0x" not in str(value):
            return [_foreign_name(type(value)), str(value)]
        described = None
        if _is_plain(value) or self._is_data(value):
            self._reach_within("", value)
            described = Describer().argument(f"a {type(value).__qualname__}", value)
        elif isinstance(value, _DESCRIBED) or _is_of_dsl(value):
            described = _described_or_none(value)
        return [_foreign_name(type(value)), described]

    def _reach_within(self, label: str, value: Any) -> None:
        """Follow the functions and classes that a value holds."""
        describer = Describer()
        with contextlib.suppress(RequestError):  # The state of the request raises it.
            describer.argument(label, value)
        for thing in describer.code.values():
            self._reach(thing)

    def _value(self, namespace: Mapping[str, Any], name: str, label: str, value: Any) -> None:
        """A name holds something else than code."""
        slot = Slot(namespace, name, label, value)
        if _is_plain(value) or _is_array(value) or self._is_data(value):
            if self._plain.setdefault((id(namespace), name), slot) is slot and type(value) not in _SCALARS:
                self._reach_within(label, value)
        elif self._fixed.setdefault((id(namespace), name), slot) is slot:
            self._bindings.append([label, self._told(value)])

    def _decorator(self, function: types.FunctionType) -> None:
        """What a decorator made: its name and its module are those of the function inside."""
        name = f"{qualified_name(function)} as decorated by {function.__code__.co_name}"
        module = sys.modules.get(function.__globals__.get("__name__", ""))
        if module is not None and module.__name__ == "__main__":
            self._scripts[name] = _script_source(function)
        origin = origin_of(module) if module is not None else None
        if origin is not None:
            self._note_origin(origin)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        # One that nothing was put into yet has no contents.
        held = {variable: cell for variable, cell in cells if cell != types.CellType()}
        given = {variable: cell.cell_contents for variable, cell in held.items()}
        rebound = rebound_by(function.__code__)
        for variable in rebound & given.keys():
            given[variable] = _MEMORY
        self._cells += [(held[name], value) for name, value in given.items() if name not in rebound]
        self._given(name, function.__code__, given)

    def _given(self, name: str, code: types.CodeType | None, given: Mapping[str, Any]) -> None:
        """What a decorator was given, beside the function: the values are those of this moment."""
        values: list[Value] = []
        for variable, value in sorted(given.items()):
            if _is_pythons_own(variable, value):
                continue
            if isinstance(value, (*_CODE, type, types.ModuleType)):
                values.append([variable, self._told(value)])
            elif _is_plain(value) and not isinstance(value, (dict, list, set)):
                values.append([variable, _described(name, value)])
            elif not hasattr(value, "__wrapped__") and code is not None:
                self._memories[code] = name
        self._bindings.append([name, values])

    def _function(self, function: types.FunctionType) -> None:
        self._defaults(function)
        if function.__module__ != "__main__":
            # The source of its file, which the request follows from, may define the name more than once.
            self._bindings.append([qualified_name(function), _first_line(function)])
        if hasattr(function, "__wrapped__"):
            self._decorator(function)
        names, texts = names_in(function.__code__)
        self._read.update(names)
        self._variables.update(text for text in texts if _VARIABLE.fullmatch(text))
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
                self._name(variables, name, f"{module}:{name}", modules)
            elif module == "__main__" and not hasattr(builtins, name):
                # What a script does not have yet. Its names grow from line to line.
                self._absent(variables, name, f"{module}:{name}")
        if module != "__main__":
            self._watch(variables)
        self._imports(function, modules)
        for cell in function.__closure__ or ():
            try:
                self._reach(cell.cell_contents)
            except ValueError:
                continue
        # Modules that are named, and what is named in them: `utils.scale` has both names in its code.
        seen = set()
        while modules:
            inner = modules.pop()
            if id(inner) in seen:
                continue
            seen.add(id(inner))
            self._watch(vars(inner))
            for name in names:
                if name in vars(inner):
                    self._name(vars(inner), name, f"{inner.__name__}:{name}", modules)

    def _absent(self, namespace: Mapping[str, Any], name: str, label: str) -> None:
        """A name that holds nothing: a program may give it a value later."""
        self._fixed.setdefault((id(namespace), name), Slot(namespace, name, label, _ABSENT))

    def _imports(self, function: types.FunctionType, modules: list[types.ModuleType]) -> None:
        """Modules that the function imports itself. Those of packages at hand are imported now, so that the
        slice does not depend on what ran before."""
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
            parts = full.split(".")
            paths = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
            nearest = next((module for path in paths if (module := sys.modules.get(path))), None)
            if nearest is None or not self._is_followed(nearest):
                continue
            with contextlib.suppress(Exception):  # A trace that imports it fails, or goes another way.
                importlib.import_module(full)
            for module in filter(None, map(sys.modules.get, paths)):
                origin = origin_of(module)
                if origin is not None and not origin.is_neutral:
                    self._note_origin(origin)
                    modules.append(module)

    def _is_followed(self, module: types.ModuleType) -> bool:
        origin = origin_of(module)
        return origin is not None and not origin.is_neutral

    def _name(
        self, namespace: Mapping[str, Any], name: str, label: str, modules: list[types.ModuleType]
    ) -> None:
        value = namespace[name]
        if _is_pythons_own(name, value):
            return
        if isinstance(value, types.ModuleType):
            slot = Slot(namespace, name, label, value)
            origin = origin_of(value)
            if origin is not None and not origin.is_neutral:
                # Also for a constant alone: what its source says is left out of the state.
                self._note_origin(origin)
                modules.append(value)
            if self._fixed.setdefault((id(namespace), name), slot) is slot:
                self._bindings.append([label, value.__name__])
        elif self._reach(value):
            self._bind(namespace, name, label, value)
        else:
            self._value(namespace, name, label, value)


def _first_line(thing: Any) -> int:
    """Where a function begins in its file; its code may be the one that a trace has made of it."""
    code = getattr(thing, "_original_code", None) or getattr(thing, "__code__", None)
    return code.co_firstlineno if code is not None else 0


def _foreign_name(thing: Any) -> str:
    """The name of a class or function that is not part of the code: of the DSL's with its module, of others
    with the package alone, since they move among its modules from version to version."""
    module = getattr(thing, "__module__", None) or ""
    package = module.partition(".")[0]
    # Python's own modules are named after those that are written in C, or the other way round.
    home = module if package == "cutlass" else package.removesuffix("_extensions").lstrip("_")
    return f"{home}:{getattr(thing, '__qualname__', '')}"


def _is_of_dsl(value: Any) -> bool:
    """Whether a value is a number of the DSL, or an object of it that has fields."""
    kind = type(value)
    return kind.__module__.partition(".")[0] == "cutlass" and (
        hasattr(value, "__dict__") or hasattr(kind, "width") or isinstance(value, Structure)
    )


def _described_or_none(value: Any) -> Value:
    try:
        return _described("", value)
    except RequestError:
        return None


def _is_pythons_own(name: str, value: Any) -> bool:
    """Whether a name is one of Python's or of a package's machinery; a number under such a name is not."""
    is_number = type(value) in (bool, int, float) and name != "__firstlineno__"
    return name.startswith("__") and name.endswith("__") and not is_number


def _where(function: Any) -> Value:
    """Which function it is, without the decorators of the DSL; the lines of a script may move."""
    function = unwrapped(function)
    is_in_script = function.__module__ == "__main__"
    return [qualified_name(function), 0 if is_in_script else _first_line(function)]


def _in_order(slots: Iterable[Slot]) -> tuple[Slot, ...]:
    return tuple(sorted(slots, key=lambda slot: slot.label))


def _is_made(thing: Any) -> bool:
    """Whether a class is described by what it is made of. Classes within a function of ``__main__`` have
    source of their own."""
    return (
        isinstance(thing, type) and is_made(thing) and (thing.__module__ != "__main__" or is_in_main(thing))
    )


def is_in_main(thing: Any) -> bool:
    """Whether ``__main__`` has this function or class under its name; closures are described with the
    request."""
    name = thing.__qualname__
    return "<locals>" not in name and "<lambda>" not in name and not closes_over_values(thing)


def _script_source(thing: Any) -> str:
    try:
        if isinstance(thing, type):
            return inspect.getsource(thing)
        return source_of(thing)
    except (OSError, TypeError, SyntaxError, ValueError) as error:
        raise RequestError(f"the source of {qualified_name(thing)} is not at hand ({error})") from None


def _is_plain(value: Any, depth: int = 0) -> bool:
    if isinstance(value, _PLAIN):
        return True
    if depth > 3:
        return False
    if type(value) in (tuple, list, frozenset, set):
        return len(value) <= _MAX_ITEMS and all(_is_plain(item, depth + 1) for item in value)
    if type(value) is dict:
        return len(value) <= _MAX_ITEMS and all(
            _is_plain(key, depth + 1) and _is_plain(item, depth + 1) for key, item in value.items()
        )
    return False


def _described(label: str, value: Any) -> Value:
    return Describer().argument(label, value)


def _is_array(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tobytes")


def _array(value: Any) -> Value:
    """What is told of an array or a number of NumPy."""
    return [_foreign_name(type(value)), f"{value.dtype} {value.shape}", digest(value.tobytes())]


_MEMORY = object()
"""Stands for what a function changes itself, such as a count of its calls."""

"""The values that code reads: of module-level names, of defaults, and of decorators' arguments.

A value that a program may change is described with each request. Values that are computed when a module is
imported, and not changed later, have one digest in the slice: its bindings.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.byte_code import rebound_by
from cutlass_aot.programs.describe.code_slice import SliceBuilder, Slot
from cutlass_aot.programs.describe.definitions import (
    cells_of,
    first_line,
    is_described_whole,
    is_in_main,
    is_own,
    is_reachable_by_name,
    qualified_name,
    unwrapped,
)
from cutlass_aot.programs.describe.value_kinds import (
    SCALARS,
    array_digest,
    foreign_name,
    is_array,
    is_container,
    is_data,
    is_of_dsl,
    is_plain,
    is_pythons_own,
    is_told_by_text,
)
from cutlass_aot.programs.describe.values.classes import OF_ENUM
from cutlass_aot.programs.describe.values.describer import Describer
from cutlass_aot.schema.requests.request import Value

_DESCRIBED = (
    complex, range, slice, bytearray, types.BuiltinFunctionType, types.MethodType, functools.partial,
)  # fmt: skip
_NAMED = (types.FunctionType, types.BuiltinFunctionType, type, types.ModuleType)
"""What a decorator may be given that is told by its name."""
_MEMORY = object()
"""Stands for a variable that a function assigns to, such as a count of its calls."""


class ModuleValues:
    """Adds values to ``notes``; ``reach`` follows an object, and returns whether it is code."""

    def __init__(self, notes: SliceBuilder, reach: Callable[[Any], bool]) -> None:
        self._notes = notes
        self._reach = reach

    def note_value(self, slot: Slot) -> None:
        """Note a name that holds something other than code."""
        if is_data(slot.held):
            if self._notes.describe(slot) and type(slot.held) not in SCALARS:
                self._reach_within(slot)
        elif self._notes.fix(slot):
            self._notes.bind(slot.label, self._told(slot.held))

    def note_code(self, slot: Slot) -> None:
        """Note a name that holds code, and which code it is where the module's source does not say so."""
        if not self._notes.fix(slot):
            return
        _, _, label, value = slot
        if isinstance(value, (functools.partial, types.MethodType)):
            # Its arguments, or its instance, are values.
            self._notes.describe(slot)
            self._reach_within(slot)
            return
        if isinstance(value, property):
            self._notes.bind(label, [_where(f) for f in (value.fget, value.fset) if f is not None])
            return
        if isinstance(value, (functools.cached_property, functools.partialmethod)):
            self._notes.bind(label, _where(value.func))
            if isinstance(value, functools.partialmethod):
                self._note_default(label, [list(value.args), dict(value.keywords)])
            return
        thing = getattr(value, "__func__", value)
        self._note_registry(label, thing)
        if not isinstance(thing, (types.FunctionType, type)):
            # Such as what `functools.lru_cache` makes of a function.
            thing = getattr(thing, "__wrapped__", thing)
        thing = unwrapped(thing) if isinstance(thing, types.FunctionType) else thing
        if is_described_whole(thing):
            self._notes.describe_made(slot._replace(held=thing))
            self._reach_within(slot._replace(held=thing))
        elif not isinstance(thing, (types.FunctionType, type)):
            return
        elif not is_own(thing):
            self._notes.bind(label, foreign_name(thing))
        elif isinstance(thing, types.FunctionType) and not (
            hasattr(thing, "__wrapped__")
            or is_reachable_by_name(thing)
            or (thing.__module__ == "__main__" and is_in_main(thing))
        ):
            self._notes.describe_made(slot._replace(held=thing))
        elif qualified_name(thing) != label:
            self._notes.bind(label, qualified_name(thing))

    def _note_registry(self, label: str, thing: Any) -> None:
        """Note the functions among which ``functools.singledispatch`` and the like choose by class."""
        registry: Any = None
        if isinstance(thing, functools.singledispatchmethod):
            registry = thing.dispatcher.registry
        elif isinstance(thing, types.FunctionType):
            registry = vars(thing).get("registry")
        if isinstance(registry, Mapping):
            self._notes.watch(registry)
            for kind, function in registry.items():
                self._notes.bind(label, qualified_name(kind), self._told(function))

    def note_members(self, kind: type[enum.Enum]) -> None:
        """Note the members of an enumeration. Their values never change after the import."""
        members = [[name, self._told(member.value)] for name, member in kind.__members__.items()]
        self._notes.bind(qualified_name(kind), members)
        for name, member in kind.__members__.items():
            self._notes.watch(vars(member))
            for field in sorted(vars(member).keys() - OF_ENUM):
                label = f"{qualified_name(kind)}.{name}.{field}"
                self.note_value(Slot(vars(member), field, label, vars(member)[field]))

    def note_fields(self, kind: type) -> None:
        """Note default values and metadata of a dataclass's fields that are not attributes of the class."""
        for field in vars(kind)["__dataclass_fields__"].values():
            # By identity: a value may refuse to be compared, as some of the DSL's enumerations do.
            more = [dict(field.metadata)] if field.metadata else []
            for value in (field.default, field.default_factory, *more):
                if value is not dataclasses.MISSING and vars(kind).get(field.name) is not value:
                    self._note_default(f"{qualified_name(kind)}({field.name})", value)

    def note_defaults(self, function: types.FunctionType) -> None:
        """Note the default values of a function."""
        by_name = function.__kwdefaults__ or {}
        values: list[Value] = []
        for name, value in [*enumerate(function.__defaults__ or ()), *by_name.items()]:
            if isinstance(value, SCALARS):
                values.append([str(name), value])
            else:
                self._note_default(f"{qualified_name(function)}({name})", value)
        if values:
            self._notes.bind(qualified_name(function), values)
        self._notes.fix_all(by_name, qualified_name(function))

    def _note_default(self, label: str, value: Any) -> None:
        if is_container(value) or is_array(value):
            self.note_value(Slot({label: value}, label, label, value))
        else:
            self._notes.bind(label, self._told(value))

    def note_decorator(self, function: types.FunctionType) -> None:
        """Note a decorator's function, which has the name and the module of the function it wraps."""
        name = f"{qualified_name(function)} as decorated by {function.__code__.co_name}"
        module = sys.modules.get(function.__globals__.get("__name__", ""))
        if module is not None and module.__name__ == "__main__":
            self._notes.note_script(name, function)
        if module is not None:
            self._notes.note_module(module)
        given = {variable: cell.cell_contents for variable, cell in cells_of(function).items()}
        rebound = rebound_by(function.__code__) & given.keys()
        self._notes.fix_cells(function, given.keys() - rebound)
        self.note_given(name, function.__code__, given | dict.fromkeys(rebound, _MEMORY))

    def note_given(self, name: str, code: types.CodeType | None, given: Mapping[str, Any]) -> None:
        """Note the arguments of a decorator beside the function, with their present values."""
        values: list[Value] = []
        for variable, value in sorted(given.items()):
            if is_pythons_own(variable, value):
                continue
            if isinstance(value, _NAMED) or (not is_plain(value) and _holds_named(value)):
                values.append([variable, self._told_each(value)])
            elif is_plain(value) and not isinstance(value, (dict, list, set)):
                values.append([variable, Describer().argument(name, value)])
            elif not hasattr(value, "__wrapped__") and code is not None:
                self._notes.memories[code] = name
        self._notes.bind(name, values)

    def _told_each(self, value: Any) -> Value:
        return [self._told_each(item) for item in value] if type(value) is tuple else self._told(value)

    def _told(self, value: Any) -> Value:
        """Describe a value for the bindings.

        By its class alone if it has no description that is the same in every process, such as a logger.
        """
        if isinstance(value, types.ModuleType):
            self._reach(value)
            return value.__name__
        if isinstance(value, (types.FunctionType, type)):
            self._reach(value)
            thing = unwrapped(value) if isinstance(value, types.FunctionType) else value
            if not isinstance(thing, (types.FunctionType, type)) or not is_own(thing):
                return foreign_name(thing)
            if isinstance(thing, type) and not is_described_whole(thing):
                return qualified_name(thing)
            return [qualified_name(thing), first_line(thing), _described_or_none(thing)]
        if is_array(value):
            return array_digest(value)
        if is_told_by_text(value):
            return [foreign_name(type(value)), str(value)]
        described = None
        if is_plain(value) or is_container(value):
            slot = Slot({}, "", f"a {type(value).__qualname__}", value)
            self._reach_within(slot)
            described = Describer().argument(slot.label, value)
        elif isinstance(value, _DESCRIBED) or is_of_dsl(value):
            described = _described_or_none(value)
        return [foreign_name(type(value)), described]

    def _reach_within(self, slot: Slot) -> None:
        """Follow the functions and classes that a value holds."""
        describer = Describer()
        with contextlib.suppress(RequestError):  # The state of the request raises it.
            describer.argument(slot.label, slot.held)
        for thing in describer.code.values():
            self._reach(thing)


def _holds_named(value: Any) -> bool:
    """Whether it is a tuple of functions, classes and modules, in which there may be scalars and tuples."""
    return type(value) is tuple and all(
        isinstance(item, (*_NAMED, *SCALARS)) or _holds_named(item) for item in value
    )


def _described_or_none(value: Any) -> Value:
    try:
        return Describer().argument("", value)
    except RequestError:
        return None


def _where(function: Any) -> Value:
    """Name and line of the function within the DSL's decorators; line 0 in a script, whose lines may move."""
    function = unwrapped(function)
    is_in_script = function.__module__ == "__main__"
    return [qualified_name(function), 0 if is_in_script else first_line(function)]

"""Placeholders for the DSL's names: they can be imported, passed on and derived from, and raise when used.

Classes have the bases, members and qualified names of the DSL's, so that a program's derived class is
described as with the DSL. Enumerations have their members. Dataclasses that only hold their fields can be
instantiated.
"""

from __future__ import annotations

import abc
import builtins
import dataclasses
import enum
import functools
import importlib
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from cutlass_aot.errors import DslNeeded
from cutlass_aot.programs.without_dsl import names

Find = Callable[[str], Any]
"""Gives the class that a name of the table stands for."""

_DECORATORS = frozenset({"cutlass.cute.core:struct", "cutlass.cute.core:union"})
"""Class decorators, whose results only a trace uses."""
_MAKES_MORE = frozenset(
    {"__init__", "__new__", "__post_init__", "__setattr__", "__call__", "__getattribute__"}
)


def refuse(what: str) -> NoReturn:
    """Raise :class:`~cutlass_aot.errors.DslNeeded`; ``what`` says what was done, as a clause."""
    raise DslNeeded(
        f"{what}: without the DSL a program can describe what it asks cute.compile for, and nothing else; "
        "pip install nvidia-cutlass-dsl, and leave out cutlass_aot.without_dsl"
    )


def dotted(where: str) -> str:
    """A name of the table as a program writes it."""
    return where.replace(":", ".")


def by_name(*things: Any) -> dict[str, Any]:
    """Functions and classes by their names."""
    return {thing.__name__: thing for thing in things}


class Unknown:
    """A value that only the DSL makes. Its attributes are unknown too, and every use is refused."""

    __slots__ = ("_where",)

    def __init__(self, where: str) -> None:
        self._where = where

    def __repr__(self) -> str:
        return f"<{self._where}, which only the DSL has>"

    def __getattr__(self, name: str) -> Unknown:
        if name.startswith("__"):
            raise AttributeError(name)
        return Unknown(f"{self._where}.{name}")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Unknown):
            return self is other
        refuse(f"{self._where} was compared")

    def __hash__(self) -> int:
        return id(self)

    def __or__(self, other: Any) -> Any:
        return typing.Union[self, other]  # noqa: UP007 - what this is for

    def __ror__(self, other: Any) -> Any:
        return typing.Union[other, self]  # noqa: UP007 - likewise


class Annotation(Unknown):
    """A type for annotations alone, which may be given parameters."""

    __slots__ = ("arguments",)

    def __init__(self, where: str, arguments: tuple[Any, ...] = ()) -> None:
        super().__init__(where)
        self.arguments = arguments

    @property
    def name(self) -> str:
        """The name of the type without its parameters."""
        return self._where.removesuffix("[...]").rpartition(".")[2]

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = Unknown.__hash__

    def __getitem__(self, item: Any) -> Annotation:
        return _given(self._where, item)


def _given(where: str, item: Any) -> Annotation:
    return Annotation(f"{where}[...]", item if isinstance(item, tuple) else (item,))


class Structure(Unknown):
    """The result of ``cute.struct`` or ``cute.union``."""

    __slots__ = ("_annotations",)

    def __init__(self, decorated: type) -> None:
        super().__init__(f"{decorated.__module__}.{decorated.__qualname__}")
        self._annotations = dict(getattr(decorated, "__annotations__", {}))


def _add_refusals() -> None:
    """Make every operator on an :class:`Unknown` refuse."""

    def refused(name: str) -> Callable[..., Any]:
        words = "called" if name == "call" else f"used ({name})"
        return lambda self, *arguments, **keywords: refuse(f"{self._where} was {words}")

    for name in (
        "call", "bool", "int", "float", "index", "iter", "len", "contains", "getitem", "setitem", "enter",
        "exit", "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv",
        "mod", "rmod", "pow", "rpow", "and", "rand", "xor", "rxor", "lshift", "rshift", "neg", "pos", "abs",
        "invert", "lt", "le", "gt", "ge", "matmul",
    ):  # fmt: skip
        if f"__{name}__" not in vars(Unknown):
            setattr(Unknown, f"__{name}__", refused(name))


_add_refusals()


class UnknownClass(type):
    """The metaclass of classes that are known by name alone: those that bind the compiler."""

    def __getattr__(cls, name: str) -> Unknown:
        if name.startswith("_"):
            raise AttributeError(name)
        return Unknown(f"{cls.__module__}.{cls.__qualname__}.{name}")

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        """Refuse to make an instance."""
        refuse(f"{cls.__module__}.{cls.__qualname__} was called")


def is_unknown(kind: UnknownClass) -> bool:
    """Whether it is such a class itself, and not the program's, derived from one."""
    return "_is_unknown" in vars(kind)


def unknown_class(where: str) -> UnknownClass:
    """A class that is known by name alone."""
    module, _, name = where.partition(":")
    return UnknownClass(name, (), {"__module__": module, "__qualname__": name, "_is_unknown": True})


def _called(*arguments: Any, **keywords: Any) -> None:
    # Both are in the globals of each function.
    _refuse(_REQUESTED)  # type: ignore[name-defined]  # noqa: F821


@functools.lru_cache(maxsize=1024)
def _code_in(module: str) -> types.CodeType:
    return _called.__code__.replace(co_filename=names.file_of(module))


def function(where: str) -> types.FunctionType:
    """A function that raises when it is called, with the module and name of the DSL's."""
    module, _, name = where.partition(":")
    # Not a closure: a request describes a function by its name where nothing else tells what it does.
    variables: dict[str, Any] = {
        "__name__": module,
        "__builtins__": builtins,
        "_refuse": refuse,
        "_REQUESTED": f"{dotted(where)} was called",
    }
    short, parameters = name.rpartition(".")[2], names.parameters(where)
    if parameters is None:
        made = types.FunctionType(_code_in(module), variables, short)
    else:
        text = f"def {short}{parameters}: _refuse(_REQUESTED)"
        exec(compile(text, names.file_of(module), "exec"), variables)  # noqa: S102 - of the table's names
        made = variables.pop(short)
    made.__module__, made.__qualname__ = module, name
    return made


def _property(where: str) -> property:
    return property(lambda instance: refuse(f"{dotted(where)} was requested"))


def class_for(where: str, entry: Mapping[str, Any], find: Find, metaclass: type = type) -> type:
    """The placeholder of a class, with the name ``where`` and the ``entry`` of the table.

    ``find`` gives its bases. With a ``metaclass`` of the DSL's own, the class can be instantiated.
    """
    module, _, name = where.partition(":")
    members: dict[str, Any] = {
        item: function(f"{where}.{item}")
        for item in entry.get("functions", ())
        if item != "__class_getitem__"
    }
    members |= {item: _property(f"{where}.{item}") for item in entry.get("properties", ())}
    members |= {item: names.as_tuples(value) for item, value in entry.get("constants", {}).items()}
    members |= {item: Unknown(dotted(f"{where}.{item}")) for item in entry.get("values", ())}
    for item in entry.get("classes", ()):
        inner = names.class_entry(f"{where}.{item}")
        members[item] = (
            Unknown(dotted(f"{where}.{item}")) if inner is None else class_for(f"{where}.{item}", inner, find)
        )
    if "__class_getitem__" in entry.get("functions", ()) or str(entry.get("meta")).startswith(
        "cutlass.cute.core:struct."
    ):
        members["__class_getitem__"] = classmethod(lambda kind, item: _given(dotted(where), item))
    if "__eq__" in members and "__hash__" not in members:
        members["__hash__"] = function(f"{where}.__hash__")
    members |= {"__module__": module, "__qualname__": name}
    short = name.rpartition(".")[2]
    bases = tuple(_base(base, find) for base in entry["bases"] if base)
    if "enum" in entry:
        return _enumeration(short, bases, members, entry["enum"], where)
    if "dataclass" in entry:
        members |= _fields(entry["fields"], where)
    if entry.get("meta") == "abstract" and metaclass is type:
        metaclass = abc.ABCMeta
    if entry.get("meta") == "protocol":
        metaclass = _Protocol
    whole = "dataclass" in entry and _is_fields_alone(where, entry)
    if whole:
        if "__post_init__" in members:
            members["__post_init__"] = _check_nothing
    elif metaclass in (type, abc.ABCMeta, _Protocol) and "__new__" not in members:
        members["__new__"] = _new(where)
    made: type = types.new_class(short, bases, {"metaclass": metaclass}, lambda space: space.update(members))
    if "dataclass" in entry:
        made = dataclasses.dataclass(**entry["dataclass"])(made)
    return made


def _base(where: str, find: Find) -> Any:
    if where == "typing:Generic":
        return typing.Generic[typing.TypeVar("_T")]  # type: ignore[index]
    if where == "typing:Protocol":
        return typing.Protocol  # It gives derived classes members of its own, which a request has.
    return find(where)


def foreign(where: str) -> Any:
    """A name of another package, ``module:qualified.name``, or a module."""
    module, _, name = where.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split(".") if name else ():
        found = getattr(found, part)
    return found


def _new(where: str) -> Any:
    """A ``__new__`` that refuses for the DSL's class itself, and makes instances of derived classes."""

    def new(cls: type, *arguments: Any, **keywords: Any) -> Any:
        if f"{cls.__module__}:{cls.__qualname__}" == where:
            if where in _DECORATORS and len(arguments) == 1 and isinstance(arguments[0], type):
                return _decorated(cls)(arguments[0])
            refuse(f"{dotted(where)} was called")
        following = cls.__mro__[
            next(i for i, k in enumerate(cls.__mro__) if vars(k).get("__new__") is made) + 1 :
        ]
        outer: Any = next(vars(kind)["__new__"] for kind in following if "__new__" in vars(kind))
        outer = getattr(outer, "__func__", outer)
        return outer(cls) if outer is object.__new__ else outer(cls, *arguments, **keywords)

    new.__name__ = "__new__"
    made = staticmethod(new)
    return made


@functools.cache
def _decorated(kind: type) -> type[Structure]:
    """The class of a class decorator's results; requests have its name."""
    return type(kind.__name__, (Structure,), {"__slots__": (), "__module__": kind.__module__})


class _Protocol(type(typing.Protocol)):  # type: ignore[misc]
    """The metaclass of the DSL's protocols, whose ``isinstance`` only the DSL can decide."""

    def __instancecheck__(cls, instance: Any) -> bool:
        if cls.__module__.partition(".")[0] != "cutlass":
            return bool(super().__instancecheck__(instance))
        refuse(f"whether an object is a {cls.__module__}.{cls.__qualname__} was requested")


def _enumeration(
    name: str, bases: tuple[Any, ...], members: Mapping[str, Any], values: Mapping[str, Any], where: str
) -> type:
    # Without the DSL's mixins, which compute values: members have those of the table instead.
    mixed_in = [base for base in bases if issubclass(base, enum.Enum) or base.__module__ == "builtins"]
    bases = tuple(mixed_in)
    space = enum.EnumMeta.__prepare__(name, bases)
    own = {"__init__", "__new__", "_generate_next_value_", "_missing_"}
    for member, value in members.items():
        if member not in own and not isinstance(value, Unknown):
            space[member] = value
    first: dict[str, Any] = {}
    for member, value in values.items():
        if isinstance(value, str):  # Another name of a member.
            space[member] = first[value]
        else:
            first[member] = names.as_tuples(value[0]) if value else Unknown(dotted(f"{where}.{member}.value"))
            space[member] = first[member]
    return enum.EnumMeta(name, bases, space)


def _fields(fields: list[list[Any]], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {"__annotations__": {}}
    for name, annotation, init, by_name, default in fields:
        found["__annotations__"][name] = annotation
        options: dict[str, Any] = {"init": init, "kw_only": by_name}
        if isinstance(default, str):
            options["default_factory"] = getattr(builtins, default)
        elif default:
            options["default"] = names.as_tuples(default[0])
        elif default is None:
            options["default_factory"] = _unknown_default(f"{dotted(where)}.{name}")
        found[name] = dataclasses.field(**options)
    return found


def _unknown_default(name: str) -> Callable[[], Any]:
    return lambda: refuse(f"the default of {name} was requested")


def _check_nothing(_: Any) -> None:
    """In place of a ``__post_init__`` that only checks its arguments."""


def _is_fields_alone(where: str, entry: Mapping[str, Any]) -> bool:
    """Whether instances of a dataclass only hold their fields."""
    makes = _MAKES_MORE.intersection(entry.get("functions", ()))
    if entry.get("checked"):
        makes -= {"__post_init__"}
    if makes or not all(entry["bases"]):
        return False
    for base in entry["bases"]:
        if base.startswith("cutlass"):
            inner = names.class_entry(base)
            if inner is None or not _is_fields_alone(base, inner):
                return False
    return entry.get("meta") in (None, "abstract")

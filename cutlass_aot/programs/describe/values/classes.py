"""Classes as values: by their names, or by their members where no module has them under a name."""

from __future__ import annotations

import enum
import types
import typing
from typing import Any

from cutlass_aot.programs.describe.definitions import (
    is_made,
    is_of_dataclasses,
    qualified_name,
    unwrapped,
)
from cutlass_aot.programs.describe.values.description import Description, Passed
from cutlass_aot.schema.requests.request import Value

_NO_MEMBERS = (
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__",
    "__dataclass_fields__", "__dataclass_params__", "__match_args__",
    # Of Python 3.13.
    "__firstlineno__", "__static_attributes__", "__replace__",
)  # fmt: skip
OF_ENUM = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_"})
"""Fields that every member of an enumeration has."""


def a_class(description: Description, value: type, passed: Passed = Passed.CONSTANT) -> Value:
    """A class."""
    if value.__module__ == "builtins" and not is_made(value):
        return {"type": value.__qualname__}
    description.code.setdefault(id(value), value)
    if is_made(value) or value.__module__ == "__main__":
        return (
            description.enclosing(value) if description.is_inside(value) else _made_class(description, value)
        )
    return {"type": qualified_name(value)}


def class_name(description: Description, kind: type) -> Value:
    """The class of an object: its name, or its description if no module has it."""
    described = a_class(description, kind)
    return described.get("type", described)


def _made_class(description: Description, value: type) -> Value:
    """Describe a class that its module does not have under its name, by its members."""
    fields = getattr(value, "_fields", None)
    if issubclass(value, tuple) and fields is not None:
        annotations = {name: str(item) for name, item in vars(value).get("__annotations__", {}).items()}
        return {
            "named_tuple": qualified_name(value),
            "fields": list(fields),
            "types": annotations,
            "defaults": description.at("._field_defaults", dict(getattr(value, "_field_defaults", {}))),
        }
    description.enter(value)
    own: dict[str, Value] = description.fields(
        {
            name: unwrapped(item.__func__) if isinstance(item, (staticmethod, classmethod)) else item
            for name, item in vars(value).items()
            if name not in _NO_MEMBERS
            and not isinstance(item, (types.MemberDescriptorType, types.GetSetDescriptorType))
            and not is_of_dataclasses(item)
        }
    )
    if "__dataclass_fields__" in vars(value):
        given = vars(value)["__dataclass_params__"]
        own["__dataclass_params__"] = [given.eq, given.order, given.unsafe_hash, given.frozen]
        own["__dataclass_fields__"] = [
            {
                "name": field.name,
                "type": str(field.type),
                "init": field.init,
                "by_name": bool(field.kw_only),
                "default": description.at(f".{field.name}", field.default),
                "factory": description.at(f".{field.name}", field.default_factory),
            }
            for field in vars(value)["__dataclass_fields__"].values()
        ]
    bases = [description.at(".__bases__", base) for base in value.__bases__ if base is not object]
    description.leave(value)
    # Without its module, which depends on Python's version for classes of `make_dataclass`.
    return {"class": value.__qualname__, "bases": bases, "members": own}


def annotation(description: Description, value: Any, passed: Passed) -> Value:
    """``list[int]``, ``int | None`` and the like: by their text, and classes in it made at run time."""
    named = [item for item in typing.get_args(value) if isinstance(item, type) and is_made(item)]
    made = [description.at("[]", item) for item in named]
    return {"type": str(value)} | ({"made": made} if made else {})


def enum_member(description: Description, value: enum.Enum, passed: Passed) -> Value:
    """A member of an enumeration, by its name."""
    kind = type(value)
    description.code.setdefault(id(kind), kind)
    # Combined flags have no name of their own.
    member = value.name if value.name is not None else str(value.value)
    if is_made(kind):
        return {"enum": kind.__qualname__, "member": member, "value": description.at(".value", value.value)}
    described: dict[str, Value] = {"enum": f"{qualified_name(kind)}.{member}"}
    more = vars(value).keys() - OF_ENUM
    if more and kind.__module__.partition(".")[0] != "cutlass":
        described["fields"] = description.fields({name: vars(value)[name] for name in more})
    return described

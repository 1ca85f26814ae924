"""Objects as values: by class and fields, beside which an object must hold nothing."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections import deque
from collections.abc import Mapping
from typing import Any

from cutlass_aot.programs.describe.definitions import qualified_name
from cutlass_aot.programs.describe.values.classes import class_name
from cutlass_aot.programs.describe.values.description import Description, Passed
from cutlass_aot.schema.requests.request import Value

_ABSENT = object()
_NO_FIELDS = ("__dict__", "__weakref__")
_OBJECT_BYTES = object.__basicsize__
_POINTER_BYTES = 8


def an_object(description: Description, value: Any, passed: Passed) -> Value:
    """An object of a class that has no handler of its own."""
    kind: type = type(value)
    fields = own_fields(value)
    if _holds_more_than_fields(kind):
        description.refuse(f"an object of {qualified_name(kind)}, which holds more than fields")
    if not fields and not hasattr(value, "__dict__") and not dataclasses.is_dataclass(value):
        return _opaque(description, value, kind)
    description.enter(value)
    described = description.fields(fields, passed.of_fields)
    description.leave(value)
    return {"object": class_name(description, kind), "fields": described}


def is_adapted(value: Any, passed: Passed) -> bool:
    """Whether it is a dataclass that the DSL passes field by field, since it does not do so itself."""
    kind = type(value)
    return (
        passed is Passed.DYNAMIC
        and dataclasses.is_dataclass(value)
        and not hasattr(kind, "__get_mlir_types__")
        and not hasattr(kind, "__new_from_mlir_values__")
        and sorted(own_fields(value)) == sorted(field.name for field in dataclasses.fields(value))
    )


def adapted(description: Description, value: Any, passed: Passed) -> Value:
    """A dataclass that the DSL passes field by field: dynamic fields by their types."""
    kind = type(value)
    description.enter(value)
    fields = {
        field.name: description.at(f".{field.name}", getattr(value, field.name), passed_field(kind, field))
        for field in dataclasses.fields(value)
    }
    description.leave(value)
    return {"object": class_name(description, kind), "fields": fields}


def passed_field(kind: type, field: dataclasses.Field[Any]) -> Passed:
    """Whether a field of a dataclass that the DSL takes apart is compiled in."""
    annotation = field.type
    if isinstance(annotation, str) and "Constexpr" not in annotation:
        # It may be imported by another name. An annotation that cannot be evaluated counts as Constexpr.
        annotation = _annotations(kind).get(field.name, "Constexpr")
    return Passed.CONSTANT if "Constexpr" in str(annotation) else Passed.DYNAMIC


@functools.lru_cache(maxsize=1024)
def _annotations(kind: type) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except Exception:
        return {}


def _opaque(description: Description, value: Any, kind: type) -> Value:
    """An object of an extension module: by its text, if it is the DSL's and the text has no address."""
    name = qualified_name(kind)
    if kind.__module__.partition(".")[0] == "cutlass":
        text = str(value)
        if "0x" not in text and " at " not in text:
            return {"text": text, "of": name}
    return description.refuse(f"an object of {name}, which has no fields that could be described")


def named_tuple(description: Description, value: tuple[Any, ...], passed: Passed) -> Value:
    """An object of a class derived from ``tuple``: by its items, under their names if they have any."""
    kind = type(value)
    fields = getattr(kind, "_fields", None)
    description.enter(value)
    names = fields if fields is not None else [str(index) for index in range(len(value))]
    items = {
        name: description.at(f".{name}", item, passed.of_fields)
        for name, item in zip(names, value, strict=True)
    }
    further = description.fields(own_fields(value))
    description.leave(value)
    described = {"object": class_name(description, kind), "fields": items}
    return described | ({"further": further} if further else {})


def derived(description: Description, value: Any, passed: Passed) -> Value:
    """An object of a class derived from a builtin: by its value and further fields."""
    bases: tuple[Any, ...] = (int, float, str, bytes, dict, list, set, frozenset, deque)
    base = next(base for base in bases if isinstance(value, base))
    description.enter(value)
    described = {"object": class_name(description, type(value)), "value": description.at("", base(value))}
    fields = description.fields(own_fields(value))
    description.leave(value)
    return described | ({"fields": fields} if fields else {})


def text(description: Description, value: Any, passed: Passed) -> Value:
    """An object that its text describes completely, and further fields of a derived class."""
    fields = dict(getattr(value, "__dict__", {}))
    described: dict[str, Value] = {"object": class_name(description, type(value)), "text": str(value)}
    if fields:
        described["further"] = description.fields(fields)
    return described


def own_fields(value: Any) -> dict[str, Any]:
    """An instance's fields, including those in slots."""
    fields = {}
    for base in type(value).__mro__:
        for name in _slots(base):
            private = name.startswith("__") and not name.endswith("__")
            stored = f"_{base.__name__.lstrip('_')}{name}" if private else name
            held = getattr(value, stored, _ABSENT)
            if held is not _ABSENT:
                fields[name] = held
    return fields | dict(getattr(value, "__dict__", {}))


def _slots(kind: type) -> list[str]:
    """Names of a class's own slots, without Python's."""
    slots = kind.__dict__.get("__slots__", ())
    return [name for name in ((slots,) if isinstance(slots, str) else slots) if name not in _NO_FIELDS]


@functools.lru_cache(maxsize=4096)
def _holds_more_than_fields(kind: type) -> bool:
    """Whether instances have memory beside their fields, as those of an extension module's classes do."""
    fields = sum(len(_slots(base)) for base in kind.__mro__)
    # If Python keeps the dictionary outside of the object, its offset is not positive.
    fields += sum(place > 0 for place in (kind.__dictoffset__, kind.__weakrefoffset__))
    return kind.__itemsize__ != 0 or kind.__basicsize__ > _OBJECT_BYTES + _POINTER_BYTES * fields

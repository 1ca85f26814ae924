"""Values of a request as readable text."""

from collections.abc import Mapping
from typing import Any


def value_text(value: Any) -> str:
    """A value as text of any length."""
    if isinstance(value, Mapping):
        kinds = set(value)
        if kinds == {"tensor"} and isinstance(value["tensor"], Mapping):
            return _tensor(value["tensor"])
        if "symbol" in kinds:
            return f"?{value['symbol']}"
        if "dynamic" in kinds:
            dtypes = value.get("as")
            given = f" as {', '.join(map(type_text, dtypes))}" if isinstance(dtypes, list) else ""
            return f"{type_text(value['dynamic'])}{given}, passed at each call"
        if kinds == {"stream"}:
            return "a stream, passed at each call" if value["stream"] == "argument" else "the current stream"
        if kinds == {"tuple"} and isinstance(value["tuple"], list):
            inner = ", ".join(map(value_text, value["tuple"]))
            return f"({inner},)" if len(value["tuple"]) == 1 else f"({inner})"
        if kinds == {"number", "value"}:
            return f"{type_text(value['number'])}({value_text(value['value'])})"
        if kinds == {"object", "fields"} and isinstance(value["fields"], Mapping):
            fields = (f"{name}={value_text(item)}" for name, item in value["fields"].items())
            return f"{class_text(value['object'])}({', '.join(fields)})"
        if len(value) == 1 and isinstance(next(iter(value.values())), str):
            ((kind, text),) = value.items()
            return text if kind == "type" else f"{kind} {text}"
        return "{" + ", ".join(f"{name}: {value_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(value_text, value))}]"
    return ascii(value) if isinstance(value, (str, bytes)) else str(value)


def _tensor(fields: Mapping[str, Any]) -> str:
    """A tensor's dtype, shape and strides, then its other fields."""
    rest = dict(fields)
    words = [type_text(rest.pop("dtype", None))]
    for name in ("shape", "strides"):
        extents = rest.pop(name, None)
        if isinstance(extents, list):
            words.append(f"{name} ({', '.join(map(value_text, extents))})")
    words += [
        f"{name.replace('_', ' ')} {type_text(value)}" for name, value in rest.items() if value is not False
    ]
    return ", ".join(words)


def class_text(value: Any) -> str:
    """An object's class: its name, or the text of the value that describes it."""
    return value if isinstance(value, str) else value_text(value)


def type_text(value: Any) -> str:
    """A type's name without its module."""
    return value.rpartition(":")[2] if isinstance(value, str) else value_text(value)

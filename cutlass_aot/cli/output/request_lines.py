"""Requests of programs as text: one in full, or what distinguishes several of one callable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cutlass_aot.schema.codec import to_plain
from cutlass_aot.schema.requests.request import CallByName, CompiledRequest, Request, Value
from cutlass_aot.schema.requests.value_text import class_text, type_text, value_text

_WIDE = 88
"""Most characters of a value on one line; a longer one is shown field by field."""


def request_lines(compiled: CompiledRequest) -> list[tuple[str, str]]:
    """What ``show`` prints of a request: labels and texts; a label is ``""`` on all but its first line."""
    request, call = compiled
    lines = [("request", request.digest), ("callable", request.callable)]
    lines += _labelled("configuration", _configuration(request))
    width = max(map(len, request.arguments), default=0)
    lines += _labelled(
        "arguments", (line for name, v in request.arguments.items() for line in _field(name, v, width))
    )
    symbols = dict(_symbols([request.configuration, list(request.arguments.values())]))
    lines += _labelled("extents", (f"?{number}  {known}" for number, known in sorted(symbols.items())))
    for label, values in (("options", request.options), ("device", request.device)):
        lines += _labelled(label, (line for name, value in values.items() for line in _field(name, value)))
    width = max(map(len, request.code), default=0)
    lines += _labelled("code", (f"{name:<{width}}  {value}" for name, value in request.code.items()))
    lines += _labelled(
        "state", (line for name, value in request.state.items() for line in _field(name, value))
    )
    if call is not None:
        lines.append(("called with", _signature(call)))
    return lines


def request_record(compiled: CompiledRequest) -> dict[str, Any]:
    """What ``show --json`` prints of a request."""
    request, call = compiled
    return {
        "request": {"digest": request.digest, **_for_json(to_plain(request))},
        "call": None if call is None else _for_json(call._asdict()),
    }


def _for_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _for_json(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_for_json(item) for item in value]
    return {"bytes": value.hex()} if isinstance(value, bytes) else value


def _labelled(label: str, texts: Iterator[str]) -> list[tuple[str, str]]:
    return [("" if index else label, text) for index, text in enumerate(texts)]


def _configuration(request: Request) -> Iterator[str]:
    """The fields of an instance, one a line; any other value as text."""
    value = request.configuration
    if isinstance(value, Mapping) and set(value) == {"object", "fields"}:
        if not request.callable.startswith(f"{value['object']}."):
            yield class_text(value["object"])
        for name, field in value["fields"].items():
            yield from _field(name, field)
    elif value is not None:
        yield from _field("", value)


def _field(name: str, value: Value, width: int = 0) -> Iterator[str]:
    """A name and its value on one line, or the parts of a long value on lines below."""
    text = value_text(value)
    parts = list(_parts(value))
    if len(text) <= _WIDE or not parts or (isinstance(value, Mapping) and "tensor" in value):
        before = f"{name:<{width}}  " if width else f"{name} = " if name else ""
        yield f"{before}{text}"
        return
    yield f"{name}:" if name else _kind(value)
    for part, inner in parts:
        yield from (f"  {line}" for line in _field(part, inner))


def _kind(value: Value) -> str:
    return (
        ", ".join(item for item in value.values() if isinstance(item, str))
        if isinstance(value, Mapping)
        else ""
    )


def _parts(value: Value) -> Iterator[tuple[str, Value]]:
    if isinstance(value, Mapping):
        if set(value) in ({"tuple"}, {"fields", "object"}):
            yield from _parts(value.get("tuple", value.get("fields")))
        else:
            yield from value.items()
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield f"[{index}]", item


def _symbols(value: Value) -> Iterator[tuple[int, str]]:
    """Number of each symbolic extent, and what is known of it."""
    if isinstance(value, Mapping):
        if isinstance(value.get("symbol"), int):
            known = (f"{name} {type_text(item)}" for name, item in value.items() if name != "symbol")
            yield value["symbol"], ", ".join(known)
        for item in value.values():
            yield from _symbols(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _symbols(item)


def _signature(call: CallByName) -> str:
    """How the compiled function is called, as Python writes it."""
    required = len(call.names) - len(call.defaults)
    words = list(call.names[:required])
    words += [f"{n}={value_text(v)}" for n, v in zip(call.names[required:], call.defaults, strict=True)]
    if call.keyword_names:
        words.append("*")
    for name in call.keyword_names:
        default = call.keyword_defaults
        words.append(f"{name}={value_text(default[name])}" if name in default else name)
    fields = f"; fields of {', '.join(call.dataclasses)} one after the other" if call.dataclasses else ""
    return f"({', '.join(words)}){fields}"


def set_apart(requests: Sequence[Request]) -> list[str]:
    """For each of some requests, of one callable and target, the few values that distinguish it, as text."""
    leaves = [dict(_leaves(request)) for request in requests]
    paths = list(dict.fromkeys(path for found in leaves for path in found))
    known: list[tuple[str | None, ...]] = [() for _ in requests]
    chosen: list[tuple[str, ...]] = []
    for path in paths:
        if len(set(known)) == len(requests):
            break
        finer = [(*before, found.get(path)) for before, found in zip(known, leaves, strict=True)]
        # A value that follows from the earlier ones distinguishes nothing more.
        if len(set(finer)) > len(set(known)):
            known = finer
            chosen.append(path)
    return [
        ", ".join(
            f"{_name(path)} {text}" for path, text in zip(chosen, values, strict=True) if text is not None
        )
        for values in known
    ]


_WRAPPERS = frozenset({"arguments", "configuration", "fields", "tensor", "tuple", "object", "type"})


def _name(path: tuple[str, ...]) -> str:
    return ".".join(part for part in path if part not in _WRAPPERS)


def _leaves(request: Request) -> Iterator[tuple[tuple[str, ...], str]]:
    for name in ("configuration", "arguments", "options", "device", "code", "state"):
        yield from _inside((name,), getattr(request, name))


def _inside(path: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _inside((*path, name), item)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _inside((*path, str(index)), item)
    else:
        yield path, type_text(value)

"""Describe what a program passes to ``cute.compile``; values that cannot be described soundly are refused.

A description has only what can decide the compiled code: of a tensor its dtype and layout, not its address.
Dynamic scalars are described by type alone, since compiled code takes their value at each call; other scalars
by value.

The tables here map kinds of values to functions of the modules beside this one.
"""

from __future__ import annotations

import array
import enum
import functools
import logging
import operator
import re
import sys
import threading
import types
import typing
from collections import defaultdict, deque
from collections.abc import Mapping
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any

from cutlass_aot.programs.describe.values import classes, dsl, frameworks, functions, objects
from cutlass_aot.programs.describe.values.description import MAX_DEPTH, PLAIN, Description, Handler, Passed
from cutlass_aot.programs.without_dsl.placeholders import Annotation, Structure, Unknown, UnknownClass
from cutlass_aot.schema.encoding import encode
from cutlass_aot.schema.requests.request import Value

_DYNAMIC_SCALARS = {bool: "bool", int: "int", float: "float"}
_INT64 = 2**63
TEXTS = (PurePath, Fraction, Decimal)
"""Classes of the standard library whose text describes a value completely."""
_TEXTS_OF_TVM_FFI = ("tvm_ffi.core.String", "tvm_ffi.core.Bytes")
"""Classes of text that a function was passed through TVM-FFI."""


class Describer(Description):
    """Describes the arguments of one request."""

    def value(self, value: Any, passed: Passed = Passed.CONSTANT) -> Value:
        """Describe a value at the current place."""
        # Not isinstance: placeholders of the DSL report another class.
        kind = type(value)
        if kind in PLAIN:
            if passed is Passed.DYNAMIC and kind in _DYNAMIC_SCALARS:
                return {"dynamic": _DYNAMIC_SCALARS[kind]}
            if kind is int and not -_INT64 <= value < _INT64:
                return {"int": str(value)}
            return value
        if len(self._path) > MAX_DEPTH:
            self.refuse("it is nested too deep")
        if id(value) in self._inside:
            return self.enclosing(value)
        handler = _HANDLERS.get(kind) or dsl.handlers().get(kind) or _other(self, value, passed)
        return handler(self, value, passed)


def _other(description: Description, value: Any, passed: Passed) -> Handler:
    """The handler of a value whose class has none: that of a base class, or one for fields."""
    if isinstance(value, enum.Enum):
        return classes.enum_member
    kind = type(value)
    if f"{kind.__module__}.{kind.__qualname__}" in _TEXTS_OF_TVM_FFI:
        return _text_of_tvm_ffi
    for base in kind.__mro__[:-1]:
        handler = _BY_BASE.get(base)
        if handler is not None:
            return handler
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in _REFUSED:
        description.refuse(f"{name}: {_REFUSED[name]}")
    if any(base.__module__ == "_ctypes" for base in kind.__mro__):
        description.refuse(f"{name}: {_ADDRESS}")
    if kind.__module__.partition(".")[0] == "numpy":
        return frameworks.of_numpy
    if kind.__module__.startswith("torch"):
        return frameworks.of_torch
    if issubclass(kind, sys.modules["cutlass.cute.typing"].Pointer):
        return dsl.own_pointer
    return objects.adapted if objects.is_adapted(value, passed) else objects.an_object


def _text_of_tvm_ffi(description: Description, value: Any, passed: Passed) -> Value:
    """As Python's text, with which a function that is called in Python makes the same request."""
    return str(value) if isinstance(value, str) else bytes(value)


def _sequence(description: Description, value: Any, passed: Passed) -> Value:
    description.enter(value)
    items = [description.at(f"[{index}]", item, passed) for index, item in enumerate(value)]
    description.leave(value)
    return items if type(value) is list else {type(value).__name__: items}


def _set(description: Description, value: Any, passed: Passed) -> Value:
    return {type(value).__name__: sorted((description.at("{}", item) for item in value), key=encode)}


def _dict(description: Description, value: Mapping[Any, Any], passed: Passed) -> Value:
    # In insertion order, in which a trace would iterate.
    description.enter(value)
    items = [[description.at("{}", key), description.at(f"[{key!r}]", item)] for key, item in value.items()]
    description.leave(value)
    return {type(value).__name__: items}


def _default_dict(description: Description, value: defaultdict[Any, Any], passed: Passed) -> Value:
    described = _dict(description, value, passed)
    return {**described, "default": description.at(".default_factory", value.default_factory)}


def _queue(description: Description, value: deque[Any], passed: Passed) -> Value:
    return {**_sequence(description, value, passed), "most": value.maxlen}


def _context_variable(description: Description, value: ContextVar[Any], passed: Passed) -> Value:
    try:
        held = value.get()
    except LookupError:
        return {"context variable": {}}
    return {"context variable": {"value": description.at(".get()", held)}}


def _slice(description: Description, value: slice, passed: Passed) -> Value:
    return {"slice": [description.value(item) for item in (value.start, value.stop, value.step)]}


def _module(description: Description, value: types.ModuleType, passed: Passed) -> Value:
    description.code.setdefault(id(value), value)
    return {"module": value.__name__}


_HANDLERS: dict[type, Handler] = {
    tuple: _sequence,
    list: _sequence,
    set: _set,
    frozenset: _set,
    dict: _dict,
    types.MappingProxyType: _dict,
    defaultdict: _default_dict,
    deque: _queue,
    ContextVar: _context_variable,
    bytearray: lambda description, value, passed: {"bytes": bytes(value)},
    types.FunctionType: functions.function,
    types.MethodType: functions.method,
    functools.partial: functions.partial,
    type: classes.a_class,
    property: functions.a_property,
    types.ModuleType: _module,
    types.BuiltinFunctionType: functions.builtin,
    type(Ellipsis): lambda description, value, passed: {"text": "..."},
    types.GenericAlias: classes.annotation,
    types.UnionType: classes.annotation,
    range: lambda description, value, passed: {"range": [value.start, value.stop, value.step]},
    slice: _slice,
    Annotation: dsl.unknown,
    Unknown: dsl.unknown,
    UnknownClass: dsl.derived_class,
    complex: lambda description, value, passed: {"complex": [value.real, value.imag]},
    array.array: lambda description, value, passed: {"array": value.typecode, "bytes": value.tobytes()},
    re.Pattern: lambda description, value, passed: {
        "pattern": description.value(value.pattern), "flags": value.flags,
    },
    **dict.fromkeys(
        (operator.attrgetter, operator.itemgetter, operator.methodcaller),
        lambda description, value, passed: {"text": repr(value)},
    ),
    # A trace does not depend on what they hold.
    logging.Logger: lambda description, value, passed: {"logger": value.name},
    type(threading.Lock()): lambda description, value, passed: {"lock": "Lock"},
    type(threading.RLock()): lambda description, value, passed: {"lock": "RLock"},
}  # fmt: skip

_BY_BASE: dict[type, Handler] = {
    Unknown: dsl.unknown,
    type: classes.a_class,
    types.ModuleType: _module,
    tuple: objects.named_tuple,
    **dict.fromkeys((int, float, str, bytes, dict, list, set, frozenset, deque), objects.derived),
    functools.partial: functions.partial,
    Structure: dsl.structure,
    **dict.fromkeys(TEXTS, objects.text),
    typing._GenericAlias: classes.annotation,  # type: ignore[attr-defined]
}

_ADDRESS = "a raw address, which is another one in every process: pass a pointer as an argument instead"
_REFUSED = {
    "ctypes.c_void_p": _ADDRESS,
    "cuda.bindings.driver.CUdeviceptr": _ADDRESS,
    "numpy.ndarray": "a live array, whose values would be compiled in: pass it as an argument instead",
    "builtins.generator": "a generator, which a description would use up",
    "builtins.object": "an object without fields is described by nothing but its address",
    "weakref.ReferenceType": "a weak reference is described by nothing but an address",
}

"""Describe what a program passes to ``cute.compile`` as values of a request; what cannot be described soundly
is refused.

A value is described by what can decide the code that is compiled from it, and by nothing that cannot: the
address of a tensor is left out, its dtype and layout are not. Dynamic scalars are described by their type
alone, since compiled code takes their value at each call; every other scalar by its value.
"""

from __future__ import annotations

import array
import ctypes
import dataclasses
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
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any, NoReturn

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.definitions import (
    code_values,
    is_generated,
    is_made,
    is_of_dataclasses,
    is_reachable_by_name,
    qualified_name,
    source_of,
    unwrapped,
)
from cutlass_aot.programs.without_dsl.placeholders import (
    Annotation,
    Structure,
    Unknown,
    UnknownClass,
    is_unknown,
)
from cutlass_aot.schema.encoding import digest, encode
from cutlass_aot.schema.requests.request import Value

MAX_DEPTH = 24
"""Levels of values within values."""

_MAX_SOURCE = 2000
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_DYNAMIC_SCALARS = {bool: "bool", int: "int", float: "float"}
_INT64 = 2**63
_NO_FIELDS = (
    "__dict__",
    "__weakref__",
    "__doc__",
    "__module__",
    "__qualname__",
    "__annotations__",
    "__dataclass_fields__",
    "__dataclass_params__",
    "__match_args__",
    # Of Python 3.13.
    "__firstlineno__",
    "__static_attributes__",
    "__replace__",
)
NO_ATTRIBUTES = (
    "__wrapped__", "set_name_prefix", "__deprecated__",
    # Of the DSL: what its decorators make, and what a trace leaves.
    "_dsl_", "_decorator_", "_preprocess", "_original_code", "_cute_dsl_", "_name_prefix", "__pyir_",
    # Of FlashAttention-4: a digest of the same function, once it was asked for.
    "__cute_hash__",
)  # fmt: skip
"""How the names of those attributes of functions begin that say no more than the source does."""


TEXTS = (PurePath, Fraction, Decimal)
"""Python's own classes whose text tells all of a value."""


class Passed(enum.Enum):
    """How a value gets to compiled code."""

    CONSTANT = "compiled in"
    """Whatever it is, a trace sees it."""
    DYNAMIC = "passed at each call"
    """A trace sees the type of a scalar, the layout of a tensor."""
    EXTENT = "passed, if the DSL has made a number of it"
    """As DYNAMIC, but that numbers of Python's own are compiled in, as in what is annotated as a shape."""
    FIELD = "a field of what is passed"
    """Of a class that decides itself which of its fields are compiled in: scalars count as if all were."""


class Describer:
    """Describes the arguments of one request.

    Attributes:
        code: functions, classes and modules that were met, of which the request follows from the code.
    """

    def __init__(self) -> None:
        self.code: dict[int, Any] = {}
        self._symbols: dict[int, int] = {}
        self._kept: list[Any] = []
        self._inside: dict[int, int] = {}
        self._path: list[str] = []

    def argument(self, name: str, value: Any, passed: Passed = Passed.CONSTANT) -> Value:
        """Describe one argument.

        Args:
            name: the parameter's name.
            value: what is passed.
            passed: how it gets to compiled code.
        """
        self._path = [name]
        return self._value(value, passed)

    # -- dispatch ---------------------------------------------------------------------------------------

    def _value(self, value: Any, passed: Passed = Passed.CONSTANT) -> Value:
        # Not isinstance: placeholders of the DSL pretend to be of another class.
        kind = type(value)
        if kind in _PLAIN:
            if passed is Passed.DYNAMIC and kind in _DYNAMIC_SCALARS:
                return {"dynamic": _DYNAMIC_SCALARS[kind]}
            if kind is int and not -_INT64 <= value < _INT64:
                return {"int": str(value)}
            return value
        if len(self._path) > MAX_DEPTH:
            self._refuse("it is nested too deep")
        if id(value) in self._inside:
            return self._again(value)
        handler = _HANDLERS.get(kind)
        if handler is not None:
            return handler(self, value, passed)
        own = _dsl_handlers().get(kind)
        if own is not None:
            return own(self, value, passed)
        return self._other(value, kind, passed)

    def _at(self, step: str, value: Any, passed: Passed = Passed.CONSTANT) -> Value:
        self._path.append(step)
        described = self._value(value, passed)
        self._path.pop()
        return described

    def _refuse(self, reason: str) -> NoReturn:
        raise RequestError(f"{''.join(self._path)}: {reason}")

    def _entered(self, value: Any) -> None:
        self._inside[id(value)] = len(self._inside)

    def _left(self, value: Any) -> None:
        del self._inside[id(value)]

    def _again(self, value: Any) -> Value:
        """What is within itself: by how many levels above it is described."""
        return {"enclosing": len(self._inside) - self._inside[id(value)]}

    # -- plain Python -----------------------------------------------------------------------------------

    def _sequence(self, value: Any, passed: Passed) -> Value:
        self._entered(value)
        items = [self._at(f"[{index}]", item, passed) for index, item in enumerate(value)]
        self._left(value)
        return items if type(value) is list else {type(value).__name__: items}

    def _set(self, value: Any, passed: Passed) -> Value:
        items = [self._at("{}", item) for item in value]
        return {type(value).__name__: sorted(items, key=encode)}

    def _dict(self, value: Mapping[Any, Any], passed: Passed) -> Value:
        # In the program's order, in which a trace would go through it.
        self._entered(value)
        items = [[self._at("{}", key), self._at(f"[{key!r}]", item)] for key, item in value.items()]
        self._left(value)
        return {type(value).__name__: items}

    def _default_dict(self, value: defaultdict[Any, Any], passed: Passed) -> Value:
        return {**self._dict(value, passed), "default": self._at(".default_factory", value.default_factory)}

    def _queue(self, value: deque[Any], passed: Passed) -> Value:
        return {**self._sequence(value, passed), "most": value.maxlen}

    def _text(self, value: Any, passed: Passed) -> Value:
        """What its text tells all of; the fields of the class itself are what it remembers of it."""
        fields = dict(getattr(value, "__dict__", {}))
        described: dict[str, Value] = {"object": self._class_name(type(value)), "text": str(value)}
        if fields:
            described["further"] = {name: self._at(f".{name}", item) for name, item in sorted(fields.items())}
        return described

    def _context_variable(self, value: ContextVar[Any], passed: Passed) -> Value:
        try:
            held = value.get()
        except LookupError:
            return {"context variable": {}}
        return {"context variable": {"value": self._at(".get()", held)}}

    def _function(self, value: types.FunctionType, passed: Passed) -> Value:
        function = unwrapped(value)
        if not isinstance(function, types.FunctionType):
            return self._value(function)
        if id(function) in self._inside:
            return self._again(function)
        self.code.setdefault(id(function), function)
        attributes = {
            name: self._at(f".{name}", item)
            for name, item in sorted((vars(function) | vars(value)).items())
            if not name.startswith(NO_ATTRIBUTES)
        }
        described: dict[str, Value] = {"function": qualified_name(function)}
        if attributes:
            described["attributes"] = attributes
        if is_reachable_by_name(function):
            return described
        self._entered(function)
        described["source"] = self._source(function)
        if function.__name__ != function.__code__.co_name:
            described["name"] = function.__name__
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        closure = {}
        for name, cell in sorted(cells.items()):
            try:
                content = cell.cell_contents
            except ValueError:
                continue
            if content is function or content is value:
                continue  # A function that calls itself.
            closure[name] = self._at(f".{name}", content)
        if closure:
            described["closure"] = closure
        for key, defaults in (("defaults", function.__defaults__), ("keywords", function.__kwdefaults__)):
            if defaults:
                described[key] = self._at(f".{key}", defaults)
        self._left(function)
        return described

    def _source(self, function: types.FunctionType) -> Value:
        try:
            text = source_of(function)
        except (OSError, TypeError, SyntaxError, ValueError) as error:
            if is_generated(function):
                return {"code": digest(encode(code_values(function.__code__)))}
            self._refuse(f"the source of {qualified_name(function)} is not at hand ({error})")
        return text if len(text) <= _MAX_SOURCE else {"sha256": digest(text.encode())}

    def _builtin(self, value: types.BuiltinFunctionType, passed: Passed) -> Value:
        described: dict[str, Value] = {"builtin": f"{value.__module__}:{value.__qualname__}"}
        own = getattr(value, "__self__", None)
        if own is not None and not isinstance(own, types.ModuleType):
            described["self"] = self._at(".__self__", own)
        return described

    def _method(self, value: types.MethodType, passed: Passed) -> Value:
        return {
            "method": self._at(".__func__", value.__func__),
            "self": self._at(".__self__", value.__self__),
        }

    def _partial(self, value: functools.partial[Any], passed: Passed) -> Value:
        described: dict[str, Value] = (
            {} if type(value) is functools.partial else {"of": self._class_name(type(value))}
        )
        described |= {
            "partial": self._at(".func", value.func),
            "arguments": self._at(".args", list(value.args)),
            "keywords": self._at(".keywords", dict(value.keywords)),
        }
        return described | self._further(value)

    def _further(self, value: Any) -> dict[str, Value]:
        """Fields that a program gave to an object of a kind that has none."""
        fields = {name: self._at(f".{name}", item) for name, item in sorted(_own_fields(value).items())}
        return {"fields": fields} if fields else {}

    def _class(self, value: type, passed: Passed) -> Value:
        if value.__module__ == "builtins" and not is_made(value):
            return {"type": value.__qualname__}
        self.code.setdefault(id(value), value)
        if is_made(value) or value.__module__ == "__main__":
            return self._again(value) if id(value) in self._inside else self._made_class(value)
        return {"type": qualified_name(value)}

    def _annotation(self, value: Any, passed: Passed) -> Value:
        """``list[int]``, ``int | None`` and their like: by their text, and the classes that it names."""
        parts = [item for item in typing.get_args(value) if isinstance(item, type) and is_made(item)]
        made = [self._at("[]", item) for item in parts]
        return {"type": str(value)} | ({"made": made} if made else {})

    def _made_class(self, value: type) -> Value:
        """A class that its module does not have under its name: described by what it is made of."""
        fields = getattr(value, "_fields", None)
        if issubclass(value, tuple) and fields is not None:
            annotations = {name: str(item) for name, item in vars(value).get("__annotations__", {}).items()}
            defaults = self._at("._field_defaults", dict(getattr(value, "_field_defaults", {})))
            return {
                "named_tuple": qualified_name(value),
                "fields": list(fields),
                "types": annotations,
                "defaults": defaults,
            }
        self._entered(value)
        own = {
            name: self._at(
                f".{name}",
                unwrapped(item.__func__) if isinstance(item, (staticmethod, classmethod)) else item,
            )
            for name, item in sorted(vars(value).items())
            if name not in _NO_FIELDS
            and not isinstance(item, (types.MemberDescriptorType, types.GetSetDescriptorType))
            and not is_of_dataclasses(item)
        }
        if "__dataclass_fields__" in vars(value):
            given = vars(value)["__dataclass_params__"]
            own["__dataclass_params__"] = [given.eq, given.order, given.unsafe_hash, given.frozen]
            own["__dataclass_fields__"] = [
                {
                    "name": field.name,
                    "type": str(field.type),
                    "init": field.init,
                    "by_name": bool(field.kw_only),
                    "default": self._at(f".{field.name}", field.default),
                    "factory": self._at(f".{field.name}", field.default_factory),
                }
                for field in vars(value)["__dataclass_fields__"].values()
            ]
        bases = [self._at(".__bases__", base) for base in value.__bases__ if base is not object]
        self._left(value)
        # Without its module, which is another one by the version of Python for what `make_dataclass` makes.
        return {"class": value.__qualname__, "bases": bases, "members": own}

    def _property(self, value: property, passed: Passed) -> Value:
        return {"property": [self._at(".fget", part) for part in (value.fget, value.fset, value.fdel)]}

    def _module(self, value: types.ModuleType, passed: Passed) -> Value:
        self.code.setdefault(id(value), value)
        return {"module": value.__name__}

    def _other(self, value: Any, kind: type, passed: Passed) -> Value:
        """What has no kind of its own: by what it is derived from, or else by its fields."""
        if isinstance(value, enum.Enum):
            return self._enum(value, passed)
        for base in kind.__mro__[:-1]:
            handler = _BY_BASE.get(base)
            if handler is not None:
                return handler(self, value, passed)
        name = f"{kind.__module__}.{kind.__qualname__}"
        refusal = _REFUSED.get(name) or _refused_base(kind)
        if refusal:
            self._refuse(f"{name}: {refusal}")
        if kind.__module__.partition(".")[0] == "numpy":
            return self._of_numpy(value, kind, passed)
        if kind.__module__.startswith("torch"):
            return self._of_torch(value, kind, passed)
        if issubclass(kind, sys.modules["cutlass.cute.typing"].Pointer):
            return self._own_pointer(value, passed)
        adapted = self._adapted(value, kind, passed)
        if adapted is not None:
            return adapted
        return self._object(value, kind, passed)

    def _of_numpy(self, value: Any, kind: type, passed: Passed) -> Value:
        if hasattr(value, "tobytes") and value.shape == ():
            return {"numpy": str(value.dtype), "bytes": value.tobytes()}
        if any(base.__qualname__ == "dtype" for base in kind.__mro__):
            return {"numpy": str(value)}
        return self._object(value, kind, passed)

    def _of_torch(self, value: Any, kind: type, passed: Passed) -> Value:
        if kind.__qualname__ in ("dtype", "device", "layout", "memory_format"):
            return {"torch": str(value)}
        if any(base.__qualname__ == "Tensor" for base in kind.__mro__):
            if passed is Passed.CONSTANT:
                self._refuse(
                    "a live tensor, whose values would be compiled in: pass it as an argument instead"
                )
            # As the DSL adapts it.
            runtime = sys.modules["cutlass.cute.runtime"]
            return self._tensor(runtime.from_dlpack(value).mark_layout_dynamic(), passed)
        return self._object(value, kind, passed)

    def _enum(self, value: enum.Enum, passed: Passed) -> Value:
        kind = type(value)
        self.code.setdefault(id(kind), kind)
        # Combined flags have no name of their own.
        member = value.name if value.name is not None else str(value.value)
        if is_made(kind):
            return {"enum": kind.__qualname__, "member": member, "value": self._at(".value", value.value)}
        described: dict[str, Value] = {"enum": f"{qualified_name(kind)}.{member}"}
        more = vars(value).keys() - OF_ENUM
        if more and kind.__module__.partition(".")[0] != "cutlass":
            described["fields"] = {name: self._at(f".{name}", vars(value)[name]) for name in sorted(more)}
        return described

    def _named_tuple_or_tuple(self, value: tuple[Any, ...], passed: Passed) -> Value:
        kind = type(value)
        fields = getattr(kind, "_fields", None)
        self._entered(value)
        names = fields if fields is not None else [str(index) for index in range(len(value))]
        inner = _inner(passed)
        items = {name: self._at(f".{name}", item, inner) for name, item in zip(names, value, strict=True)}
        further = self._further(value)
        self._left(value)
        return {"object": self._class_name(kind), "fields": items} | (
            {"further": further["fields"]} if further else {}
        )

    def _of_base(self, value: Any, passed: Passed) -> Value:
        """An object of a class that is derived from one of Python's own."""
        bases: tuple[Any, ...] = (int, float, str, bytes, dict, list, set, frozenset, deque)
        base = next(base for base in bases if isinstance(value, base))
        self._entered(value)
        described = {"object": self._class_name(type(value)), "value": self._at("", base(value))}
        described |= self._further(value)
        self._left(value)
        return described

    def _class_name(self, kind: type) -> Value:
        described = self._class(kind, Passed.CONSTANT)
        return described.get("type", described)

    def _adapted(self, value: Any, kind: type, passed: Passed) -> Value | None:
        """A dataclass that the DSL passes field by field: dynamic fields by their types."""
        if passed is not Passed.DYNAMIC or not dataclasses.is_dataclass(value):
            return None
        if hasattr(kind, "__get_mlir_types__") or hasattr(kind, "__new_from_mlir_values__"):
            return None
        own = [field.name for field in dataclasses.fields(value)]
        if sorted(_own_fields(value)) != sorted(own):
            return None
        self._entered(value)
        fields = {
            field.name: self._at(f".{field.name}", getattr(value, field.name), _field(kind, field))
            for field in dataclasses.fields(value)
        }
        self._left(value)
        return {"object": self._class_name(kind), "fields": fields}

    def _object(self, value: Any, kind: type, passed: Passed) -> Value:
        fields = _own_fields(value)
        if _holds_more_than_fields(kind):
            self._refuse(f"an object of {qualified_name(kind)}, which holds more than fields")
        if not fields and not hasattr(value, "__dict__") and not dataclasses.is_dataclass(value):
            return self._opaque(value, kind)
        self._entered(value)
        inner = _inner(passed)
        described = {name: self._at(f".{name}", item, inner) for name, item in sorted(fields.items())}
        self._left(value)
        return {"object": self._class_name(kind), "fields": described}

    def _opaque(self, value: Any, kind: type) -> Value:
        """An object of an extension: by its text, if it is the DSL's and its text is not an address."""
        name = f"{kind.__module__}:{kind.__qualname__}"
        if kind.__module__.partition(".")[0] == "cutlass":
            text = str(value)
            if "0x" not in text and " at " not in text:
                return {"text": text, "of": name}
        return self._refuse(f"an object of {name}, which has no fields that could be described")

    # -- what the DSL makes -----------------------------------------------------------------------------

    def _dtype(self, value: Any) -> Value:
        return None if value is None else qualified_name(value)

    def _extent(self, value: Any) -> Value:
        if type(value) is int:
            return value
        if type(value) is tuple:
            return {"tuple": [self._extent(item) for item in value]}
        return self._symbol(value, Passed.DYNAMIC)

    def _symbol(self, value: Any, passed: Passed) -> Value:
        # By identity: two symbols of one name are two extents, one symbol in two places is one.
        number = self._symbols.setdefault(id(value), len(self._symbols))
        self._kept.append(value)
        described = {"symbol": number, "width": value.width, "divisibility": value.divisibility}
        name = getattr(value, "symbol", None)
        return described | ({"name": str(name)} if name else {})

    def _fake_tensor(self, value: Any, passed: Passed) -> Value:
        return {
            "tensor": {
                "dtype": self._dtype(value.element_type),
                "space": str(value.memspace),
                "alignment": value._typed_tensor.assumed_align,
                "strides_32": bool(value._use_32bit_stride),
                "shape": [self._extent(item) for item in value.shape],
                "strides": [self._extent(item) for item in value.stride],
            }
        }

    def _tensor(self, value: Any, passed: Passed) -> Value:
        """A tensor of a framework: what the DSL compiles from it is its dtype, its alignment and its
        layout."""
        dtype, alignment, layout = value.__cache_key__
        described: dict[str, Value] = {
            "dtype": self._dtype(dtype), "alignment": alignment, "layout": str(layout),
            "strides_32": bool(value._use_32bit_stride),
        }  # fmt: skip
        ffi = getattr(value, "_tvm_ffi_tensor", None)
        if ffi is not None:
            described |= {"device": str(ffi.device.type), "passed_as": str(ffi.dtype)}
        return {"tensor": described}

    def _pointer(self, value: Any, passed: Passed) -> Value:
        if passed is Passed.CONSTANT:
            self._refuse("a pointer, whose address would be compiled in: pass it as an argument instead")
        return {
            "pointer": {
                "dtype": self._dtype(value.dtype),
                "space": str(value.memspace),
                "alignment": value._assumed_align,
            }
        }

    def _own_pointer(self, value: Any, passed: Passed) -> Value:
        """A program's own class of pointers; most are copies of the DSL's, and keep its names of fields."""
        if passed is Passed.CONSTANT:
            self._refuse("a pointer, whose address would be compiled in: pass it as an argument instead")
        fields = {
            name: self._at(f".{name}", item)
            for name, item in sorted(_own_fields(value).items())
            if name not in _ADDRESSES or not _is_address(item)
        }
        return {
            "object": self._class_name(type(value)),
            "fields": fields,
            "dtype": self._dtype(value.dtype),
            "space": str(value.memspace),
        }

    def _stream(self, value: Any, passed: Passed) -> Value:
        environment = bool(getattr(value, "use_tvm_ffi_env_stream", False))
        return {"stream": "environment" if environment else "argument"}

    def _numeric(self, value: Any, passed: Passed) -> Value:
        name = qualified_name(type(value))
        if passed in (Passed.DYNAMIC, Passed.EXTENT):
            return {"dynamic": name}
        if type(value.value) not in _PLAIN:
            self._refuse(f"a {name} whose value is not known before the trace")
        return {"number": name, "value": value.value}

    def _numeric_class(self, value: type, passed: Passed) -> Value:
        return {"type": qualified_name(value)}

    def _structure(self, value: Any, passed: Passed) -> Value:
        """What ``cute.struct`` makes of a class: the types of its fields, in their order."""
        return {"structure": [[name, self._field_type(kind)] for name, kind in value._annotations.items()]}

    def _field_type(self, kind: Any) -> Value:
        if isinstance(kind, Annotation):
            return [kind.name, *map(self._field_type, kind.arguments)]
        name = type(kind).__qualname__
        if type(kind).__module__ == _STRUCTURES and name.startswith("struct._") and name.endswith("Meta"):
            # `MemRange[dtype, size]` and `Align[dtype, alignment]`.
            count = kind._align if hasattr(kind, "_align") else kind._size
            return [name.removeprefix("struct._").removesuffix("Meta"), self._field_type(kind._dtype), count]
        return self._value(kind)

    def _unknown(self, value: Any, passed: Passed) -> Value:
        self._refuse(f"{value!r}: without the DSL it cannot be described")

    def _derived_class(self, value: UnknownClass, passed: Passed) -> Value:
        if is_unknown(value):
            self._refuse(f"{value.__module__}.{value.__qualname__}: without the DSL it cannot be described")
        return self._class(value, passed)

    def _arch(self, value: Any, passed: Passed) -> Value:
        return {"enum": f"{qualified_name(type(value))}.{value.name}"}


Handler = Callable[[Describer, Any, Passed], Value]

_HANDLERS: dict[type, Handler] = {
    tuple: Describer._sequence,
    list: Describer._sequence,
    set: Describer._set,
    frozenset: Describer._set,
    dict: Describer._dict,
    types.MappingProxyType: Describer._dict,
    defaultdict: Describer._default_dict,
    deque: Describer._queue,
    ContextVar: Describer._context_variable,
    bytearray: lambda self, value, passed: {"bytes": bytes(value)},
    types.FunctionType: Describer._function,
    types.MethodType: Describer._method,
    functools.partial: Describer._partial,
    type: Describer._class,
    property: Describer._property,
    types.ModuleType: Describer._module,
    types.BuiltinFunctionType: Describer._builtin,
    type(Ellipsis): lambda self, value, passed: {"text": "..."},
    types.GenericAlias: Describer._annotation,
    types.UnionType: Describer._annotation,
    range: lambda self, value, passed: {"range": [value.start, value.stop, value.step]},
    slice: lambda self, value, passed: {
        "slice": [self._value(x) for x in (value.start, value.stop, value.step)]
    },
    Annotation: Describer._unknown,
    Unknown: Describer._unknown,
    UnknownClass: Describer._derived_class,
    complex: lambda self, value, passed: {"complex": [value.real, value.imag]},
    array.array: lambda self, value, passed: {"array": value.typecode, "bytes": value.tobytes()},
    re.Pattern: lambda self, value, passed: {"pattern": self._value(value.pattern), "flags": value.flags},
    **dict.fromkeys(
        (operator.attrgetter, operator.itemgetter, operator.methodcaller),
        lambda self, value, passed: {"text": repr(value)},
    ),
    # A trace does not depend on what they hold.
    logging.Logger: lambda self, value, passed: {"logger": value.name},
    type(threading.Lock()): lambda self, value, passed: {"lock": "Lock"},
    type(threading.RLock()): lambda self, value, passed: {"lock": "RLock"},
}

_BY_BASE: dict[type, Handler] = {
    Unknown: Describer._unknown,
    type: Describer._class,
    tuple: Describer._named_tuple_or_tuple,
    int: Describer._of_base,
    float: Describer._of_base,
    str: Describer._of_base,
    bytes: Describer._of_base,
    dict: Describer._of_base,
    list: Describer._of_base,
    set: Describer._of_base,
    frozenset: Describer._of_base,
    deque: Describer._of_base,
    functools.partial: Describer._partial,
    Structure: Describer._structure,
    **dict.fromkeys(TEXTS, Describer._text),
    typing._GenericAlias: Describer._annotation,  # type: ignore[attr-defined]
}

OF_ENUM = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_"})
"""Fields that every member of an enumeration has."""

_STRUCTURES = "cutlass.cute.core"

_ADDRESSES = ("_pointer", "_desc", "_c_pointer", "_c_pointers_cache")
"""Fields by which a pointer of the DSL holds its address. Compiled code takes it at each call."""


def _is_address(value: Any) -> bool:
    """Whether a field of a pointer holds nothing but the address, or nothing yet."""
    if isinstance(value, list):
        return all(map(_is_address, value))
    return value is None or type(value) is int or isinstance(value, (ctypes._SimpleCData, ctypes._Pointer))


_ADDRESS = "a raw address, which is another one in every process: pass a pointer as an argument instead"
_REFUSED = {
    "ctypes.c_void_p": _ADDRESS,
    "cuda.bindings.driver.CUdeviceptr": _ADDRESS,
    "numpy.ndarray": "a live array, whose values would be compiled in: pass it as an argument instead",
    "builtins.generator": "a generator, which a description would use up",
    "builtins.object": "an object without fields is described by nothing but its address",
    "weakref.ReferenceType": "a weak reference is described by nothing but an address",
}


def _refused_base(kind: type) -> str:
    return _ADDRESS if any(base.__module__ == "_ctypes" for base in kind.__mro__) else ""


def _own_fields(value: Any) -> dict[str, Any]:
    """An instance's fields, those in slots among them."""
    fields = {}
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                private = name.startswith("__") and not name.endswith("__")
                stored = f"_{base.__name__.lstrip('_')}{name}" if private else name
                held = getattr(value, stored, _ABSENT)
                if held is not _ABSENT:
                    fields[name] = held
    return fields | dict(getattr(value, "__dict__", {}))


_OBJECT_BYTES = object.__basicsize__
_POINTER_BYTES = 8


@functools.lru_cache(maxsize=4096)
def _holds_more_than_fields(kind: type) -> bool:
    """Whether instances have memory of their own beside their fields, as those of classes have that are
    derived from an extension's."""
    fields = 0
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        slots = (slots,) if isinstance(slots, str) else slots
        fields += sum(name not in ("__dict__", "__weakref__") for name in slots)
    # What Python keeps outside of the object has no place in it.
    fields += sum(place > 0 for place in (kind.__dictoffset__, kind.__weakrefoffset__))
    return kind.__itemsize__ != 0 or kind.__basicsize__ > _OBJECT_BYTES + _POINTER_BYTES * fields


_ABSENT = object()


def _inner(passed: Passed) -> Passed:
    """How the fields of an object are passed that is passed in a way."""
    return Passed.CONSTANT if passed is Passed.CONSTANT else Passed.FIELD


def _field(kind: type, field: dataclasses.Field[Any]) -> Passed:
    annotation = field.type
    if isinstance(annotation, str) and "Constexpr" not in annotation:
        # Under another name, maybe. One that cannot be evaluated is taken for a constant.
        annotation = _annotations(kind).get(field.name, "Constexpr")
    return Passed.CONSTANT if "Constexpr" in str(annotation) else Passed.DYNAMIC


@functools.lru_cache(maxsize=1024)
def _annotations(kind: type) -> Mapping[str, Any]:
    try:
        return typing.get_type_hints(kind)
    except Exception:
        return {}


@functools.lru_cache(maxsize=1)
def _dsl_handlers() -> Mapping[type, Handler]:
    """How the DSL's own types are described; it is imported by whoever has such an object."""
    runtime: Any = sys.modules.get("cutlass.cute.runtime")
    typing_: Any = sys.modules.get("cutlass.base_dsl.typing")
    if runtime is None or typing_ is None:
        raise RequestError("the DSL is not imported: describe requests from within its cute.compile")
    handlers: dict[type, Handler] = {
        runtime._FakeTensor: Describer._fake_tensor,
        runtime._Tensor: Describer._tensor,
        runtime._Pointer: Describer._pointer,
        runtime._FakeStream: Describer._stream,
        sys.modules["cutlass.cute.typing"].SymInt: Describer._symbol,
        typing_.NumericMeta: Describer._numeric_class,
    }
    structures = sys.modules.get(_STRUCTURES)
    if structures is not None:
        handlers |= {structures.struct: Describer._structure, structures.union: Describer._structure}
    for numeric in _subclasses(typing_.Numeric):
        handlers[numeric] = Describer._numeric
    driver: Any = sys.modules.get("cuda.bindings.driver")
    if driver is not None:
        handlers[driver.CUstream] = lambda self, value, passed: {"stream": "CUstream"}
    return handlers


def _subclasses(kind: type) -> list[type]:
    direct: list[type] = type.__subclasses__(kind)
    return [kind, *(deeper for item in direct for deeper in _subclasses(item))]

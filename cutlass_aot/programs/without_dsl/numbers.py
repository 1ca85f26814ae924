"""The DSL's numeric types, and its enumerations of GPUs and address spaces: programs make keys of them.

A number keeps the Python value it was made from, and supports no arithmetic.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any

from cutlass_aot.programs.without_dsl import names
from cutlass_aot.programs.without_dsl.finder import find
from cutlass_aot.programs.without_dsl.placeholders import class_for, dotted, refuse

_ENUMS = "cutlass.base_dsl.enums"
_TYPING = "cutlass.base_dsl.typing"


def _members(name: str) -> dict[str, Any]:
    entry = names.class_entry(f"{_ENUMS}:{name}") or {}
    values: dict[str, Any] = {}
    for member, value in entry["enum"].items():
        values[member] = values[value] if isinstance(value, str) else names.as_tuples(value[0])
    return values


class _Arch(enum.Enum):
    """A GPU code target. Ordered by major and minor version."""

    def __init__(self, major: int, minor: int, suffix: str) -> None:
        self.major, self.minor, self.suffix = major, minor, suffix

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"base_dsl.Arch.{self.name}"

    @classmethod
    def from_string(cls, arch_str: str) -> Any:
        return cls[arch_str]

    def to_string(self) -> str:
        return self.name

    def is_family_of(self, arch: Any) -> bool:
        """Whether this target can use features that are specific to the family of ``arch``."""
        return bool(self.major == arch.major and self.minor >= arch.minor and self.suffix in ("a", "f"))

    @classmethod
    def filter(cls, criterion: Any) -> list[Any]:
        return [item for item in cls if criterion(item)]

    def __lt__(self, other: Any) -> Any:
        return self._version < other._version if isinstance(other, _Arch) else NotImplemented

    def __le__(self, other: Any) -> Any:
        return self._version <= other._version if isinstance(other, _Arch) else NotImplemented

    def __gt__(self, other: Any) -> Any:
        return self._version > other._version if isinstance(other, _Arch) else NotImplemented

    def __ge__(self, other: Any) -> Any:
        return self._version >= other._version if isinstance(other, _Arch) else NotImplemented

    @property
    def _version(self) -> tuple[int, int]:
        return self.major, self.minor


class _AddressSpace(enum.IntEnum):
    def __str__(self) -> str:
        return self.name


def enumerations() -> Mapping[str, Any]:
    """``Arch`` and ``AddressSpace``."""
    found = {}
    for name, base in (("Arch", _Arch), ("AddressSpace", _AddressSpace)):
        made: Any = base
        found[name] = made(name, _members(name), module=_ENUMS, qualname=name)
    return found


class DslType(type):
    """The metaclass of the DSL's types."""

    @property
    def is_abstract(cls) -> bool:
        """Whether only derived types have values."""
        return bool(vars(cls)["_is_abstract"])


class NumericMeta(DslType):
    """The metaclass of numeric types."""

    width: int

    def __new__(cls, name: str, bases: tuple[type, ...], attrs: dict[str, Any], **given: Any) -> Any:
        """Refuse a numeric type of a program's own."""
        if given or not str(attrs.get("__module__")).startswith("cutlass."):
            refuse(f"{name}, a numeric type of the program's own, was defined")
        return super().__new__(cls, name, bases, attrs)

    def __str__(cls) -> str:
        return cls.__name__

    @property
    def mlir_type(cls) -> Any:
        """Refused: only the compiler has it."""
        refuse(f"{dotted(_TYPING)}.{cls.__name__}.mlir_type was requested")

    @property
    def numpy_dtype(cls) -> Any:
        """NumPy's scalar type; None if there is none."""
        name = cls._np_dtype_name  # type: ignore[attr-defined]
        if name is None:
            return None
        import numpy

        return getattr(numpy, name, None)

    def n_bytes(cls, n_elements: int) -> int:
        """Bytes of ``n_elements`` elements."""
        return n_elements * int(cls.bytes)  # type: ignore[attr-defined]

    def is_same_kind(cls, other: Any) -> bool:
        """Whether both are integer or both floating-point types."""
        return bool(cls.is_integer == other.is_integer or cls.is_float == other.is_float)  # type: ignore[attr-defined]


class IntegerMeta(NumericMeta):
    """The metaclass of integer types."""

    is_integer = property(lambda cls: True)
    is_float = property(lambda cls: False)
    zero = property(lambda cls: 0)

    @property
    def min(cls) -> int:
        """The least value."""
        return int(-(2 ** (cls.width - 1)) if cls.signed else 0)  # type: ignore[attr-defined]

    @property
    def max(cls) -> int:
        """The greatest value."""
        return int(2 ** (cls.width - 1) - 1 if cls.signed else 2**cls.width - 1)  # type: ignore[attr-defined]


class FloatMeta(NumericMeta):
    """The metaclass of floating-point types."""

    is_integer = property(lambda cls: False)
    is_float = property(lambda cls: True)
    zero = property(lambda cls: 0.0)
    inf = property(lambda cls: math.inf)
    nan = property(lambda cls: math.nan)

    @property
    def exponent_width(cls) -> int:
        """Bits of the exponent."""
        return int(cls._exponent_width)  # type: ignore[attr-defined]

    @property
    def mantissa_width(cls) -> int:
        """Bits of the mantissa."""
        return int(cls._mantissa_width)  # type: ignore[attr-defined]


_METACLASSES = {kind.__name__: kind for kind in (DslType, NumericMeta, IntegerMeta, FloatMeta)}


def numbers() -> Mapping[str, Any]:
    """The numeric types and their metaclasses."""
    found: dict[str, Any] = {}
    for name, kind in _METACLASSES.items():
        kind.__module__, kind.__qualname__ = _TYPING, name
        found[name] = kind

    def base(where: str) -> Any:
        return found[where.partition(":")[2]] if where.startswith(f"{_TYPING}:") else find(where)

    waiting = list(names.classes_of(_TYPING))
    while waiting:
        name = waiting.pop(0)
        entry = names.class_entry(f"{_TYPING}:{name}") or {}
        metaclass = _METACLASSES.get(str(entry.get("meta", "")).partition(":")[2])
        if metaclass is None:
            continue
        if any(item.partition(":")[2] not in found for item in entry["bases"]):
            waiting.append(name)
            continue
        made = class_for(f"{_TYPING}:{name}", entry, base, metaclass)
        for item, member in _VALUES.get(name, {}).items():
            setattr(made, item, member)
        found[name] = made
    found["dtype"] = lambda name: found[name]
    return found


def _number(self: Any, value: Any, **options: Any) -> None:
    kind = type(self)
    name = kind.__name__
    if getattr(type(value), "__module__", "") == _TYPING and hasattr(value, "value"):
        value = value.value
    if type(value) not in (bool, int, float):
        refuse(f"{dotted(_TYPING)}.{name} of a {type(value).__qualname__} was requested")
    if name == "Boolean":
        self.value = int(bool(value))
        self._value_int8 = None
    elif kind.is_float:
        self.value = float(value)
    elif kind._np_range is None or not kind._np_range[0] <= value <= kind._np_range[1]:
        refuse(f"{dotted(_TYPING)}.{name} of {value}, which it does not hold, was requested")
    else:
        self.value = int(value)


def _range(kind: Any) -> tuple[int, int] | None:
    return None if kind._np_dtype_name is None else (kind.min, kind.max)


class _Range:
    """Least and greatest value of an integer type; None where the DSL has no such cast."""

    def __get__(self, instance: Any, owner: Any) -> tuple[int, int] | None:
        return _range(owner)


_VALUES: Mapping[str, Mapping[str, Any]] = {
    "Numeric": {
        "__init__": _number,
        "__repr__": lambda self: f"{type(self).__name__}({self.value!r})",
        "dtype": property(type),
    },
    "Integer": {"__init__": _number, "_np_range": _Range(), "__tvm_ffi_int__": lambda self: self.value},
    "Float": {"__init__": _number, "__tvm_ffi_float__": lambda self: self.value},
    "Boolean": {"__init__": _number},
}

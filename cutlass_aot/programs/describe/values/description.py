"""The state of a description: its place in an argument, the enclosing values, and the code it has met."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from cutlass_aot.errors import RequestError
from cutlass_aot.schema.requests.request import Value

MAX_DEPTH = 24
"""Greatest depth of nested values."""
PLAIN = frozenset({type(None), bool, int, float, str, bytes})
"""Classes whose values stand for themselves."""


class Passed(enum.Enum):
    """How compiled code gets a value."""

    CONSTANT = "compiled in"
    """A trace sees the value."""
    DYNAMIC = "passed at each call"
    """A trace sees the type of a scalar, the layout of a tensor."""
    EXTENT = "passed, if the DSL has made a number of it"
    """As DYNAMIC, but Python's own numbers are compiled in, as in a shape."""
    FIELD = "a field of what is passed"
    """Of an object whose class decides which fields are compiled in: scalars are described as if all were."""

    @property
    def of_fields(self) -> Passed:
        """How the fields of an object are passed, if the object is passed in this way."""
        return Passed.CONSTANT if self is Passed.CONSTANT else Passed.FIELD


class Description(ABC):
    """A description of one request's arguments, in which a :data:`Handler` describes each kind of value.

    ``code`` has the functions, classes and modules that were met, by ``id``: the request follows from them.
    """

    def __init__(self) -> None:
        self.code: dict[int, Any] = {}
        self._symbols: dict[int, int] = {}
        self._kept: list[Any] = []
        self._inside: dict[int, int] = {}
        self._path: list[str] = []

    def argument(self, name: str, value: Any, passed: Passed = Passed.CONSTANT) -> Value:
        """Describe the argument of a parameter."""
        self._path = [name]
        return self.value(value, passed)

    @abstractmethod
    def value(self, value: Any, passed: Passed = Passed.CONSTANT) -> Value:
        """Describe a value at the current place."""

    def at(self, step: str, value: Any, passed: Passed = Passed.CONSTANT) -> Value:
        """Describe a value one step further in, such as ``.field`` or ``[0]``."""
        self._path.append(step)
        described = self.value(value, passed)
        self._path.pop()
        return described

    def fields(self, values: Mapping[str, Any], passed: Passed = Passed.CONSTANT) -> dict[str, Value]:
        """Describe values by their names, in the order of the names."""
        return {name: self.at(f".{name}", item, passed) for name, item in sorted(values.items())}

    def refuse(self, reason: str) -> NoReturn:
        """Raise :class:`RequestError`: the value at the current place cannot be described."""
        raise RequestError(f"{''.join(self._path)}: {reason}")

    def enter(self, value: Any) -> None:
        """Begin to describe the contents of a value."""
        self._inside[id(value)] = len(self._inside)

    def leave(self, value: Any) -> None:
        """End the contents of a value."""
        del self._inside[id(value)]

    def is_inside(self, value: Any) -> bool:
        """Whether the contents of a value are being described."""
        return id(value) in self._inside

    def enclosing(self, value: Any) -> Value:
        """Describe a value that contains itself, by the number of levels up to it."""
        return {"enclosing": len(self._inside) - self._inside[id(value)]}

    def symbol(self, value: Any) -> int:
        """The number of a symbolic extent, by identity: two symbols of one name are two extents."""
        self._kept.append(value)
        return self._symbols.setdefault(id(value), len(self._symbols))


Handler = Callable[[Description, Any, Passed], Value]
"""Describes values of some kinds."""

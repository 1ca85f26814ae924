"""A description under way: where in an argument it is, what encloses it, and the code that it has met."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from cutlass_aot.errors import RequestError
from cutlass_aot.schema.requests.request import Value

MAX_DEPTH = 24
"""Levels of values within values."""
PLAIN = frozenset({type(None), bool, int, float, str, bytes})
"""Classes whose values stand for themselves."""


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

    @property
    def of_fields(self) -> Passed:
        """How the fields of an object are passed that is passed in this way."""
        return Passed.CONSTANT if self is Passed.CONSTANT else Passed.FIELD


class Description(ABC):
    """Of the arguments of one request. What describes a value of some kind is a :data:`Handler`.

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
        return self.value(value, passed)

    @abstractmethod
    def value(self, value: Any, passed: Passed = Passed.CONSTANT) -> Value:
        """Describe a value in the place where the description is."""

    def at(self, step: str, value: Any, passed: Passed = Passed.CONSTANT) -> Value:
        """Describe a value that is one step further in."""
        self._path.append(step)
        described = self.value(value, passed)
        self._path.pop()
        return described

    def fields(self, values: Mapping[str, Any], passed: Passed = Passed.CONSTANT) -> dict[str, Value]:
        """Describe values by their names, in the order of the names."""
        return {name: self.at(f".{name}", item, passed) for name, item in sorted(values.items())}

    def refuse(self, reason: str) -> NoReturn:
        """Raise that the value in this place cannot be described."""
        raise RequestError(f"{''.join(self._path)}: {reason}")

    def enter(self, value: Any) -> None:
        """Begin with what is within a value."""
        self._inside[id(value)] = len(self._inside)

    def leave(self, value: Any) -> None:
        """End with what is within a value."""
        del self._inside[id(value)]

    def is_inside(self, value: Any) -> bool:
        """Whether the description is within a value."""
        return id(value) in self._inside

    def enclosing(self, value: Any) -> Value:
        """What is within itself: by how many levels above it is described."""
        return {"enclosing": len(self._inside) - self._inside[id(value)]}

    def symbol(self, value: Any) -> int:
        """The number of a symbolic extent, by identity: one symbol in two places is one extent, but two
        symbols of one name are two."""
        self._kept.append(value)
        return self._symbols.setdefault(id(value), len(self._symbols))


Handler = Callable[[Description, Any, Passed], Value]
"""Describes a value of some kinds, which is passed in some way."""

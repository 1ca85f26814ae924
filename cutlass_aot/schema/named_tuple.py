"""Named tuples that are cheap to define.

Opening a bundle defines some fifty of them. :class:`typing.NamedTuple` takes 0.2 ms for each, since it
compiles a constructor, and annotations that nobody evaluates. Classes that are defined here take a sixth to
an eighth of that, and are used alike, so that type checkers are told that they are those of :mod:`typing`.
"""

from __future__ import annotations

from collections import _tuplegetter  # type: ignore[attr-defined]
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import NamedTuple as NamedTuple
else:

    class _Definition(type):
        """Makes fields of what a class annotates."""

        def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
            if bases[0].__base__ is not tuple:  # NamedTuple itself, or derived from a class with fields.
                if any(base.__base__ is tuple for base in bases[1:]):
                    raise TypeError(f"{name}: NamedTuple has to be the first of its bases")
                return super().__new__(cls, name, bases, body)
            made = super().__new__(cls, name, bases, {"__slots__": (), **body})
            names = tuple(made.__annotations__)
            if private := [field for field in names if field.startswith("_")]:
                raise ValueError(f"{name}: a field cannot begin with an underscore: {private[0]}")
            defaults = {field: body[field] for field in names if field in body}
            if tuple(defaults) != names[len(names) - len(defaults) :]:
                raise TypeError(f"{name}: a field without a default follows one that has a default")
            made._fields = made.__match_args__ = names
            made._field_defaults = defaults
            for at, field in enumerate(names):
                setattr(made, field, _tuplegetter(at, f"Field {at}"))
            return made

    class NamedTuple(tuple, metaclass=_Definition):
        """As :class:`typing.NamedTuple`; but a signature does not name the fields.

        Raises:
            TypeError: when a class is defined, a field without a default follows one that has a default; when
                an instance is made, a value is missing, or has no field.
        """

        __slots__ = ()

        def __new__(cls, /, *values: Any, **named: Any) -> Any:
            """An instance with values by position, by name, or by default."""
            names = cls._fields
            if named or len(values) != len(names):
                by_position = dict(zip(names, values, strict=False))
                given = cls._field_defaults | by_position | named
                if len(by_position) < len(values) or by_position.keys() & named or given.keys() != set(names):
                    found = [*map(repr, values), *(f"{name}={value!r}" for name, value in named.items())]
                    expected = ", ".join(names)
                    raise TypeError(f"{cls.__name__}({', '.join(found)}): expected values for {expected}")
                values = (given[name] for name in names)
            return tuple.__new__(cls, values)

        @classmethod
        def _make(cls, values: Iterable[Any]) -> Any:
            made = tuple.__new__(cls, values)
            if len(made) != len(cls._fields):
                raise TypeError(f"{cls.__name__}: expected {len(cls._fields)} values, got {len(made)}")
            return made

        def _replace(self, /, **changed: Any) -> Any:
            made = self._make(
                changed.pop(name, value) for name, value in zip(self._fields, self, strict=True)
            )
            if changed:
                raise ValueError(f"{type(self).__name__} has no fields {', '.join(changed)}")
            return made

        __replace__ = _replace

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self, strict=True))

        def __repr__(self) -> str:
            fields = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({fields})"

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

"""Named tuples behave as those of ``typing``, which are defined beside them."""

from __future__ import annotations

import pickle
import typing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.schema.named_tuple import NamedTuple


class Ours(NamedTuple):
    """Two fields with defaults, a method and a property."""

    first: int
    second: str
    third: tuple[int, ...] = ()
    fourth: Any = None

    def total(self, more: int) -> int:
        """Of the first field and one number."""
        return self.first + more

    @property
    def twice(self) -> str:
        """The second field, twice."""
        return self.second * 2


class Theirs(typing.NamedTuple):
    """The same."""

    first: int
    second: str
    third: tuple[int, ...] = ()
    fourth: Any = None


class Derived(Ours):
    """Annotates an attribute, which is not a field."""

    note: str = "none"


def outcome(kind: type, values: list[Any], named: dict[str, Any]) -> tuple[Any, ...] | type[Exception]:
    """What a class makes of arguments: its values, or the kind of its error."""
    try:
        made: tuple[Any, ...] = kind(*values, **named)
    except TypeError as error:
        return type(error)
    return tuple(made)


NAMES = st.sampled_from(["first", "second", "third", "fourth", "fifth", "_fields", "cls"])


@given(st.lists(st.integers(), max_size=6), st.dictionaries(NAMES, st.integers()))
def test_arguments_are_taken_and_refused_alike(values: list[int], named: dict[str, int]) -> None:
    assert outcome(Ours, values, named) == outcome(Theirs, values, named)


def test_it_is_a_tuple_with_names() -> None:
    ours, theirs = Ours(1, "a", fourth=2.5), Theirs(1, "a", fourth=2.5)
    assert ours == theirs == (1, "a", (), 2.5)
    assert hash(ours) == hash(theirs)
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert ours._asdict() == theirs._asdict()
    assert Ours._fields == Theirs._fields == Ours.__match_args__
    assert Ours._field_defaults == Theirs._field_defaults
    assert typing.get_type_hints(Ours) == typing.get_type_hints(Theirs)
    assert (ours.first, ours.second, ours.third, ours.fourth) == tuple(theirs)
    assert (ours.total(2), ours.twice) == (3, "aa")
    assert pickle.loads(pickle.dumps(ours)) == ours
    match ours:
        case Ours(first, second, third):
            assert (first, second, third) == (1, "a", ())


def test_a_changed_copy_has_the_other_values() -> None:
    ours = Ours(1, "a")
    assert ours._replace(second="b") == (1, "b", (), None)
    assert ours == (1, "a", (), None)
    assert Ours._make([1, "a", (), None]) == ours
    with pytest.raises(TypeError, match="expected values for first, second, third, fourth"):
        ours._replace(fifth=1)


def test_nothing_can_be_set() -> None:
    ours: Any = Ours(1, "a")
    for name in ("first", "other"):
        with pytest.raises(AttributeError):
            setattr(ours, name, 2)


def test_a_class_that_is_derived_has_the_same_fields() -> None:
    derived = Derived(1, "a")
    assert derived == (1, "a", (), None)
    assert Derived._fields == Ours._fields
    assert derived.note == "none"


def test_an_error_says_what_was_given() -> None:
    with pytest.raises(TypeError, match=r"Ours\(1, third=3\): expected values for first, second"):
        Ours(1, third=3)  # type: ignore[call-arg, arg-type]


def test_a_field_without_a_default_is_not_behind_one_that_has_one() -> None:
    with pytest.raises(TypeError, match="Late: a field without a default follows"):
        type(Ours)("Late", (NamedTuple,), {"__annotations__": {"a": int, "b": int}, "a": 1})

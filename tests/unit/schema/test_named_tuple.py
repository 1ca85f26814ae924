"""Named tuples behave as those of ``typing``, which are defined beside them."""

from __future__ import annotations

import copy
import pickle
import sys
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


class OursOfClasses(NamedTuple):
    """Fields with the names of arguments of methods."""

    cls: int
    self: int = 2
    values: int = 3


class TheirsOfClasses(typing.NamedTuple):
    """The same."""

    cls: int
    self: int = 2
    values: int = 3


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


OTHER_NAMES = st.sampled_from(["cls", "self", "values", "named"])
NAMES = st.sampled_from(["first", "second", "third", "fourth", "fifth", "_fields", "cls"])


@given(st.lists(st.integers(), max_size=6), st.dictionaries(NAMES, st.integers()))
def test_arguments_are_taken_and_refused_alike(values: list[int], named: dict[str, int]) -> None:
    assert outcome(Ours, values, named) == outcome(Theirs, values, named)


@given(st.lists(st.integers(), max_size=3), st.dictionaries(OTHER_NAMES, st.integers()))
def test_fields_may_have_the_names_of_arguments(values: list[int], named: dict[str, int]) -> None:
    assert outcome(OursOfClasses, values, named) == outcome(TheirsOfClasses, values, named)
    ours, theirs = OursOfClasses(1), TheirsOfClasses(1)
    assert ours._replace(cls=4, self=5) == theirs._replace(cls=4, self=5) == (4, 5, 3)


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
    for kind in (Ours, Theirs):
        with pytest.raises(TypeError):
            kind._make([1, "a"])
        with pytest.raises((ValueError, TypeError)):
            kind(1, "a")._replace(fifth=1)
    if sys.version_info >= (3, 13):
        assert copy.replace(ours, second="b") == copy.replace(Theirs(1, "a"), second="b")


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


def test_classes_that_would_not_work_are_refused() -> None:
    define: Any = type(Ours)
    with pytest.raises(ValueError, match="Private: a field cannot begin with an underscore: _fields"):
        define("Private", (NamedTuple,), {"__annotations__": {"_fields": int}})
    with pytest.raises(TypeError, match="Mixed: NamedTuple has to be the first of its bases"):
        define("Mixed", (object, NamedTuple), {"__annotations__": {"a": int}})


def test_a_field_without_a_default_is_not_behind_one_that_has_one() -> None:
    with pytest.raises(TypeError, match="Late: a field without a default follows"):
        type(Ours)("Late", (NamedTuple,), {"__annotations__": {"a": int, "b": int}, "a": 1})

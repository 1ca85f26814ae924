"""Versions compare as versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutlass_aot.schema.versions import order

ASCENDING = (
    "", "main", "0.9", "0.10", "1.0.dev1", "1.0a1.dev2", "1.0a1", "1.0a2", "1.0b1", "1.0rc1", "1.0",
    "1.0+abc", "1.0+5", "1.0.post1.dev3", "1.0.post1", "1.0.1", "1.10", "2", "1!0.1",
)  # fmt: skip


def test_versions_in_order() -> None:
    assert sorted(ASCENDING, key=order) == list(ASCENDING)
    assert order("1.0") == order("1") == order("1.0.0")


NUMBERS = st.integers(0, 12)
VERSIONS = st.builds(
    "{}{}{}{}{}{}".format,
    st.sampled_from(["", "1!"]),
    st.lists(NUMBERS, min_size=1, max_size=4).map(lambda numbers: ".".join(map(str, numbers))),
    st.one_of(st.just(""), st.builds("{}{}".format, st.sampled_from(["a", "b", "rc"]), NUMBERS)),
    st.one_of(st.just(""), st.builds(".post{}".format, NUMBERS)),
    st.one_of(st.just(""), st.builds(".dev{}".format, NUMBERS)),
    st.sampled_from(["", "+cu13", "+1", "+1.2", "+1.cu"]),
)


@given(VERSIONS, VERSIONS)
def test_the_order_is_that_of_the_specification(one: str, other: str) -> None:
    packaging = pytest.importorskip("packaging.version")
    first, second = packaging.Version(one), packaging.Version(other)
    assert (order(one) < order(other), order(one) == order(other)) == (first < second, first == second)

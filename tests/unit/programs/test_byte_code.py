"""What byte code says."""

from __future__ import annotations

import pytest

from cutlass_aot.programs.describe.byte_code import returns_a_value


def nothing():
    pass


def leaves_early(x):
    if x:
        return
    with x as file:
        if file:
            return
    for _ in range(x):
        try:
            return
        finally:
            print(x)
    print(x)


def a_number():
    return 1


def an_expression(x):
    return x.y


def one_of_two(x):
    if x:
        return x
    return None


def perhaps(x):
    return x if x else None


def either(x):
    return x or None


def both(x):
    return x and None


def inside(x):
    def inner():
        return x

    print(inner, lambda: x)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (nothing, False), (leaves_early, False), (inside, False),
        (a_number, True), (an_expression, True), (one_of_two, True), (lambda: 0, True),
        (perhaps, True), (either, True), (both, True),
    ],
)  # fmt: skip
def test_whether_code_returns_a_value(function, expected):
    assert returns_a_value(function.__code__) is expected

"""Every kind of value that a program passes, as a request describes it; refusals name the argument's path.

Needs the DSL, compiles nothing.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import logging
import threading
import weakref
from dataclasses import dataclass
from typing import NamedTuple

import pytest

pytest.importorskip("cutlass.cute.runtime", reason="the DSL is not installed")

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor, make_ptr

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.values.describer import Describer
from cutlass_aot.programs.describe.values.description import MAX_DEPTH, Passed
from cutlass_aot.schema.encoding import encode

pytestmark = pytest.mark.compile


class Mode(enum.Enum):
    FAST = 1


class Pair(NamedTuple):
    one: int
    two: int


@dataclass
class Config:
    stages: int


class Plain:
    def __init__(self, **fields):
        vars(self).update(fields)


def function(x):
    return x


def described(value, passed=Passed.CONSTANT):
    found = Describer().argument("a", value, passed)
    encode(found)
    return found


@pytest.mark.parametrize("value", [None, True, False, 0, 1, -1, 1.0, 0.0, "", "text", b"bytes", 2**63 - 1])
def test_plain_values_stand_for_themselves(value):
    assert described(value) is value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2**63, {"int": str(2**63)}),
        ((1, 2), {"tuple": [1, 2]}),
        ([1, 2], [1, 2]),
        ({3, 1, 2}, {"set": [1, 2, 3]}),
        ({"b": 1, "a": 2}, {"dict": [["b", 1], ["a", 2]]}),
        (range(1, 9, 2), {"range": [1, 9, 2]}),
        (slice(1, None), {"slice": [1, None, None]}),
        (1 + 2j, {"complex": [1.0, 2.0]}),
        (int, {"type": "int"}),
        (..., {"text": "..."}),
        (len, {"builtin": "builtins:len"}),
        (Mode.FAST, {"enum": f"{__name__}:Mode.FAST"}),
        (cutlass.Float32, {"type": "cutlass.base_dsl.typing:Float32"}),
        (cutlass.Float32(2.0), {"number": "cutlass.base_dsl.typing:Float32", "value": 2.0}),
        (function, {"function": f"{__name__}:function"}),
        (Config(3), {"object": f"{__name__}:Config", "fields": {"stages": 3}}),
        (Pair(1, 2), {"object": f"{__name__}:Pair", "fields": {"one": 1, "two": 2}}),
        (Plain(b=1, a=2), {"object": f"{__name__}:Plain", "fields": {"a": 2, "b": 1}}),
    ],
)
def test_what_is_compiled_in_is_described_by_its_value(value, expected):
    assert described(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, {"dynamic": "int"}),
        (True, {"dynamic": "bool"}),
        (1.0, {"dynamic": "float"}),
        (cutlass.Int64(5), {"dynamic": "cutlass.base_dsl.typing:Int64"}),
        ((1, 2.0), {"tuple": [{"dynamic": "int"}, {"dynamic": "float"}]}),
        (make_fake_stream(use_tvm_ffi_env_stream=True), {"stream": "environment"}),
        (make_fake_stream(), {"stream": "argument"}),
        ("text", "text"),
    ],
)
def test_what_is_passed_at_each_call_is_described_by_its_type(value, expected):
    assert described(value, Passed.DYNAMIC) == expected


def test_kinds_that_are_equal_in_python_are_told_apart():
    values = [
        1,
        True,
        1.0,
        cutlass.Int32(1),
        cutlass.Boolean(True),
        cutlass.Float32(1.0),
        "1",
        (1,),
        [1],
        {1},
        Mode.FAST,
    ]
    assert len({encode(described(value)) for value in values}) == len(values)
    assert encode(described(0.0)) != encode(described(-0.0))


def test_tensors_are_described_by_all_that_a_trace_sees():
    symbol = cute.sym_int32(divisibility=8)
    base = {"dtype": cutlass.Float16, "shape": (symbol, 64), "stride": (64, 1), "assumed_align": 16}

    def tensor(**changes):
        values = {**base, **changes}
        return described(
            make_fake_tensor(
                values["dtype"], values["shape"], values["stride"], assumed_align=values["assumed_align"]
            )
        )

    changes = [
        {"dtype": cutlass.BFloat16},
        {"shape": (symbol, 128)},
        {"shape": (cute.sym_int32(divisibility=4), 64)},
        {"shape": (cute.sym_int64(divisibility=8), 64)},
        {"stride": (1, 64)},
        {"assumed_align": 8},
    ]
    assert len({encode(tensor(**change)) for change in [{}, *changes]}) == len(changes) + 1


def test_symbols_are_told_apart_by_identity():
    one, two = cute.sym_int32(), cute.sym_int32()
    assert described((one, one)) != described((one, two))
    assert described((one, two)) == described((two, one))


def test_a_pointer_is_described_without_its_address():
    one, two = (
        make_ptr(cutlass.Float32, address, cute.AddressSpace.gmem, assumed_align=16)
        for address in (4096, 8192)
    )
    assert described(one, Passed.DYNAMIC) == described(two, Passed.DYNAMIC)
    with pytest.raises(RequestError, match=r"^a: a pointer, whose address would be compiled in"):
        described(one)


def test_functions_are_described_by_their_closures_defaults_and_attributes():
    def made(value, default=0, attribute=0):
        def inner(x, y=default):
            return x + value + y

        inner.__vec_size__ = attribute
        return inner

    variants = [
        made(1),
        made(2),
        made(1, 5),
        made(1, 0, 4),
        functools.partial(made(1), 1),
        functools.partial(made(1), 2),
    ]
    assert len({encode(described(value)) for value in variants}) == len(variants)
    assert described(made(1)) == described(made(1))


class _Fields(ctypes.Structure):
    _fields_ = (("x", ctypes.c_int),)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "an object without fields"),
        (ctypes.c_void_p(4096), "a raw address"),
        (_Fields(1), "a raw address"),
        (weakref.ref(Plain()), "a weak reference"),
        ((x for x in ()), "a generator"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_described_is_refused_with_its_path(value, reason):
    with pytest.raises(RequestError, match=rf"^a\.inner\[1\]: .*{reason}"):
        described(Plain(inner=[0, value]))


def test_locks_and_loggers_are_told_apart_by_nothing_but_their_names():
    one, other = (Plain(inner=[threading.Lock(), logging.getLogger("one")]) for _ in range(2))
    assert described(one) == described(other)
    assert described(one) != described(Plain(inner=[threading.Lock(), logging.getLogger("two")]))


def test_a_live_tensor_is_refused_with_its_path():
    torch = pytest.importorskip("torch")
    table = torch.zeros(4)
    with pytest.raises(RequestError, match=r"^a\.table: a live tensor, whose values would be compiled in"):
        described(lambda x: x * table[0].item())


def test_what_is_nested_too_deep_is_refused():
    value = 1
    for _ in range(MAX_DEPTH + 2):
        value = (value,)
    with pytest.raises(RequestError, match=r"^a(\[0\])+: it is nested too deep"):
        described(value)

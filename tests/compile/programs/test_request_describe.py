"""Descriptions of instances that refer to themselves, of dataclasses made at run time, of renamed functions.

Needs the DSL, compiles nothing.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import pytest

pytest.importorskip("cutlass.cute.runtime", reason="the DSL is not installed")

import cutlass
import tvm_ffi
from cutlass import cute
from cutlass.cute.runtime import make_fake_tensor

from cutlass_aot.programs.describe.request import Surroundings, request_of
from cutlass_aot.programs.describe.values.describer import Describer

pytestmark = pytest.mark.compile


def described(value: Any) -> Any:
    return Describer().argument("x", value)


class Operation:
    """An instance whose part knows it, as NVIDIA's operators with an epilogue are."""

    def __init__(self, tile: int) -> None:
        self.tile = tile
        self.part = Part(self)


class Part:
    def __init__(self, whole: Operation) -> None:
        self.whole = whole


def made(*fields: str, slots: bool = True, default: Any = dataclasses.MISSING) -> type:
    return dataclasses.make_dataclass(
        "Parameter", [(name, Any, dataclasses.field(default=default)) for name in fields], slots=slots
    )


def test_an_instance_that_contains_itself_is_described_once():
    assert described(Operation(1)) == described(Operation(1))
    assert described(Operation(1)) != described(Operation(2))
    assert described(Operation(1))["fields"]["part"]["fields"]["whole"] == {"enclosing": 2}


def test_what_is_referred_to_again_is_told_from_an_equal_one():
    one, other = Operation(1), Operation(1)
    other.part.whole = Operation(1)
    other.part.whole.part = other.part
    assert described(one) != described(other)


def test_a_made_class_within_itself_is_described_alike_everywhere():
    def class_of(tile: int) -> type:
        whole = type("Whole", (), {})
        whole.inner = type("Inner", (), {"whole": whole, "tile": tile})
        return whole

    kind = class_of(1)
    assert described(kind) == described(class_of(1)) != described(class_of(2))
    inner = described(kind.inner)
    assert inner == described(class_of(1).inner)
    assert described([kind, kind.inner]) == [described(kind), inner]


class Incomparable:
    """As some of the DSL's enumerations are."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("cannot be compared")

    __hash__ = object.__hash__


@dataclasses.dataclass
class Settings:
    mode: Any = Incomparable()  # noqa: RUF009


@cute.jit
def with_settings(values: cute.Tensor) -> None:
    if cutlass.const_expr(Settings().mode is not None):
        values[0] = values[0] + 1.0


def test_default_values_of_a_dataclass_may_refuse_to_be_compared():
    surroundings = Surroundings(lambda target: {}, lambda target, numbers: {})
    values = make_fake_tensor(cutlass.Float32, (128,), (1,))
    assert request_of(cute.compile, (with_settings, values), {}, surroundings).digest


def test_dataclasses_that_are_made_are_described_by_their_fields():
    assert described(made("a", "b")) == described(made("a", "b"))
    for other in (made("a"), made("b", "a"), made("a", "b", slots=False), made("a", "b", default=1)):
        assert described(made("a", "b")) != described(other)
    assert described(made("a")(1)) != described(made("a")(2))


def test_a_method_that_dataclasses_did_not_write_is_described():
    changed = made("a")
    changed.__eq__ = lambda self, other: True  # type: ignore[method-assign,assignment]
    assert described(changed) != described(made("a"))


def renamed(name: str, *parameters: str) -> Any:
    def function(*values: Any) -> Any:
        return values

    function.__name__ = name
    kinds = [inspect.Parameter(item, inspect.Parameter.POSITIONAL_OR_KEYWORD) for item in parameters]
    function.__signature__ = inspect.Signature(kinds)  # type: ignore[attr-defined]
    return function


def test_text_that_came_through_tvm_ffi_is_described_as_text():
    # Longer than what TVM-FFI passes within a value, so that an object holds it.
    texts = [Operation("a text of many bytes"), Operation(b"some bytes, which are many")]
    for operation in texts:
        text = operation.tile
        operation.tile = tvm_ffi.convert(text)
        assert type(operation.tile) not in (str, bytes)
        assert described(operation) == described(Operation(text))


def test_a_function_under_another_name_is_described_by_its_own_source_and_its_signature():
    assert described(renamed("epilogue", "a")) == described(renamed("epilogue", "a"))
    assert described(renamed("epilogue", "a")) != described(renamed("other", "a"))
    assert described(renamed("epilogue", "a")) != described(renamed("epilogue", "b"))
    assert "def function" in described(renamed("epilogue"))["source"]

"""Direct calls of ``@cute.jit`` functions: what is answered, what the answer is called with, what is left to
the DSL. Needs no GPU: nothing that would launch is compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

pytest.importorskip("cutlass.cute", reason="the DSL is not installed")
pytest.importorskip("torch")

import cutlass
import torch
from cutlass import cute
from cutlass._mlir import ir
from cutlass.cute.runtime import from_dlpack, make_ptr

from cutlass_aot.errors import RequestError
from cutlass_aot.programs.describe.request import Surroundings, request_of
from cutlass_aot.programs.record.keep import Keeper
from cutlass_aot.programs.start.files import refusals
from cutlass_aot.programs.start.interception import Compile, Interception
from cutlass_aot.programs.without_tvm_ffi import are_on_the_cpu

pytestmark = pytest.mark.compile

POINTER = make_ptr(cutlass.Float32, 16, cute.AddressSpace.gmem)


@cute.jit
def plain(start: cute.Pointer, count: cutlass.Int32, factor=2.0):
    cute.printf("{}", count)


@cute.jit
def constant_between(start: cute.Pointer, tile: cutlass.Constexpr, count: cutlass.Int32):
    cute.printf("{}", count)


@cute.jit
def any_number(start: cute.Pointer, *counts, tile: cutlass.Constexpr[int] = 1, last: cutlass.Int32 = 0):
    cute.printf("{}", counts[0])


@cute.jit
def of_a_class(start: cute.Pointer, dtype):
    cute.printf("{}", dtype(1))


@cute.jit
def first_row(values: cute.Tensor, row: cutlass.Int32):
    values[row] = values[row] + 1.0


@cute.jit
def on_both(start: cute.Pointer, sizes: cute.Tensor):
    cute.printf("{}", sizes[0])


@cute.jit
def twice(count: cutlass.Int32):
    return count * 2


@cute.jit
def early(count: cutlass.Int32):
    if cutlass.const_expr(isinstance(count, int)):
        return
    cute.printf("{}", count)


class Kernel:
    @cute.jit
    def __call__(self, start: cute.Pointer, count: cutlass.Int32):
        self.run(start, count)

    @cute.jit
    def run(self, start: cute.Pointer, count: cutlass.Int32):
        cute.printf("{}", count)

    @staticmethod
    @cute.jit
    def still(start: cute.Pointer, count: cutlass.Int32):
        cute.printf("{}", count)

    @classmethod
    @cute.jit
    def of_class(cls, start: cute.Pointer):
        cute.printf("1")


class Answers:
    """Notes the calls that it answers, and those of its answers, each of which returns its number."""

    def __init__(self) -> None:
        self.made: list[tuple[Any, ...]] = []
        self.called: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.leave = False

    def __call__(self, compiler: Any, arguments: Any, keywords: Any, compile: Compile) -> Callable[..., Any]:
        self.made.append((compiler, arguments, dict(keywords), compile.direct))
        number = len(self.made)
        if self.leave:
            return compile.leave(*arguments, **keywords)

        def called(*passed: Any, **named: Any) -> int:
            self.called.append((passed, named))
            return number

        return called


@pytest.fixture
def answers() -> Iterator[Answers]:
    made = Answers()
    interception = Interception(made)
    interception.begin()
    try:
        yield made
    finally:
        interception.end()


KERNEL = Kernel()


@dataclass
class Place:
    at: Any


class Row(NamedTuple):
    at: Any


@pytest.mark.parametrize(
    ("call", "passed", "named"),
    [
        (lambda: plain(POINTER, 3), (POINTER, 3), {}),
        (lambda: plain(POINTER, count=3, factor=1.5), (POINTER,), {"count": 3, "factor": 1.5}),
        (lambda: constant_between(POINTER, (128, 64), 3), (POINTER, 3), {}),
        (lambda: constant_between(POINTER, count=3, tile=128), (POINTER,), {"count": 3}),
        (lambda: any_number(POINTER, 3, 4, tile=2, last=5), (POINTER, 3, 4), {"last": 5}),
        (lambda: of_a_class(POINTER, cutlass.Float16), (POINTER, cutlass.Float16), {}),
        (lambda: KERNEL(POINTER, 3), (POINTER, 3), {}),
        (lambda: KERNEL.run(POINTER, count=3), (POINTER,), {"count": 3}),
        (lambda: Kernel.still(POINTER, 3), (POINTER, 3), {}),
        (lambda: Kernel.of_class(POINTER), (Kernel, POINTER), {}),
    ],
)
def test_an_answer_is_called_with_what_is_not_compiled_in(answers, call, passed, named):
    """Also from other threads, and what it returns is what the call returns."""
    assert call() == 1
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(call).result() == 2
    assert answers.called == [(passed, named)] * 2
    for compiler, arguments, _, direct in answers.made:
        assert compiler is cute.compile
        assert callable(arguments[0])
        assert direct


def test_a_call_of_the_compiler_is_none_of_a_function(answers):
    assert cute.compile(plain, POINTER, 3)(POINTER, 3) == 1
    assert cute.compile[cute.GenerateLineInfo(True)](KERNEL, POINTER, 3)(POINTER, 3) == 2
    assert [(arguments, direct) for _, arguments, _, direct in answers.made] == [
        ((plain, POINTER, 3), False), ((KERNEL, POINTER, 3), False),
    ]  # fmt: skip


def test_what_works_on_the_cpu_is_left_to_the_dsl(answers):
    values = torch.zeros(4)
    first_row(from_dlpack(values), 2)
    assert values.tolist() == [0, 0, 1, 0]
    assert answers.made == []


def test_a_pointer_beside_a_tensor_on_the_cpu_is_answered(answers):
    sizes = torch.ones(4, dtype=torch.int32)
    assert on_both(POINTER, from_dlpack(sizes)) == 1
    assert len(answers.made) == 1


def test_what_is_left_to_the_dsl_is_what_the_dsl_returns(answers, capfd):
    answers.leave = True
    assert early(3) is None
    assert capfd.readouterr().out == "3\n"
    assert isinstance(twice(3), cutlass.Int32)
    assert [arguments for _, arguments, _, _ in answers.made] == [
        (early.__wrapped__, 3),
        (twice.__wrapped__, 3),
    ]


def test_a_trace_of_its_own_goes_to_the_dsl(answers):
    """A program may open an MLIR context itself and call functions into it."""
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            assert twice(cutlass.Int32(3)).value == 6
    assert answers.made == []


def test_afterwards_everything_goes_to_the_dsl_again(capfd):
    answers = Answers()
    interception = Interception(answers)
    interception.begin()
    interception.end()
    early(3)
    assert capfd.readouterr().out == "3\n"
    assert answers.made == []


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ((), True), ((1, 2.0, True, "text", None, cutlass.Float32, cutlass.Int32(3), (1, (2,)), [3]), True),
        ((POINTER,), False), ((object(),), False), (({"values": 1},), False), (((POINTER,),), False),
        ((Place(POINTER),), False), ((Place(2),), True), ((Row(POINTER),), False), ((Row(2),), True),
    ],
)  # fmt: skip
def test_only_numbers_may_be_beside_a_tensor_on_the_cpu(others, expected):
    tensor = torch.ones(1)
    for one in (tensor, from_dlpack(tensor)):
        assert are_on_the_cpu((one, *others)) is expected
        assert are_on_the_cpu(((one,), *others)) is expected
    assert not are_on_the_cpu(others)


def test_what_cannot_be_kept_is_compiled_for_it_once(tmp_path):
    calls = []

    def compiled(*arguments: Any) -> None:
        calls.append("compiled")
        raise TypeError("it cannot be traced")

    def left(*arguments: Any) -> str:
        calls.append("left")
        return "the DSL's"

    surroundings = Surroundings(lambda target: {"sm_count": 132}, lambda target, numbers: {})
    request = request_of(cute.compile, (early, 3), {}, surroundings)
    keeper = Keeper(tmp_path)
    for _ in range(3):
        assert keeper.compile(request, (early, 3), {}, Compile(compiled, left, direct=True)) == "the DSL's"
    assert calls == ["compiled", "left", "left", "left"]
    (reason,) = refusals(tmp_path)
    assert reason.startswith("tests.compile.programs.test_interception:early: TypeError: it cannot be traced")


def test_a_value_that_is_returned_makes_a_direct_call_no_request():
    surroundings = Surroundings(lambda target: {"sm_count": 132}, lambda target, numbers: {})
    assert request_of(cute.compile, (twice, 3), {}, surroundings)
    assert request_of(cute.compile, (early, 3), {}, surroundings, direct=True)
    early(3)  # The trace replaces its code.
    assert request_of(cute.compile, (early, 3), {}, surroundings, direct=True)
    with pytest.raises(RequestError, match="twice: it returns a value, which only tracing it gives"):
        request_of(cute.compile, (twice, 3), {}, surroundings, direct=True)

"""A program that compiles without TVM-FFI: what is answered takes the DSL's own tensors. Needs no GPU."""

from __future__ import annotations

import ctypes
import os
import typing
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("cutlass.cute", reason="the DSL is not installed")
pytest.importorskip("torch")

import cutlass
import torch
from cuda.bindings.driver import CUstream
from cutlass import cute
from cutlass.base_dsl.compiler import CompileOptions, GenerateLineInfo
from cutlass.base_dsl.runtime.jit_arg_adapters import JitArgAdapterRegistry
from cutlass.cute.runtime import from_dlpack, make_ptr
from cutlass.cute.typing import AddressSpace

from cutlass_aot.errors import ArtifactError, RequestError
from cutlass_aot.programs.describe.request import Surroundings, request_of
from cutlass_aot.programs.record.watched import _default, _without_line_numbers, compile_watched
from cutlass_aot.programs.without_tvm_ffi import WithoutTvmFfi, as_requested, is_without
from cutlass_aot.schema.requests.request import Request

pytestmark = pytest.mark.compile


class OwnPointer(cute.Pointer):
    """A class of pointers as FlashInfer and others have it: the DSL's, of an earlier release."""

    def __init__(self, address: int) -> None:
        self._pointer = address
        self._dtype = cutlass.Float32
        self._addr_space = AddressSpace.generic
        self._assumed_align = 4
        self._desc = self._c_pointer = None

    dtype = property(lambda self: self._dtype)
    memspace = property(lambda self: self._addr_space)
    mlir_type = property(lambda self: make_ptr(self._dtype, 0, self._addr_space, assumed_align=4).mlir_type)

    def __get_mlir_types__(self) -> list[Any]:
        return [self.mlir_type]

    def __c_pointers__(self) -> list[int]:
        self._desc = ctypes.c_void_p(self._pointer)
        self._c_pointer = ctypes.addressof(self._desc)
        return [self._c_pointer]

    def __new_from_mlir_values__(self, values: list[Any]) -> Any:
        return values[0]


@cute.jit
def incremented(start: cute.Pointer) -> None:
    values = cute.make_tensor(start, cute.make_layout(1))
    values[0] = values[0] + 1.0


@cute.jit
def scaled(values: cute.Tensor, factors: tuple, factor: cutlass.Float32) -> None:
    """On the CPU: the host function alone, which runs anywhere."""
    values[0] = values[0] * factor + factors[0][1]


@cute.jit
def added(values: cute.Tensor, numbers: typing.Tuple, pairs: tuple[typing.Tuple, cutlass.Float32]) -> None:  # noqa: UP006
    """Of tuples that are annotated without what is in them."""
    values[0] = values[0] + numbers[0] + numbers[1] + pairs[0][0] + pairs[1]


def test_options_that_are_made_while_something_is_compiled_are_read_later() -> None:
    """As by a function that is called directly, after one that was compiled with options as text."""
    with _without_line_numbers():
        option = GenerateLineInfo(True)
        assert option.value is False
    assert option.value is True


def tensor(*values: float) -> Any:
    return from_dlpack(torch.tensor(values, dtype=torch.float32)).mark_layout_dynamic(0)


def requested(compiler: Any, *arguments: Any) -> Request:
    return request_of(compiler, arguments, {}, Surroundings(lambda target: {}, lambda target, numbers: {}))


@pytest.fixture(autouse=True)
def _target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_90a")
    monkeypatch.setattr(cutlass.base_dsl.dsl.BaseDSL._get_dsl().envar, "arch", "sm_90a", raising=False)


def test_it_is_compiled_with_tvm_ffi_and_called_without():
    arguments = (scaled, tensor(1, 2), (tensor(3, 4),), cutlass.Float32(5))
    request = requested(cute.compile, *arguments)
    assert is_without(request)
    assert not is_without(requested(cute.compile[cute.EnableTVMFFI(True)], *arguments))
    compiled = compile_watched(request, partial(cute.compile, *arguments), arguments, {}, {})
    assert "TVMFFI" in type(compiled.function).__name__
    assert not any("_tvm_ffi_tensor" in vars(item) for item in (arguments[1], arguments[2][0]))
    assert requested(cute.compile, *arguments) == request, "the compiler and the tensors are as they were"
    function = as_requested(request, compiled.function)
    values, factors = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    for _ in range(2):
        function(from_dlpack(values), (from_dlpack(factors),), cutlass.Float32(5))
    assert values.tolist() == [(1 * 5 + 4) * 5 + 4, 2.0]


def test_one_tensor_may_be_given_for_several_arguments():
    twice = tensor(1, 2)
    arguments = (scaled, twice, (twice,), cutlass.Float32(5))
    request = requested(cute.compile, *arguments)
    compiled = compile_watched(request, partial(cute.compile, *arguments), arguments, {}, {})
    assert "_tvm_ffi_tensor" not in vars(twice)
    values = torch.tensor([1.0, 2.0])
    as_requested(request, compiled.function)(from_dlpack(values), (from_dlpack(values),), cutlass.Float32(5))
    assert values.tolist() == [7.0, 2.0]


@cute.jit
def doubled(values, more) -> None:  # type: ignore[no-untyped-def]
    """Without annotations, which the DSL compares with what it is given."""
    values[0] = values[0] * 2.0 + more[0][1]


def test_tensors_of_a_framework_are_passed_as_they_are():
    """The DSL makes its own of them, also without TVM-FFI."""
    values = torch.tensor([1.0, 2.0])
    arguments = (doubled, values, (tensor(1, 2),))
    request = requested(cute.compile, *arguments)
    compiled = compile_watched(request, partial(cute.compile, *arguments), arguments, {}, {})
    longer = torch.tensor([1.0, 2.0, 3.0])
    as_requested(request, compiled.function)(longer, (from_dlpack(longer),))
    assert longer.tolist() == [4.0, 2.0, 3.0]


OF_THE_THREAD = CUstream(2)


@cute.jit
def on_stream(values: cute.Tensor, stream: CUstream = OF_THE_THREAD) -> None:
    values[0] = values[0] + 1.0


def test_a_stream_as_a_default_is_kept_as_its_handle():
    compiler = cute.compile[cute.EnableTVMFFI(True)]
    arguments = (on_stream, tensor(1, 2))
    request = requested(compiler, *arguments)
    compiled = compile_watched(request, partial(compiler, *arguments), arguments, {}, {})
    assert compiled.call is not None
    assert compiled.call.defaults == (2,)
    values = torch.tensor([1.0, 2.0])
    compiled.function._tvm_ffi_function(values, 2)
    assert values.tolist() == [2.0, 2.0]


def test_a_stream_of_this_process_as_a_default_is_refused():
    with pytest.raises(ArtifactError, match="argument 'stream' has a default value of CUstream, expected"):
        _default("stream", CUstream(0xABCDEF0))


def test_a_tuple_may_be_annotated_without_its_elements():
    given = (cutlass.Float32(1), cutlass.Float32(2)), ((cutlass.Float32(3),), cutlass.Float32(4))
    arguments = (added, tensor(1, 2), *given)
    request = requested(cute.compile, *arguments)
    compiled = compile_watched(request, partial(cute.compile, *arguments), arguments, {}, {})
    values = torch.tensor([1.0, 2.0])
    others = (cutlass.Float32(10), cutlass.Float32(20)), ((cutlass.Float32(30),), cutlass.Float32(40))
    as_requested(request, compiled.function)(from_dlpack(values), *others)
    assert values.tolist() == [101.0, 2.0]


def test_tensors_within_tuples_and_by_name_are_passed_and_all_else_is_left_alone():
    passed: list[Any] = []

    def function(*arguments: Any, **keywords: Any) -> None:
        passed.extend([arguments, keywords])

    own = tensor(1, 2)
    WithoutTvmFfi(function)(own, [own, None], 3, "text", name=own)
    (first, (second, nothing), *rest), named = passed
    assert [type(item).__name__ for item in (first, second, named["name"])] == ["Tensor"] * 3
    assert first is second, "made once for a tensor"
    assert (nothing, rest) == (None, [3, "text"])


def test_a_program_s_own_pointers_are_described_without_their_addresses_and_passed():
    values = torch.tensor([1.0, 2.0])
    arguments = (incremented, OwnPointer(values.data_ptr()))
    request = requested(cute.compile, *arguments)
    assert requested(cute.compile, incremented, OwnPointer(values.data_ptr() + 4)) == request
    assert "_pointer" not in str(request.arguments)
    other = OwnPointer(values.data_ptr())
    other._dtype = other._desc = cutlass.Int32
    assert requested(cute.compile, incremented, other) != request
    compiled = compile_watched(request, partial(cute.compile, *arguments), arguments, {}, {})
    function = as_requested(request, compiled.function)
    for address in (values.data_ptr(), values.data_ptr() + 4):
        function(OwnPointer(address))
    assert values.tolist() == [2.0, 3.0]


def test_line_numbers_are_in_no_request_and_in_nothing_compiled():
    arguments = (scaled, tensor(1, 2), (tensor(3, 4),), cutlass.Float32(5))
    compiler = cute.compile[cute.GenerateLineInfo(True)]
    request = requested(compiler, *arguments)
    assert request == requested(cute.compile, *arguments)
    compiled = compile_watched(request, partial(compiler, *arguments), arguments, {}, {})
    assert compiler._compile_options.generate_line_info, "the program's own options are as they were"
    assert __file__ not in str(compiled.function.ir_module.operation.get_asm(enable_debug_info=True))


def test_threads_compile_one_after_the_other_and_leave_everything_as_it_was():
    arguments = (scaled, tensor(1, 2), (tensor(3, 4),), cutlass.Float32(5))
    request = requested(cute.compile, *arguments)
    kinds = (type(os.environ), CompileOptions, cute.GenerateLineInfo)
    before = [dict(vars(kind)) for kind in kinds]
    compile = partial(cute.compile, *arguments)
    with ThreadPoolExecutor(4) as pool:
        work = [pool.submit(compile_watched, request, compile, arguments, {}, {}) for _ in range(4)]
        assert all("TVMFFI" in type(item.result().function).__name__ for item in work)
    assert [dict(vars(kind)) for kind in kinds] == before


def test_a_function_with_tvm_ffi_is_answered_as_it_is():
    function = object()
    assert as_requested(SimpleNamespace(options={}), function) is function


def half(value: Any) -> Any:
    return value * 0.5


@dataclass
class Values:
    values: cute.Tensor


@dataclass
class Scaled(Values):
    factor: cutlass.Float32
    change: cutlass.Constexpr[Callable[[Any], Any]] = half
    count: cutlass.Constexpr[int] = 7
    other: cute.Tensor | None = None


@dataclass(frozen=True)
class Numbers:
    large: cutlass.Int64
    small: int
    name: cutlass.Constexpr[str] = "numbers"


@dataclass
class Both:
    numbers: Numbers
    scale: float


class Pair(typing.NamedTuple):
    first: cutlass.Float32
    second: cutlass.Float32


@dataclass(frozen=True)
class Mode:
    level: cutlass.Constexpr[int] = 2
    exact: cutlass.Constexpr[bool] = False


MODE = Mode()


@cute.jit
def of_dataclasses(
    scaled: Values, both: Both, mixed: tuple[cutlass.Float32, Numbers], pair: Pair, mode: Mode = MODE
) -> None:
    values = scaled.values
    values[0] = scaled.change(values[0] * scaled.factor) + scaled.count
    values[1] = both.scale * cutlass.Float32(both.numbers.small) + mixed[0]
    values[2] = cutlass.Float32(both.numbers.large - mixed[1].large)
    values[3] = pair.first - 2 * pair.second + mode.level


def test_dataclasses_are_passed_field_by_field():
    """Functions and texts in them are compiled in, and so are numbers that are annotated so."""

    def arguments(values: torch.Tensor, factor: float, base: int) -> tuple[Any, ...]:
        both = Both(Numbers(cutlass.Int64(base + 3), 4), 0.5)
        mixed = cutlass.Float32(0.25), Numbers(cutlass.Int64(base), 0)
        pair = Pair(cutlass.Float32(10.0 + base % 2), cutlass.Float32(3.0))
        return Scaled(from_dlpack(values), cutlass.Float32(factor)), both, mixed, pair

    first = arguments(torch.zeros(4), 2.0, 1)
    given = (of_dataclasses, *first)
    request = requested(cute.compile, *given)
    compiled = compile_watched(request, partial(cute.compile, *given), given, {}, {})
    values, by_the_dsl = torch.tensor([[4.0, 0, 0, 0], [4.0, 0, 0, 0]])
    as_requested(request, compiled.function)(*arguments(values, 3.0, 2**40))
    assert values.tolist() == [4 * 3 * 0.5 + 7, 0.5 * 4 + 0.25, 3.0, 10 - 6 + 2]
    # With arguments of its own: a trace leaves its values in dataclasses that it was given.
    own = cute.compile(of_dataclasses, *arguments(torch.zeros(4), 2.0, 1))
    own(*arguments(by_the_dsl, 3.0, 2**40))
    assert values.tolist() == by_the_dsl.tolist()


@dataclass
class Apart:
    """Takes itself apart, in an order of its own, as the DSL's protocol allows."""

    values: cute.Tensor
    factor: cutlass.Float32

    def __c_pointers__(self) -> list[int]:
        return [*self.factor.__c_pointers__(), *self.values.__c_pointers__()]

    def __get_mlir_types__(self) -> list[Any]:
        return [*self.factor.__get_mlir_types__(), *self.values.__get_mlir_types__()]

    def __new_from_mlir_values__(self, values: list[Any]) -> Any:
        made = (cutlass.new_from_mlir_values(self.factor, values[:1]),)
        return Apart(cutlass.new_from_mlir_values(self.values, values[1:]), *made)


@cute.jit
def of_one(scaled) -> None:  # type: ignore[no-untyped-def]
    scaled.values[0] = scaled.values[0] * scaled.factor


@pytest.mark.parametrize("inside", [False, True])
def test_what_takes_itself_apart_makes_no_request(inside):
    given: Any = Apart(tensor(1, 2), cutlass.Float32(3))
    with pytest.raises(
        RequestError, match="of_one: Apart implements the DSL's JitArgument, so that only the DSL knows"
    ):
        requested(cute.compile, of_one, (given,) if inside else given)
    assert not is_without(requested(cute.compile[cute.EnableTVMFFI(True)], of_one, given))


def test_what_a_programs_adapter_makes_is_no_request(monkeypatch):
    known = JitArgAdapterRegistry.jit_arg_adapter_registry
    monkeypatch.setitem(known, Numbers, lambda given: cutlass.Int32(given.small * 2))
    with pytest.raises(
        RequestError, match="of_one: Numbers has an argument adapter, so that only the DSL knows"
    ):
        requested(cute.compile, of_one, Numbers(cutlass.Int64(1), 2))

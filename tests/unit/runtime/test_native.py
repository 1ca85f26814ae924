"""Native functions as Python objects: what they take, return and raise, and what they keep alive."""

from __future__ import annotations

import ctypes
import enum
import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.runtime.launching import native, tensors
from cutlass_aot.runtime.launching.call import call
from cutlass_aot.runtime.launching.library import Library
from tests.support.bundles import ClaimsCuda
from tests.support.native import native_function

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
tvm_ffi = pytest.importorskip("tvm_ffi")


class Refused(Exception):
    """What the caller of a native function is to see."""


class Calls:
    """A fallback, a native function and what to do on failure, with what they were called with."""

    def __init__(self) -> None:
        self.fallback: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.native: list[Any] = []
        self.result: Any = None

    def fall_back(self, *operands: Any, **named: Any) -> str:
        self.fallback.append((operands, named))
        return "fallback"

    def failed(self, error: Exception, operands: tuple[Any, ...]) -> None:
        raise Refused(str(error), len(operands)) from error

    def function(self, *operands: Any) -> Any:
        # Native code keeps its tensors for a call alone.
        self.native += [
            operand if isinstance(operand, float) else (tuple(operand.shape), operand.data_ptr())
            for operand in operands
        ]
        return self.result


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def made(launcher: Library, calls: Calls) -> Any:
    """One with a fallback, that was assigned a function."""
    return with_fallback(launcher, calls, calls.function)


def with_fallback(launcher: Library, calls: Calls, function: Any) -> Any:
    made = native.with_fallback(launcher, calls.fall_back, calls.failed)
    native.assign(launcher, made, tvm_ffi.convert(function))
    return made


# -- with a fallback ----------------------------------------------------------------------------------------


def test_before_one_is_assigned_every_call_goes_to_the_fallback(launcher: Library, calls: Calls) -> None:
    made = native.with_fallback(launcher, calls.fall_back, calls.failed)
    tensor = torch.zeros(2)
    assert made(tensor, 1, stream=3) == "fallback"
    made()
    assert calls.fallback == [((tensor, 1), {"stream": 3}), ((), {})]


def test_tensors_and_floats_go_to_native_code(made: Any, calls: Calls) -> None:
    tensor = torch.arange(3.0)
    weight = torch.nn.Parameter(torch.ones(2), requires_grad=False)
    assert made(tensor, weight, 0.5) is None
    assert calls.fallback == []
    assert calls.native == [((3,), tensor.data_ptr()), ((2,), weight.data_ptr()), 0.5]


class Subclass(torch.Tensor):
    """Somebody's tensor."""


@pytest.mark.parametrize(
    ("operands", "named"),
    [
        ((), {}),
        ((3, torch.zeros(2)), {}),
        ((torch.zeros(2).as_subclass(Subclass),), {}),
        ((torch.zeros(2),), {"stream": None}),
        ((torch.zeros(2), torch.zeros(2, requires_grad=True)), {}),
        ((torch.nn.Parameter(torch.zeros(2)),), {}),
        ((torch.zeros(2), "a text"), {}),
        ((torch.zeros(2, device="meta"),), {}),
        (tuple(torch.zeros(2) for _ in range(200)), {}),
        (tuple(torch.zeros(2) for _ in range(30)), {}),
        ((tvm_ffi.from_dlpack(torch.zeros(2)),), {}),
        ((tvm_ffi.convert(print),), {}),
    ],
)
def test_what_goes_to_the_fallback(made: Any, calls: Calls, operands: Any, named: dict[str, Any]) -> None:
    assert made(*operands, **named) == "fallback"
    assert len(calls.fallback) == 1
    assert all(found is given for found, given in zip(calls.fallback[0][0], operands, strict=True))
    assert calls.fallback[0][1] == named
    assert calls.native == []


def test_what_native_code_has_nothing_for_goes_to_the_fallback(made: Any, calls: Calls) -> None:
    calls.result = False
    assert made(torch.zeros(2)) == "fallback"
    calls.result = True
    assert made(torch.zeros(2)) is True
    assert (len(calls.native), len(calls.fallback)) == (2, 1)


def test_tensors_that_need_gradients_go_to_native_code_where_none_are_recorded(
    made: Any, calls: Calls
) -> None:
    with torch.no_grad():
        made(torch.zeros(2), torch.zeros(2, requires_grad=True))
    with torch.inference_mode():
        made(torch.zeros(2))
    assert calls.fallback == []
    assert len(calls.native) == 3


def test_an_error_of_native_code_becomes_the_callers(launcher: Library, calls: Calls) -> None:
    def failing(*operands: Any) -> None:
        raise ValueError("argument #1 is wrong")

    made = with_fallback(launcher, calls, failing)
    with pytest.raises(Refused) as caught:
        made(torch.zeros(2), torch.zeros(2))
    assert caught.value.args == ("argument #1 is wrong", 2)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_class_that_cannot_be_told_goes_to_the_fallback(
    launcher: Library, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors: list[BaseException] = [RuntimeError("torch is going"), KeyboardInterrupt()]

    def tensor_class(cls: type) -> Any:
        raise errors.pop(0)

    monkeypatch.setattr(native, "tensor_class", tensor_class)
    made = with_fallback(launcher, calls, calls.function)
    assert made(torch.zeros(2)) == "fallback"
    # An interrupt is the caller's.
    with pytest.raises(KeyboardInterrupt):
        made(torch.zeros(2))


def test_a_torch_without_an_interface_for_native_code_goes_to_the_fallback(
    launcher: Library, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "_exchange_api", lambda cls: None)
    assert tensors.native_classes() == frozenset()
    made = with_fallback(launcher, calls, calls.function)
    assert made(torch.zeros(2)) == "fallback"


@pytest.mark.parametrize(
    ("position", "value"),
    [(0, 2), (5, 0), (6, 0)],
    ids=["version", "dltensor_from_py_object_no_sync", "current_work_stream"],
)
def test_an_interface_of_another_version_is_not_used(
    launcher: Library, calls: Calls, monkeypatch: pytest.MonkeyPatch, position: int, value: int
) -> None:
    address = tensors._exchange_api(torch.Tensor)
    assert address is not None
    # Two numbers of a version and a pointer, then five functions (dlpack.h).
    words = (ctypes.c_uint64 * 7).from_buffer_copy((ctypes.c_uint64 * 7).from_address(address))
    capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi)
    )(ctypes.addressof(words), b"dlpack_exchange_api", None)
    monkeypatch.setattr(torch.Tensor, "__dlpack_c_exchange_api__", capsule)
    monkeypatch.setattr(tensors, "_exchange_api", tensors._exchange_api.__wrapped__)
    made = with_fallback(launcher, calls, calls.function)
    assert made(torch.zeros(2)) is None
    words[position] = value
    assert tensors.native_classes() == frozenset()
    function = native_function(launcher, calls.function)
    call(function, [torch.zeros(2)], 0, 77)
    assert [shape for shape, _ in calls.native] == [(2,), (2,)]


def test_another_function_can_be_assigned_while_one_is_called(launcher: Library, calls: Calls) -> None:
    done = threading.Event()
    made = native.with_fallback(launcher, calls.fall_back, calls.failed)

    def work() -> None:
        while not done.is_set():
            made(torch.zeros(2))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        native.assign(launcher, made, tvm_ffi.convert(calls.function))
    done.set()
    for thread in threads:
        thread.join()
    made(torch.zeros(2))
    assert calls.native


# -- without ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0, -1, 2**40, -(2**63), 2**63 - 1, 0.25, b"", b"some bytes"])
def test_numbers_and_bytes_are_taken(launcher: Library, value: Any) -> None:
    seen: list[Any] = []
    assert native_function(launcher, seen.append)(value) is None
    assert seen == [value]
    assert type(seen[0]) is type(value)


@pytest.mark.parametrize("value", [None, True, False, 7, -(2**62)])
def test_what_is_returned(launcher: Library, value: Any) -> None:
    found = native_function(launcher, lambda number: value)(1)
    assert found == value
    assert type(found) is type(value)


def test_functions_are_taken_and_returned(launcher: Library) -> None:
    def twice(function: Any) -> Any:
        return lambda number: function(function(number))

    made = native_function(launcher, twice)
    for function in (native_function(launcher, lambda n: n + 1), tvm_ffi.convert(lambda n: n + 1)):
        assert made(function)(5) == 7


@pytest.mark.parametrize("value", ["a text", [], 2**63, object(), torch.zeros(2).as_subclass(Subclass)])
def test_what_native_code_cannot_take_is_refused(launcher: Library, value: Any) -> None:
    made = native_function(launcher, lambda *given: None)
    with pytest.raises((TypeError, AttributeError, OverflowError)):
        made(value)


@pytest.mark.parametrize("named", [{"device": 3}, {"stream": 3, "device": 3}])
def test_another_name_than_a_stream_is_refused(launcher: Library, named: dict[str, int]) -> None:
    with pytest.raises(TypeError, match="native code cannot take these arguments"):
        native_function(launcher, lambda *given: None)(torch.zeros(2), **named)


def test_a_result_of_another_kind_is_refused(launcher: Library) -> None:
    with pytest.raises(TypeError, match="native code returned a value of TVM-FFI's type"):
        native_function(launcher, lambda number: "a long enough text")(1)


@pytest.mark.parametrize("error", [ValueError, TypeError, MemoryError, RuntimeError, KeyError])
def test_errors_keep_their_kind(launcher: Library, error: type[Exception]) -> None:
    def failing(number: int) -> None:
        raise error("grün, and why")

    with pytest.raises(error if error is not KeyError else RuntimeError, match="grün, and why"):
        native_function(launcher, failing)(1)


def test_a_stream_by_name_holds_for_one_call(launcher: Library) -> None:
    def current(*given: Any) -> int:
        return int(tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0)))

    made = native_function(launcher, current)
    assert made(torch.zeros(2), stream=77) == 77
    assert made(torch.zeros(2)) == 0
    assert made(tvm_ffi.from_dlpack(torch.zeros(2)), stream=78) == 78
    assert current() == 0


@pytest.mark.parametrize(("device_type", "expected"), [(1, 77), (2, 77), (3, 77), (13, 77)])
def test_a_stream_is_that_of_the_gpu_for_every_kind_of_memory(
    launcher: Library, device_type: int, expected: int
) -> None:
    made = native_function(launcher, lambda *given: tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0)))
    tensor = tvm_ffi.from_dlpack(ClaimsCuda(np.zeros(2, np.float32), "f32", 0))
    # The device's type is the third word of a tensor, which follows the object's header (c_api.h).
    ctypes.c_int32.from_address(tensor.__chandle__() + 24 + 8).value = device_type
    assert made(tensor, stream=77) == expected


@pytest.mark.parametrize("number", [np.float64(0.5), enum.IntEnum("Number", {"one": 1}).one])
def test_numbers_of_other_classes_are_passed_as_what_they_are(launcher: Library, number: Any) -> None:
    seen: list[Any] = []
    call(native_function(launcher, lambda *given: seen.append(given[1])), [torch.zeros(2), number], 0, 77)
    assert seen == [number]


def test_linear_is_a_gemm_on_matrices(launcher: Library) -> None:
    seen: list[Any] = []

    def choose(*given: Any) -> bool:
        seen.append([(tuple(t.shape), tuple(t.strides), t.data_ptr()) for t in given])
        return True

    linear = native.function(launcher, "cutlass_aot_linear")(native_function(launcher, choose))
    weight = torch.zeros(12, 16)
    for shape in [(8,), (2, 4), (2, 1, 4), (1, 1, 8), (1,), (1, 1), (), (3, 2, 2)]:
        x, out = torch.zeros(*shape, 16), torch.zeros(*shape, 12)
        assert linear(x, weight, out) is True
        a, b, c = tensors.linear_as_gemm(x, weight, out)
        assert seen.pop() == [(tuple(t.shape), t.stride(), t.data_ptr()) for t in (a, b, c)]
    # A row of its own stride stays as it is.
    assert linear(torch.zeros(4, 32)[:1, :16], weight, torch.zeros(1, 12)) is True
    assert seen.pop()[0][:2] == ((1, 16), (32, 1))


def test_what_cannot_be_viewed_as_matrices_is_left(launcher: Library) -> None:
    linear = native.function(launcher, "cutlass_aot_linear")(native_function(launcher, lambda *given: True))
    x, weight, out = torch.zeros(2, 4, 16), torch.zeros(12, 16), torch.zeros(2, 4, 12)
    for wrong in (
        (x.transpose(0, 1), weight, out),
        (x, weight, out.transpose(0, 1)),
        (torch.zeros(2, 8, 16)[:, :4], weight, out),
        (x, torch.zeros(12), out),
        (x, torch.zeros(1, 12, 16), out),
        (torch.tensor(1.0), weight, out),
        (x, 0.5, out),
    ):
        assert linear(*wrong) is False
    with pytest.raises(TypeError, match="expected x, weight and out"):
        linear(x, weight)


# -- what is kept -------------------------------------------------------------------------------------------


def test_nothing_is_kept_that_nobody_has(launcher: Library) -> None:
    class Kernel:
        def __init__(self) -> None:
            self.launch = native.with_fallback(launcher, self.fall_back, self.failed)
            native.assign(launcher, self.launch, tvm_ffi.convert(lambda *operands: None))

        def fall_back(self, *operands: Any) -> None: ...

        def failed(self, error: Exception, operands: Any) -> None: ...

    kernel = Kernel()
    tensor = torch.zeros(2)
    before = sys.getrefcount(tensor)
    for _ in range(1000):
        kernel.launch(tensor, tensor)
    assert sys.getrefcount(tensor) == before
    gone = weakref.ref(kernel)
    # The kernel and its native function hold each other.
    del kernel
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("with_gradients", [False, True])
def test_a_call_keeps_no_reference(launcher: Library, calls: Calls, with_gradients: bool) -> None:
    def failing(*operands: Any) -> None:
        raise ValueError("no")

    made = with_fallback(launcher, calls, failing)
    tensor = torch.zeros(2, requires_grad=with_gradients)

    def run(times: int) -> None:
        for _ in range(times):
            try:
                made(tensor)
            except Refused:
                assert not with_gradients

    run(3)
    calls.fallback.clear()
    gc.collect()
    before = sys.getrefcount(tensor), sys.getrefcount(calls)
    run(100)
    calls.fallback.clear()
    gc.collect()
    assert (sys.getrefcount(tensor), sys.getrefcount(calls)) == before


def test_a_python_of_another_kind_gets_functions_of_tvm_ffi(
    launcher: Library, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "abiflags", "t")
    fallback = calls.fall_back
    made = native.with_fallback(launcher, fallback, calls.failed)
    assert made is fallback
    native.assign(launcher, made, calls.function)
    made(torch.zeros(2))
    assert len(calls.fallback) == 1
    function = native.function(launcher, "cutlass_aot_dispatch_cache")
    assert type(function) is tvm_ffi.Function
    assert function(16)(torch.zeros(2)) is False
    seen = tvm_ffi.convert(lambda *given: tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0)))
    assert native.call_on(seen, [torch.zeros(2)], 0, 77) == 77
    assert native.call_on(seen, [torch.zeros(2)], 0, None) == 0


def test_nobody_makes_one_by_its_class(made: Any) -> None:
    with pytest.raises(TypeError, match="cannot create"):
        type(made)()


# Functions made before tvm_ffi's package is imported: objects that are made afterwards have a prefix of its
# own in memory, which these lack.
BEFORE_TVM_FFI = """
import sys
import torch
from pathlib import Path
from cutlass_aot.runtime.launching import native
from cutlass_aot.runtime.launching.library import Library
from cutlass_aot.schema.bundles.catalog import FileReference

launcher = Library(Path(sys.argv[1]), FileReference("launcher.so.zst", int(sys.argv[2]), sys.argv[3]))
cache = native.function(launcher, "cutlass_aot_dispatch_cache")(16)
linear = native.function(launcher, "cutlass_aot_linear")(cache)
assert cache(torch.zeros(2), linear) == 1
assert "tvm_ffi" not in sys.modules

import tvm_ffi

other = native.function(launcher, "cutlass_aot_dispatch_cache")(16)
print(cache(torch.zeros(3), other), cache(tvm_ffi.from_dlpack(torch.zeros(4)), tvm_ffi.convert(print)))
del cache, linear, other
"""


def test_native_functions_need_no_package_of_tvm_ffi(launcher: Library, tmp_path: Path) -> None:
    reference = launcher._reference
    command = [sys.executable, "-c", BEFORE_TVM_FFI, tmp_path, str(reference.size), reference.sha256]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2 3\n", "")

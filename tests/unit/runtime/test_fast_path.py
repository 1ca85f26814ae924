"""The fast path of a launch: what takes it, what it raises, and what it keeps alive."""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import pytest

from cutlass_aot.runtime.launching import fast_path
from cutlass_aot.runtime.launching.library import Library
from cutlass_aot.schema.bundles.catalog import FileReference
from cutlass_aot.schema.compression import compress
from cutlass_aot.schema.encoding import digest

torch = pytest.importorskip("torch")
tvm_ffi = pytest.importorskip("tvm_ffi")


class Refused(Exception):
    """What the caller of a fast path is to see."""


class Calls:
    """A slow path and what to do on failure, with what they were called with."""

    def __init__(self) -> None:
        self.long: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self.native: list[tuple[Any, ...]] = []

    def slow_path(self, *operands: Any, **named: Any) -> None:
        self.long.append((operands, named))

    def failed(self, error: Exception, operands: tuple[Any, ...]) -> None:
        raise Refused(str(error), len(operands)) from error

    def function(self, *operands: Any) -> None:
        self.native.append(operands)


@pytest.fixture
def launcher(tmp_path: Path, launcher_library: bytes) -> Library:
    data = compress(launcher_library, 3)
    (tmp_path / "launcher.so.zst").write_bytes(data)
    reference = FileReference("launcher.so.zst", len(data), digest(data))
    return Library(tmp_path, reference)


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
def way(launcher: Library, calls: Calls) -> Any:
    """A fast path that was opened for torch tensors."""
    made = fast_path.make(launcher, calls.slow_path, calls.failed)
    fast_path.open_way(launcher, made, tvm_ffi.convert(calls.function), torch.Tensor, torch.is_grad_enabled)
    return made


def test_before_it_is_opened_every_call_goes_the_slow_path(launcher: Library, calls: Calls) -> None:
    made = fast_path.make(launcher, calls.slow_path, calls.failed)
    tensor = torch.zeros(2)
    made(tensor, 1, stream=3)
    made()
    assert calls.long == [((tensor, 1), {"stream": 3}), ((), {})]


def test_tensors_go_the_fast_path(way: Any, calls: Calls) -> None:
    tensor = torch.arange(3.0)
    assert way(tensor, tensor) is None
    assert calls.long == []
    assert [torch.from_dlpack(operand).tolist() for operand in calls.native[0]] == [[0.0, 1.0, 2.0]] * 2


class Subclass(torch.Tensor):
    """Somebody's tensor."""


@pytest.mark.parametrize(
    ("operands", "named"),
    [
        ((), {}),
        ((3, torch.zeros(2)), {}),
        ((torch.nn.Parameter(torch.zeros(2), requires_grad=False),), {}),
        ((torch.zeros(2).as_subclass(Subclass),), {}),
        ((torch.zeros(2),), {"stream": None}),
        ((torch.zeros(2), torch.zeros(2, requires_grad=True)), {}),
        ((torch.zeros(2), "says nothing of gradients"), {}),
    ],
)
def test_what_takes_the_slow_path(way: Any, calls: Calls, operands: Any, named: dict[str, Any]) -> None:
    way(*operands, **named)
    assert len(calls.long) == 1
    assert all(found is given for found, given in zip(calls.long[0][0], operands, strict=True))
    assert calls.long[0][1] == named
    assert calls.native == []


def test_where_no_gradients_are_recorded_none_is_asked_for(way: Any, calls: Calls) -> None:
    with torch.no_grad():
        way(torch.zeros(2), torch.zeros(2, requires_grad=True))
    with torch.inference_mode():
        way(torch.zeros(2))
    assert calls.long == []
    assert len(calls.native) == 2


def test_an_error_of_native_code_becomes_the_callers(launcher: Library, calls: Calls) -> None:
    def failing(*operands: Any) -> None:
        raise ValueError("argument #1 is wrong")

    made = fast_path.make(launcher, calls.slow_path, calls.failed)
    fast_path.open_way(launcher, made, tvm_ffi.convert(failing), torch.Tensor, torch.is_grad_enabled)
    with pytest.raises(Refused) as caught:
        made(torch.zeros(2), torch.zeros(2))
    assert caught.value.args == ("argument #1 is wrong", 2)
    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.__cause__.__traceback__ is not None


def test_a_word_on_gradients_that_fails_takes_the_slow_path(launcher: Library, calls: Calls) -> None:
    def recording() -> bool:
        raise RuntimeError("torch is going")

    made = fast_path.make(launcher, calls.slow_path, calls.failed)
    fast_path.open_way(launcher, made, tvm_ffi.convert(calls.function), torch.Tensor, recording)
    made(torch.zeros(2))
    assert len(calls.long) == 1


def test_it_is_opened_once(launcher: Library, way: Any, calls: Calls) -> None:
    other: list[Any] = []
    function = tvm_ffi.convert(lambda *operands: other.append(operands))
    fast_path.open_way(launcher, way, function, torch.Tensor, torch.is_grad_enabled)
    way(torch.zeros(2))
    assert len(calls.native) == 1
    assert other == []


def test_nothing_is_kept_that_nobody_has(launcher: Library) -> None:
    class Kernel:
        def __init__(self) -> None:
            self.launch = fast_path.make(launcher, self.slow_path, self.failed)
            function = tvm_ffi.convert(lambda *operands: None)
            fast_path.open_way(launcher, self.launch, function, torch.Tensor, torch.is_grad_enabled)

        def slow_path(self, *operands: Any) -> None: ...

        def failed(self, error: Exception, operands: Any) -> None: ...

    kernel = Kernel()
    tensor = torch.zeros(2)
    before = sys.getrefcount(tensor)
    for _ in range(1000):
        kernel.launch(tensor, tensor)
    assert sys.getrefcount(tensor) == before
    gone = weakref.ref(kernel)
    # The kernel and its fast path hold each other.
    del kernel
    gc.collect()
    assert gone() is None


def test_a_failure_keeps_no_reference(launcher: Library, calls: Calls) -> None:
    made = fast_path.make(launcher, calls.slow_path, calls.failed)

    def failing(*operands: Any) -> None:
        raise ValueError("no")

    fast_path.open_way(launcher, made, tvm_ffi.convert(failing), torch.Tensor, torch.is_grad_enabled)
    tensor = torch.zeros(2)
    for _ in range(3):
        with pytest.raises(Refused):
            made(tensor)
    gc.collect()
    before = sys.getrefcount(tensor)
    for _ in range(100):
        with pytest.raises(Refused):
            made(tensor)
    gc.collect()
    assert sys.getrefcount(tensor) == before


def test_a_python_of_another_kind_gets_the_slow_path_itself(
    launcher: Library, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "abiflags", "t")
    slow_path = calls.slow_path
    made = fast_path.make(launcher, slow_path, calls.failed)
    assert made is slow_path
    fast_path.open_way(launcher, made, calls.function, torch.Tensor, torch.is_grad_enabled)
    made(torch.zeros(2))
    assert len(calls.long) == 1


def test_nobody_makes_one_by_its_class(way: Any) -> None:
    with pytest.raises(TypeError, match="cannot create"):
        type(way)()

"""``Bundle.gemm`` and ``launch`` with torch: the fast path, what it remembers, and its errors.

torch's tensors are on the host and are said to be on a GPU; native code is given them as they are.
"""

from __future__ import annotations

import gc
import os
import threading
import types
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot import describe
from cutlass_aot.errors import (
    CutlassAotError,
    DeviceError,
    Incompatible,
    KernelNotFound,
    LaunchError,
    MisplacedOperand,
    OperandError,
)
from cutlass_aot.runtime import dispatch
from cutlass_aot.runtime.bundle import Bundle
from cutlass_aot.runtime.dispatch import GEMM, Dispatcher
from cutlass_aot.runtime.launching import native, tensors
from cutlass_aot.runtime.opened.finder import Finder
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.runtime.policy import MissWarning
from cutlass_aot.runtime.selection.query import Computation
from tests.support.bundles import ClaimsCuda, write_bundle
from tests.support.kernels import gemm
from tests.support.native import arrays, f32_gemm, native_function, on_gpu, write_host_bundle
from tests.support.replace import replace

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
tvm_ffi = pytest.importorskip("tvm_ffi")


@pytest.fixture(scope="module")
def host_bundle(tmp_path_factory: pytest.TempPathFactory, launcher_library: bytes) -> Path:
    kernels = [
        f32_gemm("ttt"),
        f32_gemm("ttt", design={"tile_shape": (256, 256, 32)}),
        f32_gemm("tnt"),
        f32_gemm("ttt", accumulator="f64"),
        f32_gemm("tnn", workspace_bytes=64),
    ]
    return write_host_bundle(tmp_path_factory.mktemp("host") / "bundle", kernels, launcher_library)


@pytest.fixture
def bundle(host_bundle: Path, claims: None) -> Bundle:
    return cutlass_aot.open(host_bundle)


def problem(*shape: int, layout: str = "ttt", seed: int = 1) -> tuple[Any, Any, Any, Any]:
    return tuple(map(torch.from_numpy, arrays(*shape, layout=layout, seed=seed)))  # type: ignore[return-value]


def close(out: Any, product: Any) -> None:
    torch.testing.assert_close(out, product, rtol=1e-5, atol=1e-5)


@pytest.fixture
def fast_path(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """From its call on, every launch that leaves the fast path fails."""

    def left(self: Any, *arguments: Any) -> None:
        raise AssertionError("left the fast path")

    def only(method: str = "run") -> None:
        monkeypatch.setattr(Dispatcher, method, left)
        monkeypatch.setattr(KernelHandle, "launch_on", left)

    return only


# -- the fast path ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["ttt", "tnt"])
@pytest.mark.parametrize("shape", [(8, 12, 16), (1, 8, 12, 16), (3, 8, 12, 16), (1, 4, 4), (1, 1, 4, 4)])
def test_like_problems_take_the_fast_path(
    bundle: Bundle, fast_path: Callable[..., None], shape: tuple[int, ...], layout: str
) -> None:
    a, b, out, product = problem(*shape, layout=layout)
    bundle.gemm(a, b, out)
    close(out, product)
    fast_path()
    for seed in (2, 3):
        a, b, out, product = problem(*shape, layout=layout, seed=seed)
        assert bundle.gemm(a, b, out) is None
        close(out, product)


@pytest.mark.parametrize("shape", [(8, 12, 16), (3, 8, 12, 16), (1, 4, 4)])
def test_a_kernel_takes_the_fast_path_for_any_problem(
    bundle: Bundle, fast_path: Callable[..., None], shape: tuple[int, ...]
) -> None:
    a, b, out, product = problem(*shape)
    kernel = bundle.find(a, b, out)[0]
    kernel.launch(a, b, out)
    close(out, product)
    fast_path()
    for other in (shape, (16, 20, 8), (2, 4, 8, 4)):
        a, b, out, product = problem(*other)
        assert kernel.launch(a, b, out) is None
        close(out, product)


EMPTY = [(0, 12, 16), (8, 0, 16), (0, 0, 16), (0, 12, 0), (0, 8, 12, 16), (3, 0, 12, 16)]
"""Extents (batch), m, n and k of products without elements."""


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("layout", ["ttt", "tnt"])
@pytest.mark.parametrize("shape", EMPTY)
def test_a_product_without_elements_launches_nothing(
    bundle: Bundle, warm: bool, layout: str, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    if warm:
        a, b, out, product = problem(*(extent or 4 for extent in shape), layout=layout)
        bundle.gemm(a, b, out)
        close(out, product)
    a, b, out, _ = problem(*shape, layout=layout)
    remembered: list[Any] = []
    monkeypatch.setattr(Dispatcher, "_remember", lambda *given: remembered.append(given))
    for _ in range(2):
        assert bundle.gemm(a, b, out) is None
        assert bundle.gemm(a, b, out, stream=7) is None
    assert not remembered
    kernel = bundle.find(a, b, out)[0]
    assert kernel.supports(a, b, out)
    for _ in range(2):
        assert kernel.launch(a, b, out) is None
    assert bundle.choose(a, b, out).kernel is kernel


def test_a_workspace_is_not_needed_where_nothing_is_launched(bundle: Bundle) -> None:
    a, b, _, _ = problem(8, 12, 16, layout="tnt")
    out = torch.empty(12, 8).t()
    (kernel,) = bundle.find(a, b, out)
    assert kernel.workspace_bytes
    assert kernel.launch(a[:0], b, out[:0], stream=7) is None
    with pytest.raises(OperandError, match="needs a workspace"):
        kernel.launch(a, b, out, stream=7)


def test_a_linear_layer_of_no_tokens(bundle: Bundle) -> None:
    for tokens in (4, 0, 4):
        x, weight = torch.randn(2, tokens, 16), torch.randn(12, 16)
        out = torch.full((2, tokens, 12), float("nan"))
        assert bundle.linear(x, weight, out) is None
        close(out, x @ weight.T)


@pytest.mark.parametrize("warm", [False, True])
def test_wrong_operands_without_elements_are_refused(bundle: Bundle, warm: bool) -> None:
    a, b, out, _ = problem(8, 12, 16)
    kernel = bundle.find(a, b, out)[0]
    if warm:
        kernel.launch(a, b, out)
    empty, other = a[:0], out[:0]
    for operands, reason in {
        (empty, b, other[:, :8]): "expected extent N = 12 as `b` has, got 8",
        (a, b, other): "expected extent M = 8 as `a` has, got 0",
        (empty.double(), b, other): "expected element type f32, got f64",
        (empty[None], b, other): "expected rank 3",
    }.items():
        with pytest.raises(OperandError, match=reason):
            kernel.launch(*operands)
        with pytest.raises(KernelNotFound, match=reason):
            bundle.gemm(*operands)


def test_empty_sums_are_refused_as_no_kernel_writes_them(bundle: Bundle) -> None:
    a, b, out, _ = problem(8, 12, 16)
    kernel = bundle.find(a, b, out)[0]
    reason = r"got shape \(8, 0\): no kernel takes fewer; fill `out` \(8, 12\) yourself"
    for _ in range(2):
        with pytest.raises(KernelNotFound, match=reason):
            bundle.gemm(a[:, :0], b[:0], out)
        with pytest.raises(OperandError, match=reason):
            kernel.launch(a[:, :0], b[:0], out)
        kernel.launch(a, b, out)
    with cutlass_aot.policy.use("warn"), pytest.warns(MissWarning):
        bundle.gemm(a[:, :0], b[:0], out)
    assert not out.any()


def test_slices_and_broadcasts_take_the_fast_path(bundle: Bundle, fast_path: Callable[..., None]) -> None:
    def launch() -> None:
        a = torch.randn(3, 8, 24)[:, :, :16]
        b = torch.randn(16, 12).expand(3, 16, 12)
        out = torch.full((3, 8, 16), float("nan"))[:, :, :12]
        bundle.gemm(a, b, out)
        close(out, a @ b)

    launch()
    fast_path()
    launch()


@pytest.fixture
def sought(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Shapes of the outputs for which a kernel was sought in Python."""
    shapes: list[tuple[int, ...]] = []
    real = Finder.best

    def best(self: Finder, call: Any) -> KernelHandle:
        shapes.append(call.query.operands[2].shape)
        return real(self, call)

    monkeypatch.setattr(Finder, "best", best)
    return shapes


def run_on_gpu(bundle: Bundle, *shape: int, layout: str = "ttt", device: int = 0, **how: Any) -> None:
    """Compute a product of arrays that claim to be on a GPU, as native code sees them."""
    a, b, out, product = arrays(*shape, layout=layout)
    bundle.gemm(*on_gpu(a, b, out, device=device), **how)
    np.testing.assert_allclose(out, product, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layout", ["ttt", "tnt"])
def test_native_code_chooses_for_a_problem_not_seen_before(
    bundle: Bundle, sought: list[tuple[int, ...]], layout: str
) -> None:
    a, b, out, _ = arrays(8, 12, 16, layout=layout)
    kernels = len(bundle.find(*on_gpu(a, b, out)))
    shapes = [(4 * number, 8 + 4 * (number % 5), 12) for number in range(2, 30)]
    for _ in range(2):
        for shape in (*shapes, *((3, *shape) for shape in shapes)):
            run_on_gpu(bundle, *shape, layout=layout)
    # No more than once for each kernel, which Python has to launch before native code can.
    assert 1 <= len(sought) <= kernels


def test_python_chooses_where_native_code_does_not(bundle: Bundle, sought: list[tuple[int, ...]]) -> None:
    run_on_gpu(bundle, 8, 12, 16)
    # Of one row native code cannot tell how it lies.
    run_on_gpu(bundle, 1, 12, 16)
    run_on_gpu(bundle, 16, 12, 16)
    assert sought == [(8, 12), (1, 12)]
    # Other layouts, element types and computations have a choice of their own.
    run_on_gpu(bundle, 8, 12, 16, layout="tnt")
    run_on_gpu(bundle, 8, 16, 16, accumulator="f64")
    assert sought[2:] == [(8, 12), (8, 16)]
    # torch's tensors are on the host, as native code sees them.
    a, b, out, product = problem(24, 12, 16)
    bundle.gemm(a, b, out)
    close(out, product)
    assert sought[4:] == [(24, 12)]


@pytest.mark.parametrize("first", [(1, 12, 16), (8, 12, 4)])
def test_a_first_problem_that_native_code_does_not_choose_for_decides_nothing(
    bundle: Bundle, sought: list[tuple[int, ...]], first: tuple[int, ...]
) -> None:
    run_on_gpu(bundle, *first)
    for m in (16, 20, 24, 28):
        run_on_gpu(bundle, m, 12, 16)
    assert len(sought) == (2 if 1 in first else 1)


def wrap_caches(monkeypatch: pytest.MonkeyPatch, wrap: Callable[[Any], Callable[..., Any]]) -> None:
    """From now on, ``wrap`` gives the native functions of dispatch caches; Python calls them each time."""
    real = native.function

    def function(launcher: Any, symbol: str) -> Any:
        found = real(launcher, symbol)
        if symbol != "cutlass_aot_dispatch_cache":
            return found
        return lambda alignment: wrap(found(alignment))

    monkeypatch.setattr(native, "function", function)
    monkeypatch.setattr(Dispatcher, "_assign", lambda *_, **__: None)


def test_a_choice_that_another_thread_makes_meanwhile_does_no_harm(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    choices = bundle._dispatcher._native_choices

    def meanwhile(cache: Any) -> Callable[..., Any]:
        def call(*given: Any) -> Any:
            if len(given) == 1:
                choices[GEMM][len(choices[GEMM]),] = None
            return cache(*given)

        return call

    wrap_caches(monkeypatch, meanwhile)
    run_on_gpu(bundle, 8, 12, 16)
    run_on_gpu(bundle, 8, 12, 16, layout="tnt")
    bundle._dispatcher._caches.clear()
    run_on_gpu(bundle, 16, 12, 16)
    assert len(choices[GEMM]) == 2 + 4


def test_what_was_learnt_is_kept_when_what_was_remembered_is_dropped(
    bundle: Bundle, sought: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "MAX_REMEMBERED", 1)
    run_on_gpu(bundle, 8, 12, 16)
    # One row asks Python, and is one choice too many.
    run_on_gpu(bundle, 1, 12, 16)
    assert bundle._dispatcher._caches == {}
    run_on_gpu(bundle, 1, 16, 16)
    for m in (24, 32, 40):
        run_on_gpu(bundle, m, 12, 16)
    assert sought == [(8, 12), (1, 12), (1, 16)]


def test_python_chooses_where_the_launcher_asks_no_selection(
    bundle: Bundle, sought: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrap_caches(monkeypatch, lambda cache: lambda *given: False if len(given) == 1 else cache(*given))
    for _ in range(2):
        run_on_gpu(bundle, 8, 12, 16)
        run_on_gpu(bundle, 16, 12, 16)
    assert sought == [(8, 12), (16, 12)]


def test_wrong_operands_are_refused_alike_where_native_code_chooses(bundle: Bundle) -> None:
    run_on_gpu(bundle, 8, 12, 16)
    a, b, out = on_gpu(*arrays(8, 12, 16)[:3])
    for wrong in ((a, b, out, 2.0), (a, b, out, out, out), (a, *on_gpu(np.array(2.0, np.float32)), out)):
        with pytest.raises(KernelNotFound):
            bundle.run("gemm", *wrong)


def test_element_types_that_torch_does_not_export_are_found_in_python(
    bundle: Bundle, sought: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "exported", lambda tensor: False)
    for m in (8, 16):
        a, b, out, product = problem(m, 12, 16)
        bundle.gemm(a, b, out)
        close(out, product)
    assert sought == [(8, 12), (16, 12)]


def test_kernels_with_a_workspace_are_launched_by_python_alone(
    bundle: Bundle, sought: list[tuple[int, ...]]
) -> None:
    workspace = np.zeros(256, np.uint8)
    workspace = workspace[-workspace.ctypes.data % 128 :][:64]
    for m in (8, 16):
        a, b, _, product = arrays(m, 12, 16, layout="tnt")
        out = np.full((12, m), np.nan, np.float32).T
        bundle.gemm(*on_gpu(a, b, out), workspace=ClaimsCuda(workspace, "u8"))
        np.testing.assert_allclose(out, product, rtol=1e-5, atol=1e-5)
        with pytest.raises(OperandError, match="the workspace is unsupported"):
            bundle.gemm(*on_gpu(a, b, out), workspace=ClaimsCuda(workspace[:8], "u8"))
    assert sought == [(8, 12), (8, 12), (16, 12), (16, 12)]


def test_groups_that_could_serve_too_are_not_left_out(
    tmp_path: Path, launcher_library: bytes, claims: None
) -> None:
    """Where one group takes more operands than another, which of them serve has to be found out each time."""
    tight = f32_gemm("ttt")
    loose = replace(tight, operands=tuple(replace(of, divisibility=2) for of in tight.operands))
    f64 = f32_gemm("ttt", accumulator="f64")
    # Operands of a depth of 14 are served by the one group alone.
    for kernels, k, natively in (
        ([tight, f64], 16, True),
        ([tight, loose], 16, False),
        ([tight, loose], 14, False),
    ):
        path = write_host_bundle(tmp_path / f"{len(kernels)}-{k}-{natively}", kernels, launcher_library)
        finder = Finder(cutlass_aot.open(path).directory)
        a, b, out, _ = problem(8, 12, k)
        for computation in (Computation("gemm"), Computation("gemm", accumulator="f32")):
            call = finder.prepare(computation, (a, b, out))
            assert (finder.native_choice(call) is not None) == natively


def test_a_problem_not_seen_before_leaves_it(bundle: Bundle, fast_path: Callable[..., None]) -> None:
    bundle.gemm(*problem(8, 12, 16)[:3])
    fast_path()
    a, b, out, _ = problem(8, 12, 16)
    for other in (
        problem(8, 12, 20)[:3],
        problem(2, 8, 12, 16)[:3],
        (torch.zeros(8, 20)[:, :16], b, out),
        problem(8, 12, 16, layout="tnt")[:3],
    ):
        with pytest.raises(AssertionError, match="left the fast path"):
            bundle.gemm(*other)
    with pytest.raises(AssertionError, match="left the fast path"):
        bundle.gemm(a, b, out, accumulator="f32")
    bundle.gemm(a, b, out)


def test_accumulators_have_memories_of_their_own(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[str] = []
    real = Finder.best

    def choose(self: Finder, *given: Any) -> Any:
        found = real(self, *given)
        chosen.append(found.kernel.accumulator)
        return found

    monkeypatch.setattr(Finder, "best", choose)
    for _ in range(2):
        for accumulator in (None, "f32", "f64"):
            a, b, out, product = problem(8, 12, 16)
            bundle.gemm(a, b, out, accumulator=accumulator)
            close(out, product)
    assert chosen == ["f32", "f32", "f64"]


def test_subclasses_of_tensors_go_the_slow_path(
    bundle: Bundle, fast_path: Callable[..., None], stream: None
) -> None:
    class Tagged(torch.Tensor):
        pass

    a, b, out, product = problem(8, 12, 16)
    tagged = a.as_subclass(Tagged)
    for _ in range(2):
        out.fill_(float("nan"))
        bundle.gemm(tagged, b, out)
        close(out, product)
        out.fill_(float("nan"))
        bundle.find(a, b, out)[0].launch(tagged, b, out)
        close(out, product)
    fast_path()
    with pytest.raises(AssertionError, match="left the fast path"):
        bundle.gemm(tagged, b, out)
    bundle.gemm(a, b, out)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch has a current stream, though this one knows of no GPU."""
    current = types.SimpleNamespace(cuda_stream=0)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current)


def test_element_types_that_torch_does_not_export_go_the_slow_path(
    tmp_path: Path, launcher_library: bytes, claims: None, stream: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "_torch_exports", lambda name: False)
    seen: list[list[str]] = []
    path = write_bundle(tmp_path / "b", [gemm(dtypes=("f8e4m3",) * 3)], launcher=launcher_library)
    (kernel,) = cutlass_aot.open(path).kernels()
    assert kernel._group.launcher is not None
    kernel._function = native_function(
        kernel._group.launcher, lambda *a: seen.append([str(item.dtype) for item in a])
    )
    # In memory that is aligned as the kernel asks.
    memory = torch.zeros(3, 1024, dtype=torch.uint8).view(torch.float8_e4m3fn)
    a, b, out = memory[0].view(32, 32), memory[1].view(32, 32).T, memory[2].view(32, 32)
    for _ in range(3):
        kernel.launch(a, b, out)
    assert seen == [["float8_e4m3fn"] * 3] * 3


# -- gradients ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
def test_what_requires_a_gradient_is_refused(bundle: Bundle, warm: bool, which: int, kind: type) -> None:
    a, b, out, product = problem(8, 12, 16)
    kernel = bundle.find(a, b, out)[0]
    if warm:
        bundle.gemm(a, b, out)
        kernel.launch(a, b, out)
    given = [a.clone(), b.clone(), torch.zeros(8, 12)]
    given[which] = (
        torch.nn.Parameter(given[which]) if kind is torch.nn.Parameter else given[which].requires_grad_()
    )
    name = ("a", "b", "out")[which]
    for launch in (bundle.gemm, kernel.launch):
        with pytest.raises(
            OperandError, match=rf"operand `{name}` requires a gradient.*pass {name}\.detach\(\)"
        ):
            launch(*given)
        with torch.no_grad():
            launch(*given)
        close(given[2].detach(), product)
        given[2].detach().zero_()
        with torch.inference_mode():
            launch(*given)
        close(given[2].detach(), product)
        with pytest.raises(OperandError, match="requires a gradient"):
            launch(*given)


def test_parameters_without_gradients_take_the_fast_path(
    bundle: Bundle, fast_path: Callable[..., None]
) -> None:
    a, b, out, product = problem(8, 12, 16)
    weight = torch.nn.Parameter(b)
    frozen = torch.nn.Parameter(b, requires_grad=False)
    kernel = bundle.find(a, b, out)[0]
    bundle.gemm(a, b, out)
    kernel.launch(a, b, out)
    fast_path()
    for launch in (bundle.gemm, kernel.launch):
        out.fill_(float("nan"))
        launch(a, frozen, out)
        close(out, product)
        with torch.no_grad():
            out.fill_(float("nan"))
            launch(a, weight, out)
        close(out, product)
        assert not out.requires_grad


# -- streams and workspaces ---------------------------------------------------------------------------------


def test_an_explicit_stream_reaches_the_kernel_each_time(bundle: Bundle) -> None:
    a, b, out, product = problem(8, 12, 16)
    kernel = bundle.find(a, b, out)[0]
    for launch in (bundle.gemm, kernel.launch):
        for stream, factor in ((77, 2), (None, 1), (77, 2), (0, 1), (None, 1)):
            out.fill_(float("nan"))
            launch(a, b, out, stream=stream)
            close(out, factor * product)
    assert tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", 0)) == 0


def test_choices_are_remembered_with_a_stream_and_without(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, out, product = problem(1, 12, 16)
    bundle.gemm(a, b, out, stream=77)
    monkeypatch.setattr(Bundle, "choose", lambda *a, **k: pytest.fail("chosen again"))
    bundle.gemm(a, b, out, stream=77)
    close(out, 2 * product)
    bundle.gemm(a, b, out)
    close(out, product)


def test_a_wrong_stream_is_refused_before_and_after(bundle: Bundle) -> None:
    a, b, out, _ = problem(8, 12, 16)
    kernel = bundle.find(a, b, out)[0]
    for _ in range(2):
        for launch in (bundle.gemm, kernel.launch):
            with pytest.raises(OperandError, match=r"expected a CUDA stream .* got builtins\.str"):
                launch(a, b, out, stream="default")
            launch(a, b, out)


def test_a_workspace_is_given_to_each_launch(bundle: Bundle) -> None:
    a, b, _, product = problem(8, 12, 16, layout="tnt")
    out = torch.empty(12, 8).T
    (kernel,) = bundle.find(a, b, out)
    assert kernel.workspace_bytes == 64
    own = torch.zeros(1024, dtype=torch.uint8)
    own = own[-own.data_ptr() % 128 :]
    for launch in (bundle.gemm, kernel.launch):
        for _ in range(3):
            out.fill_(float("nan"))
            # Without one torch is asked for it, on the operands' own device.
            launch(a, b, out)
            close(out, product)
            own.zero_()
            launch(a, b, out, workspace=own)
            assert own[0] == 42
            own.zero_()
            launch(a, b, out, workspace=own, stream=77)
            close(out, 2 * product)
            assert own[0] == 42
            with pytest.raises(OperandError, match="the workspace is unsupported: expected 64 or more bytes"):
                launch(a, b, out, workspace=own[:63])


# -- errors are the same before and after a good launch -----------------------------------------------------


def wrong_operands() -> dict[str, Callable[[], tuple[Any, ...]]]:
    def changed(which: int, value: Callable[[Any], Any]) -> Callable[[], tuple[Any, ...]]:
        def make() -> tuple[Any, ...]:
            given: list[Any] = list(problem(8, 12, 16)[:3])
            given[which] = value(given[which])
            return tuple(given)

        return make

    return {
        "another dtype": changed(0, lambda a: a.half()),
        "an unknown dtype": changed(1, lambda b: b.to(torch.complex64)),
        "another K": changed(1, lambda b: torch.zeros(20, 12)),
        "another M": changed(2, lambda out: torch.zeros(9, 12)),
        "a rank too much": changed(0, lambda a: a[None]),
        "two ranks too much": changed(2, lambda out: out[None, None]),
        "another layout": changed(2, lambda out: torch.zeros(12, 8).T),
        "a wrong padding": changed(0, lambda a: torch.zeros(8, 17)[:, :16]),
        "an empty operand": changed(2, lambda out: torch.zeros(0, 12)),
        "zero strides in out": changed(2, lambda out: torch.zeros(1, 12).expand(8, 12)),
        "a sparse operand": changed(0, lambda a: a.to_sparse()),
        "an operand without memory": changed(1, lambda b: b.to("meta")),
        "a description": changed(1, lambda b: describe((16, 12), "f32")),
        "a description first": changed(0, lambda a: describe((8, 16), "f32", device=0)),
        "something else": changed(1, lambda b: [1.0]),
        "something else first": changed(0, lambda a: None),
        "a function": changed(2, lambda out: lambda *a: None),
        "another GPU": changed(1, lambda b: ClaimsCuda(b.numpy(), "f32", device=1)),
    }


@pytest.mark.parametrize("how", sorted(wrong_operands()))
def test_wrong_operands_are_refused_alike_before_and_after(host_bundle: Path, claims: None, how: str) -> None:
    make = wrong_operands()[how]
    right = problem(8, 12, 16)[:3]

    def error_of(launch: Callable[..., None]) -> tuple[type, str]:
        with pytest.raises(CutlassAotError) as caught:
            launch(*make())
        assert not isinstance(caught.value, LaunchError)
        return type(caught.value), str(caught.value)

    fresh, warm = cutlass_aot.open(host_bundle), cutlass_aot.open(host_bundle)
    warm.gemm(*right)
    gemm_error = error_of(fresh.gemm)
    assert gemm_error[0] in (KernelNotFound, MisplacedOperand, OperandError)
    assert error_of(warm.gemm) == gemm_error
    assert error_of(warm.gemm) == gemm_error

    name = fresh.find(*right)[0].name
    cold, hot = fresh.kernel(name), warm.kernel(name)
    hot.launch(*right)
    launch_error = error_of(cold.launch)
    assert launch_error[0] in (MisplacedOperand, OperandError)
    assert error_of(hot.launch) == launch_error
    # And right operands are still served.
    a, b, out, product = problem(8, 12, 16)
    for launch in (warm.gemm, fresh.gemm, hot.launch, cold.launch):
        out.fill_(float("nan"))
        launch(a, b, out)
        close(out, product)


@pytest.mark.parametrize("which", [0, 1, 2])
def test_operands_on_the_host_are_refused_alike(bundle: Bundle, which: int) -> None:
    arguments: list[Any] = on_gpu(*arrays(8, 12, 16)[:3])
    arguments[which] = arguments[which].array
    kernel = bundle.find(*on_gpu(*arrays(8, 12, 16)[:3]))[0]
    for _ in range(2):
        for launch in (bundle.gemm, kernel.launch):
            with pytest.raises(MisplacedOperand, match="is on cpu: kernels run on CUDA devices"):
                launch(*arguments)
            launch(*on_gpu(*arrays(8, 12, 16)[:3]))


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_another_number_of_operands(bundle: Bundle, count: int) -> None:
    a, b, out, _ = problem(8, 12, 16)
    kernel = bundle.find(a, b, out)[0]
    for _ in range(2):
        for stream in (None, 77):
            with pytest.raises(OperandError, match=f"expected 3 operands, got {count}"):
                kernel.launch(*(a, b, out, out)[:count], stream=stream)
        kernel.launch(a, b, out)


@pytest.mark.parametrize("warm", [False, True])
def test_a_gpu_that_the_kernel_does_not_run_on(
    bundle: Bundle, gpu: dict[str, Any], monkeypatch: pytest.MonkeyPatch, warm: bool
) -> None:
    """Another GPU of the machine, of another kind: native code fails, and the reason is told."""
    from cutlass_aot.runtime.machine import cuda_driver

    gpu["count"] = 8
    monkeypatch.setattr(cuda_driver, "compute_capability", lambda ordinal: (8, 0) if ordinal == 7 else (9, 0))
    given = arrays(8, 12, 16)[:3]
    kernel = bundle.find(*on_gpu(*given))[0]
    if warm:
        bundle.gemm(*on_gpu(*given))
        kernel.launch(*on_gpu(*given))
    for launch in (bundle.gemm, kernel.launch):
        with pytest.raises(Incompatible, match=r"GPU 7 has compute capability 8\.0"):
            launch(*on_gpu(*given, device=7))
        launch(*on_gpu(*given, device=3))


def test_an_error_of_the_driver_says_so(bundle: Bundle, gpu: dict[str, Any]) -> None:
    gpu["count"] = 8
    given = on_gpu(*arrays(8, 12, 16)[:3], device=7)
    kernel = bundle.find(*given)[0]
    for _ in range(2):
        for launch in (bundle.gemm, kernel.launch):
            with pytest.raises(DeviceError, match=r"could not be launched.*cudaErrorNoKernelImageForDevice"):
                launch(*given)


def failing(*arguments: Any) -> None:
    raise ValueError("Mismatched shape on argument #2, expected 7")


def test_a_refusal_of_compiled_code_has_the_names_of_operands(bundle: Bundle) -> None:
    a, b, out, _ = problem(8, 12, 16)
    kernel = bundle.find(a, b, out)[0]
    bundle.gemm(a, b, out)
    kernel = KernelHandle(kernel._group, kernel._position)
    launcher = kernel._group.launcher
    assert launcher is not None
    kernel._function = native_function(launcher, failing)
    native.assign(launcher, kernel.launch, kernel._function)
    bundle._dispatcher._caches[GEMM].remember((a, b, out), kernel._function)
    for launch in (kernel.launch, bundle.gemm):
        with pytest.raises(LaunchError) as caught:
            launch(a, b, out)
        assert str(caught.value) == (
            f"kernel {kernel.name} refused the call with operands a, b, out: "
            "Mismatched shape on operand `out`, expected 7"
        )


def test_a_bundle_goes_with_its_last_reference(host_bundle: Path, claims: None) -> None:
    bundle = cutlass_aot.open(host_bundle)
    a, b, out, _ = problem(8, 12, 16)
    for _ in range(2):
        bundle.gemm(a, b, out)
        bundle.linear(a, b.T.contiguous(), out)
    gone = weakref.ref(bundle)
    gc.disable()
    try:
        del bundle
        assert gone() is None
    finally:
        gc.enable()


# -- what is remembered is bounded --------------------------------------------------------------------------


def test_remembered_choices_are_bounded_and_made_again(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "MAX_REMEMBERED", 3)
    chosen: list[int] = []
    real = Finder.best

    def choose(self: Finder, call: Any, *given: Any) -> Any:
        chosen.append(call.query.operands[0].shape[0])
        return real(self, call, *given)

    monkeypatch.setattr(Finder, "best", choose)

    def run(m: int) -> None:
        a, b, out, product = problem(m, 4, 4)
        bundle.gemm(a, b, out)
        close(out, product)

    for m in (1, 2, 3, 1, 2, 3):
        run(m)
    assert chosen == [1, 2, 3]
    assert set(bundle._dispatcher._caches) == {GEMM}
    # The fourth is one too many: all are forgotten as soon as there is another one to remember.
    run(4)
    assert bundle._dispatcher._caches == {}
    for m in (1, 2, 3, 4):
        run(m)
    assert chosen == [1, 2, 3, 4]
    for m in (5, 1, 5, 1):
        run(m)
    assert chosen == [1, 2, 3, 4, 5, 1]


def test_threads_launch_learn_and_forget_at_once(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_REMEMBERED", 5)
    start, failures = threading.Barrier(6), []

    def work(seed: int) -> None:
        start.wait()
        try:
            for turn in range(40):
                shape = ((seed + turn) % 9 + 1, 8, 4)
                a, b, out, product = problem(*shape, seed=seed)
                if turn % 5 == 0:
                    bundle.gemm(*on_gpu(a.numpy(), b.numpy(), out.numpy()), stream=77)
                    close(out, 2 * product)
                    continue
                bundle.gemm(a, b, out)
                close(out, product)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("warm", [False, True])
def test_a_forked_child_launches(bundle: Bundle, warm: bool) -> None:
    a, b, out, product = problem(8, 12, 16)
    other = problem(4, 4, 8)
    if warm:
        bundle.gemm(a, b, out)
        out.fill_(float("nan"))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for _ in range(2):
                bundle.gemm(a, b, out)
                bundle.gemm(*other[:3])
            code = 0 if np.allclose(out, product) and np.allclose(other[2], other[3]) else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    bundle.gemm(a, b, out)
    close(out, product)

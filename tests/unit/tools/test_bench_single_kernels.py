"""tools/bench/single_kernels.py on a pretended GPU: what a replay of a graph is taken to be."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from tools.bench import single_kernels as bench  # noqa: E402


class Gpu:
    """A GPU on which a call takes the milliseconds that it is given, in a graph and out of it.

    ``log`` has the calls that run in graphs, ``before`` the waiting and the calls ahead of the first graph.
    """

    def __init__(self):
        self.now = 0.0
        self.log, self.before = [], []
        self.captured = None
        gpu = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                self.at = gpu.now

            def synchronize(self):
                pass

            def elapsed_time(self, end):
                return end.at - self.at

        class CUDAGraph:
            def replay(self):
                for name, ms in self.calls:
                    gpu.log.append(name)
                    gpu.now += ms

        @contextlib.contextmanager
        def graph(made):
            gpu.captured = made.calls = []
            yield
            gpu.captured = None

        self.cuda = SimpleNamespace(
            Event=Event, CUDAGraph=CUDAGraph, graph=graph, Stream=lambda: None,
            synchronize=lambda: self.before.append("synchronize"),
            stream=lambda stream: contextlib.nullcontext(),
        )  # fmt: skip

    def call(self, name, ms):
        def run():
            if self.captured is not None:
                self.captured.append((name, ms))
            else:
                self.before.append(name)

        return run


def test_a_graph_is_replayed_after_what_comes_before_and_its_calls_share_its_time(monkeypatch):
    gpu = Gpu()
    monkeypatch.setattr(bench, "torch", gpu)

    def flush():
        gpu.log.append("flush")
        gpu.now += 50

    seconds = bench.graph_seconds([gpu.call("a", 2.0), gpu.call("b", 4.0)], 2, flush)
    assert seconds == pytest.approx(3e-3)
    assert gpu.log == ["flush", "a", "b"] * (bench.WARM_UPS + 2)
    # Operands are written on one stream and first read on another.
    assert gpu.before == ["synchronize", "a", "b", "synchronize"]


def test_the_fastest_kernel_of_each_layer_is_compared_with_cudnn(monkeypatch):
    def layer_times(bundle, images, row):
        geometry = (row[4], (row[5],) * 2, (row[6],) * 2, (1, 1))
        designs = [bench.Convolution(*geometry, (128, width, 64), 2) for width in (64, 128)]
        return 4e-6, {designs[0]: 5e-6, designs[1]: 2e-6}

    monkeypatch.setattr(bench, "layer_times", layer_times)
    monkeypatch.setattr(bench.cutlass_aot, "open", lambda path: None)
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    rows, numbers, (table,) = bench.part_convolution(Namespace(images=32), None)
    assert [row.measured for row in rows] == ["2.00"]
    assert len(numbers["layers"]) == len(table.rows) == len(bench.LAYERS)
    # 56 x 56 outputs, C = 64, K = 256, 1 x 1.
    assert table.rows[1] == (
        "1x1", "56 x 56", "64", "256", "4.0 µs", "2.0 µs", "128x128x64", "2",
        f"{2 * 32 * 56 * 56 * 256 * 64 / 2e-6 / 1e12:.0f}", "2.00",
    )  # fmt: skip


def test_kernels_are_compared_with_torch_and_a_copy(monkeypatch):
    problem = bench.Problem("rms_norm n=4096 T=1", lambda: None, lambda: None, 4096)
    other = problem._replace(name="softmax", quacks=lambda: None)
    times = iter([2e-6, 4e-6, 1e-6, 2e-6, 4e-6, 1e-6, 3e-6])
    monkeypatch.setattr(bench, "problems", lambda rows: iter([problem, other]))
    monkeypatch.setattr(bench, "graph_seconds", lambda calls, replays, before: next(times))
    monkeypatch.setattr(bench.cutlass_aot, "open", lambda path: SimpleNamespace(name="kernels"))
    empty = torch.empty
    monkeypatch.setattr(bench.torch, "empty", lambda size, device, dtype: empty(size, dtype=dtype))
    _, numbers, (table,) = bench.part_kernels(Namespace(rows=[1]), None)
    assert numbers[problem.name] == {"ours": 2e-6, "torch": 4e-6, "copy": 1e-6, "bytes": 4096}
    assert numbers[other.name] == {**numbers[problem.name], "quack": 3e-6}
    assert table.rows == [
        (problem.name, "2.0", "2", "4.0", "", "1.0", "0.50"),
        (other.name, "2.0", "2", "4.0", "3.0", "1.0", "0.50"),
    ]

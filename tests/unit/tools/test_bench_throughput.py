"""tools/bench/throughput.py on a pretended GPU: what it times, what its figures mean."""

from __future__ import annotations

import json
import sys
from functools import partial
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from cutlass_aot.schema.tuning.ranking import Extents  # noqa: E402
from cutlass_aot.tuning.search import Effort  # noqa: E402
from tests.support.kernels import gemm  # noqa: E402
from tests.support.pretend_gpu import PretendGpu, PretendKernel  # noqa: E402
from tools.bench import command  # noqa: E402
from tools.bench import throughput as bench  # noqa: E402
from tools.bench.gpu import parsed  # noqa: E402

BF16 = ("bf16", "bf16", "bf16")
SHAPES = b"m = [1, 17, 32]\n[layers]\nnk = [[64, 128], [96, 32]]\n"


class Gpu(PretendGpu):
    """cuBLAS takes 3 ms, and may be wrong."""

    off = 0.0

    def mm(self, a, b, out=None):
        def compute():
            self.now += 3e-3
            out.copy_(torch.matmul(a.double(), b.double()) + self.off)

        self.run(compute)


def bundle(kernels, chosen):
    return SimpleNamespace(
        name="small",
        groups=[SimpleNamespace(operands=kernels[0].kernel.operands, layouts="tnt", operation="gemm")],
        find=lambda *operands: kernels,
        choose=lambda *operands: SimpleNamespace(kernel=kernels[chosen], tier="tuned"),
        gemm=kernels[chosen].launch,
    )


@pytest.fixture
def measured(monkeypatch):
    monkeypatch.setattr(bench.cuda_driver, "l2_bytes", lambda ordinal: 1 << 16)

    def measure(gpu, seconds=(4e-3, 2e-3, 3e-3), **changes):
        kernels = [
            PretendKernel(gpu, gemm(BF16, design={"tile_shape": (64 * number, 64, 64)}), time)
            for number, time in enumerate(seconds, 1)
        ]
        throughput = bench.Throughput(gpu, bundle(kernels, 2), bundle(kernels, 0), Effort(seconds=0))
        return throughput.measure("bf16", bench.Problem(Extents(1, 17, 64, 128), bench.LISTED))

    return measure


def test_times_of_the_choice_the_best_and_others(measured):
    found = measured(Gpu())
    assert (found.m, found.n, found.k, found.tier, found.kernels) == (17, 64, 128, "tuned", 3)
    times = (found.gemm, found.chosen, found.best, found.cublas, found.untuned)
    assert times == pytest.approx((3e-3, 3e-3, 2e-3, 3e-3, 4e-3))
    assert [name.split("-")[5] for name in found.names] == ["192x64x64", "128x64x64", "64x64x64"]


def test_a_wrong_result_ends_the_run(measured):
    gpu = Gpu()
    gpu.off = 1.0
    with pytest.raises(RuntimeError, match=r"bundle.gemm and cuBLAS differ by .* on 17x64x128"):
        measured(gpu)


def test_a_problem_that_does_not_fit_is_left_out(measured):
    assert measured(Gpu(free_bytes=1000)) is None


def test_problems_between_listed_ones(tmp_path):
    path = tmp_path / "shapes.toml"
    path.write_bytes(SHAPES)
    listed = bench.problems_of(path, halfway=False, sample=1)
    assert [str(item.extents) for item in listed[:2]] == ["1x64x128", "17x64x128"]
    found = bench.problems_of(path, halfway=True, sample=1)
    assert found[: len(listed)] == listed
    halfway = {(item.kind, str(item.extents)) for item in found[len(listed) :]}
    assert halfway == {
        *((bench.ROWS_HALFWAY, f"{m}x{nk}") for m in (9, 24) for nk in ("64x128", "96x32")),
        *((bench.ALL_HALFWAY, f"{m}x80x80") for m in (9, 24)),
    }
    assert bench.problems_of(path, halfway=True, sample=5) == found[::5]


def test_problems_are_drawn_by_a_seed(tmp_path):
    def drawn(seed):
        return bench.problems_of(tmp_path / "no.toml", halfway=False, sample=1, drawn=40, seed=seed)

    assert drawn(1) == drawn(1) != drawn(2)
    assert len({item.extents for item in drawn(1)}) == 40
    assert all(
        item.kind == bench.DRAWN and item.extents.n % 16 == item.extents.k % 16 == 0 for item in drawn(1)
    )


def test_a_seed_draws_what_the_published_tables_name(tmp_path):
    found = bench.problems_of(tmp_path / "no.toml", halfway=False, sample=1, drawn=200, seed=20261218)
    extents = {(item.extents.m, item.extents.n, item.extents.k) for item in found}
    assert {(916, 11472, 4304), (662, 9984, 3296)} <= extents


def test_means_are_by_kind_and_tier():
    def item(tier, gemm, kind=bench.LISTED):
        names = ("chosen", "best", "untuned")
        return bench.Measured("bf16", kind, 1, 8, 8, 8, tier, gemm, 2.0, 1.0, 1.0, 4.0, names, 3)

    rows = bench.summary([item("tuned", 1.0), item("tuned", 4.0), item("fitted", 1.25, bench.ROWS_HALFWAY)])
    found = {row.what.partition(":")[0] + row.what.rpartition(",")[2]: row for row in rows}
    tuned = found["speed of `bundle.gemm`, best kernel as 1 tuned"]
    assert (tuned.measured, tuned.goal, tuned.met) == ("0.500 (lowest 0.25)", "≥ 0.98", False)
    nearest = found["speed of `bundle.gemm`, best kernel as 1 fitted"]
    assert (nearest.measured, nearest.goal, nearest.met) == ("0.800 (lowest 0.80)", "≥ 0.97", False)
    regret = found["time of the untuned choice, best kernel as 1 tuned"]
    assert (regret.measured, regret.met) == ("4.000 (highest 4.00)", False)
    assert found["speed of `bundle.gemm`, cuBLAS as 1 fitted"].goal == ""


def test_the_table_of_problems():
    times = 2e-6, 1e-6, 1e-6, 3e-6, 4e-6
    item = bench.Measured("bf16", "listed", 1, 16, 64, 128, "tuned", *times, ("chosen", "best", "untuned"), 3)
    assert bench.problem_table([item]).markdown().splitlines()[-1] == (
        "| bf16 | listed | 16 x 64 x 128 | tuned | 2.0 | 1.0 | 3.0 | 4.0 | 0.50 | 1.50 |"
    )


def family_times(**times):
    names = {family: f"gemm-sm_90a-bf16.bf16.bf16-tnt-f32-{family}-128x128x64-0123" for family in times}
    return {names[family]: time for family, time in times.items()} | {bench.CUBLAS: 10.0}


def test_families_are_compared_by_rows_and_may_be_left_out(tmp_path):
    numbers = {
        "timed": [
            {"dtype": "bf16", "m": 16, "n": 64, "k": 128, "times": family_times(One=20.0, Two=5.0)},
            {"dtype": "bf16", "m": 128, "n": 64, "k": 128, "times": family_times(One=20.0)},
        ]
    }
    problems, means = bench.family_tables(numbers)
    assert problems.rows[0] == ("bf16", "16 x 64 x 128", "10.0", "20.0", "5.0", "2.00", "Two-128x128x64")
    assert problems.rows[1] == ("bf16", "128 x 64 x 128", "10.0", "20.0", "", "0.50", "One-128x128x64")
    assert means.head == ("m", "One", "Two", "best")
    assert means.rows[-1] == ["all", "0.500 (0.50)", "2.000 (2.00)", "1.000 (0.50)"]
    machine = {"date": "2026-11-21", "processor": "", "system": "", "gpu": "H200, driver", "versions": {}}
    part = {"rows": [], "numbers": numbers, "tables": []}
    path = tmp_path / "gpu.json"
    path.write_text(
        json.dumps(
            {"kind": command.KIND, "schema": command.SCHEMA, "machine": machine, "parts": {"families": part}}
        )
    )
    renewed = {"families": partial(bench.family_tables, without=["*-Two-*"])}
    report = command.report([path], renewed)
    assert "## 2026-11-21, H200" in report
    assert "| m | One | best |" in report
    assert "| all | 0.500 (0.50) | 0.500 (0.50) |" in report


def test_every_kernel_of_linear_layers_is_timed_against_cublas(monkeypatch, tmp_path):
    gpu = Gpu()
    gpu.cuda.Stream = lambda: None
    gpu.manual_seed = lambda seed: None
    monkeypatch.setitem(sys.modules, "torch", gpu)
    monkeypatch.setattr(bench.cuda_driver, "l2_bytes", lambda ordinal: 1 << 16)
    kernels = [
        PretendKernel(gpu, gemm(BF16, design={"family": family, "tile_shape": (64, 64, 64)}), time)
        for family, time in (("One", 6e-3), ("Two", 1e-3))
    ]
    queries = []

    def bundle_kernels(**query):
        queries.append(query)
        return kernels

    monkeypatch.setattr(
        bench.cutlass_aot, "open", lambda path: SimpleNamespace(name="small", kernels=bundle_kernels)
    )
    shapes = tmp_path / "shapes.toml"
    shapes.write_bytes(SHAPES)
    words = ["--dtypes", "bf16", "--shapes", str(shapes), "--sample", "4", "--seconds", "0"]
    found = bench.part_families(parsed(words), tmp_path)
    assert queries[0] == {"operation": "gemm", "dtypes": "bf16.bf16.bf16", "layouts": "tnt"}
    places = [(item["m"], item["n"], item["k"]) for item in found.numbers["timed"]]
    assert places == [(1, 64, 128), (17, 96, 32)]
    for item in found.numbers["timed"]:
        names = [kernel.name for kernel in kernels]
        assert item["times"] == pytest.approx({names[0]: 6e3, names[1]: 1e3, bench.CUBLAS: 3e3})
    assert found.tables[0].rows[0][2] == "3000.0"


def test_kernels_that_would_be_slow_are_not_timed():
    design = {"tile_shape": (64, 64, 64)}
    assert bench.sensible(design, Extents(1, 4096, 4096, 64))
    assert not bench.sensible(design, Extents(1, 8192, 8192, 64))
    assert not bench.sensible({**design, "swap_operands": True}, Extents(1, 257, 64, 64))

"""tools/bench/throughput.py on a pretended GPU: what it times, what its figures mean."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from cutlass_aot.schema.tuning.ranking import Extents  # noqa: E402
from cutlass_aot.tuning.search import Effort  # noqa: E402
from tests.support.kernels import gemm  # noqa: E402
from tests.support.pretend_gpu import PretendGpu, PretendKernel  # noqa: E402
from tools.bench import throughput as bench  # noqa: E402

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


def test_means_are_by_kind_and_tier():
    def item(tier, gemm, kind=bench.LISTED):
        names = ("chosen", "best", "untuned")
        return bench.Measured("bf16", kind, 1, 8, 8, 8, tier, gemm, 2.0, 1.0, 1.0, 4.0, names, 3)

    rows = bench.summary(
        [item("tuned", 1.0), item("tuned", 4.0), item("nearest tuned", 1.25, bench.ROWS_HALFWAY)]
    )
    found = {row.what.partition(":")[0] + row.what.rpartition(",")[2]: row for row in rows}
    tuned = found["speed of `bundle.gemm`, best kernel as 1 tuned"]
    assert (tuned.measured, tuned.goal, tuned.met) == ("0.500 (lowest 0.25)", "≥ 0.98", False)
    nearest = found["speed of `bundle.gemm`, best kernel as 1 nearest tuned"]
    assert (nearest.measured, nearest.goal, nearest.met) == ("0.800 (lowest 0.80)", "≥ 0.93", False)
    regret = found["time of the untuned choice, best kernel as 1 tuned"]
    assert (regret.measured, regret.met) == ("4.000 (highest 4.00)", False)
    assert found["speed of `bundle.gemm`, cuBLAS as 1 nearest tuned"].goal == ""

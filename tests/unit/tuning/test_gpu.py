"""The bench, on a pretended GPU: operands, checks, graphs and times, with real products on the CPU."""

from __future__ import annotations

import pytest

from cutlass_aot.errors import DeviceError
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.tuning.gpu import GpuBench
from cutlass_aot.tuning.search import Effort
from cutlass_aot.tuning.session import Job, Skipped
from tests.support.kernels import gemm

torch = pytest.importorskip("torch")

from tests.support.pretend_gpu import PretendGpu, PretendKernel  # noqa: E402

EXTENTS = Extents(2, 24, 40, 72)


@pytest.fixture(autouse=True)
def driver(monkeypatch):
    monkeypatch.setattr(cuda_driver, "l2_bytes", lambda ordinal: 1 << 16)
    monkeypatch.setattr(cuda_driver, "bus_id", lambda ordinal: "0000:00:00.0")
    monkeypatch.setattr("cutlass_aot.tuning.gpu.WARM_UP_SECONDS", 0.0)


def kernels(gpu, faults=(), **changes):
    """One kernel for each fault, "" for none; each slower by a tenth than the one before."""
    return [
        PretendKernel(
            gpu,
            gemm(design={"family": "F", "tile_shape": (128, 8 * (index + 1), 64)}, **changes),
            1e-5 * 1.1**index,
            fault,
        )
        for index, fault in enumerate(faults)
    ]


def measure(gpu, members, extents=EXTENTS, **effort):
    job = Job(members[0].kernel.group, members[0].kernel.group_name, tuple(members), (extents,))
    with GpuBench(gpu, 0, Effort(**effort)) as bench:
        return bench.measure(job, extents)


@pytest.mark.parametrize(
    ("dtypes", "accumulator"),
    [
        (("bf16", "bf16", "bf16"), "f32"),
        (("f16", "f16", "f32"), "f32"),
        (("f8e4m3", "f8e4m3", "bf16"), "f32"),
        (("f8e5m2", "f8e4m3", "f8e4m3"), "f32"),
        (("f64", "f64", "f64"), "f64"),
        (("f32", "f32", "f32"), "f32"),
        (("i8", "i8", "i32"), "i32"),
        (("u8", "u8", "i32"), "i32"),
        (("i8", "i8", "i8"), "i32"),
    ],
)
@pytest.mark.parametrize("layouts", ["tnt", "ttt", "nnn"])
def test_right_results_are_ranked_and_wrong_ones_are_not(dtypes, accumulator, layouts):
    gpu = PretendGpu()
    members = kernels(
        gpu,
        ("wrong", "", "unwritten", "", "refused"),
        dtypes=dtypes,
        layouts=layouts,
        accumulator=accumulator,
    )
    found = measure(gpu, members)
    assert [digest for digest, _ in found.ranked] == [members[1].digest, members[3].digest]
    assert [time for _, time in found.ranked] == pytest.approx([11.0, 13.31], rel=1e-3)
    reasons = dict(found.failed)
    assert set(reasons) == {members[0].digest, members[2].digest, members[4].digest}
    assert reasons[members[0].digest].startswith("wrong result: an element is off by ")
    assert "wrong result: an element" in reasons[members[2].digest]
    assert "refused the call" in reasons[members[4].digest]
    assert found.extents == EXTENTS
    assert (found.sm_mhz, found.memory_mhz) == (None, None)


def test_what_is_far_behind_is_stopped():
    gpu = PretendGpu()
    members = kernels(gpu, [""] * 8)
    found = measure(gpu, members)
    assert [digest for digest, _ in found.ranked] == [member.digest for member in members[:5]]
    assert [digest for digest, _ in found.stopped] == [member.digest for member in members[5:]]
    assert members[7].launches < members[0].launches
    assert not measure(gpu, members, exhaustive=True).stopped


def test_a_kernel_that_cannot_be_captured_is_not_ranked():
    gpu = PretendGpu()
    members = kernels(gpu, ("uncapturable", ""))
    found = measure(gpu, members)
    assert [digest for digest, _ in found.ranked] == [members[1].digest]
    ((digest, reason),) = found.failed
    assert digest == members[0].digest
    assert reason.startswith("cannot be captured in a CUDA graph: ")


def test_launches_go_round_more_operands_than_the_cache_holds(monkeypatch):
    gpu = PretendGpu()
    (member,) = kernels(gpu, ("",))
    measure(gpu, [member])
    timed = member.addresses[2:]
    sets = list(dict.fromkeys(timed))
    # Each set takes 2 * (24*72 + 72*40 + 24*40) elements of two bytes; the cache has 65,536 bytes.
    set_bytes = sets[1] - sets[0]
    assert set_bytes >= 2 * 2 * (24 * 72 + 72 * 40 + 24 * 40)
    assert len(sets) * set_bytes > 2 * (1 << 16)
    turn = len(sets)
    assert all(timed[index] == sets[index % turn] for index in range(len(timed)))


def test_a_small_problem_gets_its_cache_flushed(monkeypatch):
    monkeypatch.setattr(cuda_driver, "l2_bytes", lambda ordinal: 1 << 24)
    gpu = PretendGpu()
    members = kernels(gpu, ("", ""))
    found = measure(gpu, members)
    assert [time for _, time in found.ranked] == pytest.approx([10.0, 11.0])
    assert len(set(members[0].addresses)) == 64


def test_operands_that_do_not_fit_are_left_out():
    gpu = PretendGpu(free_bytes=1000)
    found = measure(gpu, kernels(gpu, ("",)))
    assert isinstance(found, Skipped)
    assert "do not fit the 1.0 KB of free memory" in found.reason


def test_a_gpu_that_fails_is_an_error_of_the_device(monkeypatch):
    gpu = PretendGpu()
    members = kernels(gpu, ("",))

    def fail(*operands):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    monkeypatch.setattr(members[0], "launch", fail)
    with pytest.raises(DeviceError, match=r"failed while gemm-.* was measured on 2 of 24x40x72: CUDA error"):
        measure(gpu, members)


def test_nothing_right_is_nothing_ranked():
    gpu = PretendGpu()
    found = measure(gpu, kernels(gpu, ("wrong", "refused")))
    assert found.ranked == found.stopped == ()
    assert len(found.failed) == 2

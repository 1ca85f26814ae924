"""On a GPU: two problems of the sm90 bundle are tuned, gone on with, applied, and then chosen by.

cutlass-aot build manifests/sm90.toml && python -m pytest -m gpu tests/gpu/test_tune.py
"""

from __future__ import annotations

import json
import shutil

import pytest

import cutlass_aot
from cutlass_aot.bundle.verify.directory import verify_bundle
from cutlass_aot.cli import main
from cutlass_aot.errors import BundleError, DeviceError
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.machine.compatibility import runnable_targets
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.schema.tuning.tuning import read_tuning
from tests.support.paths import REPOSITORY

pytestmark = pytest.mark.gpu

BUNDLE = REPOSITORY / "build" / "bundles" / "sm90"
GROUP = "gemm-bf16.bf16.bf16-f32-tnt-sm_90a"
PROBLEMS = [Extents(1, 16, 4096, 4096), Extents(1, 2048, 4096, 4096)]
SHAPES = "m = [16, 2048]\n\n[projection]\nnk = [[4096, 4096]]\n"
ONE_MORE = "m = [16, 2048, 64]\n\n[projection]\nnk = [[4096, 4096]]\n"


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, torch):
    """A folder in which the bundle was tuned; it holds the file ``t.json`` and the bundle ``tuned``."""
    try:
        capability = cuda_driver.compute_capability(0)
        bundle = cutlass_aot.open(BUNDLE)
    except (DeviceError, BundleError) as error:
        pytest.skip(str(error))
    if "sm_90a" not in runnable_targets(bundle.targets, capability):
        pytest.skip(f"sm90 has nothing for compute capability {capability}")
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "s.toml").write_text(SHAPES)
    (folder / "more.toml").write_text(ONE_MORE)
    assert tune(BUNDLE, folder, "s.toml", "--apply", folder / "tuned") == 0
    return folder


def tune(bundle, folder, shapes, *more):
    arguments = ["tune", bundle, "--shapes", folder / shapes, "--output", folder / "t.json"]
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in (*arguments, "--group", GROUP, *more)])
    return caught.value.code


def operands(torch, extents):
    a = torch.randn(extents.m, extents.k, device="cuda", dtype=torch.bfloat16)
    weight = torch.randn(extents.n, extents.k, device="cuda", dtype=torch.bfloat16)
    return a, weight.T, torch.empty(extents.m, extents.n, device="cuda", dtype=torch.bfloat16)


def test_every_kernel_was_checked_and_timed(tuned):
    found = read_tuning(tuned / "t.json")
    assert found.gpu == cuda_driver.device_name(0)
    (group,) = found.groups
    assert group.name == GROUP
    assert {problem.extents for problem in group.problems} == set(PROBLEMS)
    for problem in group.problems:
        assert problem.failed == ()
        assert len(problem.kernels) == len(group.kernels)
        assert problem.ranked
        # No kernel reads its operands faster than any memory of today, or multiplies faster than any GPU.
        extents, best = problem.extents, problem.ranked[0][1] * 1e-6
        bytes_read = 2 * (extents.m * extents.k + extents.k * extents.n)
        assert bytes_read / best < 10e12
        assert 2 * extents.m * extents.n * extents.k / best < 3e15
        assert best < 1e-3


def test_times_agree_with_launches_measured_otherwise(tuned, torch):
    """The best kernel's time, by events around many launches on operands that fit the cache: not longer."""
    bundle = cutlass_aot.open(tuned / "tuned")
    (group,) = read_tuning(tuned / "t.json").groups
    problem = next(problem for problem in group.problems if problem.extents == PROBLEMS[1])
    kernel = bundle.kernel(problem.ranked[0][0])
    a, b, out = operands(torch, PROBLEMS[1])
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(20):
        kernel.launch(a, b, out)
    begin.record()
    for _ in range(100):
        kernel.launch(a, b, out)
    end.record()
    torch.cuda.synchronize()
    assert begin.elapsed_time(end) * 10 == pytest.approx(problem.ranked[0][1], rel=0.3)


def test_the_file_is_gone_on_with(tuned, capsys):
    before = read_tuning(tuned / "t.json")
    (tuned / "kept.json").write_bytes((tuned / "t.json").read_bytes())
    assert tune(BUNDLE, tuned, "more.toml", "--json") == 0
    events = [json.loads(line)["event"] for line in capsys.readouterr().out.splitlines()]
    assert sorted(events) == ["begin", "end", "fitted", "kept", "kept", "measured"]
    after = read_tuning(tuned / "t.json")
    assert set(before.groups[0].problems) < set(after.groups[0].problems)
    shutil.copy(tuned / "kept.json", tuned / "t.json")


@pytest.mark.parametrize("extents", PROBLEMS, ids=str)
def test_the_bundle_chooses_what_was_measured(tuned, torch, extents):
    assert verify_bundle(tuned / "tuned") == []
    bundle = cutlass_aot.open(tuned / "tuned")
    (group,) = read_tuning(tuned / "t.json").groups
    problem = next(problem for problem in group.problems if problem.extents == extents)
    a, b, out = operands(torch, extents)
    choice = bundle.choose(a, b, out)
    assert (choice.tier, choice.kernel.digest) == ("tuned", problem.ranked[0][0])
    bundle.gemm(a, b, out)
    expected = a.double() @ b.double()
    assert ((out.double() - expected).norm() / expected.norm()).item() < 2.0**-8


def test_a_problem_that_was_not_measured_is_chosen_by_the_fitted_model(tuned, torch):
    bundle = cutlass_aot.open(tuned / "tuned")
    choice = bundle.choose(*operands(torch, Extents(1, 1536, 4096, 4096)))
    assert choice.tier == "fitted"
    assert 20 < choice.expected[0].microseconds < 200


def test_applying_the_file_gives_the_same_bundle(tuned):
    with pytest.raises(SystemExit) as caught:
        main(["tune", str(BUNDLE), "--from", str(tuned / "t.json"), "--apply", str(tuned / "again")])
    assert caught.value.code == 0
    names = sorted(path.relative_to(tuned / "tuned") for path in (tuned / "tuned").rglob("*"))
    assert names == sorted(path.relative_to(tuned / "again") for path in (tuned / "again").rglob("*"))
    for name in names:
        if (tuned / "tuned" / name).is_file():
            assert (tuned / "tuned" / name).read_bytes() == (tuned / "again" / name).read_bytes()

"""What is measured, what is kept, and what happens when it is interrupted; on a bench that invents times."""

from __future__ import annotations

import pytest

from cutlass_aot.errors import DeviceError, TuningError
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.generators.sm90_gemm.generator import SCALES, Sm90Gemm
from cutlass_aot.runtime.bundle import open_bundle
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.constraints import Scale
from cutlass_aot.schema.kernels.operands import extent_names
from cutlass_aot.schema.tuning.ranking import Extents, OwnExtents
from cutlass_aot.schema.tuning.tuning import TunedProblem
from cutlass_aot.tuning import session
from cutlass_aot.tuning.rotation import is_gemm, memory_shape
from cutlass_aot.tuning.session import Skipped, plan, resumed, run
from tests.support.bundles import designs, entry, write_bundle
from tests.support.kernels import gemm, operand
from tests.support.replace import replace
from tests.support.tunings import tuned_group, tuning

SMALL, ODD, LARGE = Extents(1, 16, 64, 64), Extents(1, 16, 64, 60), Extents(1, 4096, 4096, 4096)
F16 = designs()
BF16 = designs(dtypes=("bf16",) * 3)


@pytest.fixture
def bundle(tmp_path):
    return open_bundle(write_bundle(tmp_path, [*F16, *BF16]), check=False)


class Bench:
    """Kernels take a microsecond, two, three, ... in the order of the group.

    ``outcomes`` has what is to happen at some problems instead.
    """

    def __init__(self, outcomes=None):
        self.outcomes = outcomes or {}
        self.requested = []

    def measure(self, job, extents):
        self.requested.append((job.name, extents))
        outcome = self.outcomes.get(extents)
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is not None:
            return outcome
        times = tuple((handle.digest, float(index + 1)) for index, handle in enumerate(job.kernels))
        return TunedProblem(extents, times[:2], times[2:])


class Report:
    def __init__(self):
        self.told = []

    def measured(self, job, problem):
        self.told.append(("measured", problem.extents))

    def kept(self, job, problem):
        self.told.append(("kept", problem.extents))

    def skipped(self, job, extents, reason):
        self.told.append(("skipped", extents))


def measure(bundle, extents, before=None, bench=None, filters=None, clock=lambda: 0.0, **options):
    """Returns what was measured, what was saved, and what was told."""
    jobs, _ = plan(bundle, filters or {}, lambda _: extents, (9, 0))
    saved, report = [], Report()
    found = run(jobs, before or tuning(), bench or Bench(), saved.append, report, clock, **options)
    return found, saved, report.told


# -- what is to be measured -------------------------------------------------------------------------------


def test_every_group_is_measured_on_the_problems_that_fit_it(bundle):
    jobs, notes = plan(bundle, {}, lambda _: [SMALL, ODD, LARGE], (9, 0))
    assert [job.name for job in jobs] == [group.name for group in bundle.groups]
    assert all(job.problems == (SMALL, LARGE) and len(job.kernels) == 3 for job in jobs)
    assert notes == [
        f"{job.name}: 1 of 3 problems left out, such as 16x64x60: operand `a` is unsupported: expected "
        "extent K divisible by 8, got 60"
        for job in jobs
    ]


def test_filters_choose_groups_and_kernels(bundle):
    (job,), notes = plan(bundle, {"dtypes": ["bf16.*"], "name": ["*128x256*"]}, lambda _: [SMALL], (9, 0))
    assert {handle.digest for handle in job.kernels} == {BF16[2].digest}
    assert notes == []


@pytest.mark.parametrize(
    ("filters", "extents", "capability", "message"),
    [
        ({"dtypes": ["f64*"]}, [SMALL], (9, 0), "no kernel matches the filters; cutlass-aot ls shows"),
        ({}, [ODD], (9, 0), "1 of 1 problems left out, such as 16x64x60: operand `a`"),
        ({}, [SMALL], (8, 0), "does not run on compute capability 8.0"),
    ],
)
def test_nothing_to_measure_is_an_error_with_the_reasons(bundle, filters, extents, capability, message):
    with pytest.raises(TuningError, match="bundle small has nothing to measure: ") as caught:
        plan(bundle, filters, lambda _: extents, capability)
    assert message in str(caught.value)


def test_of_equal_groups_the_best_target_alone_is_measured(tmp_path):
    family, own = designs(target="sm_100f"), designs(target="sm_100a")
    alone = designs(target="sm_100f", dtypes=("bf16",) * 3)
    bundle = open_bundle(write_bundle(tmp_path, [*family, *own, *alone]), check=False)
    jobs, notes = plan(bundle, {}, lambda _: [SMALL], (10, 0))
    assert [(job.kernels[0].kernel.group, len(job.kernels)) for job in jobs] == [
        (own[0].group, 3),
        (alone[0].group, 3),
    ]
    assert notes == [f"{family[0].group_name}: this GPU takes sm_100a kernels of the same operands instead"]


def test_what_is_no_plain_gemm_cannot_be_checked(tmp_path):
    operands = tuple(replace(operand(name), extents=("L", "M", "N")) for name in ("a", "b", "out"))
    other = replace(gemm(operation="add"), operands=operands)
    bundle = open_bundle(write_bundle(tmp_path, [other]), check=False)
    with pytest.raises(TuningError, match="no plain GEMM, so that its results cannot be checked"):
        plan(bundle, {}, lambda _: [SMALL], (9, 0))


def test_kernels_of_ones_own_are_measured_by_their_extents_where_there_is_a_reference(tmp_path):
    operands = tuple(replace(operand(name), extents=("T", "H")) for name in ("a", "out"))
    kernels = [
        replace(gemm(operation="norm", design={"threads": threads}), operands=operands)
        for threads in (128, 256)
    ]
    opened = open_bundle(write_bundle(tmp_path, [*kernels, *F16]), check=False)
    own = OwnExtents.of({"T": 7, "H": 64})
    requested = []

    def problems(operands):
        requested.append(extent_names(operands))
        return [SMALL] if is_gemm(operands) else [own]

    jobs, notes = plan(opened, {}, problems, (9, 0), {"norm": max})
    assert notes == []
    assert [(job.problems, job.reference, len(job.kernels)) for job in jobs] == [
        ((SMALL,), None, 3),
        ((own,), max, 2),
    ]
    assert requested == [["L", "M", "K", "N"], ["T", "H"]]
    _, (note,) = plan(opened, {}, problems, (9, 0))
    assert note.endswith("cannot be checked; its author can declare a reference function")
    _, (note,) = plan(opened, {}, lambda operands: [SMALL] * is_gemm(operands), (9, 0), {"norm": max})
    assert note.endswith("no problem has its extents, T, H")


def test_more_than_four_extents_are_too_many_to_tell_problems_apart(tmp_path):
    operands = tuple(replace(operand(name), extents=("A", "B", "C", "D", "E")) for name in ("a", "out"))
    kernel = replace(gemm(operation="norm"), operands=operands)
    opened = open_bundle(write_bundle(tmp_path, [kernel]), check=False)
    with pytest.raises(TuningError, match="tuned times do not tell its problems apart by E, as they do by"):
        plan(opened, {}, lambda _: [SMALL], (9, 0), {"norm": max})


# -- measuring and going on -------------------------------------------------------------------------------


def test_what_is_measured_is_in_the_file(bundle):
    found, saved, told = measure(bundle, [SMALL, LARGE])
    assert saved == [found]
    assert [group.name for group in found.groups] == [group.name for group in bundle.groups]
    for group in found.groups:
        assert [problem.extents for problem in group.problems] == [SMALL, LARGE]
        assert len(group.kernels) == 3
        objects = {entry(kernel).object_sha256 for kernel in (*F16, *BF16)}
        assert all(kernel.object_sha256 in objects for kernel in group.kernels)
    assert told == [("measured", SMALL), ("measured", LARGE)] * 2


def test_what_was_measured_is_kept(bundle):
    before, *_ = measure(bundle, [SMALL])
    bench = Bench()
    found, saved, told = measure(bundle, [SMALL, LARGE], before, bench)
    assert [extents for _, extents in bench.requested] == [LARGE, LARGE]
    assert told == [("kept", SMALL), ("measured", LARGE)] * 2
    again, saved, told = measure(bundle, [SMALL, LARGE], found)
    assert (again, saved) == (found, [])
    assert {event for event, _ in told} == {"kept"}


def test_other_groups_and_problems_of_the_file_stay(bundle):
    before, *_ = measure(bundle, [SMALL])
    found, *_ = measure(bundle, [LARGE], before, filters={"dtypes": ["bf16.*"]})
    assert [len(group.problems) for group in found.groups] == [2, 1]


def test_a_problem_is_measured_again_for_kernels_it_lacks(bundle):
    before, *_ = measure(bundle, [SMALL], filters={"dtypes": ["bf16.*"], "name": ["*128x256*"]})
    bench = Bench()
    found, _, told = measure(bundle, [SMALL], before, bench, filters={"dtypes": ["bf16.*"]})
    assert told == [("measured", SMALL)]
    (group,) = found.groups
    assert {kernel.digest for kernel in group.kernels} == {kernel.digest for kernel in BF16}
    assert len(group.problems) == 1


def test_exhaustive_measures_again_where_kernels_were_stopped(bundle):
    before, *_ = measure(bundle, [SMALL])
    assert {event for event, _ in measure(bundle, [SMALL], before, exhaustive=True)[2]} == {"measured"}
    problem = replace(before.groups[0].problems[0], stopped=())
    full = (*problem.ranked, *before.groups[0].problems[0].stopped)
    done = replace(before.groups[0], problems=(replace(problem, ranked=full),))
    _, _, told = measure(bundle, [SMALL], tuning([done]), exhaustive=True, filters={"group": [done.name]})
    assert told == [("kept", SMALL)]


def test_a_problem_that_does_not_fit_the_gpu_is_skipped(bundle):
    found, _, told = measure(bundle, [SMALL, LARGE], bench=Bench({LARGE: Skipped("too large")}))
    assert told == [("measured", SMALL), ("skipped", LARGE)] * 2
    assert all(len(group.problems) == 1 for group in found.groups)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), DeviceError("the GPU failed")])
def test_what_was_measured_is_saved_whatever_happens(bundle, error):
    jobs, _ = plan(bundle, {}, lambda _: [SMALL, LARGE], (9, 0))
    saved = []
    with pytest.raises(type(error)):
        run(jobs, tuning(), Bench({LARGE: error}), saved.append, Report(), lambda: 0.0)
    (found,) = saved
    assert [problem.extents for problem in found.groups[0].problems] == [SMALL]


def test_results_are_saved_as_they_come(bundle):
    now = iter(range(1000))
    _, saved, _ = measure(bundle, [SMALL, LARGE], clock=lambda: session.SAVE_SECONDS * next(now))
    assert [sum(len(group.problems) for group in found.groups) for found in saved] == [1, 2, 3, 4]


def test_nothing_new_is_not_saved(bundle):
    _, saved, _ = measure(bundle, [SMALL], bench=Bench({SMALL: Skipped("too large")}))
    assert saved == []


# -- going on from a file ---------------------------------------------------------------------------------


def test_a_file_is_gone_on_with_under_the_date_and_versions_of_now(bundle):
    before = tuning([tuned_group([entry(kernel) for kernel in F16])], date="2025-01-01")
    now = tuning(versions={"torch": "3.0"})
    found = resumed(before, now, bundle)
    assert found.groups == before.groups
    assert (found.date, found.versions) == (now.date, now.versions)


OTHER = entry(F16[0])._replace(object_sha256=digest(b"other code"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpu": "NVIDIA H100"}, "measured on 'NVIDIA H100', expected 'NVIDIA H200'"),
        (
            {"driver": "570.1"},
            r"with driver 570\.1 \(CUDA 13\.0\), expected driver 580\.159\.04 \(CUDA 13\.0\)",
        ),
        ({"cuda": "12.8"}, r"\(CUDA 12\.8\), expected driver 580\.159\.04 \(CUDA 13\.0\).*--force"),
        (
            {"groups": (tuned_group([entry(gemm(dtypes=("i8", "i8", "i32")))]),)},
            "which bundle small does not have: measure again with --force, or into another file",
        ),
        ({"groups": (tuned_group([OTHER]),)}, "other code has other times; measure again with --force"),
    ],
)
def test_a_file_of_something_else_is_refused(bundle, changes, message):
    with pytest.raises(TuningError, match=message):
        resumed(tuning(**changes), tuning(), bundle)


def test_a_gemm_may_have_factors_of_blocks():
    plain = Problem("gemm", ("f8e4m3", "f8e4m3", "bf16"), "tnt", "f32")
    made = {}
    for name, problem in (("plain", plain), ("scaled", replace(plain, scales=SCALES))):
        kernel, *_ = Sm90Gemm().enumerate(problem, "sm_90a", load_profile("h200"))
        made[name] = kernel.operands
        assert is_gemm(kernel.operands), name
    assert memory_shape(made["scaled"][3], Extents(2, 37, 200, 400)) == (2, 4, 37)
    assert memory_shape(made["scaled"][4], Extents(2, 37, 200, 400)) == (2, 2, 4)
    # Factors as tensor cores of SM100 read them, an epilogue's row, and groups.
    swizzled = made["scaled"][3]._replace(scale=Scale("a", 128, "K", "32x4x4"))
    row = made["scaled"][3]._replace(name="bias", extents=("N",), contiguous=-1)
    for more in (swizzled, row):
        assert not is_gemm((*made["plain"], more))
    assert not is_gemm((made["plain"][0]._replace(extents=("M", "K")), *made["plain"][1:]))

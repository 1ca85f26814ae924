"""What a tuning file is good for: the same GPU model, the same kernels, the same code; and the rankings."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest

from cutlass_aot.errors import ManifestError
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.tiling import Tiling
from cutlass_aot.schema.tuning.costs import FEATURES, FORMULA, Machine, Regression, derived
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblem, RankedProblems, Ranking
from cutlass_aot.schema.tuning.tuned import (
    FASTEST,
    applies,
    fits,
    objects_of,
    of_present,
    rankings,
    rankings_of_manifest,
    sound,
)
from cutlass_aot.schema.tuning.tuning import FittedModel, TunedProblem, Tuning
from tests.support.kernels import gemm
from tests.support.synthetic import entry, kernels
from tests.support.tunings import GPU, PROBLEM, tuned_group, tuning

F16 = [entry(kernel) for kernel in kernels()]
BF16 = [entry(kernel) for kernel in kernels(dtypes=("bf16",) * 3)]
FP8 = [entry(kernel) for kernel in kernels(dtypes=("f8e4m3", "f8e4m3", "bf16"))]
OTHER_CODE = [item._replace(object_sha256=digest(b"other code")) for item in F16]
VERSIONS = {"cutlass-aot": "0.2.0", "nvidia-cutlass-dsl": "4.8.2", "toolchain": "cd" * 32}


def fit(measured, present, **changes):
    made = tuning([tuned_group(measured)], **changes)
    return fits(
        made, objects_of(present), holder="bundle small", advice="measure it again", versions=VERSIONS
    )


def test_times_hold_for_one_model_of_gpu():
    assert applies(tuning(), GPU)
    verdict = applies(tuning(), "NVIDIA H100")
    assert not verdict
    assert verdict.reason.startswith(
        "the tuning file was measured on 'NVIDIA H200', expected 'NVIDIA H100': "
    )


def test_a_file_fits_the_kernels_that_it_names_and_others_beside_them():
    assert fit(F16, F16)
    assert fit(F16, [*F16, *BF16])
    assert fit(F16[:1], F16)


def test_a_kernel_that_is_not_there_is_named():
    verdict = fit(F16, F16[:2])
    assert not verdict
    missing = F16[2].kernel
    assert verdict.reason == (
        f"the tuning file has times of kernel {missing.name} (digest {missing.digest[:16]}), which "
        "bundle small does not have: measure it again"
    )


def test_a_kernel_under_another_group_is_not_that_kernel():
    wrong = replace(tuned_group(F16), digest=tuned_group(BF16).digest)
    verdict = fits(tuning([wrong]), objects_of([*F16, *BF16]), holder="it", advice="no")
    assert "which it does not have" in verdict.reason


def test_other_code_has_other_times_and_the_versions_say_why():
    verdict = fit(F16, OTHER_CODE)
    assert not verdict
    # Kernels are looked at by name.
    first = min(F16, key=lambda item: item.kernel.name).object_sha256
    assert f"with object {first[:16]}, expected object {digest(b'other code')[:16]}" in verdict.reason
    assert verdict.reason.endswith(
        "which bundle small has: other code has other times; it was measured with nvidia-cutlass-dsl 4.8.1, "
        "expected 4.8.2; measure it again"
    )


def test_the_fingerprint_is_named_where_no_version_differs():
    versions = {**VERSIONS, "nvidia-cutlass-dsl": "4.8.2", "toolchain": "ab" * 32}
    reason = fit(F16, OTHER_CODE, versions=versions).reason
    assert "it was measured with toolchain abababababababab, expected cdcdcdcdcdcdcdcd;" in reason
    unknown = fit(F16, OTHER_CODE, versions={"torch": "2.13.0"}).reason
    assert "it was measured with" not in unknown


def test_another_toolchain_that_gives_the_same_code_is_as_good():
    assert fit(F16, F16, versions={"nvidia-cutlass-dsl": "4.7.0", "toolchain": "ab" * 32})


def test_a_kernel_that_is_not_compiled_yet_is_held_against_its_record_alone():
    planned = {item.kernel.digest: (item.kernel, None) for item in F16}
    assert fits(tuning([tuned_group(F16)]), planned, holder="this build", advice="no")
    assert not fits(tuning([tuned_group(BF16)]), planned, holder="this build", advice="no")


def test_rankings_have_what_was_measured_in_order():
    first, second, third = (item.kernel.digest for item in F16)
    problems = [
        TunedProblem(PROBLEM, ((second, 10.5), (first, 12.0)), ((third, 11.0),)),
        TunedProblem(Extents(2, 8, 8, 8), (), (), ((first, "wrong"), (second, "wrong"), (third, "wrong"))),
    ]
    nothing = tuned_group(BF16, [])
    (found,) = rankings(tuning([tuned_group(F16, problems), nothing]), objects_of(F16))
    assert found == Ranking(
        F16[0].kernel.group,
        GPU,
        True,
        "tuned 2026-11-21 on NVIDIA H200, driver 580.159.04",
        # The first look at the third was short: it was behind all that were measured to the end.
        RankedProblems([RankedProblem(PROBLEM, (second, first, third), (10.5e-6, 12e-6, 12e-6))]),
    )
    (without_driver,) = rankings(tuning([tuned_group(F16)], driver=None), objects_of(F16))
    assert without_driver.origin == "tuned 2026-11-21 on NVIDIA H200"


def test_rankings_have_the_times_of_the_fastest():
    """Of the others they say that they were measured."""
    many = [entry(gemm(design={"family": "F", "tile_shape": (128, 8 * n, 64)})) for n in range(1, 49)]
    digests = [item.kernel.digest for item in many]
    times = tuple((digest, 10.0 + number) for number, digest in enumerate(digests[:36]))
    stopped = tuple((digest, 50.0) for digest in digests[36:40])
    (found,) = rankings(
        tuning([tuned_group(many, [TunedProblem(PROBLEM, times, stopped)])]), objects_of(many)
    )
    (problem,) = found.problems
    assert problem.kernels == tuple(digests[:FASTEST])
    assert problem.seconds == pytest.approx([1e-6 * (10 + number) for number in range(FASTEST)])
    assert problem.slower == set(digests[FASTEST:40])
    assert Ranking.from_bytes(found.to_bytes(), "it").problems[0].slower == problem.slower


def test_a_group_that_was_not_measured_takes_the_times_of_kernels_that_differ_by_types_as_wide():
    first, second, third = (item.kernel.digest for item in F16)
    problems = [
        TunedProblem(PROBLEM, ((second, 10.5), (first, 12.0)), ((third, 13.0),)),
        TunedProblem(Extents(2, 8, 8, 8), ((first, 1.0),)),
    ]
    measured = tuning([tuned_group(F16, problems), tuned_group(BF16, []), tuned_group(FP8)])
    # One kernel of the other group is not in the bundle.
    found = {r.group: r for r in rankings(measured, objects_of([*F16, *BF16[1:], *FP8]))}
    twins = found[BF16[0].kernel.group]
    assert twins.problems == RankedProblems(
        [
            RankedProblem(
                PROBLEM, (BF16[1].kernel.digest, BF16[2].kernel.digest), pytest.approx((10.5e-6, 13e-6))
            )
        ]
    )
    assert twins.measured_as == F16[0].kernel.group_name
    assert twins.origin == f"tuned 2026-11-21 on NVIDIA H200, driver 580.159.04 as {twins.measured_as}"
    assert Ranking.from_bytes(twins.to_bytes(), "it").measured_as == twins.measured_as
    assert found[F16[0].kernel.group].measured_as == found[FP8[0].kernel.group].measured_as == ""


@pytest.mark.parametrize(
    "changes",
    [
        {"dtypes": ("bf16", "bf16", "f32")},
        {"epilogue": "D = relu(accum)"},
        {"accumulator": "f16"},
        {"target": "sm_100a"},
        {"generator": "another"},
        {"layouts": "ttt"},
    ],
)
def test_kernels_that_differ_by_more_than_types_as_wide_take_no_times(changes):
    others = [entry(kernel) for kernel in kernels(**{"dtypes": ("bf16",) * 3, **changes})]
    found = rankings(tuning([tuned_group(F16)]), objects_of([*F16, *others]))
    assert {ranking.group for ranking in found if ranking.problems} == {F16[0].kernel.group}


def test_a_group_takes_the_times_of_the_group_with_most():
    more = [TunedProblem(Extents(1, 8 * m, 8, 8), ((F16[0].kernel.digest, 1.0),)) for m in (1, 2)]
    other = [entry(kernel) for kernel in kernels(dtypes=("f16", "bf16", "f16"))]
    for groups in itertools.permutations((tuned_group(F16, more), tuned_group(other))):
        found = {r.group: r for r in rankings(tuning(groups), objects_of([*F16, *BF16, *other]))}
        assert found[BF16[0].kernel.group].measured_as == F16[0].kernel.group_name
        assert len(found[BF16[0].kernel.group].problems) == 2


def test_a_file_with_a_kernel_that_failed_is_not_sound():
    first, second, _ = (item.kernel.digest for item in F16)
    assert sound(tuning([tuned_group(F16)]))
    problems = [TunedProblem(PROBLEM, ((second, 10.5),), (), ((first, "a wrong result"),))]
    verdict = sound(tuning([tuned_group(F16, problems)]))
    assert not verdict
    assert F16[0].kernel.name in verdict.reason
    assert "a wrong result" in verdict.reason


# -- the files of a manifest ------------------------------------------------------------------------------


def of_manifest(files, present=(*F16, *BF16)):
    return rankings_of_manifest(files, objects_of(present), VERSIONS)


def test_the_files_of_a_manifest_are_taken_together():
    files = {
        "h200.json": tuning([tuned_group(F16), tuned_group(BF16)]),
        "h100.json": tuning([tuned_group(F16)], gpu="NVIDIA H100"),
    }
    found = of_manifest(files)
    assert {(ranking.group, ranking.gpu): ranking.measured_as for ranking in found} == {
        (F16[0].kernel.group, GPU): "",
        (BF16[0].kernel.group, GPU): "",
        (F16[0].kernel.group, "NVIDIA H100"): "",
        (BF16[0].kernel.group, "NVIDIA H100"): F16[0].kernel.group_name,
    }
    assert all(ranking.measured for ranking in found)
    assert of_manifest(dict(reversed(files.items()))) == found
    assert of_manifest({}) == ()


def test_times_of_kernels_that_a_manifest_does_not_select_are_left_out():
    first, second, third = (item.kernel.digest for item in F16)
    problems = [
        TunedProblem(PROBLEM, ((second, 10.5), (first, 12.0)), ((third, 13.0),)),
        TunedProblem(Extents(2, 8, 8, 8), ((third, 9.0),), (), ((first, "wrong"),)),
    ]
    files = {"t.json": tuning([tuned_group(F16, problems), tuned_group(FP8)])}
    (found,) = of_manifest(files, F16[1:])
    assert found.problems == RankedProblems(
        [
            RankedProblem(PROBLEM, (second, third), (10.5e-6, 13e-6)),
            RankedProblem(Extents(2, 8, 8, 8), (third,), (9e-6,)),
        ]
    )
    assert of_manifest(files, F16[2:])[0].problems == RankedProblems(
        [RankedProblem(Extents(2, 8, 8, 8), (third,), (9e-6,))]
    )
    # One that failed is left out like any other.
    with pytest.raises(ManifestError, match=f"kernel {F16[0].kernel.name} failed at 2 of 8x8x8"):
        of_manifest(files, F16)
    # The same kernels in another group are others.
    wrong = replace(tuned_group(F16), digest=tuned_group(BF16).digest)
    assert of_present(tuning([wrong]), objects_of([*F16, *BF16])).groups == ()


@pytest.mark.parametrize(
    ("present", "message"),
    [
        (BF16, "which this build does not have: leave the file out of the manifest, build, measure"),
        ([*OTHER_CODE, *BF16], "it was measured with nvidia-cutlass-dsl 4.8.1, expected 4.8.2; leave"),
    ],
)
def test_a_file_of_a_manifest_that_does_not_fit_is_refused(present, message):
    with pytest.raises(ManifestError) as caught:
        of_manifest({"tuning/h200.json": tuning([tuned_group(F16)])}, present)
    assert str(caught.value).startswith(
        "select.tuning: tuning/h200.json: the tuning file has times of kernel "
    )
    assert message in str(caught.value)


def test_a_file_without_times_is_refused():
    with pytest.raises(ManifestError, match=r"select\.tuning: empty\.json: no problem was measured"):
        of_manifest({"empty.json": tuning()})


def test_two_files_with_times_of_the_same_kernels_are_refused():
    with pytest.raises(ManifestError) as caught:
        of_manifest({"a.json": tuning([tuned_group(F16)]), "b.json": tuning([tuned_group(F16)])})
    assert str(caught.value).startswith(
        f"select.tuning: a.json and b.json both have times of group {F16[0].kernel.group_name} on NVIDIA H200"
    )


def test_a_manifest_refuses_a_cost_model_of_another_formula():
    costs = derived(Tiling.of(F16[0].kernel), 16, "sm_90a", Machine(132, 1980, 4917))
    numbers = (0.0,) * len(costs)
    regression = Regression({}, numbers, ((0.0,) * FEATURES,) * len(costs))
    group = tuned_group(F16)
    group = replace(group, kernels=tuple(replace(kernel, costs=costs) for kernel in group.kernels))
    made = tuning([replace(group, model=FittedModel(regression))])
    assert rankings_of_manifest({"t.json": made}, objects_of(F16), {})[0].costs
    # Another formula may have another number of constants. Its times are read, and can be fitted anew.
    record = json.loads(made.to_bytes())
    record["groups"][0]["model"] = {"formula": FORMULA - 1, "regression": {}}
    for kernel in record["groups"][0]["kernels"]:
        kernel["costs"] = [1.0]
    other = Tuning.from_bytes(json.dumps(record).encode(), "t.json")
    assert other.groups == (replace(tuned_group(F16), other_formula=FORMULA - 1),)
    with pytest.raises(ManifestError, match=f"was fitted to formula {FORMULA - 1}, expected {FORMULA}: "):
        rankings_of_manifest({"t.json": other}, objects_of(F16), {})


def test_a_group_with_a_cost_formula_takes_constants_of_other_groups_for_kernels_alike():
    costs = derived(Tiling.of(F16[0].kernel), 16, "sm_90a", Machine(132, 1980, 4917))
    numbers = (0.0,) * len(costs)
    regression = Regression({}, numbers, ((0.0,) * FEATURES,) * len(costs))
    group = tuned_group(F16)
    group = replace(group, kernels=tuple(replace(kernel, costs=costs) for kernel in group.kernels))
    files = {"t.json": tuning([replace(group, model=FittedModel(regression))])}
    both = {F16[0].kernel.group, BF16[0].kernel.group}
    assert {ranking.group for ranking in of_manifest(files)} == both
    for generator, groups in (("", both), ("another", both - {BF16[0].kernel.group})):
        declared = [
            item._replace(kernel=replace(item.kernel, cost="M", generator=generator or item.kernel.generator))
            for item in BF16
        ]
        assert {ranking.group for ranking in of_manifest(files, [*F16, *declared])} == groups


def test_files_of_one_gpu_speak_for_groups_that_neither_measured():
    """In either order, and whichever of them comes last."""
    numbers = (0.0,) * len(derived(Tiling.of(F16[0].kernel), 16, "sm_90a", Machine(132, 1980, 4917)))
    regression = Regression({}, numbers, ((0.0,) * FEATURES,) * len(numbers))
    files = {}
    for name, entries, step in (("f16.json", F16, 2.0), ("fp8.json", FP8, 3.0)):
        costs = derived(Tiling.of(entries[0].kernel), 16, "sm_90a", Machine(132, 1980, 4917))
        group = tuned_group(entries)
        measured = tuple(replace(k, costs=costs._replace(step=step)) for k in group.kernels)
        files[name] = tuning([replace(group, kernels=measured, model=FittedModel(regression))])
    kernels = [*F16, *FP8, *BF16]
    found = []
    for order in (files, dict(reversed(files.items()))):
        (ranking,) = (r for r in of_manifest(order, kernels) if r.group == BF16[0].kernel.group)
        found.append(ranking.costs)
    assert found[0] == found[1]
    # Kernels of the same tiling were measured in the first.
    assert {costs.step for _, costs in found[0]} == {2.0}


def test_kernels_that_were_measured_on_another_gpu_alone_are_scaled_to_this_one():
    known = derived(Tiling.of(F16[0].kernel), 16, "sm_90a", Machine(132, 1980, 4917))
    numbers = (0.0,) * len(known)
    regression = Regression({}, numbers, ((0.0,) * FEATURES,) * len(known))
    model = FittedModel(regression)

    def file(gpu, machine, entries, step):
        group = tuned_group(entries, [TunedProblem(PROBLEM, ((entries[0].kernel.digest, 10.0),))])
        costs = known._replace(step=step)
        group = replace(group, kernels=tuple(replace(kernel, costs=costs) for kernel in group.kernels))
        return replace(tuning([replace(group, model=model)], gpu=gpu), machine=machine)

    here, there = Machine(132, 1980, 4917), Machine(132, 990, 3352)
    files = {
        "h200.json": file("NVIDIA H200", here, F16[:1], 0.5),
        "h100.json": file("NVIDIA H100", there, F16, 0.75),
    }
    found = {ranking.gpu: dict(ranking.costs) for ranking in of_manifest(files, F16)}
    first, second, third = (item.kernel.digest for item in F16)
    assert found["NVIDIA H200"][first].step == 0.5
    assert found["NVIDIA H200"][second] == known._replace(step=0.75).on(there, here)
    assert found["NVIDIA H200"][third].step == 0.375
    assert found["NVIDIA H100"][first].step == 0.75
    # Alone, the regression says what it takes.
    alone = of_manifest({"h200.json": files["h200.json"]}, F16)
    assert dict(alone[0].costs)[second].step not in (0.375, 0.5)

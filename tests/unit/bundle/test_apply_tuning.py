"""Applying a tuning file: the bundle stays as it is, but for what it knows of its kernels' speed."""

from __future__ import annotations

import pytest

from cutlass_aot.bundle.apply_tuning import apply_tuning, with_tuning
from cutlass_aot.bundle.replace import check_output
from cutlass_aot.bundle.verify.directory import require_sound, verify_bundle
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.errors import BundleError, TuningError
from cutlass_aot.runtime.bundle import open_bundle
from cutlass_aot.runtime.files.verified_read import read_catalog, read_file
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.kernels.operands import describe
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblems, Ranking
from cutlass_aot.schema.tuning.tuned import objects_of, rankings_of_manifest
from cutlass_aot.schema.tuning.tuning import TunedProblem
from tests.support.replace import replace
from tests.support.synthetic import entry, kernels, plan, ranking
from tests.support.tunings import GPU, PROBLEM, tuned_group, tuning

F16 = kernels()
BF16 = kernels(dtypes=("bf16",) * 3)


def tree(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def entries(members):
    return [entry(kernel) for kernel in members]


def modelled(members, gpu):
    """A ranking without times."""
    problems = RankedProblems(problem._replace(seconds=()) for problem in ranking(members).problems)
    return ranking(members, gpu=gpu, measured=False, problems=problems)


def rankings_of(bundle):
    return [
        Ranking.from_bytes(read_file(bundle, reference.file), reference.file.path)
        for group in read_catalog(bundle).groups
        for reference in group.rankings
    ]


@pytest.fixture
def bundle(tmp_path):
    """Two groups. The first was tuned on an H200 and an H100 and modelled for a B200, the second modelled."""
    rankings = (
        ranking(F16),
        ranking(F16, gpu="NVIDIA H100"),
        modelled(F16, "B200"),
        modelled(BF16, GPU),
    )
    write_bundle(plan(tmp_path / "linked", rankings=rankings), tmp_path / "small")
    return tmp_path / "small"


def test_a_bundle_is_what_its_plan_gives_again(bundle, tmp_path):
    assert write_bundle(require_sound(bundle).plan(), tmp_path / "again")
    assert tree(tmp_path / "again") == tree(bundle)
    assert not write_bundle(require_sound(bundle).plan(), bundle)


def test_nothing_but_rankings_changes(bundle, tmp_path):
    before = tree(bundle)
    assert apply_tuning(bundle, tuning([tuned_group(entries(F16))]), tmp_path / "out")
    assert tree(bundle) == before
    after = tree(tmp_path / "out")
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    # Rankings themselves, and what has their digests.
    assert {path.partition("/")[0] for path in changed} == {"rankings", "catalog.msgpack", "MANIFEST.json"}
    assert verify_bundle(tmp_path / "out") == []


def test_the_measured_ranking_of_the_same_group_and_gpu_is_replaced_and_others_stay(bundle, tmp_path):
    old = rankings_of(bundle)
    apply_tuning(bundle, tuning([tuned_group(entries(F16))]), tmp_path / "out")
    new = rankings_of(tmp_path / "out")
    assert (len(old), len(new)) == (4, 5)
    found = {item.group: item for item in new if item not in old}
    # The other group's kernels differ by their element types alone, and had no times.
    assert found.keys() == {F16[0].group, BF16[0].group}
    assert {(item.gpu, item.measured) for item in found.values()} == {(GPU, True)}
    origin = "tuned 2026-11-21 on NVIDIA H200, driver 580.159.04"
    assert found[F16[0].group].origin == origin
    assert found[BF16[0].group].origin == f"{origin} as {F16[0].group_name}"
    assert {item.problems[0].extents for item in found.values()} == {PROBLEM}


def test_times_of_a_groups_own_kernels_stay_where_another_is_measured(bundle, tmp_path):
    """They are replaced by other times of its own alone."""
    apply_tuning(bundle, tuning([tuned_group(entries(BF16))]), tmp_path / "own")
    own = [item for item in rankings_of(tmp_path / "own") if item.group == BF16[0].group]
    apply_tuning(tmp_path / "own", tuning([tuned_group(entries(F16))]), tmp_path / "out")
    assert [item for item in rankings_of(tmp_path / "out") if item.group == BF16[0].group] == own
    # And the other way about: times of others give way to its own.
    apply_tuning(bundle, tuning([tuned_group(entries(F16))]), tmp_path / "others")
    apply_tuning(tmp_path / "others", tuning([tuned_group(entries(BF16))]), tmp_path / "last")
    assert [item for item in rankings_of(tmp_path / "last") if item.group == BF16[0].group] == own


def test_a_build_with_the_file_gives_what_applying_it_gives(tmp_path):
    made = tuning([tuned_group(entries(F16)), tuned_group(entries(BF16))])
    untuned = plan(tmp_path / "linked", rankings=())
    write_bundle(untuned, tmp_path / "untuned")
    apply_tuning(tmp_path / "untuned", made, tmp_path / "applied")
    found = rankings_of_manifest({"h200.json": made}, objects_of(entries((*F16, *BF16))), untuned.provenance)
    write_bundle(replace(untuned, rankings=found), tmp_path / "built")
    assert tree(tmp_path / "built") == tree(tmp_path / "applied")


def test_a_new_gpu_is_added(bundle, tmp_path):
    made = tuning([tuned_group(entries(BF16)), tuned_group(entries(F16))], gpu="NVIDIA GH200")
    apply_tuning(bundle, made, tmp_path / "out")
    assert len(rankings_of(tmp_path / "out")) == 6


def test_a_bundle_can_be_its_own_output(bundle, tmp_path):
    made = tuning([tuned_group(entries(F16))])
    apply_tuning(bundle, made, tmp_path / "out")
    assert apply_tuning(bundle, made, bundle).written
    assert tree(bundle) == tree(tmp_path / "out")
    # The same once more changes nothing.
    assert not apply_tuning(bundle, made, bundle).written


def test_the_bundle_chooses_by_it(bundle):
    apply_tuning(bundle, tuning([tuned_group(entries(F16))]), bundle)
    opened = open_bundle(bundle, check=False)
    operands = (
        describe((PROBLEM.m, PROBLEM.k), "f16"),
        describe((PROBLEM.k, PROBLEM.n), "f16", strides=(1, PROBLEM.k)),
        describe((PROBLEM.m, PROBLEM.n), "f16"),
    )
    choice = opened.choose(*operands, gpu=GPU)
    assert (choice.tier, choice.kernel.digest) == ("tuned", F16[-1].digest)
    assert choice.reason.startswith("512x1024x2048 was measured: 10.0 µs, the best of 3")
    assert opened.choose(*operands, gpu="NVIDIA H100").tier != "tuned"


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (
            tuning([tuned_group(entries(kernels(dtypes=("f8e4m3",) * 3)))]),
            "which bundle small does not have: name the bundle that was measured",
        ),
        (
            tuning([tuned_group([entry(F16[0])._replace(object_sha256=digest(b"other"))])]),
            "which bundle small has: other code has other times; it was measured with nvidia-cutlass-dsl",
        ),
        (tuning(), "no problem that was measured"),
        (
            tuning([tuned_group(entries(F16), [TunedProblem(Extents(1, 8, 8, 8), ())])]),
            "no problem that was measured",
        ),
    ],
)
def test_a_file_that_does_not_fit_changes_nothing(bundle, tmp_path, made, message):
    made = replace(made, versions={"nvidia-cutlass-dsl": "4.7.0"})
    before = tree(bundle)
    with pytest.raises(TuningError, match=message):
        apply_tuning(bundle, made, bundle)
    with pytest.raises(TuningError, match=message):
        apply_tuning(bundle, made, tmp_path / "out")
    assert tree(bundle) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "path", ["lib/x86_64/launcher.so.zst", "licenses/cutlass-aot.txt", "catalog.msgpack"]
)
def test_a_damaged_bundle_is_not_taken_over(bundle, tmp_path, path):
    (bundle / path).write_bytes((bundle / path).read_bytes() + b"!")
    with pytest.raises(BundleError, match=f"is damaged: {path}: .*cutlass-aot verify lists all"):
        apply_tuning(bundle, tuning([tuned_group(entries(F16))]), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_library_that_is_exchanged_meanwhile_is_not_copied(bundle, tmp_path):
    made = with_tuning(require_sound(bundle).plan(), tuning([tuned_group(entries(F16))]))
    (bundle / "lib/x86_64/launcher.so.zst").write_bytes(b"another")
    with pytest.raises(BundleError, match="exchanged or damaged since"):
        write_bundle(made, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_output_can_be_refused_before_the_work(bundle, tmp_path):
    check_output(bundle)
    check_output(tmp_path / "not" / "there")
    (tmp_path / "mine").mkdir()
    check_output(tmp_path / "mine")
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(BundleError, match="expected nothing, an empty directory or a bundle"):
        check_output(tmp_path / "mine")

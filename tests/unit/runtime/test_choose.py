"""``choose`` and ``find`` of an open bundle: which tier decides, with what reason, by which rankings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import cutlass_aot
from cutlass_aot import describe
from cutlass_aot.bundle.verify.directory import verify_bundle
from cutlass_aot.cli import main
from cutlass_aot.errors import BundleError, CorruptFile, KernelNotFound, OperandError
from cutlass_aot.runtime.bundle import Bundle
from cutlass_aot.runtime.opened import group as group_module
from cutlass_aot.schema.bundles.catalog import CATALOG_NAME, Groups
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.tiling import Tiling
from cutlass_aot.schema.tuning.costs import FORMULA, Machine, derived
from cutlass_aot.schema.tuning.ranking import Extents, RankedProblem, RankedProblems, Ranking
from tests.support import bundles
from tests.support.bundles import designs, write_bundle
from tests.support.replace import replace

F16 = designs()
B200 = designs(target="sm_100a")
LOOSE = [
    replace(kernel, operands=tuple(replace(o, divisibility=1, alignment=2) for o in kernel.operands))
    for kernel in designs(((32, 32), (64, 64)))
]
"""Of a group that serves everything that F16's does."""

NOT_FITTED = (
    "the least time by the cost model, which only compares kernels since nothing was measured, "
    "on 132 SMs at 1980 MHz and 4917 GB/s"
)
TUNED = Extents(1, 512, 512, 512)
MODELLED = Extents(1, 8192, 8192, 8192)


def operands(
    m: int = 512, n: int = 512, k: int = 512, *, batch: int | None = None, **where: Any
) -> tuple[Any, ...]:
    """Descriptions in the layout tnt."""
    lead = () if batch is None else (batch,)
    return (
        describe((*lead, m, k), "f16", **where),
        describe((*lead, k, n), "f16", strides=(*(() if batch is None else (n * k,)), 1, k), **where),
        describe((*lead, m, n), "f16", **where),
    )


def ranking(
    members: Sequence[Kernel],
    extents: Extents = TUNED,
    *,
    gpu: str = "NVIDIA H200",
    order: Sequence[int] | None = None,
    measured: bool = True,
    first: float = 1e-5,
    fitted: bool = False,
) -> Ranking:
    """Kernels by speed: those of ``order``, or all from the last to the first.

    With ``fitted``, there is a cost model, by which the last is always the fastest.
    """
    named = [members[at].digest for at in (order if order is not None else range(len(members))[::-1])]
    times = tuple(first * (position + 1) for position in range(len(named))) if measured else ()
    problems = RankedProblems([RankedProblem(extents, tuple(named), times)])
    machine = Machine(132, 1980, 4917)
    costs = (
        (
            kernel.digest,
            derived(Tiling.of(kernel), 16, "sm_90a", machine)._replace(launch=100.0 - 10 * place, step=1e-3),
        )
        for place, kernel in enumerate(members)
    )
    model = (machine, tuple(sorted(costs))) if fitted else ()
    return Ranking(members[0].group, gpu, measured, "for a test", problems, *model)


def opened(tmp_path: Path, kernels: Sequence[Kernel], *rankings: Ranking, **how: Any) -> Bundle:
    return cutlass_aot.open(write_bundle(tmp_path / "bundle", kernels, rankings=rankings), **how)


def digests(found: Sequence[Any]) -> list[str]:
    return [kernel.digest for kernel in found]


def test_without_rankings_the_default_order_decides(tmp_path: Path, gpu: dict[str, Any]) -> None:
    bundle = opened(tmp_path, F16)
    choice = bundle.choose(*operands(device=0))
    assert (choice.tier, choice.reason) == ("default order", NOT_FITTED)
    assert choice.kernel.digest == bundle.find(*operands(device=0))[0].digest
    assert str(choice) == f"{choice.kernel.name} (default order: {NOT_FITTED})"
    gpu["sms"] = 78
    assert cutlass_aot.open(bundle.path).choose(*operands(device=0)).reason == NOT_FITTED.replace("132", "78")


def test_a_problem_tuned_on_this_model_of_gpu(tmp_path: Path, gpu: dict[str, Any]) -> None:
    bundle = opened(tmp_path, F16, ranking(F16, order=(1, 2)))
    choice = bundle.choose(*operands(device=0))
    assert choice.tier == "tuned"
    assert choice.reason == "512x512x512 was measured: 10.0 µs, the best of 2"
    assert choice.kernel.digest == F16[1].digest
    # All of them: those that were measured by their times, then the others.
    assert digests(bundle.find(*operands(device=0))) == [F16[1].digest, F16[2].digest, F16[0].digest]


@pytest.mark.parametrize("formula", [FORMULA - 1, FORMULA + 1])
def test_constants_of_another_formula_are_not_taken_for_this_ones(
    tmp_path: Path, gpu: dict[str, Any], capsys: pytest.CaptureFixture[str], formula: int
) -> None:
    bundle = opened(tmp_path, F16, ranking(F16, order=(1, 2), fitted=True)._replace(formula=formula))
    times, others = bundle.choose(*operands(device=0)), bundle.choose(*operands(k=4096, device=0))
    # The times hold; other problems are chosen for as if no cost model had been fitted.
    assert (times.tier, times.kernel.digest) == ("tuned", F16[1].digest)
    unfitted = cutlass_aot.open(
        write_bundle(tmp_path / "unfitted", F16, rankings=[ranking(F16, order=(1, 2))])
    )
    assert (others.tier, others.kernel.digest) == (
        unfitted.choose(*operands(k=4096, device=0)).tier,
        unfitted.choose(*operands(k=4096, device=0)).kernel.digest,
    )
    assert others.tier != "fitted"
    assert not [one for one in verify_bundle(bundle.path) if "ranking" in one.path]
    with pytest.raises(SystemExit):
        main(["show", str(bundle.path), others.kernel.name])
    said = f"its cost model is of formula {formula} and not used: this release has {FORMULA}"
    assert said in " ".join(capsys.readouterr().out.split())


def test_a_batch_is_part_of_the_problem(tmp_path: Path, gpu: dict[str, Any]) -> None:
    bundle = opened(tmp_path, F16, ranking(F16, Extents(16, 512, 512, 512)))
    assert bundle.choose(*operands(batch=16, device=0)).tier == "tuned"
    assert bundle.choose(*operands(batch=8, device=0)).tier == "default order"
    assert bundle.choose(*operands(device=0)).tier == "default order"
    assert bundle.choose(*operands(batch=16, device=0)).reason.startswith("16 of 512x512x512 was measured")


def test_without_a_batch_and_with_a_batch_of_one_choose_the_same(tmp_path: Path, gpu: dict[str, Any]) -> None:
    bundle = opened(tmp_path, F16, ranking(F16))
    plain, batched = bundle.choose(*operands(device=0)), bundle.choose(*operands(batch=1, device=0))
    assert plain == batched
    assert plain.tier == "tuned"


def test_a_problem_that_was_not_measured_is_chosen_by_the_fitted_model(
    tmp_path: Path, gpu: dict[str, Any]
) -> None:
    bundle = opened(tmp_path, F16, ranking(F16, order=(1, 0, 2), fitted=True))
    assert bundle.choose(*operands(device=0)).tier == "tuned"
    choice = bundle.choose(*operands(k=4096, device=0))
    assert (choice.tier, choice.kernel.digest) == ("fitted", F16[2].digest)
    assert choice.reason == (
        "the least time by the cost model fitted on NVIDIA H200 and corrected by the measured problems near "
        "it"
    )
    assert digests(bundle.find(*operands(k=4096, device=0))) == [kernel.digest for kernel in F16[::-1]]


def test_a_choice_says_what_is_expected(tmp_path: Path, gpu: dict[str, Any]) -> None:
    bundle = opened(tmp_path, F16, ranking(F16, order=(1, 0), fitted=True))
    tuned, fitted = bundle.choose(*operands(device=0)), bundle.choose(*operands(k=4096, device=0))
    for choice in (tuned, fitted):
        assert choice.expected[0].kernel.digest == choice.kernel.digest
        assert len(choice.expected) == 3
        assert {item.bound for item in choice.expected} == {"launch"}
    assert tuned.expected[0].microseconds == pytest.approx(10.0)
    times = [item.microseconds for item in fitted.expected]
    assert times == sorted(times)
    assert times[0] > 80


def test_a_model_of_another_gpu_is_scaled(tmp_path: Path, gpu: dict[str, Any]) -> None:
    bundle = opened(tmp_path, F16, ranking(F16, gpu="NVIDIA H100", order=(0, 1), fitted=True))
    choice = bundle.choose(*operands(device=0))
    assert (choice.tier, choice.kernel.digest) == ("scaled", F16[2].digest)
    assert "fitted on NVIDIA H100, scaled to 132 SMs at 1980 MHz and 4917 GB/s" in choice.reason


def test_times_of_another_model_of_gpu_are_not_used(tmp_path: Path, gpu: dict[str, Any]) -> None:
    bundle = opened(tmp_path, F16, ranking(F16, gpu="NVIDIA H100 PCIe"))
    assert bundle.choose(*operands(device=0)).tier == "default order"
    gpu["name"] = "NVIDIA H100 PCIe"
    assert bundle.choose(*operands(device=0)).tier == "tuned"


def test_each_gpu_has_its_own_times(tmp_path: Path, gpu: dict[str, Any]) -> None:
    bundle = opened(
        tmp_path, F16, ranking(F16, order=(0, 1, 2)), ranking(F16, gpu="NVIDIA H20", order=(2, 1, 0))
    )
    assert bundle.choose(*operands(device=0)).kernel.digest == F16[0].digest
    gpu["name"] = "NVIDIA H20"
    assert bundle.choose(*operands(device=0)).kernel.digest == F16[2].digest


def test_a_ranking_of_the_build(tmp_path: Path, gpu: dict[str, Any]) -> None:
    bundle = opened(tmp_path, F16, ranking(F16, MODELLED, gpu="h200", measured=False, order=(0, 1)))
    choice = bundle.choose(*operands(8192, 8192, 8192, device=0))
    assert (choice.tier, choice.reason) == ("modelled", "8192x8192x8192 was ranked for h200")
    assert choice.kernel.digest == F16[0].digest
    near = bundle.choose(*operands(8192, 8192, 4096, device=0))
    assert near.reason == "8192x8192x8192, near 8192x8192x4096, was ranked for h200"
    assert bundle.choose(*operands(device=0)).tier == "default order"
    # Its order, then the others.
    found = bundle.find(*operands(8192, 8192, 8192, device=0))
    assert digests(found) == [F16[0].digest, F16[1].digest, F16[2].digest]


def test_measured_goes_before_modelled(tmp_path: Path, gpu: dict[str, Any]) -> None:
    bundle = opened(
        tmp_path,
        F16,
        ranking(F16, order=(1, 0, 2)),
        ranking(F16, gpu="h200", measured=False, order=(2, 1, 0)),
    )
    assert bundle.choose(*operands(device=0)).tier == "tuned"
    gpu["name"] = "another"
    choice = bundle.choose(*operands(device=0))
    assert (choice.tier, choice.kernel.digest) == ("modelled", F16[2].digest)


def test_rankings_can_be_left_out(tmp_path: Path, gpu: dict[str, Any]) -> None:
    root = write_bundle(tmp_path / "b", F16, rankings=[ranking(F16, order=(1,)), ranking(F16, MODELLED)])
    without = cutlass_aot.open(root, rankings=False)
    plain = cutlass_aot.open(write_bundle(tmp_path / "plain", F16))
    assert not without.uses_rankings
    assert plain.uses_rankings
    for given in (operands(device=0), operands(8192, 8192, 8192, device=0)):
        choice = without.choose(*given)
        assert choice.tier == "default order"
        assert choice.kernel.digest == plain.choose(*given).kernel.digest
        assert digests(without.find(*given)) == digests(plain.find(*given))
        assert cutlass_aot.open(root).choose(*given).tier == "tuned"


def test_a_gpu_can_be_named_for_operands_on_no_device(tmp_path: Path) -> None:
    bundle = opened(tmp_path, F16, ranking(F16, order=(1, 2)))
    assert bundle.choose(*operands()).tier == "default order"
    choice = bundle.choose(*operands(), gpu="NVIDIA H200")
    assert (choice.tier, choice.kernel.digest) == ("tuned", F16[1].digest)
    assert bundle.choose(*operands(), gpu="NVIDIA B200").tier == "default order"


@pytest.mark.parametrize(
    ("name", "tier"),
    [
        ("nvidia h200", "tuned"),
        ("h200", "tuned"),
        ("A100", "tuned"),
        # Another model by its driver, of which nothing was measured.
        ("NVIDIA A100", "default order"),
        ("H20", "default order"),
    ],
)
def test_a_gpu_can_be_named_short(tmp_path: Path, name: str, tier: str) -> None:
    bundle = opened(
        tmp_path,
        F16,
        ranking(F16),
        ranking(F16, gpu="NVIDIA H200 NVL"),
        ranking(F16, gpu="NVIDIA A100-PCIE-40GB"),
    )
    assert bundle.choose(*operands(), gpu=name).tier == tier
    assert bundle.find(*operands(), gpu=name)


@pytest.mark.parametrize("name", ["banana", "PCIe", "NVDIA H200"])
def test_a_name_of_no_gpu_is_refused(tmp_path: Path, name: str) -> None:
    bundle = opened(tmp_path, F16, ranking(F16))
    expected = f"nothing is known of a GPU model '{name}': expected NVIDIA H200, on which the bundle was"
    for ask in (bundle.find, bundle.choose):
        with pytest.raises(OperandError, match=expected):
            ask(*operands(), gpu=name)


def test_a_gpu_that_is_not_here_has_the_figures_of_its_model(tmp_path: Path) -> None:
    bundle = opened(tmp_path, F16)
    for name, figures in [
        ("NVIDIA H20", "78 SMs at 1980 MHz and 4000 GB/s"),
        ("h200", "132 SMs at 1980 MHz and 4814 GB/s"),
        ("NVIDIA H100 PCIe", "114 SMs at 1755 MHz and 2039 GB/s"),
        ("NVIDIA-H200-NVL", "132 SMs at 1785 MHz and 4814 GB/s"),
        # Nothing more is known of them than their compute capability, or nothing at all.
        ("GB200", "132 SMs at 1980 MHz and 3352 GB/s"),
        ("NVIDIA H200 MIG 1g.18gb", "132 SMs at 1980 MHz and 3352 GB/s"),
        ("NVIDIA X100", "132 SMs at 1980 MHz and 3352 GB/s"),
    ]:
        assert figures in bundle.choose(*operands(), target="sm_90a", gpu=name).reason


def test_a_short_name_of_several_gpus_is_refused(tmp_path: Path) -> None:
    models = "NVIDIA H100 PCIe", "NVIDIA H100 NVL"
    bundle = opened(tmp_path, F16, *(ranking(F16, gpu=model) for model in models))
    with pytest.raises(OperandError, match=r"'h100' can be NVIDIA H100 NVL or NVIDIA H100 PCIe.*: name one"):
        bundle.choose(*operands(), gpu="h100")
    assert bundle.choose(*operands(), gpu="H100 NVL").tier == "tuned"


def test_operands_own_gpu_goes_before_a_named_one(tmp_path: Path, gpu: dict[str, Any]) -> None:
    bundle = opened(tmp_path, F16, ranking(F16, gpu="NVIDIA B200"))
    assert bundle.choose(*operands(device=0), gpu="NVIDIA B200").tier == "default order"


def test_a_target_can_be_named_for_a_gpu_that_is_not_here(tmp_path: Path, gpu: dict[str, Any]) -> None:
    bundle = opened(tmp_path, [*F16, *B200], ranking(F16))
    choice = bundle.choose(*operands(device=5), target="sm_90a")
    assert (choice.tier, choice.kernel.target) == ("default order", "sm_90a")
    assert bundle.choose(*operands(), target="sm_100a").kernel.target == "sm_100a"


def test_choose_is_for_the_best_target_and_find_gives_all(tmp_path: Path, gpu: dict[str, Any]) -> None:
    bundle = opened(tmp_path, [*F16, *B200], ranking(F16, order=(1, 0)))
    assert bundle.choose(*operands()).kernel.target == bundle.targets[0] == "sm_100a"
    found = bundle.find(*operands())
    assert [kernel.target for kernel in found] == ["sm_100a"] * 3 + ["sm_90a"] * 3
    assert bundle.choose(*operands(device=0)).kernel.digest == F16[1].digest
    assert bundle.choose(*operands(), target="sm_90a", gpu="NVIDIA H200").kernel.digest == F16[1].digest


def test_groups_that_serve_the_same_problem_compete(tmp_path: Path, gpu: dict[str, Any]) -> None:
    rankings = (ranking(F16, first=2e-5), ranking(LOOSE, first=1.5e-5))
    bundle = opened(tmp_path, [*F16, *LOOSE], *rankings)
    assert len(bundle.groups) == 2
    times = {
        digest: seconds
        for item in rankings
        for digest, seconds in zip(item.problems[0].kernels, item.problems[0].seconds, strict=True)
    }
    choice = bundle.choose(*operands(device=0))
    assert choice.kernel.digest == LOOSE[1].digest
    assert choice.reason == "512x512x512 was measured: 15.0 µs, the best of 5"
    assert digests(bundle.find(*operands(device=0))) == sorted(times, key=lambda digest: times[digest])
    # Of operands that one group alone serves, that one's.
    assert bundle.choose(*operands(k=515, device=0)).kernel.digest == LOOSE[1].digest


@pytest.mark.parametrize("measured", [True, False])
def test_a_ranking_of_kernels_that_the_bundle_does_not_have_is_refused(
    tmp_path: Path, gpu: dict[str, Any], measured: bool
) -> None:
    mixed = ranking(F16, order=(2, 0), measured=measured)
    named = (*mixed.problems[0].kernels, "ab" * 32)
    times = (*mixed.problems[0].seconds, 1.0) if measured else ()
    bundle = opened(
        tmp_path, F16, mixed._replace(problems=RankedProblems([RankedProblem(TUNED, named, times)]))
    )
    with pytest.raises(CorruptFile, match=r"ranks kernel abababababababab, which group .* does not have"):
        bundle.choose(*operands(device=0))


def test_rankings_are_read_when_needed_and_once(
    tmp_path: Path, gpu: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    real = group_module.read_file
    monkeypatch.setattr(
        group_module, "read_file", lambda root, ref: (reads.append(ref.path), real(root, ref))[1]
    )
    bundle = opened(
        tmp_path,
        [*F16, *B200],
        ranking(F16, fitted=True),
        ranking(F16, gpu="NVIDIA H20"),
        ranking(F16, MODELLED, gpu="h200", measured=False),
        ranking(B200, gpu="NVIDIA B200"),
    )
    assert reads == []
    for _ in range(3):
        bundle.choose(*operands(device=0))
        bundle.find(*operands(k=640, device=0))
    # The group's own; of its rankings the one for this GPU.
    assert sorted(path.split("/")[0] for path in reads) == ["groups", "rankings"]
    assert all("sm_90a" in path for path in reads)
    reads.clear()
    cutlass_aot.open(bundle.path, rankings=False).choose(*operands(device=0))
    assert [path.split("/")[0] for path in reads] == ["groups"]


def changed_ranking(root: Path, data: bytes, **reference: Any) -> None:
    """Another ranking in a bundle of one group and one ranking, with every digest right."""
    catalog = cutlass_aot.open(root).catalog
    (group,) = catalog.groups
    (old,) = group.rankings
    new = old._replace(file=bundles.put(root, old.file.path, data), **reference)
    changed = replace(group, rankings=(new,))
    parent = bundles.put(root, CATALOG_NAME, replace(catalog, groups=Groups.of([changed])).to_bytes())
    bundles.write_manifest(root, [*changed.files, *catalog.launchers.values(), parent])


def test_a_ranking_that_is_damaged_or_another_is_refused(tmp_path: Path, gpu: dict[str, Any]) -> None:
    root = write_bundle(tmp_path / "b", F16, rankings=[ranking(F16)])
    (path,) = (root / "rankings").iterdir()
    good = path.read_bytes()

    def refused(match: str, error: type[Exception] = CorruptFile) -> None:
        with pytest.raises(error, match=match):
            cutlass_aot.open(root).choose(*operands(device=0))
        # Without rankings nobody looks at it.
        assert cutlass_aot.open(root, rankings=False).choose(*operands(device=0)).tier == "default order"

    path.write_bytes(good[:-1])
    refused("is truncated")
    path.write_bytes(good[:-1] + b"!")
    refused("was altered")
    path.unlink()
    refused("is missing", BundleError)
    changed_ranking(root, b"\x80")
    refused("is not a 'cutlass-aot ranking' file")
    changed_ranking(root, ranking(F16, gpu="NVIDIA B200").to_bytes())
    refused("is for NVIDIA B200, measured, the catalog says NVIDIA H200, measured: build")
    changed_ranking(root, ranking(F16, measured=False).to_bytes())
    refused("is for NVIDIA H200, modelled, the catalog says NVIDIA H200, measured")
    changed_ranking(root, good)
    assert cutlass_aot.open(root).choose(*operands(device=0)).tier == "tuned"


def test_names_of_other_gpus_leave_nothing_behind(tmp_path: Path) -> None:
    bundle = opened(tmp_path, F16, ranking(F16))
    reasons = {bundle.choose(*operands(), gpu=f"NVIDIA H20 {number}").reason for number in range(20)}
    assert len(reasons) == 20
    assert len(bundle._finder._found) == 1


def test_choose_refuses_as_find_does(tmp_path: Path, gpu: dict[str, Any]) -> None:
    bundle = opened(tmp_path, F16)
    a, b, out = operands(device=0)
    for ask in (bundle.find, bundle.choose):
        with pytest.raises(KernelNotFound, match="expected extent K divisible by 8, got 516"):
            ask(*operands(k=516, device=0))
        with pytest.raises(KernelNotFound, match="has nothing for target sm_80"):
            ask(a, b, out, target="sm_80")
        with pytest.raises(KernelNotFound, match="expected accumulator f32, got f16"):
            ask(a, b, out, accumulator="f16")
        with pytest.raises(KernelNotFound, match=r"no kernel for operation .conv.: it has gemm"):
            ask(a, b, out, operation="conv")
        with pytest.raises(KernelNotFound, match=r"expected 3 operands \(a, b, out\), got 2"):
            ask(a, b)


def test_a_gpu_without_a_target_is_asked_for_one(tmp_path: Path) -> None:
    bundle = cutlass_aot.open(write_bundle(tmp_path / "b", [*designs(), *designs(target="sm_100a")]))
    for ask in (bundle.choose, bundle.find):
        with pytest.raises(OperandError, match="name the target too, one of sm_100a, sm_90a"):
            ask(*operands(), gpu="NVIDIA H200")
        assert ask(*operands(), gpu="NVIDIA H200", target="sm_90a")


def test_a_bundle_says_what_it_was_tuned_for(tmp_path: Path) -> None:
    assert opened(tmp_path / "none", F16).tuned_for == ()
    modelled = ranking(F16, measured=False, gpu="B200")
    assert opened(tmp_path / "modelled", F16, modelled).tuned_for == ()
    tuned = opened(tmp_path / "tuned", F16, ranking(F16))
    assert tuned.tuned_for == ("NVIDIA H200",)
    other = tuned.choose(*operands(), target=F16[0].target, gpu="NVIDIA H100")
    assert other.reason.endswith("; measured on NVIDIA H200, not on 'NVIDIA H100'")


def test_choices_of_one_kernel_for_one_reason_are_equal(tmp_path: Path) -> None:
    bundle = opened(tmp_path, F16)
    one, again = (bundle.choose(*operands()) for _ in range(2))
    assert one == again
    assert hash(one) == hash(again)
    assert one != one.kernel
    assert one != bundle.choose(*operands(n=8192))
    assert repr(one) == f"Choice(kernel={one.kernel!r}, tier={one.tier!r}, reason={one.reason!r})"

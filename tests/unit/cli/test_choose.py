"""``cutlass-aot choose``: what it shows of a bundle without a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import cutlass_aot
from cutlass_aot import Operand
from cutlass_aot.bundle.apply_tuning import with_tuning
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.cli import main
from cutlass_aot.generators.declared import DeclaredGenerator
from cutlass_aot.generators.device_profiles import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.schema.kernels.tiling import Tiling, Traffic
from cutlass_aot.schema.tuning.costs import Machine
from cutlass_aot.schema.tuning.tuning import Accuracy
from cutlass_aot.tuning.fit import fit_group
from tests.support.bundles import designs
from tests.support.bundles import write_bundle as small_bundle
from tests.support.declared_kernels import tuned
from tests.support.kernels import gemm
from tests.support.replace import replace
from tests.support.synthetic import entry, group, kernels, plan
from tests.support.tunings import PROBLEM, tuned_group, tuning

F16 = kernels()
ACCURACY = Accuracy.of([1.0, 1.1], 3)
Run = Callable[..., tuple[object, str, str]]
SIZES = ("--m", PROBLEM.m, "--n", PROBLEM.n, "--k", PROBLEM.k)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*arguments: object) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(["choose", *map(str, arguments)])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return call


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Groups in f16, bf16 and with an output in f32. The first was measured at one problem, with a model."""
    measured = tuned_group([entry(kernel) for kernel in F16])
    tilings = {kernel.digest: Tiling.of(kernel) for kernel in F16}
    fitted = fit_group(measured, tilings, Traffic.of(F16[0].operands), "sm_90a", Machine(132, 1980, 4917))
    assert fitted.model is not None
    fitted = replace(fitted, model=replace(fitted.model, accuracy=ACCURACY))
    untuned = plan(tmp_path / "linked", rankings=())
    wide = group(tmp_path / "linked", kernels(dtypes=("bf16", "bf16", "f32")))
    made = with_tuning(replace(untuned, groups=(*untuned.groups, wide)), tuning([fitted]))
    write_bundle(made, tmp_path / "small")
    return tmp_path / "small"


def test_each_kind_of_gemm_has_its_choice(run: Run, bundle: Path) -> None:
    status, out, errors = run(bundle, *SIZES, "--gpu", "NVIDIA H200", "--top", 2)
    assert (status, errors) == (0, "")
    first, second, third, last = out.split("\n\n")
    assert last == "3 choices; name one by --dtypes (bf16.bf16.bf16, bf16.bf16.f32, f16.f16.f16)\n"
    assert " ".join(first.partition("kernel")[0].split()) == (
        "gemm-bf16.bf16.bf16-f32-tnt-sm_90a: tuned: 512x1024x2048 was measured as "
        "gemm-f16.f16.f16-f32-tnt-sm_90a: 10.0 µs, the best of 3 µs bound by"
    )
    assert " ".join(second.partition("µs")[0].split()) == (
        "gemm-bf16.bf16.f32-f32-tnt-sm_90a: fitted: the least time by the cost model fitted on NVIDIA H200 "
        "to kernels of other operands"
    )
    lines = third.splitlines()
    assert lines[0] == (
        "gemm-f16.f16.f16-f32-tnt-sm_90a: tuned: 512x1024x2048 was measured: 10.0 µs, the best of 3"
    )
    assert lines[1].split() == ["µs", "bound", "by", "kernel"]
    assert lines[2].startswith("10.0  ")
    assert lines[3].startswith("11.0  ")
    assert lines[4] == "and 1 other kernel; --top shows more"


def test_a_choice_names_the_formula_of_its_epilogue(run: Run, tmp_path: Path) -> None:
    kernels = [gemm(), gemm(epilogue="D = relu(accum)")]
    _, out, _ = run(small_bundle(tmp_path / "fused", kernels), "--m", 64, "--n", 64, "--k", 64)
    plain, fused, last = out.split("\n\n")
    assert "  D = relu(accum)\n" in fused
    assert "relu" not in plain
    assert last == "2 choices; name one by --epilogue ('', D = relu(accum))\n"


def test_filters_leave_some(run: Run, bundle: Path) -> None:
    status, out, _ = run(bundle, *SIZES, "--dtypes", "f16.*")
    assert (status, out.count(": default order: ") + out.count(": scaled: ")) == (0, 1)
    assert out.startswith("gemm-f16.f16.f16-f32-tnt-sm_90a: ")


def test_json(run: Run, bundle: Path) -> None:
    status, out, _ = run(bundle, *SIZES, "--gpu", "NVIDIA H200", "--json", "--dtypes", "f16.*")
    (found,) = json.loads(out)
    assert status == 0
    assert found["tier"] == "tuned"
    assert found["kernels"][0]["microseconds"] == pytest.approx(10.0)
    assert {kernel["bound"] for kernel in found["kernels"]} <= {"launch", "compute", "memory"}


def test_a_problem_that_nothing_serves_is_told(run: Run, bundle: Path) -> None:
    status, out, errors = run(bundle, "--m", 5, "--n", 64, "--k", 63)
    assert (status, out) == (1, "")
    assert "small has no GEMM for 5x64x63: operand `a` is unsupported: expected " in errors


@pytest.mark.parametrize("missing", ["--m", "--n", "--k"])
def test_all_extents_are_needed(run: Run, bundle: Path, missing: str) -> None:
    at = SIZES.index(missing)
    status, _, errors = run(bundle, *SIZES[:at], *SIZES[at + 2 :])
    assert status == 2
    assert f"Missing option '{missing}'" in errors


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Kernels of one's own, which differ in tuning, and a GEMM."""
    generator = DeclaredGenerator(tuned)
    found = generator.enumerate(Problem("tuned", (), "", ""), "sm_90a", load_profile("h200"))
    return small_bundle(tmp_path / "own", [*found, *designs()[:1]])


def test_a_kernel_of_ones_own_is_chosen_by_its_extents(run: Run, own: Path) -> None:
    status, out, _ = run(own, "--extent", "N=1000000")
    assert status == 0
    first, second, last = out.split("\n\n")
    assert last == "2 choices; name one by --dtypes (bf16.bf16, f32.f32)\n"
    assert first.startswith("tuned-bf16.bf16-tt-sm_90a-bf16: declared: the least by its cost formula")
    lines = second.splitlines()
    assert lines[0].startswith("tuned-f32.f32-tt-sm_90a-f32: declared: the least by its cost formula")
    assert [line.split()[-1].rpartition("-")[0].rpartition("f32-")[2] for line in lines[2:]] == [
        "threads256-wide", "threads256", "threads128",
    ]  # fmt: skip
    assert lines[1].split() == ["cost", "kernel"]
    # ceil(1000000 / threads / 132) is 30 or 60.
    assert [line.split()[0] for line in lines[2:]] == ["9599", "9600", "11520"]
    status, out, _ = run(own, "--extent", "N=1000", "--dtypes", "f32.f32", "--json")
    (record,) = json.loads(out)
    assert record["tier"] == "declared"
    assert "threads128" in record["kernels"][0]["name"]
    assert [kernel["cost"] for kernel in record["kernels"]] == [192, 319, 320]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            ("--extent", "M=4"),
            "own has no kernel for M = 4: --extent N is missing, there is no extent M; its extents are N "
            "(tuned-bf16.bf16-tt-sm_90a-bf16, tuned-f32.f32-tt-sm_90a-f32)",
        ),
        (
            ("--extent", "n=4"),
            "own has no kernel for n = 4: --extent N is missing, there is no extent n; did you mean 'N'?",
        ),
        (("--extent", "N=4", "--m", "1"), "--extent is for what is not a GEMM"),
        (("--extent", "N=0"), "N=0: expected a whole number from 1 to 9223372036854775807"),
        (("--extent", f"N={2**63}"), "expected a whole number from 1 to 9223372036854775807"),
        (("--extent", f"N={'9' * 5000}"), "expected a whole number from 1 to 9223372036854775807"),
        (("--extent", f"N={2**31}"), "operand `x` is unsupported: expected extents up to 2147483647"),
        (("--extent", "N"), "expected a name, = and a value"),
    ],
)
def test_extents_that_no_kernel_has_are_refused(
    run: Run, own: Path, arguments: tuple[str, ...], problem: str
) -> None:
    status, _, errors = run(own, *arguments)
    assert status in (1, 2)
    assert problem.removeprefix("own") in " ".join(errors.split())


def test_equal_costs_are_told(run: Run, tmp_path: Path) -> None:
    status, out, _ = run(made_of(tmp_path / "b", *VECTORS, cost="ceil(N / 1024)"), "--extent", "N=4096")
    assert status == 0
    title, _, rows = out.partition("cost  kernel")
    assert "the least by its cost formula, 4, the first of 2 kernels with this value" in " ".join(
        title.split()
    )
    assert [row.split()[0] for row in rows.splitlines()[1:]] == ["4", "4"]


def test_a_quotient_does_not_say_what_its_named_extent_is(run: Run, tmp_path: Path) -> None:
    bundle = made_of(
        tmp_path / "b",
        Operand("x", "f32", ("M", "K")),
        Operand("scale", "f32", ("M", "K / 128")),
        Operand("out", "f32", ("M",), written=True),
        cost="ceil(K / 1024)",
    )
    status, out, errors = run(bundle, "--extent", "M=8", "--extent", "K=4000")
    assert (status, errors) == (0, "")
    assert "the least by its cost formula, 4, the first of 2" in " ".join(out.split())


def test_a_reason_is_told_once_for_all_groups(run: Run, own: Path) -> None:
    _, _, errors = run(own, "--extent", "M=4", "--extent", "N=4")
    assert errors.count("its extents are N") == errors.count("there is no extent M") == 1


@pytest.mark.parametrize("name", ["NVIDIA H200", "nvidia h200", "H200", "h200"])
def test_a_gpu_is_named_as_people_write_it(run: Run, bundle: Path, name: str) -> None:
    status, out, _ = run(bundle, *SIZES, "--gpu", name, "--dtypes", "f16.*")
    assert status == 0
    assert out.startswith("gemm-f16.f16.f16-f32-tnt-sm_90a: tuned: ")


def test_a_gpu_that_was_not_measured_is_said_to_be_so(run: Run, bundle: Path) -> None:
    status, out, _ = run(bundle, *SIZES, "--gpu", "H100", "--dtypes", "f16.*")
    assert status == 0
    assert "measured on NVIDIA H200, not on 'H100'" in " ".join(out.split())


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("NVIDIAH200", "NVIDIA H200"),
        ("H2000", "H200"),
        ("NVIDIA H2000", "H200"),
        ("NVIDIA H200x", "H200"),
        # It was taken for another model of the same compute capability.
        ("NVIDA H200", "NVIDIA H200"),
        ("nvdia h100 pcie", "NVIDIA h100 pcie"),
        ("xyz", ""),
    ],
)
def test_a_gpu_that_nobody_knows_is_refused(run: Run, bundle: Path, name: str, meant: str) -> None:
    status, out, errors = run(bundle, *SIZES, "--gpu", name)
    assert (status, out) == (2, "")
    assert (
        f"nothing is known of a GPU model {name!r}: expected NVIDIA H200, on which the bundle was measured"
        in errors
    )
    assert f"did you mean {meant!r}?" in errors if meant else "did you mean" not in errors


@pytest.mark.parametrize("name", ["NVIDIA H200 NVL", "Tesla H100", "GH200 480GB"])
def test_a_gpu_that_was_not_measured_may_be_named_as_its_driver_does(
    run: Run, bundle: Path, name: str
) -> None:
    assert run(bundle, *SIZES, "--gpu", name)[0] == 0


def test_targets_that_a_gpu_does_not_run_are_left_out(run: Run, bundle: Path) -> None:
    status, _, errors = run(bundle, *SIZES, "--gpu", "B200")
    assert status == 1
    assert "sm_90a does not run on compute capability 10.0 of B200" in errors


VECTORS = (Operand("x", "f32", ("N",)), Operand("out", "f32", ("N",), written=True))


def made_of(folder: Path, *operands: Operand, cost: str = "") -> Path:
    """A bundle of kernels of one's own with these operands."""
    constraints = tuple(operand.constraint() for operand in operands)
    found = [gemm(operation="own", design={"threads": threads}, cost=cost) for threads in (128, 256)]
    return small_bundle(folder, [replace(kernel, operands=constraints, accumulator="") for kernel in found])


@pytest.mark.parametrize(
    ("extents", "names"),
    [
        ((("A", "B", "C"), ("D", "E")), ("A=8", "B=8", "C=8", "D=8", "E=8")),
        ((("4 * G", "D"), ("2 * G", "D")), ("G=2", "D=8")),
    ],
)
def test_any_extents_of_ones_own_are_chosen_by(
    run: Run, tmp_path: Path, extents: tuple[tuple[str, ...], ...], names: tuple[str, ...]
) -> None:
    first, second = extents
    bundle = made_of(tmp_path / "b", Operand("x", "f32", first), Operand("out", "f32", second, written=True))
    status, out, errors = run(bundle, *(part for name in names for part in ("--extent", name)))
    assert (status, errors) == (0, "")
    assert out.startswith("own-f32.f32-tt-sm_90a: default order: ")
    status, _, errors = run(bundle, "--extent", "D=8")
    assert status == 1
    assert f"its extents are {', '.join(name.partition('=')[0] for name in names)}" in " ".join(
        errors.split()
    )


def test_an_extent_that_others_are_multiples_of_is_named_as_it_is_typed(run: Run, tmp_path: Path) -> None:
    rows = ("T", "128 * B")
    bundle = made_of(
        tmp_path / "b",
        Operand("x", "bf16", rows),
        Operand("out", "u8", rows, written=True),
        Operand("scale", "f32", ("T", "B"), written=True),
    )
    where = "where `x` is (T, 128 * B)"
    for given, said in (
        (("T=64", "n=7168"), f"its extents are T, B, {where}: --extent B=56 for 128 * B = 7168"),
        # No multiple of 128, and a name that is misspelt.
        (("T=64", "n=200"), f"its extents are T, B, {where} ("),
        (("t=128",), f"there is no extent t; did you mean 'T'?; its extents are T, B, {where} ("),
    ):
        status, _, errors = run(bundle, *(part for item in given for part in ("--extent", item)))
        assert status == 1
        assert said in " ".join(errors.split())
    _, _, errors = run(bundle, "--m", 4, "--n", 4, "--k", 4)
    assert f"own is chosen by --extent T=... --extent B=..., {where}" in " ".join(errors.split())
    assert run(bundle, "--extent", "T=64", "--extent", "B=56")[0] == 0


def test_extents_of_64_bits_are_chosen_by(run: Run, tmp_path: Path) -> None:
    x, out = (Operand(name, "f32", ("N",), written=name == "out", extent_bits=64) for name in ("x", "out"))
    status, shown, errors = run(made_of(tmp_path / "b", x, out), "--extent", "N=3000000000")
    assert (status, errors) == (0, "")
    assert shown.startswith("own-f32.f32-tt-sm_90a: default order: ")


def test_show_says_what_a_groups_choices_are_known_by(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {}
    for kernel in cutlass_aot.open(bundle).kernels():
        with pytest.raises(SystemExit):
            main(["show", str(bundle), kernel.digest])
        # It is the last one, and may take several lines.
        _, _, text = capsys.readouterr().out.partition("\nrankings ")
        known[kernel.group.name] = " ".join(text.split())
    origin = "tuned 2026-11-21 on NVIDIA H200, driver 580.159.04"
    assert known == {
        "gemm-bf16.bf16.bf16-f32-tnt-sm_90a": f"1 problem, {origin} as gemm-f16.f16.f16-f32-tnt-sm_90a",
        "gemm-bf16.bf16.f32-f32-tnt-sm_90a": f"0 problems, {origin}",
        "gemm-f16.f16.f16-f32-tnt-sm_90a": f"1 problem, {origin}: {ACCURACY}",
    }


def test_a_parameter_leaves_one_choice(run: Run, own: Path) -> None:
    status, out, _ = run(own, "--extent", "N=1000", "--where", "dtype=f*")
    assert (status, out.count("declared: "), "choices" in out) == (0, 1, False)
    assert out.startswith("tuned-f32.f32-tt-sm_90a-f32: ")
    status, _, errors = run(own, "--extent", "N=1000", "--where", "dtype=f16")
    assert status == 1
    assert "no kernel matches the filters; it has --where dtype=: bf16, f32" in errors
    status, _, errors = run(own, "--extent", "N=1000", "--where", "dtyp=f32")
    assert status == 2
    assert "no kernel of small has a parameter 'dtyp': it has dtype; did you mean 'dtype'?" in errors


def test_choices_that_only_parameters_tell_apart_are_named_by_them(run: Run, tmp_path: Path) -> None:
    operands = tuple(operand.constraint() for operand in VECTORS)
    made = [
        replace(gemm(operation="own"), operands=operands, accumulator="", parameters=(("causal", causal),))
        for causal in (False, True)
    ]
    status, out, _ = run(small_bundle(tmp_path / "b", made), "--extent", "N=4096")
    assert status == 0
    assert out.endswith("\n\n2 choices; name one by --where causal= (false, true)\n")


def test_filters_that_leave_nothing_are_named(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["choose", str(bundle), "--m", "4", "--n", "64", "--k", "64", "--target", "sm_90"])
    assert capsys.readouterr().err.endswith(
        "has no GEMM for 4x64x64: no GEMM matches the filters; it has --target: sm_90a\n"
    )


def test_a_bundle_without_kernels_of_the_kind_says_what_it_has(run: Run, bundle: Path) -> None:
    status, _, errors = run(bundle, "--extent", "N=1000")
    assert status == 1
    assert errors.endswith("has no kernel for N = 1000: it has GEMMs, which --m, --n and --k name\n")


def test_kernels_that_are_no_gemms_say_by_which_options_they_are_chosen(run: Run, tmp_path: Path) -> None:
    grouped = replace(gemm(operation="grouped_gemm"), operands=tuple(item.constraint() for item in VECTORS))
    small_bundle(tmp_path / "b", [grouped])
    status, _, errors = run(tmp_path / "b", "--m", 4, "--n", 64, "--k", 64)
    assert status == 1
    assert errors.endswith("has no GEMM for 4x64x64: grouped_gemm is chosen by --extent N=...\n")
    small_bundle(tmp_path / "both", [grouped, gemm()])
    status, out, _ = run(tmp_path / "both", "--m", 64, "--n", 64, "--k", 64)
    assert status == 0
    assert out.endswith("\n\ngrouped_gemm is chosen by --extent N=...\n")

"""``cutlass-aot tune``: measuring on a pretended GPU, applying without any, and what is used wrongly."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from cutlass_aot import Operand
from cutlass_aot.bundle.verify.directory import require_sound, verify_bundle
from cutlass_aot.bundle.write import write_bundle
from cutlass_aot.cli import main, tune
from cutlass_aot.errors import DeviceError, LaunchError
from cutlass_aot.runtime import bundle as runtime_bundle
from cutlass_aot.runtime.bundle import open_bundle
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.schema.kernels.operands import packed
from cutlass_aot.schema.tuning.costs import FORMULA, Machine
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.schema.tuning.tuned import objects_of, rankings
from cutlass_aot.schema.tuning.tuning import read_tuning, write_tuning
from cutlass_aot.tuning.design import design
from tests.support.bundles import write_bundle as small_bundle
from tests.support.kernels import gemm
from tests.support.replace import replace
from tests.support.signing import make_key, without_cryptography
from tests.support.synthetic import entry, kernels, plan
from tests.support.tunings import GPU, tuned_group, tuning

F16 = kernels()
SHAPES = "m = [8, 16]\n\n[layers]\nnk = [[16, 32]]\n"
PROBLEMS = [Extents(1, 8, 16, 32), Extents(1, 16, 16, 32)]


@pytest.fixture
def run(capsys):
    """Call ``cutlass-aot tune``; returns exit status, standard output and standard error.

    However long it took, it says 0 s.
    """

    def call(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(["tune", *map(str, arguments)])
        captured = capsys.readouterr()
        return caught.value.code, re.sub(r"in \d+ s", "in 0 s", captured.out), captured.err

    return call


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a bundle and a list of problems, which is the working directory."""
    write_bundle(plan(tmp_path / "linked", rankings=()), tmp_path / "small")
    (tmp_path / "s.toml").write_text(SHAPES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def driver(monkeypatch):
    """A driver with one H200."""
    answers = {
        "compute_capability": (9, 0),
        "device_name": GPU,
        "machine": Machine(132, 1980, 4917),
        "l2_bytes": 1 << 16,
        "bus_id": "0000:00:00.0",
    }
    for name, answer in answers.items():
        monkeypatch.setattr(cuda_driver, name, lambda ordinal, answer=answer: answer)
    monkeypatch.setattr(cuda_driver, "driver_version", lambda: (13, 0))
    monkeypatch.setattr(cuda_driver, "driver_release", lambda: "580.159.04")


@pytest.fixture
def gpu(driver, monkeypatch):
    """That H200 can be used: kernels compute on the CPU, and the later a kernel's tile, the faster it is."""
    torch = pytest.importorskip("torch")
    from cutlass_aot.tuning import gpu as bench
    from tests.support.pretend_gpu import PretendGpu

    pretended = PretendGpu()
    pretended.wrong = set()
    pretended.interrupted_at = None

    def launch(handle, a, b, out):
        capturing = pretended.capturing is not None
        if out.shape[1] == pretended.interrupted_at:
            raise KeyboardInterrupt
        if handle.digest in pretended.wrong:
            raise LaunchError(f"kernel {handle.name} refused the call")

        def work():
            pretended.now += 1e-3 / handle.design["tile_shape"][1]
            if not capturing:
                out.copy_(torch.matmul(a.double(), b.double()))

        pretended.run(work)

    monkeypatch.setattr(bench, "WARM_UP_SECONDS", 0.0)
    monkeypatch.setattr(bench, "import_torch", lambda ordinal: pretended)
    monkeypatch.setattr(KernelHandle, "launch", launch)
    return pretended


def tree(folder):
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_problem_of_ones_own_is_found_again_under_its_names(run, tmp_path, gpu, monkeypatch):
    """Also if its names are those of a GEMM, in another order: the weight of a linear layer is (N, K)."""
    constraints = tuple(
        operand.constraint()
        for operand in (
            Operand("x", "f32", ("M", "K")),
            Operand("w", "f32", ("N", "K")),
            Operand("out", "f32", ("M", "N"), written=True),
        )
    )
    members = [
        replace(
            gemm(operation="linear", design={"tile_shape": (64, n, 32)}), operands=constraints, accumulator=""
        )
        for n in (64, 128)
    ]
    bundle = open_bundle(small_bundle(tmp_path / "linear", members), check=False)
    monkeypatch.setattr(runtime_bundle, "open_bundle", lambda path, **_: bundle)
    monkeypatch.setattr(bundle, "require", lambda target, gpu: None)
    monkeypatch.setattr(tune, "_references", lambda *_: {"linear": lambda x, w, out: x @ w.T})
    launch = KernelHandle.launch
    monkeypatch.setattr(KernelHandle, "launch", lambda handle, x, w, out: launch(handle, x, w.T, out))
    (tmp_path / "s.toml").write_text("[layer]\nM = 16\nN = 48\nK = 32\n")
    status, _, errors = run(tmp_path / "linear", "--shapes", tmp_path / "s.toml", "-o", tmp_path / "t.json")
    assert status == 0, errors
    measured = read_tuning(tmp_path / "t.json")
    tuned = rankings(measured, objects_of(handle.entry for handle in bundle.kernels()))
    found = open_bundle(small_bundle(tmp_path / "tuned", members, rankings=tuned), check=False)
    operands = packed(constraints, {"M": 16, "N": 48, "K": 32})
    choice = found.choose(*operands, operation="linear", target="sm_90a", gpu=GPU)
    assert choice.tier == "tuned"
    assert choice.reason.startswith("M = 16, K = 32, N = 48 was measured: ")


# -- measuring --------------------------------------------------------------------------------------------


def test_a_table_whose_names_no_kernel_has_is_told(run, here, gpu):
    (here / "s.toml").write_text(SHAPES + "\n[misspelt]\nmm = 4\nkk = [1, 2]\n")
    status, _, errors = run("small", "--shapes", "s.toml")
    assert status == 0
    assert "s.toml: no kernel of small has the extents mm, kk: left out" in errors
    assert errors.count("left out") == 1


def test_problems_of_a_gemm_may_be_named_by_their_extents(run, here, gpu):
    named = "[router]\nM = [8, 16]\nN = 64\nK = 128\n[batched]\nL = 2\nM = 8\nN = 64\nK = 128\n"
    again = "[layers]\nnk = [[64, 128]]\nm = 8\n[lacking]\nM = 8\nN = 64\n"
    (here / "s.toml").write_text(named + again)
    status, _, errors = run("small", "--shapes", "s.toml", "-o", "t.json")
    assert status == 0, errors
    assert "no kernel of small has the extents M, N: left out" in errors
    assert errors.count("left out") == 1
    groups = read_tuning(here / "t.json").groups
    assert len(groups) == 2
    for group in groups:
        assert [problem.extents for problem in group.problems] == [
            Extents(1, 8, 64, 128), Extents(1, 16, 64, 128), Extents(2, 8, 64, 128)
        ]  # fmt: skip


def test_a_bundle_is_measured_into_a_file(run, here, gpu):
    before = tree(here / "small")
    status, out, errors = run("small", "--shapes", "s.toml")
    assert status == 0
    assert out.splitlines()[0] == "build/tuning/small.nvidia-h200.json: 4 problems measured in 0 s"
    assert [line.partition(": ")[2] for line in out.splitlines()[1:]] == [
        "cost model fitted: too few problems to say how well it chooses"
    ] * 2
    assert errors.startswith("tuning on NVIDIA H200: 2 groups, 6 kernels, 4 problems\n")
    found = read_tuning(here / "build/tuning/small.nvidia-h200.json")
    assert (found.gpu, found.compute_capability, found.cuda) == (GPU, "9.0", "13.0")
    assert (found.driver, found.bundle) == ("580.159.04", "small 0.1.0")
    # What measured, and what the kernels were built with.
    assert {"cutlass-aot", "torch", "apache-tvm-ffi"} <= set(found.versions)
    assert found.versions["nvidia-cutlass-dsl"] == "4.8.1"
    assert found.machine == Machine(132, 1980, 4917)
    for group in found.groups:
        assert group.model is not None
        assert [problem.extents for problem in group.problems] == PROBLEMS
        names = {kernel.digest: kernel.name for kernel in group.kernels}
        for problem in group.problems:
            assert "-128x256x64-" in names[problem.ranked[0][0]]
            assert problem.ranked[0][1] == pytest.approx(1e3 / 256, abs=1e-3)
    assert tree(here / "small") == before


def test_the_same_command_goes_on(run, here, gpu):
    (here / "short.toml").write_text("m = [8]\n[layers]\nnk = [[16, 32]]\n")
    run("small", "--shapes", "short.toml", "-o", "t.json")
    status, out, _ = run("small", "--shapes", "s.toml", "-o", "t.json")
    assert status == 0
    assert out.startswith("t.json: 2 problems measured in 0 s, 2 measured before\n")
    before = (here / "t.json").read_bytes()
    assert ", 4 measured before\n" in run("small", "--shapes", "s.toml", "-o", "t.json")[1]
    assert (here / "t.json").read_bytes() == before
    assert "4 problems measured in 0 s\n" in run("small", "--shapes", "s.toml", "-o", "t.json", "--force")[1]


def test_apply_writes_a_bundle_that_chooses_by_it(run, here, gpu):
    status, out, _ = run("small", "--shapes", "s.toml", "-o", "t.json", "--apply", "tuned")
    assert status == 0
    assert out.splitlines()[-1] == "tuned: 4 problems tuned on NVIDIA H200, written"
    assert verify_bundle(here / "tuned") == []
    assert run("small", "--from", "t.json", "--apply", "again")[0] == 0
    assert tree(here / "again") == tree(here / "tuned")
    # In place, and once more.
    status, out, _ = run("small", "--shapes", "s.toml", "-o", "t.json", "--apply", "small")
    assert out.endswith("small: 4 problems tuned on NVIDIA H200, written\n")
    assert tree(here / "small") == tree(here / "tuned")
    status, out, _ = run("small", "--shapes", "s.toml", "-o", "t.json", "--apply", "small")
    assert out.endswith("small: 4 problems tuned on NVIDIA H200, up to date\n")


def test_a_kernel_that_fails_is_told_and_the_others_are_ranked(run, here, gpu):
    gpu.wrong = {F16[2].digest}
    status, out, errors = run("small", "--shapes", "s.toml", "-o", "t.json", "--apply", "tuned")
    assert status == 1
    assert f"failed: {F16[2].name}: 8x16x32: kernel {F16[2].name} refused the call\n" in errors
    assert "  and on 1 other problem; the file has all\n" in errors
    assert "; 1 kernel failed, not ranked there\n" in out
    # What gave a wrong result once must not be chosen for another problem.
    assert f"kernel {F16[2].name} failed at 8x16x32 (kernel {F16[2].name} refused the call)" in errors
    assert not (here / "tuned").exists()
    group = next(g for g in read_tuning(here / "t.json").groups if g.digest == F16[0].group)
    assert group.problems[0].ranked[0][0] == F16[1].digest


def test_an_interrupt_keeps_what_was_measured(run, here, gpu):
    gpu.interrupted_at = 16
    status, out, errors = run("small", "--shapes", "s.toml", "-o", "t.json", "--apply", "tuned")
    assert (status, out) == (130, "")
    assert errors.splitlines()[-1].startswith("error: interrupted; what was measured is kept, and the same")
    assert [len(group.problems) for group in read_tuning(here / "t.json").groups] == [1]
    assert not (here / "tuned").exists()


def test_events_as_json(run, here, gpu):
    (here / "s.toml").write_text(SHAPES + "[odd]\nnk = [[16, 30]]\n")
    status, out, errors = run("small", "--shapes", "s.toml", "-o", "t.json", "--apply", "tuned", "--json")
    assert (status, errors) == (0, "")
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in events] == [
        "begin", *["measured"] * 4, "end", "fitted", "fitted", "applied",
    ]  # fmt: skip
    assert events[0]["problems"] == 4
    assert len(events[0]["notes"]) == 2
    assert events[1]["extents"] == {"batch": 1, "m": 8, "n": 16, "k": 32}
    assert (events[1]["ranked"], events[1]["stopped"], events[1]["failed"]) == (1, 2, 0)
    assert events[4]["seconds_left"] == 0
    assert (events[5]["measured"], events[5]["kept"], events[5]["path"]) == (4, 0, "t.json")
    assert events[6]["accuracy"] is None
    assert events[8] == {
        "event": "applied", "gpu": GPU, "path": "tuned", "problems": 4, "written": True,
    }  # fmt: skip


def test_problems_are_drawn(run, here, gpu):
    """Sixteen rows at most, to be quick; two groups, with the same problems, beside those of a list."""
    status, _, errors = run("small", "--design", "2", "--shapes", "s.toml", "-o", "t.json")
    assert (status, "failed" in errors) == (0, False)
    for group in read_tuning(here / "t.json").groups:
        found = {problem.extents for problem in group.problems}
        assert len(found) == 4
        assert found >= set(PROBLEMS)
        assert found - set(PROBLEMS) == set(design(F16[0].operands, 2))


def test_the_time_is_bounded_and_shared_by_the_groups(run, here, gpu):
    run("small", "--shapes", "s.toml", "-o", "t.json", "--minutes", "1e-12")
    assert read_tuning(here / "t.json").groups == ()


# -- fitting anew -----------------------------------------------------------------------------------------


def test_fitting_needs_no_gpu_and_keeps_the_times(run, measured):
    before = read_tuning(measured / "t.json")
    status, out, errors = run("small", "--fit", "t.json")
    assert (status, errors) == (0, "")
    assert out == f"{F16[0].group_name}: cost model fitted: too few problems to say how well it chooses\n"
    after = read_tuning(measured / "t.json")
    assert after.groups[0].problems == before.groups[0].problems
    assert all(kernel.costs is not None for kernel in after.groups[0].kernels)
    assert run("small", "--fit", "t.json", "-o", "other.json")[0] == 0
    assert (measured / "other.json").read_bytes() == (measured / "t.json").read_bytes()
    assert run("small", "--from", "other.json", "--apply", "tuned")[0] == 0
    assert verify_bundle(measured / "tuned") == []


def test_a_file_of_another_bundle_is_not_fitted(run, measured):
    write_tuning(tuning([tuned_group([entry(k) for k in kernels(layouts="nnn")])]), measured / "t.json")
    before = (measured / "t.json").read_bytes()
    status, _, errors = run("small", "--fit", "t.json")
    assert status == 1
    assert "which bundle small does not have: name the bundle that was measured" in errors
    assert (measured / "t.json").read_bytes() == before


# -- applying a file --------------------------------------------------------------------------------------


@pytest.fixture
def measured(here):
    """A tuning file of one group."""
    write_tuning(tuning([tuned_group([entry(kernel) for kernel in F16])]), here / "t.json")
    return here


def test_applying_needs_no_torch_and_no_gpu(measured):
    code = (
        "import sys\nfrom cutlass_aot.cli import main\n"
        "try:\n    main(['tune', 'small', '--from', 't.json', '--apply', 'tuned'])\n"
        "except SystemExit as done:\n    status = done.code\n"
        "print(status, sorted({'cutlass', 'torch', 'tvm_ffi', 'cuda'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["tuned: 1 problem tuned on NVIDIA H200, written", "0 []"]
    assert verify_bundle(measured / "tuned") == []


def test_applying_as_json(run, measured):
    status, out, _ = run("small", "--from", "t.json", "--apply", "tuned", "--json")
    assert status == 0
    assert json.loads(out)["written"] is True


def test_a_file_without_a_cost_model_is_applied_with_advice(run, measured):
    _, _, errors = run("small", "--from", "t.json", "--apply", "tuned")
    assert errors.startswith(
        f"t.json: no cost model of formula {FORMULA} was fitted to the times of {F16[0].group_name}: "
    )
    run("small", "--fit", "t.json")
    assert run("small", "--from", "t.json", "--apply", "tuned")[2] == ""


def test_constants_that_an_earlier_formula_was_fitted_by_are_not_applied(run, measured):
    run("small", "--fit", "t.json")
    path = measured / "t.json"
    assert f'"formula": {FORMULA},' in path.read_text()
    path.write_text(re.sub(r' *"formula": \d+,\n', "", path.read_text()))
    status, _, errors = run("small", "--from", "t.json", "--apply", "tuned")
    assert (status, f"no cost model of formula {FORMULA} was fitted" in errors) == (0, True)
    ranking = next(iter(require_sound(measured / "tuned").plan().rankings))
    assert (len(ranking.problems), ranking.costs) == (1, ())


def test_signatures_that_nobody_can_check_are_told(run, measured, monkeypatch):
    make_key(measured / "keys", 1).sign(measured / "small")
    without_cryptography(monkeypatch)
    status, _, errors = run("small", "--from", "t.json", "--apply", "small")
    assert (status, errors.startswith("small: signatures not checked: ")) == (0, True)
    # It is another bundle now, which nobody has signed.
    assert "signatures not checked" not in run("small", "--from", "t.json", "--apply", "small")[2]


def test_a_file_of_another_bundle_is_refused(run, measured):
    write_tuning(tuning([tuned_group([entry(k) for k in kernels(layouts="nnn")])]), measured / "t.json")
    status, out, errors = run("small", "--from", "t.json", "--apply", "tuned")
    assert (status, out) == (1, "")
    assert errors.startswith("error: t.json: the tuning file has times of kernel gemm-f16.f16.f16-f32-nnn-")
    assert "which bundle small does not have: name the bundle that was measured" in errors
    assert not (measured / "tuned").exists()


def test_a_file_that_is_none_is_refused(run, measured):
    assert run("small", "--from", "s.toml", "--apply", "tuned")[2].startswith(
        "error: s.toml is not readable JSON"
    )
    assert run("small", "--from", "no.json", "--apply", "tuned")[2].startswith(
        "error: no.json: the tuning file cannot be read"
    )


def test_a_folder_that_is_no_bundle_is_never_replaced(run, measured):
    (measured / "mine").mkdir()
    (measured / "mine" / "thesis.txt").write_text("years of work")
    status, _, errors = run("small", "--from", "t.json", "--apply", "mine")
    assert status == 1
    assert "mine is a directory that holds 'thesis.txt'; expected nothing" in errors


# -- wrong use --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "Missing argument 'BUNDLE'"),
        (["small"], "Missing option '--shapes' or '--design': the problems to measure"),
        (["small", "--from", "t.json"], "--from needs --apply"),
        (
            ["small", "--from", "t.json", "--apply", "o", "--shapes", "s.toml"],
            "--shapes does not go with --from, which measures nothing",
        ),
        (["small", "--from", "t.json", "--apply", "o", "--gpu", "0"], "--gpu does not go with --from"),
        (["small", "--from", "t.json", "--apply", "o", "--force"], "--force does not go with --from"),
        (["small", "--from", "t.json", "--apply", "o", "--group", "g"], "--group does not go with --from"),
        (["small", "--from", "t.json", "--apply", "o", "-o", "t"], "-o does not go with --from"),
        (["small", "--fit", "t.json", "--apply", "o"], "--apply does not go with --fit"),
        (["small", "--fit", "t.json", "--minutes", "3"], "--minutes does not go with --fit"),
        (["small", "--shapes", "no.toml"], "error: no.toml: cannot be read: No such file"),
        (["small", "--shapes", "bad.toml"], "error: bad.toml: `m` is missing"),
        (["small", "--shapes", "s.toml", "--gpu", "-1"], "-1 is not in the range"),
        (
            ["small", "--design", "1", "--gpu", "H200"],
            "'H200': expected the number of a GPU, such as 0; cutlass-aot doctor lists those",
        ),
    ],
)
def test_wrong_use_exits_with_2(run, here, arguments, message):
    (here / "bad.toml").write_text("[a]\nnk = [[1, 1]]\n")
    status, out, errors = run(*arguments)
    assert (status, out) == (2, "")
    assert message in errors


def test_a_list_of_problems_is_bounded(run, here):
    (here / "s.toml").write_text("#" * ((4 << 20) + 1))
    status, _, errors = run("small", "--shapes", "s.toml")
    assert status == 2
    assert errors.startswith("error: s.toml: larger than ")


def test_without_a_gpu_the_reason_is_told(run, here, monkeypatch):
    def absent(ordinal):
        raise DeviceError("there is no NVIDIA driver on this machine")

    monkeypatch.setattr(cuda_driver, "compute_capability", absent)
    status, _, errors = run("small", "--shapes", "s.toml")
    assert (status, errors) == (1, "error: there is no NVIDIA driver on this machine\n")


def test_without_torch_the_reason_is_told(run, here, driver, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    status, _, errors = run("small", "--shapes", "s.toml")
    assert status == 1
    assert errors.startswith(
        "error: measuring on a GPU needs the package torch, which cannot be imported here ("
    )
    assert errors.endswith("pip install 'torch>=2.11'\n")
    assert not (here / "build").exists()


def test_torch_without_cuda_is_told(run, here, driver):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("torch can use a GPU here")
    status, _, errors = run("small", "--shapes", "s.toml")
    assert status == 1
    assert errors.startswith(f"error: torch {torch.__version__} cannot use GPU 0: expected a build of torch")


def test_a_group_that_there_is_not(run, here, driver):
    status, _, errors = run("small", "--shapes", "s.toml", "--group", "gemm-f64*")
    assert status == 1
    assert "bundle small has nothing to measure: no kernel matches the filters; cutlass-aot ls" in errors


def test_an_output_that_cannot_be_is_told_before_anything_is_measured(run, here, gpu):
    (here / "mine").mkdir()
    (here / "mine" / "thesis.txt").write_text("years of work")
    status, _, errors = run("small", "--shapes", "s.toml", "-o", "t.json", "--apply", "mine")
    assert status == 1
    assert errors.startswith("error: ")
    assert "mine is a directory that holds 'thesis.txt'" in errors
    assert not (here / "t.json").exists()


def test_a_file_of_another_gpu_is_not_gone_on_with(run, here, gpu):
    write_tuning(tuning(gpu="NVIDIA H100"), here / "t.json")
    before = (here / "t.json").read_bytes()
    status, _, errors = run("small", "--shapes", "s.toml", "-o", "t.json")
    assert status == 1
    assert errors.startswith(
        "error: t.json: the tuning file was measured on 'NVIDIA H100', expected 'NVIDIA H200'"
    )
    assert (here / "t.json").read_bytes() == before

"""`cutlass-aot try` where there is a GPU: what it prints of a run, and its exit status. The GPU is none."""

from __future__ import annotations

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import cutlass_aot.builder.try_kernel as build_side
from cutlass_aot.builder.link.kernel_object import LaunchNumbers
from cutlass_aot.builder.try_kernel import TriedKernel, target_for
from cutlass_aot.cli import main
from cutlass_aot.errors import DeviceError, GeneratorError, ParameterError
from cutlass_aot.generators.declared import DeclaredGenerator
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.runtime import declared
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.schema.kernels.artifact import Facts
from cutlass_aot.schema.tuning.costs import Machine
from cutlass_aot.tuning import gpu, reference_run
from cutlass_aot.tuning.reference_run import Outcome
from tests.support.bundles import write_bundle
from tests.support.declared_kernels import scale_rows, tuned

Try = Callable[..., tuple[Any, str, str]]


class Cuda:
    """Stands for ``torch.cuda``, of a GPU that is made the current one."""

    device = contextlib.nullcontext
    OutOfMemoryError = MemoryError


@pytest.fixture
def tried(tmp_path: Path) -> TriedKernel:
    kernel = DeclaredGenerator(tuned).kernel({"dtype": "f32", "threads": 256, "wide": False}, "sm_90a")
    assert kernel is not None
    facts = Facts("sm_90a", "13.0", 40, 16, 1024, 4000)
    bundle = write_bundle(tmp_path / "bundle", [kernel])
    return TriedKernel(kernel, 3, 0.25, 2.5, facts, (LaunchNumbers((256, 1, 1), 2048),), bundle)


@pytest.fixture
def run(tried: TriedKernel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Try:
    """Calls `try` on a machine with an H200, where the kernel's run gives an outcome."""
    monkeypatch.setattr(cuda_driver, "compute_capability", lambda ordinal: (9, 0))
    monkeypatch.setattr(cuda_driver, "device_name", lambda ordinal: "NVIDIA H200")
    monkeypatch.setattr(cuda_driver, "machine", lambda ordinal: Machine(132, 1980, 4000))
    monkeypatch.setattr(build_side, "try_kernel", lambda *given, **named: tried)
    monkeypatch.setattr(gpu, "import_torch", lambda ordinal: SimpleNamespace(cuda=Cuda))

    def call(outcome: Outcome, *arguments: str) -> tuple[Any, str, str]:
        given_to_it = []
        monkeypatch.setattr(reference_run, "run", lambda *given: given_to_it.append(given) or outcome)
        with pytest.raises(SystemExit) as caught:
            main(["try", "tuned", "--plugin", "tests.support.declared_kernels", *arguments])
        _, ordinal, handle, reference, extents = given_to_it[0]
        assert (ordinal, handle.kernel, reference) == (0, tried.kernel, tuned.reference_function)
        assert extents == {"N": 1000 if arguments[:1] == ("--extent",) else 1 << 24}
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return call


def test_a_right_result_is_timed_against_the_memory(run: Try, tried: TriedKernel) -> None:
    status, out, errors = run(Outcome(1e-7, 1e-5, 10.0, 20.0), "--extent", "N=1000")
    assert (status, errors) == (0, "running it on GPU 0\n")
    assert re.sub(r"[0-9.]+ s in all", "0.0 s in all", out).splitlines() == [
        f"kernel         {tried.kernel.name}; the first of 3 that match",
        "operands       x    f32  [N] aligned to 4 bytes",
        "               out  f32  [N] aligned to 4 bytes, written",
        "target         sm_90a, the only one of the kernel",
        "compiled in    0.2 s; 0.0 s in all, of which importing the DSL took 2.5 s",
        "registers      40 a thread",
        "spills         16 B a thread",
        "shared memory  1.0 KB static, 2.0 KB dynamic",
        "block          256 threads",
        "occupancy      6 blocks an SM, 48 of 64 warps (75 %), limited by registers",
        "extents        N = 1000",
        "error          1e-07, good: rounding explains 1e-05",
        "time           10.0 µs on NVIDIA H200: 20.0 MB at 2000 GB/s, 50 % of the memory's 4000",
    ]


def test_a_wrong_result_is_an_exit_status_of_one(run: Try) -> None:
    status, out, _ = run(Outcome(0.5, 1e-5, 10.0, 20.0))
    assert status == 1
    assert "error          0.5, WRONG: rounding explains 1e-05\n" in out
    status, out, _ = run(Outcome(0.5, 1e-5, 10.0, 20.0), "--json")
    found = json.loads(out)
    assert (status, found["run"]["good"], found["run"]["extents"]) == (1, False, {"N": 1 << 24})
    assert [(one["name"], one["dtype"], one["extents"]) for one in found["operands"]] == [
        ("x", "f32", ["N"]),
        ("out", "f32", ["N"]),
    ]


@pytest.mark.parametrize(
    ("given", "accumulator"),
    [
        ((), ""),
        (("--dtypes", "bf16.bf16.bf16"), "f32"),
        (("--dtypes", "i8.i8.i32"), "i32"),
        (("--dtypes", "f16.f16.f16", "--accumulator", "f16"), "f16"),
    ],
)
def test_the_accumulator_is_that_of_a_manifest_if_none_is_named(
    run: Try, tried: TriedKernel, monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], accumulator: str
) -> None:
    problems = []

    def try_kernel(_: object, problem: Problem, *__: object, **___: object) -> TriedKernel:
        problems.append(problem)
        return tried

    monkeypatch.setattr(build_side, "try_kernel", try_kernel)
    run(Outcome(None, 1e-5, 10.0, 20.0), *given)
    assert [problem.accumulator for problem in problems] == [accumulator]


def test_without_a_reference_nothing_is_said_to_be_right(run: Try) -> None:
    status, out, _ = run(Outcome(None, 1e-5, 10.0, 20.0))
    assert status == 0
    assert "error          not known: tuned declares no reference function\n" in out


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            MemoryError("CUDA out of memory"),
            "the operands at N = 1000 and their reference do not fit the free memory of GPU 0: name smaller",
        ),
        (NotImplementedError("no kernel"), "this torch has no way to compute the reference: no kernel"),
        (RuntimeError("an illegal access"), "GPU 0 failed while tuned-f32"),
    ],
)
def test_what_torch_raises_is_an_error_with_advice(
    run: Try,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: Exception,
    words: str,
) -> None:
    def fails(*_: Any) -> Outcome:
        raise error

    monkeypatch.setattr(reference_run, "run", fails)
    with pytest.raises(SystemExit) as caught:
        main(["try", "tuned", "--plugin", "tests.support.declared_kernels", "--extent", "N=1000"])
    assert caught.value.code == 1
    assert words in " ".join(capsys.readouterr().err.split())


def test_a_file_that_imports_a_declaration_declares_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(declared, "_declared", {**declared.declared_kernels()})
    (tmp_path / "of_another_file.py").write_text(
        "import cutlass_aot\n\n\n@cutlass_aot.kernel(name='elsewhere')\ndef elsewhere():\n    return None\n"
    )
    (tmp_path / "only_imports.py").write_text("from of_another_file import elsewhere\n")
    with pytest.raises(SystemExit) as caught:
        main(["try", str(tmp_path / "only_imports.py")])
    assert caught.value.code == 1
    assert (
        "only_imports.py declares no kernel itself, and imports elsewhere (of_another_file:elsewhere): "
        "expected the file that declares one"
    ) in " ".join(capsys.readouterr().err.split())


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package with a declaration, and with a kernel in a file of its own that imports the DSL."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(declared, "_declared", {**declared.declared_kernels()})
    # The DSL, which is not needed for this; a test may have imported it already.
    monkeypatch.delitem(sys.modules, "cutlass", raising=False)
    folder = tmp_path / "halves"
    folder.mkdir()
    (tmp_path / "cutlass.py").write_text("")
    (folder / "__init__.py").write_text("")
    (folder / "kernels.py").write_text("import cutlass\n")
    (folder / "with_the_dsl.py").write_text(
        "import cutlass\nfrom cutlass_aot import kernel\n\n\n"
        "@kernel('brings_dsl')\ndef brings_dsl():\n    return None\n"
    )
    (folder / "declared.py").write_text(
        "import cutlass_aot as aot\n\n\n@aot.kernel('halve')\ndef halve():\n    return None\n"
    )
    (folder / "classes.py").write_text(
        "from cutlass_aot.generators.registry import register as known\n\n\n@known\nclass Made: ...\n"
    )
    (folder / "broken.py").write_text("import cutlass_aot.kernel as (\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name == "cutlass" or name.split(".")[0] == "halves"]:
        del sys.modules[name]


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["try", *arguments])
    assert caught.value.code == 1
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("file", ["kernels", "__init__"])
def test_a_file_that_declares_nothing_says_which_files_of_its_package_do(
    package: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    said = refusal(capsys, str(package / f"{file}.py"))
    assert said == (
        f"error: {package / file}.py declares no kernel: {package / 'classes.py'}, "
        f"{package / 'declared.py'}, {package / 'with_the_dsl.py'} do; expected the file that "
        "declares one, or the name of a kernel"
    )


def test_a_file_without_a_declaration_anywhere_near_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "declares_nothing.py").write_text("x = 1\n")
    assert refusal(capsys, str(tmp_path / "declares_nothing.py")) == (
        f"error: {tmp_path / 'declares_nothing.py'} declares no kernel: expected the file that declares "
        "one, or the name of a kernel"
    )


def test_a_declaration_that_imports_the_dsl_is_told_to_move_that(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, str(package / "with_the_dsl.py"))
    assert "imports the DSL at module level: move `import cutlass` into a module" in said


def test_a_plugin_that_registers_nothing_says_which_files_do(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refusal(capsys, "halve", "--plugin", "halves.kernels")
    assert f"registers no generator: {package / 'classes.py'}, {package / 'declared.py'}" in said


def test_a_block_of_more_threads_than_a_gpu_has_for_one_is_a_problem(tried: TriedKernel) -> None:
    large = replace(tried, launches=(LaunchNumbers((32, 32, 2), 0),))
    assert large.problems == ["a block has 2048 threads, and can have 1024"]
    assert tried.problems == []


def test_the_target_is_the_one_given_to_it_for_or_the_gpus_or_the_first() -> None:
    generator = DeclaredGenerator(scale_rows)
    assert target_for(generator, "scale_rows", None, None) == "sm_90a"
    assert target_for(generator, "scale_rows", None, (10, 0)) == "sm_100a"
    assert target_for(generator, "scale_rows", None, (8, 0)) == "sm_90a"
    assert target_for(generator, "scale_rows", "sm_100a", (9, 0)) == "sm_100a"
    with pytest.raises(ParameterError, match="is for sm_90a, sm_100a, not for sm_80"):
        target_for(generator, "scale_rows", "sm_80", None)
    with pytest.raises(GeneratorError, match="has no operation 'other': expected scale_rows"):
        target_for(generator, "other", None, None)


@pytest.mark.parametrize(
    ("arguments", "capability", "line"),
    [
        ((), None, "sm_90a, the first of sm_90a, sm_100a (no GPU here); --target names another"),
        ((), (12, 0), "sm_90a, the first of sm_90a, sm_100a (GPU 0 runs none); --target names another"),
        # Also where nothing is run.
        ((), (10, 0), "sm_100a, the best one for GPU 0"),
        (("--target", "sm_90a"), (10, 0), "sm_90a"),
    ],
)
def test_the_target_is_told_with_why_it_was_taken(
    tried: TriedKernel,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    capability: tuple[int, int] | None,
    line: str,
) -> None:
    def compute_capability(ordinal: int) -> tuple[int, int]:
        if capability is None:
            raise DeviceError("there is no NVIDIA driver on this machine")
        return capability

    def compiled(reference: Any, problem: Any, target: str, *given: Any, **named: Any) -> TriedKernel:
        return replace(tried, kernel=replace(tried.kernel, target=target))

    monkeypatch.setattr(cuda_driver, "compute_capability", compute_capability)
    monkeypatch.setattr(build_side, "try_kernel", compiled)
    plugin = ("--plugin", "tests.support.declared_kernels")
    with pytest.raises(SystemExit) as caught:
        main(["try", "scale_rows", *plugin, "--no-run", *arguments])
    assert caught.value.code == 0
    printed = capsys.readouterr().out.splitlines()
    assert f"target         {line}" in printed
    assert printed[-1] == "run            no: not asked for"
    assert max(map(len, printed)) <= 100


def test_an_extent_that_the_kernel_has_not_is_refused_where_nothing_runs(
    tried: TriedKernel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build_side, "try_kernel", lambda *given, **named: tried)
    with pytest.raises(SystemExit) as caught:
        main(["try", "tuned", "--plugin", "tests.support.declared_kernels", "--no-run", "--extent", "K=3"])
    assert caught.value.code == 2
    assert "no operand has an extent 'K': expected one of N" in capsys.readouterr().err

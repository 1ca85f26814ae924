"""Capture without a compiler: what is seen, that watching harms no program, and the manifest that follows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import cutlass_aot
import cutlass_aot.capture
from cutlass_aot.capture import Found, capture, child, sightings
from cutlass_aot.capture import manifest as manifests
from cutlass_aot.capture.found import Sighting
from cutlass_aot.capture.manifest import check_wishes, manifest_text, write_manifest
from cutlass_aot.capture.watch import Watch
from cutlass_aot.errors import GeneratorError, ManifestError
from cutlass_aot.generators.cutlass_operators import epilogue_records
from cutlass_aot.generators.device import load_profile
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.manifest.model import parse_manifest
from cutlass_aot.schema.epilogue import parse_epilogue
from cutlass_aot.schema.kernel import Kernel, OperandConstraint, Values
from tests.unit.declared_kernels import scale_rows, tiled
from tests.unit.kernels import gemm
from tests.unit.operators import (
    BlockScaledGemmOperator,
    PersistentDenseGemmEFCOperator,
    PersistentDenseGemmOperator,
    Sm80TensorOpGemmOperator,
    Sm90StaticPersistentGemmOperator,
)

GEMM = Problem("gemm", ("bf16",) * 3, "tnt", "f32")


def operator_for(target: str, **traits: object) -> Sighting:
    return Sighting("cutlass.operators", GEMM, Values.of({"family": "F", **traits}), target)


def found_of(*kernels: Sighting, **others: str) -> Found:
    return Found(dict.fromkeys(kernels), others)


def parsed(text: str):
    return parse_manifest(text.encode(), Path("m.toml"))


# -- the manifest -----------------------------------------------------------------------------------------


def test_a_kernel_for_another_target_is_named_and_not_dropped():
    mine, others = operator_for("sm_90a"), operator_for("sm_100a", tile_shape=(256, 128, 64))
    text = manifest_text(found_of(mine, others), "x", ["sm_90a"])
    assert text.count("[[kernels]]") == 1
    reason = "it is for sm_100a, not for sm_90a"
    assert f"#   cutlass.operators: {GEMM}, family F, tile_shape 256x128x64: {reason}\n" in text
    assert list(manifests.left_out(found_of(mine, others), ["sm_90a"]).values()) == [reason]
    with pytest.raises(ManifestError, match=r"nothing that was found is for sm_103a\n.*family F"):
        manifest_text(found_of(mine, others), "x", ["sm_103a"])
    # What is for two targets, of which one is asked for, is there.
    assert not manifests.left_out(found_of(mine, mine._replace(target="sm_100a")), ["sm_90a"])


def test_text_stands_for_itself_and_notes_keep_to_their_line():
    sighting = Sighting("g", Problem("o", (), "", ""), Values.of({"mode": "a*b?[c]"}), "sm_90a")
    found = found_of(sighting)
    found.others["a\nb"] = "why\n[[kernels]]\x01"
    text = manifest_text(found, "x")
    (table,) = parsed(text).tables
    (mode,) = table.filters
    assert mode.accepts({"mode": "a*b?[c]"})
    assert not mode.accepts({"mode": "aXb?[c]"})
    assert not mode.accepts({"mode": "a*bX[c]"})
    assert "#   a b: why [[kernels]]\n" in text


def test_a_target_without_a_device_profile_gets_a_placeholder_that_no_build_accepts():
    found = found_of(operator_for("sm_80"), operator_for("sm_90a"))
    text = manifest_text(found, "x")
    assert "# No device profile for sm_80 is at hand" in text
    devices = parsed(text).devices
    assert devices == {"sm_80": manifests.NO_PROFILE, "sm_90a": "h200"}
    with pytest.raises(
        ManifestError, match="unknown device profile 'name-a-device-profile': expected one of b2"
    ):
        load_profile(devices["sm_80"])
    assert parsed(manifest_text(found, "x", devices={"sm_80": "b200"})).devices["sm_80"] == "b200"


def test_without_a_target_the_manifest_has_a_placeholder_that_no_build_accepts():
    found = found_of(sightings.of_declared(scale_rows, {"n": 64, "fast": False}))
    text = manifest_text(found, "x")
    assert 'plugins = ["tests.unit.declared_kernels"]' in text
    with pytest.raises(ManifestError, match="unknown 'name-a-target': expected one of sm_80"):
        parsed(text)
    named = text.replace(manifests.NO_TARGET, "sm_90a").replace(manifests.NO_PROFILE, "h200")
    assert parsed(named).tables[0].targets == ("sm_90a",)


@pytest.mark.parametrize(
    ("wish", "problem"),
    [
        ({"name": "My Bundle"}, "'My Bundle' is not a name"),
        ({"targets": ["90a"]}, "unknown '90a': expected one of sm_80"),
        ({"devices": {"90a": "h200"}}, "unknown '90a'"),
        ({"devices": {"sm_80": "a100"}}, "unknown device profile 'a100'"),
        ({"devices": {"sm_80": "none.toml"}}, "none.toml: cannot be read"),
        ({"targets": ["sm_90a"], "devices": {"sm_100a": "b200"}}, "sm_100a is none of the targets sm_90a"),
    ],
)
def test_wishes_are_refused_before_anything_is_run(wish, problem, tmp_path):
    with pytest.raises(ManifestError, match=problem):
        check_wishes(**{"name": "x", "targets": [], "devices": {}, "folder": tmp_path, **wish})


def test_a_manifest_that_cannot_be_written_leaves_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "m.toml"
    write_manifest("first\n", path)

    def refuses(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuses)
        with pytest.raises(ManifestError, match="cannot be written: No space left"):
            write_manifest("second\n", path)
    assert path.read_text() == "first\n"
    assert list(tmp_path.iterdir()) == [path]


# -- sightings --------------------------------------------------------------------------------------------


def test_a_declared_kernel_is_in_the_manifest_without_being_imported(monkeypatch):
    """The command line does not know what the program declared."""
    with cutlass_aot.policy.use("jit"), capture() as found:
        scale_rows(n=64, fast=False)
    again = Found.from_bytes(found.to_bytes(), "a file")
    monkeypatch.setattr("cutlass_aot.runtime.declared._declared", {})
    text = manifest_text(again, "x", ["sm_90a", "sm_80"])
    manifest = parsed(text)
    assert manifest.plugins == ("tests.unit.declared_kernels",)
    (table,) = manifest.tables
    assert (table.generator, table.targets) == ("scale_rows", ("sm_90a",))


def test_true_and_one_are_two_kernels():
    problem = Problem("o", (), "", "")
    one, true = (Sighting("g", problem, Values.of({"n": value}), "sm_90a") for value in (1, True))
    found = Found.from_bytes(found_of(one, true).to_bytes(), "a file")
    text = manifest_text(found, "x")
    assert [table.filters[0].values for table in parsed(text).tables] == [(1,), (True,)]


def test_a_kernel_declared_in_the_program_itself_is_a_note(monkeypatch):
    monkeypatch.setattr(tiled.function, "__module__", "__main__")
    with cutlass_aot.policy.use("jit"), capture() as found:
        tiled(tile=32, stages=2)
    assert not found.kernels
    ((name, reason),) = found.others.items()
    assert name == "tiled(tile=32, stages=2)"
    assert reason == "declared in the program itself: move it to a module that a build can import"


def test_operators_are_sighted_with_their_operands_and_their_refusals():
    sighting = sightings.of_operator(PersistentDenseGemmOperator(layouts="ttt"), "100a")
    assert (sighting.problem, sighting.target) == (Problem("gemm", ("f16",) * 3, "ttt", "f32"), "sm_100a")
    assert dict(sighting.traits)["family"] == "PersistentDenseGemm"
    for operator, problem in (
        (BlockScaledGemmOperator(), "is none of the families"),
        (PersistentDenseGemmEFCOperator(epilogue=object()), "it has an epilogue of the package's own"),
        (Sm80TensorOpGemmOperator(code_tile=(128, 128, 32)), "its metadata says tile"),
    ):
        with pytest.raises(GeneratorError, match=problem):
            sightings.of_operator(operator, None)


def test_records_of_policy_jit_keep_parameters_scales_and_epilogues():
    plain = gemm()
    assert sightings.of_record(plain, "") == Sighting(
        plain.generator, Problem("gemm", ("f16",) * 3, "tnt", "f32"), Values(plain.design), plain.target
    )
    epilogue = parse_epilogue(
        "D = relu(alpha * accum + C)", {"C": {"dtype": "f16", "extents": "MN", "transport": "sync_gmem_load"}}
    )
    design = {"family": "F", "tile_shape": (128, 128, 64), "cluster_shape": (1, 1, 1), "use_2cta_mma": False}
    fused = Kernel.make(
        operation="gemm",
        generator="cutlass.operators",
        operands=(*plain.operands, *epilogue_records.constraints(epilogue, "t", design)),
        accumulator="f32",
        epilogue=epilogue.formula,
        design={**design, "transports": "C=sync_gmem_load"},
        target="sm_100a",
    )
    sighting = sightings.of_record(fused, "")
    # That it lies as `out` does is said in words, for a record does not say why.
    (with_layout,) = (replace(o, layout="t") for o in epilogue.operands if o.name == "C")
    operands = tuple(with_layout if o.name == "C" else o for o in epilogue.operands)
    assert sighting.problem == Problem(
        "gemm", ("f16",) * 3, "tnt", "f32", epilogue=replace(epilogue, operands=operands)
    )
    assert "transports" not in dict(sighting.traits)
    (table,) = parsed(manifest_text(found_of(sighting), "x")).tables
    assert table.epilogue == sighting.problem.epilogue

    own = Kernel.make(
        operation="norm", generator="mine", accumulator="",
        operands=(OperandConstraint("out", "f32", ("N",), -1, 1, 4, True),),
        design={"tile": 4}, parameters={"n": 8}, target="sm_90a",
    )  # fmt: skip
    sighting = sightings.of_record(own, "my_kernels")
    assert sighting.problem == Problem("norm", (), "", "")
    assert (sighting.traits, sighting.plugin) == (Values.of({"n": 8, "tile": 4}), "my_kernels")
    assert parsed(manifest_text(found_of(sighting), "x")).plugins == ("my_kernels",)


def test_what_policy_jit_compiles_is_seen_declared_or_not(monkeypatch):
    from cutlass_aot import jit
    from cutlass_aot.generators.declared import DeclaredGenerator

    monkeypatch.setattr(jit, "compile_record", lambda kernel, generator: None)
    generator = DeclaredGenerator(scale_rows)
    with capture() as found:
        jit.compile_record(generator.kernel({"n": 64, "fast": False}, "sm_100a"), generator)
        jit.compile_record(gemm(), SimpleNamespace(name="cutlass.operators"))
    ours, theirs = found.kernels
    assert (ours.plugin, ours.target, ours.problem.dtypes) == ("tests.unit.declared_kernels", "sm_100a", ())
    assert (theirs.plugin, theirs.problem.dtypes) == ("", ("f16",) * 3)


# -- the watch harms nobody -------------------------------------------------------------------------------


def test_threads_that_find_something_at_once_lose_nothing(tmp_path):
    watch = Watch(lambda found: child._write(found, tmp_path))
    errors = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(thread):
        for i in range(60):
            try:
                watch._see_operator(
                    SimpleNamespace(metadata=SimpleNamespace(operator_name=f"{thread}-{i}")), None
                )
                watch._see_operator(SimpleNamespace(metadata=SimpleNamespace(operator_name="x")), None)
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert not errors
    (path,) = tmp_path.iterdir()
    assert len(Found.from_bytes(path.read_bytes(), "it").others) == 241


def test_what_goes_wrong_in_watching_is_told_in_one_line_and_not_raised(tmp_path, capsys):
    watch = Watch(lambda found: child._write(found, tmp_path / "gone"))
    watch._see_declared(scale_rows, {"n": 64, "fast": False})
    watch._see_declared(scale_rows, {"n": 128, "fast": False})

    class Odd:
        """No function, and none of its attributes can be read."""

        def __getattribute__(self, name):
            raise RuntimeError("do not look\nat me")

    watch._see_function(Odd())
    watch._see_operator(Odd(), "90a")
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert errors[0].startswith("cutlass-aot capture: not all is written down: FileNotFoundError: ")
    assert errors[1] == "cutlass-aot capture: not all is written down: RuntimeError: do not look at me"
    assert len(watch.found.kernels) == 2


def test_the_documented_blocks_run():
    documented = textwrap.dedent(cutlass_aot.capture.capture.__doc__.split("::\n", 1)[1])
    page = (Path(__file__).parents[2] / "docs" / "capture.md").read_text()
    block = page.split("## A block of code")[1].split("```python\n")[1].split("```")[0]
    printed = []
    for code in (documented, block):
        names = {
            "model": lambda x: scale_rows(n=x, fast=False), "x": 64, "print": printed.append,
        }  # fmt: skip
        with cutlass_aot.policy.use("jit"):
            exec(code, names)
        assert len(names["found"].kernels) == 1
    assert "[[kernels]]" in names.get("text", printed[0])


# -- the command ------------------------------------------------------------------------------------------

DECLARATION = """
import cutlass_aot

@cutlass_aot.kernel("its_own", params={"n": [1, 2]}, targets=["sm_90a"])
def its_own(n):
    return None
"""

PROGRAM = """
import os, signal, sys, time
import its_kernels

its_kernels.its_own(n=1)
print("ready", flush=True)
if "wait" in sys.argv:
    time.sleep(60)
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "its_kernels.py").write_text(DECLARATION)
    (tmp_path / "program.py").write_text(PROGRAM)
    return tmp_path


def command(folder, *options, program=("program.py",)):
    return [
        sys.executable, "-m", "cutlass_aot", "capture", "-o", str(folder / "m.toml"), *options, "--",
        sys.executable, *program,
    ]  # fmt: skip


def environment():
    return {**os.environ, "PYTHONPATH": str(Path(cutlass_aot.__file__).parents[1])}


def captured(folder, *options, **how):
    return subprocess.run(
        command(folder, *options, **how), cwd=folder, env=environment(), capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_a_kernel_that_a_module_of_the_programs_own_declares_is_captured(program):
    done = captured(program, "--target", "sm_90a")
    assert done.returncode == 0, done.stderr
    manifest = parsed((program / "m.toml").read_text())
    assert manifest.plugins == ("its_kernels",)
    assert (manifest.tables[0].generator, manifest.tables[0].targets) == ("its_own", ("sm_90a",))


@pytest.mark.parametrize("how", ["terminal", "command"])
def test_an_interrupt_ends_the_program_and_what_it_had_compiled_is_written(program, how):
    process = subprocess.Popen(
        command(program, "--target", "sm_90a", program=("program.py", "wait")),
        cwd=program, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    if how == "terminal":
        os.killpg(process.pid, signal.SIGINT)
    else:
        os.kill(process.pid, signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "m.toml: 1 kernel" in out
    assert "error: the program was interrupted" in errors
    assert "[[kernels]]" in (program / "m.toml").read_text()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--name", "My Bundle"), "'My Bundle' is not a name"),
        (("--target", "90a"), "unknown '90a'"),
        (("--device", "sm_80"), "expected TARGET=PROFILE"),
        (("-o", "nowhere/x.toml"), "nowhere is no folder to write to"),
    ],
)
def test_a_wrong_wish_is_refused_and_the_program_not_run(program, options, problem):
    done = captured(program, *options)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr
    assert "ready" not in done.stdout


def test_the_command_names_what_has_to_be_edited(program):
    done = captured(program)
    assert done.returncode == 0, done.stderr
    assert "has to be edited before it builds: name-a-target" in done.stderr
    assert captured(program, "--target", "sm_90a", "--device", "sm_90a=b200").returncode == 0
    assert parsed((program / "m.toml").read_text()).devices == {"sm_90a": "b200"}


def test_a_file_of_a_process_that_cannot_be_read_hides_no_other(tmp_path):
    from cutlass_aot.capture.run import _gathered

    (tmp_path / "1.found").write_bytes(b"nonsense")
    (tmp_path / "2.found").write_bytes(found_of(operator_for("sm_90a")).to_bytes())
    found = _gathered(tmp_path)
    assert len(found.kernels) == 1
    assert list(found.others) == ["what process 1 found"]


def test_an_operator_that_was_not_compiled_is_for_all_targets_that_are_named():
    sighting = sightings.of_operator(Sm90StaticPersistentGemmOperator(), None)
    text = manifest_text(found_of(sighting), "x", ["sm_90a"])
    assert parsed(text).tables[0].targets == ("sm_90a",)


def test_a_program_that_does_not_hear_an_interrupt_is_told_more_clearly(monkeypatch):
    from cutlass_aot.capture import run

    monkeypatch.setattr(run, "GRACE_SECONDS", 0.3)
    deaf = (
        "import signal, time\n"
        "for word in (signal.SIGINT, signal.SIGTERM): signal.signal(word, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    assert run._end(process) == -signal.SIGKILL
    process.stdout.close()
    ended = run.Ran(-signal.SIGKILL, False, Found())
    assert ended.problem() == "the program was ended by signal 9"


def test_a_program_that_cannot_be_watched_runs_all_the_same(tmp_path):
    """Its interpreter finds another cutlass_aot, or one that it cannot read."""
    (tmp_path / "cutlass_aot").mkdir()
    (tmp_path / "cutlass_aot" / "__init__.py").write_text("raise TypeError('not this Python')")
    (tmp_path / "sitecustomize.py").write_text("print('its own site')")
    site = Path(cutlass_aot.capture.__file__).parent / "site"
    done = subprocess.run(
        [sys.executable, "-c", "print('it runs')"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (site, tmp_path)))},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "its own site\nit runs\n"
    (line,) = done.stderr.splitlines()
    assert line.endswith("is not watched: TypeError('not this Python')")

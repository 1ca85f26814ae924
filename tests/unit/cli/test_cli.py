"""The command line: exit statuses, one message an error, and output that a script can read."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest

import cutlass_aot.builder.check.undeclared
import cutlass_aot.runtime.search_path
import tests.support.misbehaving  # noqa: F401 (its import registers a generator, which a test takes back)
from cutlass_aot.builder.build import Plan
from cutlass_aot.builder.events import Compiled, Failed, Planned
from cutlass_aot.builder.records import Failure, PlannedKernel, Selection
from cutlass_aot.cli import COMMANDS, main
from cutlass_aot.cli.output.render import table
from cutlass_aot.errors import DeviceError
from cutlass_aot.schema.compression import compress
from cutlass_aot.schema.encoding import digest
from cutlass_aot.schema.entry_points import GENERATORS
from cutlass_aot.schema.kernels.artifact import Artifact, Facts
from cutlass_aot.schema.words import plural, size
from cutlass_aot.store.store import Store
from tests.support.bundles import designs, write_bundle
from tests.support.kernels import gemm, operand
from tests.support.replace import replace

ARTIFACT = Artifact("0" * 64, 1000, Facts("sm_90a", "12.9", 168, 0, 1024, 900), 1.0)


@pytest.fixture
def run(capsys):
    """Call the command line; returns exit status, standard output and standard error."""

    def call(*arguments):
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return caught.value.code, captured.out, captured.err

    return call


def test_help_lists_every_command(run):
    status, out, _ = run("--help")
    assert status == 0
    for name, meaning in COMMANDS.items():
        assert f"{name} " in out
        assert meaning in out


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_that_begins_as_the_list_says(run, name):
    status, out, _ = run(name, "--help")
    assert status == 0
    assert out.startswith(f"Usage: cutlass-aot {name} ")


@pytest.mark.parametrize("name", ["bundle", "key", "store"])
def test_commands_of_commands_have_a_line_that_is_whole(run, name):
    _, out, _ = run(name, "--help")
    lines = out.split("Commands:\n")[1].splitlines()
    assert lines
    assert all(re.fullmatch(r"  [a-z]+  +[A-Z][^.]*\.", line) for line in lines), lines


def words(run, *arguments):
    return " ".join(run(*arguments, "--help")[1].split())


def test_help_says_what_options_take_and_what_counts_without_them(run):
    for name in ("push", "pull"):
        assert "a large file gets more, by its size. [default: 30.0; x>=1]" in words(run, "bundle", name)
    assert "Without --key, one of the keys that CUTLASS_AOT_TRUSTED_KEYS names" in words(
        run, "bundle", "pull"
    )
    wheel = words(run, "wheel")
    assert "--split [targets] targets: a wheel for each GPU code target, each with a bundle" in wheel
    assert "With --command: file of the public key whose signatures the program gives." in wheel


def test_help_imports_nothing_heavy():
    code = (
        "import sys\nfrom cutlass_aot.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'cutlass', 'torch', 'tvm_ffi', 'msgpack', 'rich', 'cuda'} & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["unknown"], "No such command 'unknown'"),
        (["build"], "Missing argument 'MANIFEST'"),
        (["build", "m.toml", "-j", "0"], "0 is not in the range"),
        (["ls", "./x", "--where", "tile"], "expected NAME=PATTERN"),
        (["build", "missing.toml"], "error: missing.toml: cannot be read"),
    ],
)
def test_wrong_use_exits_with_2(run, arguments, message):
    status, out, errors = run(*arguments)
    assert status == 2
    assert message in errors
    assert out == ""


def test_a_bad_manifest_exits_with_2_and_leaves_nothing(run, tmp_path):
    manifest = tmp_path / "m.toml"
    manifest.write_text('[bundle]\nname = "x"\ntargets = ["sm_91"]\ndevice = "h200"\n')
    status, _, errors = run(
        *("build", manifest, "--store", tmp_path / "store", "-o", tmp_path / "out"),
        *("--report", tmp_path / "pages" / "page.html"),
    )
    assert status == 2
    assert errors.startswith(f"error: {manifest}: bundle.targets: unknown 'sm_91'")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.toml"]


def test_something_that_is_no_bundle_exits_with_1(run, tmp_path):
    for name in ("ls", "verify", "wheel"):
        status, _, errors = run(name, tmp_path)
        assert status == 1
        assert errors.startswith("error: ")
        assert errors.count("\n") == 1


def test_generators_as_json(run):
    status, out, _ = run("generators", "--json", "--plugin", "tests.support.misbehaving")
    assert status == 0
    found = {item["name"]: item for item in json.loads(out)}
    assert {"cutlass.operators", "simt_f64_gemm", "misbehaving"} <= set(found)
    assert "sm_100a" in found["cutlass.operators"]["operations"]["gemm"]


def test_doctor_answers_anywhere(run):
    status, out, _ = run("doctor")
    assert status == 0
    for title in ("machine", "runtime packages", "driver", "GPUs", "can build", "can run"):
        assert f"\n{title}\n" in f"\n{out}"
    assert json.loads(run("doctor", "--json")[1])["cutlass_aot"]


def test_a_broken_generator_hides_no_other(run, monkeypatch):
    from cutlass_aot.generators import registry

    points = [
        EntryPoint("a_broken", "no_such_module:Generator", GENERATORS),
        EntryPoint("b_raises", "tests.unit.cli.test_cli:RaisesAtTargets", GENERATORS),
        EntryPoint("c_good", "tests.support.misbehaving:Misbehaving", GENERATORS),
    ]
    monkeypatch.setattr(registry.metadata, "entry_points", lambda group: points)
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "declared_kernels", dict)
    status, out, errors = run("generators")
    assert status == 1
    assert out.startswith("c_good  (tests.support.misbehaving:Misbehaving, version 1")
    first, second = errors.splitlines()
    assert first.startswith("error: generator 'a_broken': no_such_module:Generator cannot be imported: ")
    assert second == (
        "error: generator 'b_raises' (tests.unit.cli.test_cli:RaisesAtTargets) raised ValueError: not today"
    )
    status, out, _ = run("generators", "--json")
    assert status == 1
    found = json.loads(out)
    assert [item["name"] for item in found] == ["c_good", "a_broken", "b_raises"]
    assert set(found[1]) == {"name", "location", "problem"}


class RaisesAtTargets:
    """A generator that cannot say what it has."""

    name = "b_raises"
    version = "1"
    operations = ("gemm",)
    modules = ("tests.unit.cli.test_cli",)
    design: Mapping[str, str] = {}
    enumerate = compile = None

    def targets(self, operation):
        raise ValueError("not today")


@pytest.fixture
def bundle(tmp_path):
    kernels = [*designs(), *designs(target="sm_100a")]
    return write_bundle(tmp_path / "bundle", kernels)


def test_a_filter_that_nothing_matches_is_said_with_what_there_is(run, bundle):
    status, out, _ = run("ls", bundle, "--target", "sm_91", "--where", "tile_shape=9x9")
    assert status == 1
    assert out.splitlines() == [
        "nothing of small 0.1.0 matches; it has",
        "  target: sm_90a, sm_100a",
        "  tile_shape: 64x128x64, 128x128x64, 128x256x64",
    ]
    status, out, _ = run("ls", bundle, "--name", "none")
    assert "gemm-f16.f16.f16-f32-tnt-sm_100a-F-64x128x64" in out
    assert run("ls", bundle, "--target", "sm_91", "--json")[:2] == (1, "[]\n")
    status, _, errors = run("ls", bundle, "--target", "sm_91", "--where", "tyle=9")
    assert (status, "unknown filter 'tyle'" in errors) == (2, True)


BIASES = {
    extent: (
        *(operand(name) for name in ("a", "b", "out")),
        replace(operand("out"), name="bias", extents=(extent,), written=False),
    )
    for extent in ("N", "M")
}
FUSED = [gemm(operands=operands, epilogue="D = relu(accum + bias)") for operands in BIASES.values()]
GELU = gemm(operands=BIASES["N"], epilogue="D = gelu(accum + bias)")


def test_groups_are_listed_with_their_epilogue_and_the_operands_that_differ(run, tmp_path):
    root = write_bundle(tmp_path / "fused", [gemm(), *FUSED, GELU])
    _, out, _ = run("ls", root)
    by_formula = {GELU.digest: ["  D = gelu(accum + bias)"], gemm().digest: []}
    for kernel, extent in zip(FUSED, BIASES, strict=True):
        by_formula[kernel.digest] = ["  D = relu(accum + bias)", f"  bias [{extent}]"]
    lines = out.splitlines()
    for digest_, formula in by_formula.items():
        place = next(index for index, line in enumerate(lines) if line.endswith(digest_[:8]))
        assert lines[place - len(formula) : place] == formula
        assert lines[place - len(formula) - 1].startswith("gemm-")


@pytest.fixture
def planned(monkeypatch):
    """What every `plan` finds: three kernels in three groups that the store lacks, and one that it has."""
    missing = [PlannedKernel(kernel, "k", None, "not in the store") for kernel in (*FUSED, GELU)]
    plan = Plan(Selection((), ()), (*missing, PlannedKernel(gemm(), "k", ARTIFACT, "present")), "", ())
    monkeypatch.setattr("cutlass_aot.builder.build.make_plan", lambda *_: plan)


def test_a_plan_lists_each_kernel_under_its_group_with_its_epilogue(run, planned):
    _, out, _ = run("plan", "m.toml", "--kernels")
    headings = [line for line in out.splitlines() if not line.startswith(("build", "-"))]
    name = FUSED[0].group_name
    same = [f"{name}: not in the store", "  D = relu(accum + bias)"]
    gelu = [f"{GELU.group_name}: not in the store", "  D = gelu(accum + bias)"]
    present = [f"{gemm().group_name}: present"]
    assert sorted(headings[1:-1]) == sorted([*same, "  bias [M]", *same, "  bias [N]", *gelu, *present])
    assert headings[-1] == "4 kernels: 3 to build, 1 present"


def test_a_plan_counts_the_kernels_of_each_group_under_why_they_are_built(run, planned):
    _, out, _ = run("plan", "m.toml")
    lines = out.splitlines()
    assert lines[:2] == ["kernels  group", "not in the store"]
    assert lines[-3:] == ["present", f"      1  {gemm().group_name}", "4 kernels: 3 to build, 1 present"]
    counted = [line for line in lines[2:-3] if line.split()[0] == "1"]
    assert sorted(counted) == sorted(f"      1  {kernel.group_name}" for kernel in (*FUSED, GELU))
    assert [line.strip() for line in lines[2:-3] if "bias [" in line] == ["bias [M]", "bias [N]"]
    assert sum("D = gelu(accum + bias)" in line for line in lines) == 1


def test_a_plan_adds_up_the_kernels_of_a_group(run, monkeypatch):
    missing = tuple(PlannedKernel(kernel, "k", None, "gone") for kernel in designs())
    plan = Plan(Selection((), ()), missing, "", ())
    monkeypatch.setattr("cutlass_aot.builder.build.make_plan", lambda *_: plan)
    assert run("plan", "m.toml")[1].splitlines()[1:3] == ["gone", f"      3  {gemm().group_name}"]


def test_a_repeated_option_is_an_alternative(run, bundle):
    _, out, _ = run("ls", bundle, "--target", "sm_100a", "--target", "sm_90a", "--where", "tile=64x*")
    assert out.splitlines()[-1] == "2 kernels of small 0.1.0, for sm_90a, sm_100a"
    assert "gives alternatives" in " ".join(run("ls", "--help")[1].split())


def test_operands_with_long_names_stand_in_columns(run, tmp_path):
    operands = (operand("a"), operand("b", "f8e4m3"), replace(operand("out"), name="residual"))
    kernel = replace(gemm(), operands=operands)
    root = write_bundle(tmp_path / "long", [kernel])
    _, out, _ = run("show", root, kernel.name)
    lines = [line for line in out.splitlines() if "-major" in line]
    assert len(lines) == 3
    assert len({line.index("[") for line in lines}) == 1
    assert len({line.index("f") for line in lines}) == 1


@pytest.fixture
def failures(tmp_path):
    reasons = ("unknown type:\n    at line 3\n    of the kernel", "timed out after 1 s")
    return [
        Failure(kernel, reason, tmp_path / f"{index}.log")
        for index, (kernel, reason) in enumerate(zip(designs(), reasons, strict=False))
    ]


def test_a_failed_build_says_each_reason_in_one_line_and_then_in_full_with_its_kernels(
    run, failures, monkeypatch, tmp_path
):
    from cutlass_aot.builder import build as pipeline

    def build(manifest, out, settings, share):
        tell = settings.tell
        tell(Planned(tuple(PlannedKernel(kernel, "0" * 64, None, "") for kernel in designs()[:3]), ()))
        for failure in failures:
            tell(Failed(failure))
        tell(Compiled(designs()[2], ARTIFACT))
        return pipeline.BuildResult(out / "b", 3, 1, tuple(failures), False)

    monkeypatch.setattr(pipeline, "build", build)
    status, out, errors = run("build", "m.toml")
    assert (status, out) == (1, "")
    first, second = failures
    assert errors.splitlines() == [
        "plan: 3 kernels to build, 0 present",
        f"failed: {first.kernel.name}: unknown type: (log: {first.log})",
        "compiling: 1/3 in 0 s, 1 failed",
        f"failed: {second.kernel.name}: timed out after 1 s; --timeout gives more (log: {second.log})",
        "compiling: 2/3 in 0 s, 2 failed",
        f"finished: 1 kernel compiled in 0 s, 2 failed; slowest 1.0 s: {designs()[2].name}",
        "2 kernels of 3 failed for 2 reasons:",
        "",
        "  unknown type:",
        "      at line 3",
        "      of the kernel",
        f"  1 kernel: {first.kernel.name}",
        f"  log: {first.log}",
        "",
        "  timed out after 1 s",
        f"  1 kernel: {second.kernel.name}",
        f"  log: {second.log}",
        "",
        "nothing was written; what compiled is in the store",
    ]


@pytest.mark.parametrize(("kernels", "said"), [(1, ""), (2, "; what compiled is in the store")])
def test_what_is_in_the_store_is_said_where_something_compiled(run, monkeypatch, tmp_path, kernels, said):
    from cutlass_aot.builder import build as pipeline

    failures = (Failure(designs()[0], "ValueError: wrong", tmp_path / "log"),)
    result = pipeline.BuildResult(tmp_path / "b", kernels, 0, failures, False)
    monkeypatch.setattr(pipeline, "build", lambda *given: result)
    status, _, errors = run("build", "m.toml")
    assert status == 1
    assert errors.endswith(f"nothing was written{said}\n")
    (tmp_path / "b").mkdir()
    _, _, errors = run("build", "m.toml")
    assert errors.endswith(f"{said}; {tmp_path / 'b'} is still the one of an earlier build\n")


def test_a_failure_that_is_remembered_is_said_to_be_so(run, monkeypatch, tmp_path):
    from cutlass_aot.builder import build as pipeline

    first, second, third = designs()[:3]
    failures = [
        Failure(item, "ValueError: wrong", tmp_path / "log", before=item is first) for item in (first, second)
    ]

    def build(manifest, out, settings, share):
        planned = (
            PlannedKernel(first, "0" * 64, None, "", failed="ValueError: wrong"),
            *(PlannedKernel(kernel, "0" * 64, None, "") for kernel in (second, third)),
        )
        settings.tell(Planned(planned, (), failed_before=1))
        for failure in failures:
            settings.tell(Failed(failure))
        settings.tell(Compiled(third, ARTIFACT))
        return pipeline.BuildResult(out / "b", 3, 1, tuple(failures), False)

    monkeypatch.setattr(pipeline, "build", build)
    status, _, errors = run("build", "m.toml")
    assert status == 1
    assert errors.splitlines() == [
        "plan: 2 kernels to build, 0 present, 1 failed in an earlier build and not compiled again without "
        "--retry",
        f"failed in an earlier build: {first.name}: ValueError: wrong (log: {tmp_path / 'log'})",
        "compiling: 1/2 in 0 s, 1 failed",
        f"finished: 1 kernel compiled in 0 s, 1 failed; slowest 1.0 s: {third.name}",
        "2 kernels of 3 failed, 1 in an earlier build:",
        "",
        "  ValueError: wrong",
        f"  2 kernels, 1 in an earlier build: {first.name}, {second.name}",
        f"  log: {tmp_path / 'log'}",
        "",
        "1 kernel failed in an earlier build with the same sources and toolchain, not compiled again: "
        "cutlass-aot build m.toml --retry does that",
        "nothing was written; what compiled is in the store",
    ]
    status, out, _ = run("build", "m.toml", "--json")
    told = [json.loads(line) for line in out.splitlines()]
    assert [event["before"] for event in told if event["event"] == "failed"] == [True, False]
    assert [(event["missing"], event["failed_before"]) for event in told if event["event"] == "planned"] == [
        (2, 1)
    ]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
@pytest.mark.parametrize("arguments", [["doctor"], ["--help"], ["generators", "--json"]])
def test_a_full_disk_is_no_traceback(arguments):
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "cutlass_aot", *arguments], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert result.returncode == 1
    assert result.stderr == "error: cannot write the output: No space left on device\n"


def test_an_error_that_is_not_of_the_output_is_not_taken_for_one(monkeypatch):
    from cutlass_aot import cli

    def fail(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cli.group, "main", fail)
    with pytest.raises(OSError, match="No space left"):
        main([])


def test_the_doctor_says_once_that_there_is_no_driver(run, monkeypatch):
    from cutlass_aot.runtime.machine import cuda_driver

    def missing():
        raise DeviceError("there is no NVIDIA driver on this machine")

    monkeypatch.setattr(cuda_driver, "_library", missing)
    cuda_driver._initialise.cache_clear()
    _, out, _ = run("doctor")
    assert out.count("no NVIDIA driver") == 1
    assert "can run\n  no: see driver above\n" in out


def test_problems_of_a_store_and_a_bundle_read_as_sentences(run, bundle, tmp_path):
    store = Store(tmp_path / "store")
    blob = store.blob_path(store.put_blob(b"object"))
    blob.write_bytes(compress(b"another", 3))
    status, _, errors = run("verify", store.root)
    assert status == 1
    assert errors == (
        f"{blob.relative_to(store.root)}: bytes of digest {digest(b'another')}; expected what its name says; "
        "a build that needs it makes it again\n"
    )
    library = next((bundle / "lib").rglob("*.so.zst"))
    size = library.stat().st_size
    library.write_bytes(b"short")
    _, _, errors = run("verify", bundle)
    name = library.relative_to(bundle)
    assert f"{name}: 5 bytes; expected {size} bytes\n" in errors


@pytest.mark.parametrize(
    ("arguments", "what", "says"),
    [
        (["build", "manifests/smoke.toml", "--out", "{}", "--store", "{}"], "builder.build.build", True),
        (["bundle", "merge", "{}/shard"], "builder.build.merge", True),
        (["plan", "manifests/smoke.toml", "--store", "{}"], "builder.build.make_plan", False),
        (["bundle", "unpack", "{}", "{}/out"], "bundle.unpack.unpack_bundle", False),
        (["wheel", "{}", "-o", "{}/wheels"], "bundle.wheel.write.build_wheels", False),
        (["verify", "{}"], "bundle.verify.path.look_at", False),
    ],
)
def test_an_interrupt_says_what_becomes_of_what_was_compiled_where_something_was(
    run, tmp_path, monkeypatch, arguments, what, says
):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(f"cutlass_aot.{what}", interrupted)
    status, _, errors = run(*(argument.format(tmp_path) for argument in arguments))
    kept = "; what was compiled is in the store, and the next build goes on from there" if says else ""
    assert (status, errors.strip()) == (130, f"error: interrupted{kept}")


def test_an_interrupt_is_no_traceback():
    code = (
        "import sys\nfrom cutlass_aot import cli\n"
        "def interrupted(**_):\n    raise KeyboardInterrupt\n"
        "cli.group.main = interrupted\ncli.main([])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 130
    assert result.stderr == "error: interrupted\n"


def test_tables_align_numbers_to_the_right():
    assert table([("a", 1), ("bb", 20)], ("name", "count")) == ["name  count", "a         1", "bb       20"]
    assert table([("a", size(1)), ("bb", size(20_000))], ("name", "size")) == [
        "name     size",
        "a         1 B",
        "bb    20.0 KB",
    ]


def test_tables_fit_100_columns_and_lose_nothing():
    rows = [(n, "-".join(["part"] * 40), "why " * 30) for n in range(3)]
    lines = table(rows, ("n", "kernel", "reason"))
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 100
    assert (text.count("part"), text.count("why")) == (120, 90)


def test_a_name_that_is_longer_than_a_line_is_whole():
    name = "-".join(["part"] * 40)
    lines = table([(n, f"{n}-{name}") for n in range(3)], ("registers", "kernel"))
    assert [line.split()[-1] for line in lines[1:]] == [f"{n}-{name}" for n in range(3)]


@pytest.mark.parametrize("arguments", [["generators"], ["check", "rms_norm"]])
def test_a_runtime_without_the_build_side_says_how_to_install_it(run, monkeypatch, arguments):
    distribution = metadata.distribution

    def without(name):
        if name.startswith("nvidia-cutlass"):
            raise metadata.PackageNotFoundError(name)
        return distribution(name)

    monkeypatch.setattr(metadata, "distribution", without)
    status, _, errors = run(*arguments)
    assert status == 1
    assert "the build side is not installed: nvidia-cutlass-dsl, nvidia-cutlass-operators missing" in errors
    assert "install it with: pip install" in errors


@pytest.mark.parametrize("arguments", [["doctor"], ["generators"], ["show", "{}", "gemm"]])
def test_lines_fit_100_columns_but_for_words_that_are_longer(run, tmp_path, arguments):
    bundle = write_bundle(tmp_path / "small", designs([(128, 128)]))
    status, out, _ = run(*(argument.format(bundle) for argument in arguments))
    assert status == 0
    # A title stands before a word of any length, such as a path.
    lines = [line for line in out.splitlines() if max(map(len, line.split()), default=0) < 80]
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize("command", ["ls", "choose"])
def test_a_listing_fits_100_columns_and_names_each_kernel(run, tmp_path, command):
    kernels = designs(dtypes=("bf16", "bf16", "bf16"), target="sm_100a")
    bundle = write_bundle(tmp_path / "small", kernels)
    problem = ["--m", 8, "--n", 128, "--k", 64] if command == "choose" else []
    status, out, errors = run(command, bundle, *problem)
    assert (status, errors) == (0, "")
    assert max(map(len, out.splitlines())) <= 100
    for kernel in kernels:
        # By which `show` finds it, too.
        assert kernel.digest[:8] in out
        assert run("show", bundle, kernel.digest[:8])[0] == 0


def test_sizes_and_plurals_read_well():
    assert [size(n) for n in (0, 999, 1000, 57_200, 22_800_000)] == [
        "0 B",
        "999 B",
        "1.0 KB",
        "57.2 KB",
        "22.8 MB",
    ]
    assert [plural(1, "library"), plural(2, "library"), plural(0, "kernel")] == [
        "1 library", "2 libraries", "0 kernels",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("buil", "m.toml"), "build"),
        (("doktor",), "doctor"),
        (("try", "swiglu", "--no-run"), "swiglu_fp8"),
        (("check", "swiglu_fp16"), "swiglu_fp8"),
        (("try", "swiglu_fp8", "--no-run", "--target", "sm_90"), "sm_90a"),
        (("check", "swiglu_fp8", "--target", "sm90a"), "sm_90a"),
        (("show", "BUNDLE", "gemn-"), "gemm-"),
        (("doctor", "smal", "--json"), "small"),
        (("installed", "smal"), "small"),
    ],
)
def test_a_misspelt_word_is_told_from_those_that_are_known(run, tmp_path, monkeypatch, arguments, meant):
    bundle = write_bundle(tmp_path / "bundle", [gemm()])
    monkeypatch.setenv("CUTLASS_AOT_BUNDLE_PATH", str(bundle))
    monkeypatch.setattr(
        cutlass_aot.runtime.search_path,
        "installed_bundles",
        lambda: [SimpleNamespace(name="small", path=bundle, exists=True)],
    )
    _, out, err = run(*(str(bundle) if word == "BUNDLE" else word for word in arguments))
    assert (err or out).rstrip().endswith(f"; did you mean '{meant}'?")


def test_a_misspelt_key_of_a_manifest(run, tmp_path):
    manifest = tmp_path / "m.toml"
    text = """
[bundle]
name = "m"
targets = ["sm_90a"]
device = "h200"
[[kernels]]
generator = "cutlass.operators"
ab = "bf16"
"""
    for more, meant in (
        ('tile_shap = "128x128x64"', "tile_shape"),
        ("max_per_grup = 3", "max_per_group"),
        ("[selekt]\nkeep = 1", "select"),
    ):
        manifest.write_text(f"{text}{more}\n")
        status, _, err = run("plan", manifest, "--store", tmp_path / "store")
        assert status == 2
        assert err.rstrip().endswith(f"; did you mean '{meant}'?")


DECLARED = """
import cutlass_aot
@cutlass_aot.kernel(name="{name}", params={{"n": [1]}})
def {name}(n):
    return None
"""


@pytest.mark.parametrize("form", ["{}", "{}:checked_file"])
def test_check_takes_the_file_that_declares_a_kernel(run, tmp_path, monkeypatch, form):
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / f"declared_{len(form)}.py"
    file.write_text(DECLARED.format(name="checked_file" if ":" in form else "checked_alone"))
    monkeypatch.setattr(cutlass_aot.builder.check.undeclared, "undeclared", lambda name, target: [])
    status, out, err = run("check", form.format(file))
    name = "checked_file" if ":" in form else "checked_alone"
    assert (status, out) == (0, f"{name}: its code follows from its parameters\n")
    assert err == f"importing the DSL, compiling {name} several times\n"


@pytest.mark.parametrize("command", ["try", "check"])
@pytest.mark.parametrize(
    ("folder", "name", "file", "project"),
    [
        (".", "soft_cap", "soft_cap/soft_cap_kernels/declared.py", "soft_cap"),
        (".", "soft_cap/", "soft_cap/soft_cap_kernels/declared.py", "soft_cap"),
        ("soft_cap", "soft_cap", "soft_cap_kernels/declared.py", "."),
        ("soft_cap", "soft_cap_kernels", "soft_cap_kernels/declared.py", "."),
        ("soft_cap/soft_cap_kernels", "soft_cap", "declared.py", ".."),
        ("soft_cap/soft_cap_kernels", "declared", "declared.py", ".."),
    ],
)
def test_a_kernel_that_is_here_and_not_installed_is_told_with_what_to_do(
    run, tmp_path, monkeypatch, command, folder, name, file, project
):
    monkeypatch.chdir(tmp_path)
    assert run("new", "kernel", "soft_cap")[0] == 0
    monkeypatch.chdir(folder)
    status, _, err = run(command, name)
    assert status == 2
    assert (
        f"no installed package has a generator {name!r}, but {file} declares kernels: `try` and `check` "
        f"take {file} itself; to build, install it with: "
        f"python -m pip install --editable {project}\n"
    ) in err


def test_a_manifest_of_a_kernel_that_is_here_and_not_installed(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("new", "generator", "half_add")[0] == 0
    status, _, err = run("build", "half_add/half_add.toml")
    assert status == 2
    assert "half_add/half_add_kernels/generator.py declares kernels" in err
    (tmp_path / "half_add/pyproject.toml").unlink()
    assert "to build, name its module under `plugins` in the manifest" in run("try", "half_add")[2]
    # A folder in which nothing is declared is not meant.
    (tmp_path / "half_sub").mkdir()
    (tmp_path / "half_sub" / "other.py").write_text("half_sub = 1\n")
    assert "expected one of" in run("try", "half_sub")[2]
    assert "expected one of" in run("try", "n" * 300)[2]


def test_a_folder_and_a_name_without_its_suffix_are_no_manifests(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("new", "kernel", "soft_cap")[0] == 0
    assert (
        "soft_cap is a folder, expected a manifest: name soft_cap/soft_cap.toml" in run("plan", "soft_cap")[2]
    )
    (tmp_path / "empty").mkdir()
    assert "empty is a folder, expected a manifest: it has none" in run("build", "empty")[2]
    monkeypatch.chdir("soft_cap")
    assert "no such file, expected a manifest; did you mean 'soft_cap.toml'?" in run("build", "soft_cap")[2]


def test_check_says_which_file_and_which_names_it_takes(run, tmp_path):
    status, _, err = run("check", tmp_path / "none.py")
    assert status == 1
    assert "no such file: expected one that declares a kernel, or a kernel's name" in err
    status, _, err = run("check", "swiglo")
    assert (
        "a module through `plugins` in the manifest or --plugin, a file as FILE.py to `try` and `check`"
        in err
    )

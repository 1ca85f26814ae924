"""The command line: exit statuses, one message an error, and output that a script can read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.cli import _COMMANDS, main
from cutlass_aot.cli.render import plural, size, table

REPOSITORY = Path(__file__).resolve().parents[2]


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
    for name, meaning in _COMMANDS.items():
        assert f"{name} " in out
        assert meaning in out


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_every_command_has_help_that_begins_as_the_list_says(run, name):
    status, out, _ = run(name, "--help")
    assert status == 0
    assert out.startswith(f"Usage: cutlass-aot {name} ")


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
        (["ls", "x", "--where", "tile"], "expected NAME=PATTERN"),
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
    status, _, errors = run("build", manifest, "--store", tmp_path / "store", "--out", tmp_path / "out")
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
    status, out, _ = run("generators", "--json", "--plugin", "tests.unit.misbehaving")
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


def test_an_interrupt_is_no_traceback():
    code = (
        "import sys\nfrom cutlass_aot import cli\n"
        "def interrupted(**_):\n    raise KeyboardInterrupt\n"
        "cli.group.main = interrupted\ncli.main([])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == (
        "error: interrupted; what was compiled is in the store, and the next build goes on from there\n"
    )


def test_tables_align_numbers_to_the_right():
    assert table([("a", 1), ("bb", 20)], ("name", "count")) == "name  count\na         1\nbb       20"


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

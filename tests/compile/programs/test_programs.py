"""Programs of three real packages, recorded without a GPU, built, and answered in another process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support.packages import hide_torch, installed
from tests.support.paths import FIXTURES, SUPPORT

pytestmark = [pytest.mark.compile, installed("flash-attn-4", "quack-kernels", "flashinfer-python")]
PROGRAMS = FIXTURES / "programs"
SERVE = SUPPORT / "serve_program.py"
MANIFEST = """\
[bundle]
name = "app"
version = "0.1.0"
targets = ["sm_90a"]
device = "h200"

[[programs]]
run = ["python", "app.py"]
"""
BUILD = ("build", "app.toml", "--store", "store", "--out", "bundles")
CALLABLES = [
    "flash_attn.cute.flash_fwd_sm90:FlashAttentionForwardSm90",
    "flashinfer.norm.kernels.rmsnorm:RMSNormKernel",
    "quack.rmsnorm:RMSNorm",
]


def cutlass_aot(*arguments: str, folder: Path, status: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "cutlass_aot", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


def served(folder: Path, bundle: str, target: str, profile: str, program: str, *how: str) -> dict[str, Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUTE_DSL")}
    done = subprocess.run(
        [sys.executable, str(SERVE), bundle, target, profile, program, *how],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_each_target_is_answered_in_another_process(three):
    for target, profile, digits in (("sm_90a", "h200", "90"), ("sm_100a", "b200", "100")):
        found = served(three, "bundles/three", target, profile, "three_packages.py")
        assert found["refused"] == []
        assert found["answered"] == [name.replace("90", digits) for name in CALLABLES]


def test_the_bundle_is_sound_and_carries_licences(three):
    cutlass_aot("verify", "bundles/three", folder=three)
    code = ("flash-attn-4", "flashinfer-python", "quack-kernels")
    licenses = {path.stem: path.read_text() for path in (three / "bundles/three/licenses").iterdir()}
    assert sorted(licenses) == ["cutlass-aot", *code]
    for name in code:
        assert f"==== LICENSE of {name}\n" in licenses[name]
    shown = cutlass_aot("show", "bundles/three", "cute.compile-sm_90a-quack", folder=three)
    assert "quack.rmsnorm:RMSNorm" in shown
    assert "BFloat16" in shown


def test_nothing_is_run_again_while_nothing_changes(three):
    printed = cutlass_aot("build", "three.toml", "--store", "store", "--out", "bundles", folder=three)
    assert "0 compiled, up to date" in printed
    assert "recording" not in printed


def test_what_was_not_recorded_is_refused_with_the_nearest(three, tmp_path):
    other = (PROGRAMS / "three_packages.py").read_text().replace("torch.bfloat16", "torch.float16")
    (tmp_path / "other.py").write_text(other)
    found = served(tmp_path, str(three / "bundles/three"), "sm_90a", "h200", "other.py")
    assert found["answered"] == []
    assert len(found["refused"]) == len(CALLABLES)
    assert all("Float16" in reason and "BFloat16" in reason for reason in found["refused"])


def test_another_gpu_is_refused(three, tmp_path):
    profile = (
        Path(sys.modules["cutlass_aot"].__file__).parent / "generators" / "devices" / "h200.toml"
    ).read_text()
    small = tmp_path / "small.toml"
    small.write_text(profile.replace("sm_count = 132", "sm_count = 114"))
    found = served(three, "bundles/three", "sm_90a", str(small), "three_packages.py")
    assert len(found["answered"]) == len(CALLABLES), "without a GPU the bundle's own profile counts"


@pytest.fixture
def module(tmp_path: Path) -> Path:
    """A kernel in a module of its own, with a constant beside it, and a program."""
    hide_torch(tmp_path)
    (tmp_path / "tiles.py").write_text("FACTOR = 2.0\n")
    (tmp_path / "scale.py").write_text(
        textwrap.dedent(
            """\
            import os

            import cutlass
            import cutlass.cute as cute

            import tiles

            @cute.kernel
            def scale_kernel(x: cute.Tensor, factor: cutlass.Constexpr):
                thread, _, _ = cute.arch.thread_idx()
                x[thread] = x[thread] * factor

            @cute.jit
            def scale(x: cute.Tensor, stream):
                factor = tiles.FACTOR
                if cutlass.const_expr(os.environ.get("SCALE_MORE") is not None):
                    factor = factor * 3
                scale_kernel(x, factor).launch(grid=(1, 1, 1), block=(128, 1, 1), stream=stream)
            """
        )
    )
    (tmp_path / "app.py").write_text(
        textwrap.dedent(
            """\
            import cutlass
            import cutlass.cute as cute
            from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

            import scale

            x = make_fake_tensor(cutlass.Float32, (128,), (1,))
            stream = make_fake_stream(use_tvm_ffi_env_stream=True)
            cute.compile(scale.scale, x, stream, options="--enable-tvm-ffi")
            """
        )
    )
    (tmp_path / "app.toml").write_text(MANIFEST)
    return tmp_path


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_directories_and_numbers_of_workers_give_the_same_bytes(module, tmp_path_factory):
    app = (module / "app.py").read_text()
    # Three requests; line numbers, which a package may ask for, would name the files by their paths.
    app = app.replace(
        "cute.compile(scale.scale, x, stream, options=",
        "cute.compile(scale.scale, x, stream, options=LINES + ",
    )
    more = "for LINES in ('', '--generate-line-info ', '--opt-level 2 ', '--enable-assertions '):\n    "
    (module / "app.py").write_text(app.replace("cute.compile(", more + "cute.compile("))
    other = tmp_path_factory.mktemp("elsewhere") / "a folder of another name"
    shutil.copytree(module, other)
    assert "3 compiled" in cutlass_aot(*BUILD, "--jobs", "2", folder=module)
    cutlass_aot(*BUILD, "--jobs", "1", folder=other)
    assert files(module / "bundles") == files(other / "bundles")
    assert not any(str(module).encode() in data for data in files(module / "bundles").values())


def test_an_edit_is_built_again_and_not_answered_from_what_was_there(module):
    cutlass_aot(*BUILD, folder=module)
    assert served(module, "bundles/app", "sm_90a", "h200", "app.py")["refused"] == []
    (module / "tiles.py").write_text("FACTOR = 4.0\n")
    (refused,) = served(module, "bundles/app", "sm_90a", "h200", "app.py")["refused"]
    assert "code.tiles" in refused
    planned = cutlass_aot("plan", "app.toml", "--store", "store", folder=module)
    assert "tiles.py" in planned
    assert "changed since its last run" in planned
    printed = cutlass_aot(*BUILD, folder=module)
    assert "1 compiled, written" in printed
    assert served(module, "bundles/app", "sm_90a", "h200", "app.py")["refused"] == []


def test_a_closure_that_a_helper_makes_while_it_is_traced_is_part_of_the_request(module):
    (module / "tiles.py").write_text(
        "import cutlass\nimport cutlass.cute as cute\n\n"
        "def scaling(factor):\n    @cute.jit\n    def scaled(x: cutlass.Float32):\n"
        "        return x * factor\n\n    return scaled\n"
    )
    text = (module / "scale.py").read_text().replace("tiles.FACTOR", "2.0")
    text = text.replace("x[thread] * factor", "scaling(factor)(x[thread])").replace(
        "import tiles", "from tiles import scaling"
    )
    (module / "scale.py").write_text(text)
    assert "1 request, 1 compiled" in cutlass_aot(*BUILD, folder=module)
    (module / "tiles.py").write_text((module / "tiles.py").read_text().replace("x * factor", "x + factor"))
    assert "1 request, 1 compiled" in cutlass_aot(*BUILD, folder=module)


def test_a_decorator_may_be_given_a_tuple_of_types_and_the_program_may_have_a_finder(module):
    (module / "tiles.py").write_text(
        "import functools\nimport cutlass\n\n"
        "def converting(kinds):\n    def decorate(function):\n        @functools.wraps(function)\n"
        "        def converted(*values):\n            return kinds[0](kinds[1](function(*values)))\n\n"
        "        return converted\n\n    return decorate\n\n\n"
        "@converting((cutlass.Float32, cutlass.Int32))\ndef twice(x):\n    return x * 2\n"
    )
    text = (module / "scale.py").read_text().replace("x[thread] * factor", "tiles.twice(x[thread])")
    (module / "scale.py").write_text(text.replace("tiles.FACTOR", "2.0"))
    finder = "import sys\n\nclass Finder:\n    def find_spec(self, *name):\n        return None\n\n"
    program = f"{finder}sys.meta_path.insert(0, Finder())\n" + (module / "app.py").read_text()
    (module / "app.py").write_text(program)
    assert "1 request, 1 compiled" in cutlass_aot(*BUILD, folder=module)
    (module / "tiles.py").write_text(
        (module / "tiles.py").read_text().replace("cutlass.Int32)", "cutlass.Int64)")
    )
    assert "1 request, 1 compiled" in cutlass_aot(*BUILD, folder=module)


def test_an_environment_variable_that_the_code_reads_is_part_of_the_request(module, monkeypatch):
    cutlass_aot(*BUILD, folder=module)
    monkeypatch.setenv("SCALE_MORE", "1")
    (refused,) = served(module, "bundles/app", "sm_90a", "h200", "app.py")["refused"]
    assert "environment:SCALE_MORE" in refused


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("print('nothing')\n", "compiled nothing"),
        ("raise SystemExit('no weights here')\n", "no weights here"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "signal 9"),
        ("import torch\nprint(torch.ones(1, device='cuda').item())\n", "data"),
    ],
)
def test_a_program_that_fails_is_an_error(module, program, words):
    (module / "app.py").write_text(program)
    (module / "torch.py").unlink()  # one of them imports torch
    printed = cutlass_aot(*BUILD, folder=module, status=1)
    assert "programs[0] (python app.py) for sm_90a" in printed
    assert words in printed
    assert not (module / "bundles").exists()


def test_a_file_that_the_program_reads_is_looked_at(module):
    (module / "shapes.json").write_text("128")
    reads = "import json, os\nwith open('shapes.json') as file:\n    json.load(file)\nos.chdir('/')\n"
    (module / "app.py").write_text(reads + (module / "app.py").read_text())
    cutlass_aot(*BUILD, folder=module)
    assert "would be run" not in cutlass_aot("plan", *BUILD[1:4], folder=module)
    (module / "shapes.json").write_text("256")
    assert "shapes.json changed since its last run" in cutlass_aot("plan", *BUILD[1:4], folder=module)
    assert "1 request, 0 compiled" in cutlass_aot(*BUILD, folder=module)
    (module / "app.py").write_text((module / "app.py").read_text() + "# more\n")
    assert "app.py changed since its last run" in cutlass_aot("plan", *BUILD[1:4], folder=module)


def test_what_a_program_catches_does_not_end_it(module):
    catches = "try:\n    raise SystemExit(2)\nexcept SystemExit:\n    pass\n"
    (module / "app.py").write_text(catches + (module / "app.py").read_text())
    cutlass_aot(*BUILD, folder=module)
    assert "would be run" not in cutlass_aot("plan", *BUILD[1:4], folder=module)


def test_what_a_worker_process_imports_is_looked_at(module):
    (module / "worker.py").write_text("def work(): pass\n")
    program = (
        "import multiprocessing\ndef work():\n    import worker\n    worker.work()\n"
        "process = multiprocessing.get_context('fork').Process(target=work)\n"
        "process.start()\nprocess.join()\n"
    )
    (module / "app.py").write_text((module / "app.py").read_text() + program)
    cutlass_aot(*BUILD, folder=module)
    (module / "worker.py").write_text("def work(): return\n")
    assert "worker.py changed since its last run" in cutlass_aot("plan", *BUILD[1:4], folder=module)


def test_a_profile_of_a_gpu_that_cannot_run_the_target_is_refused(module):
    manifest = (module / "app.toml").read_text().replace('"sm_90a"', '"sm_100a"')
    (module / "app.toml").write_text(manifest)
    printed = cutlass_aot("plan", "app.toml", "--store", "store", folder=module, status=2)
    assert "device profile h200, a GPU that cannot run code for sm_100a" in printed


def test_a_function_that_is_called_without_compiling_is_a_request(module):
    (module / "torch.py").unlink()
    shutil.copy(PROGRAMS / "direct_calls.py", module / "app.py")
    assert "app.py for sm_90a: 8 requests, 8 compiled" in cutlass_aot(*BUILD, folder=module)
    # One of three calls of a function with the same constants; what a function calls is part of it.
    names = [
        "Scale.__call__",
        "Scale.double",
        "Scale.rounded",
        "fill_half",
        *["scale"] * 4,
        "scale_range",
        "shift",
    ]
    for how in ((), ("without-dsl",)):
        found = served(module, "bundles/app", "sm_90a", "h200", "app.py", *how)
        assert found == {"answered": [f"__main__:{name}" for name in names], "refused": []}


def test_what_launches_no_kernel_is_named(module):
    (module / "torch.py").unlink()
    (module / "app.py").write_text(
        (module / "app.py").read_text() + "import torch\nfrom cutlass.cute.runtime import from_dlpack\n\n"
        "@cute.jit\ndef fill(x: cute.Tensor, value: cutlass.Float32):\n    fill_each(x, value)\n\n"
        "@cute.jit\ndef fill_each(x: cute.Tensor, value: cutlass.Float32):\n"
        "    for element in range(cute.size(x)):\n        x[element] = value\n\n"
        "x = torch.empty(3)\nfill(from_dlpack(x), 7.0)\nassert x.tolist() == [7.0] * 3\n"
        "fill(from_dlpack(torch.empty(3, device='cuda')), 7.0)\n"
    )  # fmt: skip
    printed = " ".join(cutlass_aot(*BUILD, folder=module).split())
    assert "1 request, 1 compiled" in printed
    assert "__main__:fill: it launches no kernel, so that there is nothing to prebuild" in printed


def test_requests_found_before_a_failure_are_kept(module):
    whole = (module / "app.py").read_text()
    (module / "app.py").write_text(whole + "raise SystemExit(3)\n")
    printed = cutlass_aot(*BUILD, folder=module, status=1)
    assert "1 request of it that compiled is kept" in printed
    (module / "app.py").write_text(whole)
    printed = cutlass_aot(*BUILD, folder=module)
    assert "1 request, 0 compiled" in printed


@pytest.mark.parametrize(
    ("tiles", "factor", "words"),
    [
        # A decorator that remembers: what it holds when the trace runs is in no request.
        (
            "import functools\n\ndef counted(function):\n    seen = {}\n\n    @functools.wraps(function)\n"
            "    def wrapper():\n        seen['calls'] = seen.get('calls', 0) + 1\n"
            "        return function() * seen['calls']\n\n    return wrapper\n\n\n"
            "@counted\ndef factor():\n    return 2.0\n",
            "tiles.factor()",
            "which holds more than plain values",
        ),
        # A module that no name in the code leads to.
        (
            "",
            "__import__('importlib').import_module('hid' + 'den').FACTOR()",
            "which does not follow from the kernel's code",
        ),
    ],
)  # fmt: skip
def test_a_trace_that_runs_what_its_request_does_not_name_is_refused(module, tiles, factor, words):
    (module / "tiles.py").write_text(tiles)
    (module / "hidden.py").write_text("def FACTOR():\n    return 2.0\n")
    source = (module / "scale.py").read_text()
    (module / "scale.py").write_text(source.replace("tiles.FACTOR", factor))
    assert words in cutlass_aot(*BUILD, folder=module, status=1)
    assert not (module / "bundles").exists()

"""A clean environment with the runtime dependencies alone: no DSL, no torch, no compiler, no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from tests.support.commands import REPOSITORY, blocks_of, run_commands

pytestmark = pytest.mark.compile

PROGRAM = """
import sys
import cutlass_aot

bundle = cutlass_aot.open_installed("smoke")
a = cutlass_aot.describe((256, 512), "bf16")
b = cutlass_aot.describe((512, 128), "bf16", strides=(1, 512))
out = cutlass_aot.describe((256, 128), "bf16")
found = bundle.find(a, b, out, accumulator="f32", target="sm_90a")
assert [kernel.target for kernel in found] == ["sm_90a"], found
assert found[0].supports(a, b, out)
refused = found[0].supports(a, b, cutlass_aot.describe((256, 128), "f16"))
assert not refused
assert refused.reason == "operand `out` is unsupported: expected element type bf16, got f16"
try:
    bundle.find(a, cutlass_aot.describe((256, 128), "bf16", strides=(1, 256)), out)
except cutlass_aot.errors.KernelNotFound as error:
    assert "Nearest is" in str(error), error
else:
    raise AssertionError("K differs")
assert "sm_100a" in str(bundle.explain(a, b, out, accumulator="f32"))
heavy = {"torch", "cutlass", "ziglang", "tvm_ffi", "elftools"} & set(sys.modules)
assert not heavy, heavy
print("good")
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """The wheel of the smoke bundle, installed with the runtime side as the README says."""
    root = tmp_path_factory.mktemp("runtime")
    for arguments in (
        ["build", "manifests/smoke.toml", "--out", root / "out"],
        ["wheel", root / "out" / "smoke", "-o", root / "wheels"],
    ):
        subprocess.run(
            [sys.executable, "-m", "cutlass_aot", *map(str, arguments)], cwd=REPOSITORY, check=True
        )
    subprocess.run([sys.executable, "-m", "venv", root / "venv"], check=True)
    (shown,) = (
        block.text
        for block in blocks_of((REPOSITORY / "README.md").read_text(encoding="utf-8"))
        if block.language == "bash runtime"
    )
    assert "build/wheels" in shown
    run_commands(
        shown.replace("build/wheels", str(root / "wheels")).splitlines(),
        environment={
            **outside(os.environ),
            "PATH": os.pathsep.join([str(root / "venv" / "bin"), os.environ["PATH"]]),
            "PIP_CONSTRAINT": str(REPOSITORY / "constraints.txt"),
        },
    )
    return root


def outside(variables):
    """Environment variables without those that lead a Python program to this environment's packages."""
    return {name: value for name, value in variables.items() if not name.startswith("PYTHON")}


def run(environment, *arguments, check=True):
    return subprocess.run(
        [environment / "venv" / "bin" / arguments[0], *map(str, arguments[1:])],
        cwd=environment,
        env=outside(os.environ),
        capture_output=True,
        text=True,
        check=check,
    )


def test_nothing_of_the_build_side_is_there(environment):
    listed = run(environment, "python", "-m", "pip", "list", "--format", "json").stdout
    names = {item["name"].lower() for item in json.loads(listed)}
    assert not {"torch", "ziglang", "nvidia-cutlass-dsl", "nvidia-cutlass-operators", "pyelftools"} & names
    assert {"cutlass-aot", "cutlass-aot-bundle-smoke", "apache-tvm-ffi"} <= names


def test_the_installed_bundle_is_found_and_asked(environment):
    assert run(environment, "python", "-c", PROGRAM).stdout == "good\n"


def test_the_queries_work(environment):
    bundle = environment / "out" / "smoke"
    kernels = json.loads(run(environment, "cutlass-aot", "ls", bundle, "--json").stdout)
    assert len(kernels) == 5
    shown = json.loads(run(environment, "cutlass-aot", "show", bundle, kernels[0]["name"], "--json").stdout)
    assert shown["facts"]["registers"] > 0
    assert "good" in run(environment, "cutlass-aot", "verify", bundle).stdout
    (wheel,) = (environment / "wheels").glob("*.whl")
    answers = []
    for name in (bundle, wheel, "smoke"):
        # There is no GPU: the answer is no, with a reason.
        doctor = run(environment, "cutlass-aot", "doctor", name, "--json", check=False)
        (answer,) = json.loads(doctor.stdout)["bundles"]
        assert (doctor.returncode == 0) is answer["accepted"]
        answers.append({**answer, "where": ""})
    assert answers[0] == answers[1] == answers[2]
    assert "good" in run(environment, "cutlass-aot", "verify", wheel).stdout


def test_doctor_says_what_is_missing(environment):
    report = run(environment, "cutlass-aot", "doctor").stdout
    assert "smoke" in report
    assert "nvidia-cutlass-dsl" in report
    assert json.loads(run(environment, "cutlass-aot", "doctor", "--json").stdout)


def test_a_build_says_what_to_install(environment):
    result = run(environment, "cutlass-aot", "build", REPOSITORY / "manifests" / "smoke.toml", check=False)
    assert result.returncode == 1
    assert "install it with: pip install " in result.stderr
    assert "nvidia-cutlass-dsl" in result.stderr
    assert "Traceback" not in result.stderr

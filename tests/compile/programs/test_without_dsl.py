"""Programs without the DSL: the same requests, and kernels from a bundle where the DSL is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.support.packages import installed
from tests.support.paths import REPOSITORY as ROOT
from tests.support.paths import SUPPORT
from tools.check.without_dsl import collected, compared

pytestmark = [pytest.mark.compile, installed("flash-attn-4", "quack-kernels", "flashinfer-python")]
FIXTURES = ROOT / "tests" / "fixtures" / "programs"
NAMES = ROOT / "cutlass_aot" / "programs" / "without_dsl" / "names-4.8.1.json"


def run(
    *command: str, folder: Path = ROOT, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="classes have other members by version of Python")
def test_the_names_are_those_of_the_dsl_that_is_installed():
    done = run("tools/check/dsl_names.py", "--check", str(NAMES))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_a_program_makes_the_same_requests(target):
    program = FIXTURES / "some_of_three_packages.py"
    with_dsl = collected(program, target)
    assert with_dsl.status == 0, with_dsl.output
    assert len(with_dsl.requests) >= 10
    without = collected(program, target, with_dsl.fingerprint)
    assert without.status == 0, without.output
    assert compared(without, with_dsl) == []
    assert without.requests.keys() == with_dsl.requests.keys()


def described(how: str, seed: int) -> list[Any]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUTE_DSL")}
    environment["CUTE_DSL_ARCH"] = "sm_90a"
    done = run(str(FIXTURES / "described_values.py"), how, str(seed), "1500", environment=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("seed", [1])
def test_a_value_is_described_alike_or_refused(seed):
    with_dsl, without = described("with", seed), described("without", seed)
    assert len(with_dsl) == len(without) > 2000
    failed = ("refused", "error")
    pairs = list(zip(with_dsl, without, strict=True))
    # As text: 1, 1.0 and true are equal otherwise.
    other = [
        pair for pair in pairs if json.dumps(pair[0]) != json.dumps(pair[1]) and pair[1][1] not in failed
    ]
    assert other == []
    assert sum(pair[0] == pair[1] and pair[1][1] not in failed for pair in pairs) > 1000


@pytest.fixture(scope="module")
def site_without_dsl(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which everything is installed but the DSL."""
    folder = tmp_path_factory.mktemp("site")
    for item in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if not item.name.startswith(("cutlass", "nvidia_cutlass")) and item.suffix != ".pth":
            (folder / item.name).symlink_to(item)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUTE_DSL")}
    return {**environment, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def test_a_bundle_answers_where_the_dsl_is_not_installed(three, site_without_dsl):
    done = run("-S", "-c", "import cutlass", environment=site_without_dsl)
    assert "No module named 'cutlass'" in done.stderr
    script = str(SUPPORT / "serve_program.py")
    served = ("-S", script, "bundles/three", "sm_90a", "h200", "three_packages.py")
    done = run(*served, "without-dsl", folder=three, environment=site_without_dsl)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["refused"] == []
    assert found["answered"] == [
        "flash_attn.cute.flash_fwd_sm90:FlashAttentionForwardSm90",
        "flashinfer.norm.kernels.rmsnorm:RMSNormKernel",
        "quack.rmsnorm:RMSNorm",
    ]


def test_what_was_not_recorded_is_missed_where_the_dsl_is_not_installed(three, site_without_dsl, tmp_path):
    other = (FIXTURES / "three_packages.py").read_text().replace("torch.bfloat16", "torch.float16")
    (tmp_path / "other.py").write_text(other)
    script = str(SUPPORT / "serve_program.py")
    done = run(
        "-S", script, str(three / "bundles/three"), "sm_90a", "h200", "other.py", "without-dsl",
        folder=tmp_path, environment=site_without_dsl,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["answered"] == []
    assert all("Float16" in reason and "BFloat16" in reason for reason in found["refused"])


PROGRAM = """\
import sys

import cutlass
import cutlass.cute as cute

@cute.jit
def function(x: cute.Tensor):
    pass

print("version", cutlass.__version__, getattr(cutlass, "__file__", None))
try:
    cute.compile(function, 1)
except Exception as error:
    print(type(error).__name__, error)
"""


def test_the_command_runs_a_program_without_the_dsl(three, tmp_path):
    (tmp_path / "plain.py").write_text(PROGRAM)
    done = run(
        "-m", "cutlass_aot", "run", "--without-dsl", "--bundle", str(three / "bundles/three"), "--",
        sys.executable, "plain.py", folder=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "version 4.8.1 None" in done.stdout
    assert "RequestNotFound no kernel for __main__:function" in done.stdout


def test_under_policy_jit_a_miss_says_that_the_dsl_is_needed(three, tmp_path):
    (tmp_path / "plain.py").write_text(PROGRAM)
    done = run(
        "-m", "cutlass_aot", "run", "--without-dsl", "--policy", "jit",
        "--bundle", str(three / "bundles/three"), "--", sys.executable, "plain.py", folder=tmp_path,
    )  # fmt: skip
    assert "DslNeeded cute.compile was called, and no bundle answered" in done.stdout


@pytest.mark.parametrize("order", ["activate first", "serve first"])
def test_the_order_of_serve_and_activate_does_not_matter(three, tmp_path, order):
    lines = [f"cutlass_aot.serve({str(three / 'bundles/three')!r})", "without_dsl.activate()"]
    lines = lines if order == "serve first" else lines[::-1]
    text = "\n".join(["import cutlass_aot", "from cutlass_aot import without_dsl", *lines])
    (tmp_path / "ordered.py").write_text(f"{text}\n{PROGRAM}")
    done = run("ordered.py", folder=tmp_path)
    assert "RequestNotFound no kernel for __main__:function" in done.stdout, done.stderr

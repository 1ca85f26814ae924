"""Somebody else's package: installed, built, packed into a wheel of its own, loaded without the DSL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.errors import DeviceError
from cutlass_aot.runtime.machine import cuda_driver
from tests.support.paths import FIXTURES, REPOSITORY

pytestmark = pytest.mark.compile

GENERATOR = FIXTURES / "column_scale"

# The names of what a machine that serves has not got: the DSL, torch, and the rest of the build side.
PROGRAM = """
import sys
for name in ("cutlass", "cuda", "torch", "ziglang", "click", "jinja2", "rich"):
    sys.modules[name] = None
import numpy
from tests.support.bundles import ClaimsCuda

BUILD_SIDE = ("builder", "generators", "manifest", "store", "bundle", "cli", "jit")


def build_side():
    return [name for name in sys.modules if name.startswith("cutlass_aot.") and part_of(name) in BUILD_SIDE]


def part_of(name):
    return name.partition(".")[2].partition(".")[0]


for name in build_side():  # what the test's own helper has imported
    del sys.modules[name]
import cutlass_aot
from axpy_kernels.declared import axpy
from cutlass_aot.runtime.machine import cuda_driver as device

device.compute_capability = lambda ordinal: (9, 0)
device.driver_version = lambda: (13, 0)


def vector(*shape, dtype="f32"):
    return ClaimsCuda(numpy.zeros(shape, "u4" if dtype == "f32" else "u2"), dtype)


def outcome(call, *operands, **named):
    try:
        call(*operands, **named)
    except cutlass_aot.CutlassAotError as error:
        print(type(error).__name__, error)


(installed,) = cutlass_aot.installed_bundles()
print(installed.name, installed.version, installed.distribution)
for dtype in ("f32", "bf16"):
    function = axpy(dtype=dtype)
    print(*(kernel.target for kernel in function.kernels()))
    outcome(function, *(vector(1000, dtype=dtype) for _ in range(3)), 2.0)
outcome(axpy("f32"), vector(1000), vector(999), vector(1000), alpha=2.0)
outcome(axpy, "f16")
bundle = cutlass_aot.open_installed("axpy")
for count in (1000, 1_000_000):
    x = cutlass_aot.describe((count,), "f32")
    named = {"operation": "axpy", "parameters": {"dtype": "f32"}, "target": "sm_90a"}
    choice = bundle.choose(x, x, x, 2.0, **named)
    print(choice.kernel.design["threads"], choice.tier, choice.reason)
x, scale, out = vector(7, 100), vector(100), vector(7, 100)
print(len(bundle.find(x, scale, out, operation="column_scale")))
outcome(bundle.run, "column_scale", x, scale, out)
print("build side:", *build_side())
"""


def run(*arguments, path: Path, cwd: Path) -> str:
    """What a command of this interpreter prints, with a folder of installed packages before all others."""
    own = os.pathsep.join([str(path), str(REPOSITORY)])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([own, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def install(what: Path, folder: Path, cwd: Path) -> None:
    """Install a source tree or a wheel into a folder that holds nothing else; no index is asked."""
    run(
        "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation", "--quiet",
        "--disable-pip-version-check", "--target", folder, what, path=folder, cwd=cwd,
    )  # fmt: skip


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """A folder with what pip installed from the source tree, and the wheel of the bundle built from it."""
    pytest.importorskip("pip")
    root = tmp_path_factory.mktemp("third_party")
    source = root / "source"
    run("-m", "cutlass_aot", "new", "kernel", "axpy", "-o", source, path=root, cwd=root)
    # A generator beside the declared kernel.
    for file in GENERATOR.glob("*.py"):
        (source / "axpy_kernels" / file.name).write_bytes(file.read_bytes())
    project = source / "pyproject.toml"
    project.write_text(project.read_text() + 'column_scale = "axpy_kernels.generator:ColumnScale"\n')
    site = root / "site"
    install(source, site, root)
    manifest = root / "axpy.toml"
    table = '\n[[kernels]]\ngenerator = "column_scale"\noperation = "column_scale"\n'
    manifest.write_text(
        (source / "axpy.toml").read_text().replace(', "sm_100a"]', ']\ndevice = "h200"') + table
    )
    run("-m", "cutlass_aot", "build", manifest, path=site, cwd=root)
    run("-m", "cutlass_aot", "wheel", "build/bundles/axpy", "-o", root / "wheels", path=site, cwd=root)
    return root


def test_its_generators_are_known_by_its_entry_points(wheels):
    listed = json.loads(run("-m", "cutlass_aot", "generators", "--json", path=wheels / "site", cwd=wheels))
    found = {item["name"]: item for item in listed}
    assert found["axpy"]["location"] == "axpy_kernels.declared:axpy"
    assert found["axpy"]["operations"] == {"axpy": ["sm_80", "sm_90a", "sm_100a"]}
    assert found["column_scale"]["location"] == "axpy_kernels.generator:ColumnScale"


def test_an_edit_of_the_module_that_the_body_imports_builds_again(wheels, tmp_path):
    site = tmp_path / "site"
    install(wheels / "source", site, tmp_path)
    plan = (
        "-m",
        "cutlass_aot",
        "plan",
        wheels / "axpy.toml",
        "--store",
        wheels / "build" / "store",
        "--json",
    )
    assert not any(kernel["build"] for kernel in json.loads(run(*plan, path=site, cwd=tmp_path))["kernels"])
    edited = site / "axpy_kernels" / "kernels.py"
    edited.write_text(edited.read_text() + "\n# edited\n")
    # Those of the generator beside it do not depend on this module.
    planned = json.loads(run(*plan, path=site, cwd=tmp_path))["kernels"]
    assert {kernel["name"].partition("-")[0] for kernel in planned if kernel["build"]} == {"axpy"}


def test_its_declared_kernel_depends_on_its_parameters_alone(wheels):
    printed = run("-m", "cutlass_aot", "check", "axpy", path=wheels / "site", cwd=wheels)
    assert printed == "axpy: its code follows from its parameters\n"


def test_its_wheel_serves_where_there_is_no_dsl(wheels, tmp_path):
    try:
        cuda_driver.device_count()
    except DeviceError:
        pass
    else:
        pytest.skip("operands that only claim to be on a GPU must not meet one")
    (wheel,) = (wheels / "wheels").glob("*.whl")
    deployed = tmp_path / "deployed"
    install(wheel, deployed, tmp_path)
    install(wheels / "source", deployed, tmp_path)
    lines = run("-c", PROGRAM, path=deployed, cwd=tmp_path).splitlines()
    assert lines[0] == "axpy 0.1.0 cutlass-aot-bundle-axpy"
    # The call passes the checks of compiled code and ends where the driver is asked for.
    for targets, called in (lines[1:3], lines[3:5]):
        assert targets == "sm_80 sm_80 sm_90a sm_90a"
        assert called.startswith("DeviceError kernel axpy-")
        assert "there is no NVIDIA driver" in called
    assert "operand `y` is unsupported: expected extent N = 1000 as `x` has, got 999" in lines[5]
    assert lines[6].startswith("KernelNotFound no kernel axpy(dtype='f16') for any GPU")
    assert lines[7] == "128 declared the least by its cost formula, 192"
    assert lines[8] == "256 declared the least by its cost formula, 9600"
    assert lines[9] == "1"
    assert lines[10].startswith("DeviceError kernel column_scale-")
    assert lines[11:] == ["build side:"]

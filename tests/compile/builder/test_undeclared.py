"""What a declared kernel depends on and does not declare: found by compiling it twice and comparing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.compile

KERNEL = """
import cutlass
import cutlass.cute as cute


@cute.kernel
def scale_kernel(x: cute.Tensor, out: cute.Tensor, factor: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    out[thread] = x[thread] * factor


@cute.jit
def scale(x: cute.Tensor, out: cute.Tensor, factor: cutlass.Constexpr, stream):
    scale_kernel(x, out, factor).launch(grid=(1, 1, 1), block=(128, 1, 1), stream=stream)
"""

DECLARED = """
import os

import cutlass_aot
from cutlass_aot import Operand
{imports}
FACTOR = 3.0
harmless = "nothing depends on it"
{variables}

@cutlass_aot.kernel(name="{name}", params={{"n": [1, 2]}}, targets=["sm_90a"], modules={modules})
def {name}(n):
    from scale_kernel import scale
{body}
    assert isinstance(harmless, str)
    return scale, [Operand("x", "f32", (128,)), Operand("out", "f32", (128,), written=True)], (n * factor,)
"""

CLEAN = DECLARED.format(
    imports="", variables="", name="clean", modules=["scale_kernel"], body="    factor = FACTOR"
)

CARELESS = DECLARED.format(
    imports="from scale_settings import default",
    variables="offset = 1.0\ncalls = 0",
    name="careless",
    modules=["scale_kernel"],
    body=(
        "    global calls\n    calls += 1\n"
        "    factor = float(os.environ.get('SCALE_FACTOR', '1')) + offset + calls * default"
    ),
)


def check(folder, module):
    own = {name: value for name, value in os.environ.items() if name != "SCALE_FACTOR"}
    environment = {**own, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, "-m", "cutlass_aot", "check", "--json", "--plugin", module, module],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("undeclared")
    for name, text in {
        "clean": CLEAN,
        "careless": CARELESS,
        "scale_kernel": KERNEL,
        "scale_settings": '"""Settings."""\n\ndefault = 0.5\n',
        "broken": CLEAN.replace("clean", "broken").replace("FACTOR\n    assert", "None\n    assert"),
    }.items():
        (made / f"{name}.py").write_text(text, encoding="utf-8")
    return made


def test_a_kernel_that_follows_from_its_parameters_is_clean(folder):
    assert check(folder, "clean") == (0, [])


def test_everything_else_that_changes_the_code_is_named(folder):
    status, found = check(folder, "careless")
    assert status == 1
    assert {(item["what"], item["name"]) for item in found} == {
        ("environment", "SCALE_FACTOR"),
        ("global", "offset"),
        ("global", "calls"),
        # It was imported by name: that variable is one of this module's own.
        ("global", "default"),
        ("order", ""),
        ("module", "scale_settings"),
    }
    (environment,) = (item["message"] for item in found if item["what"] == "environment")
    assert "environment variable SCALE_FACTOR, read at careless.py:" in environment
    assert all(item["kernel"] == "careless" for item in found)


def test_one_that_does_not_compile_says_so(folder):
    status, words = check(folder, "broken")
    assert status == 1
    assert "kernel 'broken' does not compile: " in words


SURROUNDINGS = DECLARED.format(
    imports="",
    variables="mask = 0xFFFFFFFFFFFFFFFF",
    name="surroundings",
    modules=["scale_kernel"],
    body=(
        "    with open('factor.txt') if os.path.exists('factor.txt') else open(os.devnull) as file:\n"
        "        read = float(file.read() or 1)\n"
        "    order = sum(place * ord(letter) for place, letter in enumerate({*'abcdefgh'}))\n"
        "    factor = read + order + mask % 7"
    ),
)


def test_the_hash_seed_and_the_directory_are_tried_and_numbers_of_any_size(folder):
    (folder / "surroundings.py").write_text(SURROUNDINGS, encoding="utf-8")
    (folder / "factor.txt").write_text("5", encoding="utf-8")
    status, found = check(folder, "surroundings")
    assert status == 1
    assert {(item["what"], item["name"]) for item in found} == {
        ("hash seed", ""),
        ("directory", ""),
        ("global", "mask"),
    }


def test_a_trace_that_fails_shows_its_traceback(folder):
    """The module is imported as it is; with another value of the variable that it reads, it is not."""
    text = CLEAN.replace("clean", "modal").replace(
        "FACTOR = 3.0", 'FACTOR = {"fast": 3.0}[os.environ.get("SCALE_MODE", "fast")]'
    )
    (folder / "modal.py").write_text(text, encoding="utf-8")
    status, words = check(folder, "modal")
    assert status == 1
    assert "kernel 'modal' could not be traced" in words
    assert "modal.py" in words
    assert "KeyError: '1'" in words

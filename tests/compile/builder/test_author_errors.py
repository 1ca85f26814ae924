"""Mistakes in a kernel of one's own: the terminal shows each reason once, with the author's line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.compile

KERNEL = """
import cutlass
import cutlass.cute as cute
from cutlass._mlir.dialects import llvm


def double(value):
    return tow * value


@cute.kernel
def wrong_kernel(x: cute.Tensor, out: cute.Tensor, how: cutlass.Constexpr, threads: cutlass.Constexpr):
    i, _, _ = cute.arch.thread_idx()
    if cutlass.const_expr(how == "name"):
        out[i] = double(x[i])
    if cutlass.const_expr(how == "type"):
        out[i] = x[i] + "a"
    if cutlass.const_expr(how == "path"):
        held = cutlass.Float32(0)
        while i < threads:
            held = cutlass.Int32(1)
            i += 1
        out[i] = held
    if cutlass.const_expr(how == "layout"):
        out[i] = cute.make_tensor(x.iterator, cute.make_layout((4, 4), stride=(1,)))[i]
    if cutlass.const_expr(how == "tile"):
        out[i] = cute.local_tile(x, (32, 32), (0, 0))[i]
    if cutlass.const_expr(how == "ptx"):
        llvm.inline_asm(None, [], "no.such.instruction;", "", has_side_effects=True)


@cute.jit
def wrong(x: cute.Tensor, out: cute.Tensor, how: cutlass.Constexpr, threads: cutlass.Constexpr, stream):
    wrong_kernel(x, out, how, threads).launch(grid=(1, 1, 1), block=(threads, 1, 1), stream=stream)
"""

DECLARED = """
import cutlass_aot
from cutlass_aot import Operand


@cutlass_aot.kernel(
    name="wrong",
    params={"how": ["name", "type", "path", "layout", "tile", "ptx"], "threads": [64, 128]},
    targets=["sm_80", "sm_90a"],
    modules=["wrong_kernel"],
)
def wrong(how, threads):
    from wrong_kernel import wrong

    operands = [Operand("x", "f32", ("N",)), Operand("out", "f32", ("N",), written=True)]
    return wrong, operands, (how, threads)


@cutlass_aot.kernel(name="body", targets=["sm_90a"])
def body():
    return wrong, [Operand("out", "f32", (nowhere,), written=True)]


@cutlass_aot.kernel(name="operand", targets=["sm_90a"])
def operand():
    return wrong, [Operand("out", "f33", ("N",), written=True)]


@cutlass_aot.kernel(name="syntax", targets=["sm_90a"], modules=["wrong_syntax"])
def syntax():
    from wrong_syntax import launch
"""

MANIFEST = """
plugins = ["wrong_declared"]

[bundle]
name = "wrong"
version = "0.1.0"
targets = {targets}
device = "h200"

[[kernels]]
generator = "{name}"
operation = "{name}"
"""

# What the compiler says, and the line of KERNEL that it is about; the ptx error names the whole kernel.
REASONS = [
    ("NameError in `wrong`: name 'tow' is not defined", "return tow * value"),
    ("TypeError: unsupported operand type(s) for +: 'Float32' and 'str'", 'out[i] = x[i] + "a"'),
    ("`held` has type `Float32` on one path and `Int32` on another", "while i < threads:"),
    ("ValueError: shape and stride must be congruent", "make_layout((4, 4), stride=(1,))"),
    ("expects rank(tiler) <= rank(input)", "cute.local_tile(x, (32, 32), (0, 0))"),
    ("Not a name of any known instruction: 'no'", "def wrong_kernel("),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wrong")
    (made / "wrong_kernel.py").write_text(KERNEL)
    (made / "wrong_declared.py").write_text(DECLARED)
    (made / "wrong_syntax.py").write_text("def launch(:\n")
    return made


def cutlass_aot(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    return subprocess.run(
        [sys.executable, "-m", "cutlass_aot", *arguments],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def build(folder: Path, name: str, targets: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / f"{name}.toml").write_text(MANIFEST.format(name=name, targets=targets))
    return cutlass_aot(folder, "build", f"{name}.toml", *arguments)


@pytest.fixture(scope="module")
def events(folder: Path) -> list[dict[str, object]]:
    done = build(folder, "wrong", '["sm_80", "sm_90a"]', "--json")
    assert done.returncode == 1, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize("arguments", [(), ("--retry",)])
def test_each_reason_is_said_once_with_the_line_and_a_count(folder: Path, arguments: tuple[str, ...]) -> None:
    done = build(folder, "wrong", '["sm_80", "sm_90a"]', *arguments)
    assert done.returncode == 1
    # Without --retry they are remembered from the build before, and nothing is compiled.
    remembered = not arguments
    when = ", all in an earlier build" if remembered else ""
    before, told, after = done.stderr.partition(f"24 kernels of 24 failed for 6 reasons{when}:\n")
    assert told
    assert ("plan: 0 kernels to build, 0 present, 24 failed in an earlier build" in before) is remembered
    assert ("cutlass-aot build wrong.toml --retry does that" in after) is remembered
    assert ("compiling: " in before) is not remembered
    for reason, line in REASONS:
        assert after.count(reason) == 1, reason
        assert after.count(line) == 1, line
    assert after.count(f"  4 kernels{when}: wrong-") == 6
    assert after.count("wrong_kernel.py:") == 6
    assert before.count(f"\nfailed{' in an earlier build' if remembered else ''}: ") == 6
    assert len([line for line in done.stderr.splitlines() if line.startswith("  log: ")]) == 6


def test_neither_logs_nor_events_have_colours(folder: Path, events: list[dict[str, object]]) -> None:
    failed = [event for event in events if event["event"] == "failed"]
    assert len(failed) == 24
    for event in failed:
        assert "\x1b" not in f"{event['reason']}{event['detail']}"
        assert "\n" not in str(event["reason"])
        assert "wrong_kernel.py:" in str(event["detail"])
        assert b"\x1b" not in (folder / str(event["log"])).read_bytes()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("body", ["NameError: name 'nowhere' is not defined", "wrong_declared.py:21, in body"]),
        ("operand", ["operand `out`: unknown element type 'f33'"]),
        ("syntax", ["SyntaxError: invalid syntax", "wrong_syntax.py:1", "1 | def launch(:"]),
    ],
)
@pytest.mark.parametrize("command", ["build", "check"])
def test_an_error_outside_of_the_kernel_names_its_line_and_shows_no_traceback(
    folder: Path, command: str, name: str, said: list[str]
) -> None:
    if command == "build":
        done = build(folder, name, '["sm_90a"]')
    else:
        done = cutlass_aot(folder, "check", "--plugin", "wrong_declared", name)
    assert done.returncode == 1
    for words in said:
        assert words in done.stderr
    assert "Traceback" not in done.stderr

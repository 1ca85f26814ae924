"""What a program's processes begin with: the plan, and what is wrong with one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.errors import BundleError
from cutlass_aot.programs.start.environment import PLAN_VARIABLE, SERVE_VARIABLE, program_environment
from cutlass_aot.programs.start.launch import run_program


def run(code: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_plan_begins_before_the_first_line_and_in_processes_that_the_program_starts(tmp_path):
    (tmp_path / "begun.py").write_text("def begin(plan):\n    print('begun', plan['word'], flush=True)\n")
    environment = program_environment(
        {"begin": "begun", "word": "x"}, tmp_path, {**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    inner = (
        "import subprocess, sys; print('line', flush=True); subprocess.run([sys.executable, '-c', 'pass'])"
    )
    done = run(inner, environment)
    assert done.stdout.splitlines() == ["begun x", "line", "begun x"]
    assert done.returncode == 0


def test_the_site_s_own_module_is_imported_too(tmp_path):
    (tmp_path / "begun.py").write_text("def begin(plan):\n    pass\n")
    (tmp_path / "sitecustomize.py").write_text("print('the site', flush=True)\n")
    environment = program_environment(
        {"begin": "begun"}, tmp_path, {**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    assert run("pass", environment).stdout == "the site\n"


def test_a_program_without_a_plan_is_left_alone(tmp_path):
    environment = program_environment({"begin": "none"}, tmp_path, dict(os.environ))
    del environment[PLAN_VARIABLE]
    done = run("import sys; print('cutlass_aot' in sys.modules)", environment)
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"begin": 3}', "{" * 100_000])
def test_a_plan_that_cannot_be_read_is_told_in_one_line(tmp_path, text):
    environment = program_environment({"begin": "none"}, tmp_path, dict(os.environ))
    Path(environment[PLAN_VARIABLE]).write_text(text)
    done = run("print('runs')", environment)
    assert done.stdout == "runs\n"
    assert "is not a plan for a program" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_environment_variable_alone_has_bundles_served(tmp_path):
    environment = {**os.environ, SERVE_VARIABLE: str(tmp_path / "no-bundle")}
    done = run("print('runs')", environment)
    assert done.returncode == BundleError.exit_code
    assert done.stdout == ""
    assert f"error: {SERVE_VARIABLE}: " in done.stderr
    assert "no-bundle" in done.stderr
    assert "names no bundle" in run("pass", {**os.environ, SERVE_VARIABLE: ":"}).stderr
    done = run("import sys; print('cutlass_aot' in sys.modules)", {**os.environ})
    assert done.stdout == "False\n"


def test_the_command_itself_is_not_served():
    environment = {**os.environ, SERVE_VARIABLE: "no-bundle"}
    for command in (["-m", "cutlass_aot"], [str(Path(sys.executable).with_name("cutlass-aot"))]):
        done = subprocess.run(
            [sys.executable, *command, "--version"], env=environment, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")


def test_the_status_of_a_program_is_handed_on(tmp_path):
    (tmp_path / "begun.py").write_text("def begin(plan):\n    pass\n")
    plan = {"begin": "builtins"}
    assert run_program([sys.executable, "-c", "raise SystemExit(7)"], plan, tmp_path).status == 7
    ended = run_program([sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], plan, tmp_path)
    assert ended.status == -9
    assert "signal 9" in ended.problem()


def test_a_program_that_is_asked_to_end_ends_in_its_own_time(tmp_path):
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *given: sys.exit(7))\n"
        "print('ready', flush=True)\ntime.sleep(30)\n"
    )
    code = (
        "import sys; from pathlib import Path; from cutlass_aot.programs.start.launch import run_program\n"
        f"command, folder = [sys.executable, '-c', {program!r}], Path({str(tmp_path)!r})\n"
        "ran = run_program(command, {'begin': 'builtins'}, folder)\n"
        "print(ran.status, ran.interrupted)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20)[0] == "7 False\n"

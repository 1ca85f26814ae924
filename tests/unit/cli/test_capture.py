"""``cutlass-aot capture`` without a compiler: programs that compile nothing, and what is refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot.schema.requests.recording import Recording, recording_to_bytes
from cutlass_aot.schema.requests.request import CompiledRequest
from tests.support.requests import request


def capture(folder: Path, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "app.py").write_text(program)
    command = ["-m", "cutlass_aot", "capture", "-o", "app.toml", *options, "--", sys.executable, "app.py"]
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("print('ran')", "no call of cute.compile was seen"),
        ("raise SystemExit(3)", "the program ended with status 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "the program was ended by signal 9"),
    ],
)
def test_a_program_that_compiles_nothing_is_an_error_and_writes_nothing(tmp_path, program, reason):
    done = capture(tmp_path, program)
    assert done.returncode == 1
    assert reason in done.stderr
    assert "nothing is written" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]


def test_the_program_runs_as_it_would_without(tmp_path):
    done = capture(tmp_path, "import os, sys\nprint(sys.argv, sys.stdin.read(), 'cutlass' in sys.modules)")
    assert done.stdout == "['app.py']  False\n"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--name", "../other"), "'../other' is not a name"),
        (("-o", "app.recording"), "app.recording: expected a manifest, such as app.toml"),
        (("-o", "missing/app.toml"), "missing is not a folder that can be written to"),
    ],
)
def test_what_is_wrong_is_said_before_the_program_runs(tmp_path, options, reason):
    done = capture(tmp_path, "open('ran', 'w')", *options)
    assert done.returncode == 2
    assert reason in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_program_that_is_not_there_is_named(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "cutlass_aot", "capture", "--", "./missing"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "./missing cannot be run: No such file or directory" in done.stderr


def test_an_interrupt_ends_the_program(tmp_path):
    (tmp_path / "app.py").write_text("import time\nprint('ready', flush=True)\ntime.sleep(60)\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "cutlass_aot", "capture", "--", sys.executable, "app.py"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "the program was interrupted; nothing is written" in printed


def test_a_manifest_of_somebody_s_own_is_not_overwritten(tmp_path):
    (tmp_path / "own.toml").write_text("[bundle]\n")
    done = capture(tmp_path, "open('ran', 'w')", "-o", "own.toml")
    assert done.returncode == 2
    assert "is not a manifest that cutlass-aot has written" in done.stderr
    assert (tmp_path / "own.toml").read_text() == "[bundle]\n"
    assert not (tmp_path / "ran").exists()


def test_a_recording_of_somebody_s_own_is_not_overwritten(tmp_path):
    for name in ("app.recording", "app-2.recording"):
        (tmp_path / name).write_text("a sound")
        done = capture(tmp_path, "open('ran', 'w')", "-o", "app.toml")
        assert done.returncode == 2
        assert f"{name} is not a recording, and would be replaced" in done.stderr
        (tmp_path / name).unlink()
    assert not (tmp_path / "ran").exists()


def test_a_recording_of_its_own_is_replaced(tmp_path):
    known = request(configuration=1)
    recording = Recording((CompiledRequest(known),))
    data = recording_to_bytes(recording, {known.digest: os.urandom(20_000)})
    (tmp_path / "app.recording").write_bytes(data)
    (tmp_path / "app.toml").write_text("# Written by cutlass-aot: what it was\n")
    assert "nothing is written" in capture(tmp_path, "print()", "-o", "app.toml").stderr
    assert (tmp_path / "app.recording").read_bytes() == data


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--ledger", "missing/x.json"), "missing is not a folder that can be written to"),
        (("--keep", "more.toml", "--policy", "required"), "--keep needs --policy warn or jit"),
    ],
)
def test_what_could_not_be_written_is_said_before_a_program_is_served(tmp_path, options, reason):
    command = ["-m", "cutlass_aot", "run", "--bundle", "b", *options, "--", "touch", "ran"]
    done = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert reason in done.stderr
    assert not (tmp_path / "ran").exists()

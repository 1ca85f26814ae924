"""Exit statuses: one table in the code, in the help and on the page; an interrupt's is 130."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cutlass_aot import errors
from cutlass_aot.cli import main
from cutlass_aot.errors import CutlassAotError, ExitCode
from tests.support.paths import REPOSITORY

# In short sleeps: a signal between Python's look for signals and a sleep's begin waits for the sleep's end.
WAIT = "import time\nprint('ready', flush=True)\nfor _ in range(6000): time.sleep(0.01)\n"
PAGE = (REPOSITORY / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")


def test_the_page_and_the_help_have_the_table_of_the_code(capsys: pytest.CaptureFixture[str]) -> None:
    table = [(str(code.value), code.meaning) for code in ExitCode]
    assert re.findall(r"^\| (\d+) \| (.*) \|$", PAGE, re.MULTILINE) == table
    with pytest.raises(SystemExit):
        main(["--help"])
    help_text = capsys.readouterr().out
    assert re.findall(r"^    ?(\d+) +(\S.*)$", help_text, re.MULTILINE) == table


def test_every_error_exits_with_a_status_of_the_table() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    found = {kind.exit_code for kind in kinds if issubclass(kind, CutlassAotError)}
    assert found == {ExitCode.FAILED, ExitCode.MISUSED, ExitCode.UNTRUSTED}
    assert all(isinstance(code, ExitCode) for code in found)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("module", ["traceback", "click", "locale", "inspect", "gettext"])
def test_an_interrupt_while_the_command_line_is_imported_is_quiet(
    tmp_path: Path, module: str, number: signal.Signals
) -> None:
    # Modules that the command line imports, first of all others of that name: each stands for one moment.
    (tmp_path / f"{module}.py").write_text(WAIT)
    # As installed from these sources.
    script = re.search(
        '^cutlass-aot = "(.+):(.+)"$', (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE
    )
    assert script is not None
    code = f"from {script[1]} import {script[2]} as main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "doctor"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out, errors) == (130, "", "")


def test_an_interrupt_that_is_ignored_stays_ignored(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text(
        "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nprint('on')\n"
    )
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from cutlass_aot.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)])},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "on\n"


def test_a_command_that_a_signal_interrupts_exits_with_130(tmp_path: Path) -> None:
    code = "import time; print('ready', flush=True); time.sleep(60)"
    process = subprocess.Popen(
        [sys.executable, "-m", "cutlass_aot", "capture", "--", sys.executable, "-c", code],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130

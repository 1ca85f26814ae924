"""Recording, without the DSL: forks that compile, and when they end."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cutlass_aot.errors import ProgramError
from cutlass_aot.programs.record.record import Nothing, Recorder
from cutlass_aot.programs.without_tvm_ffi import WithoutTvmFfi

SLOW = """
import time

def compile_request(request, compile, call, path):
    time.sleep({seconds})
    return {{}}
"""


def recorder(folder: Path, compiler: str) -> Recorder:
    return Recorder(folder, {}, frozenset(), compiler, jobs=1, timeout=60.0)


def note(recorder: Recorder) -> None:
    request: Any = SimpleNamespace(digest="a" * 64, encoded=lambda: b"request")
    recorder._note(request, lambda: None, (None, (), {}))


def test_what_a_thread_asked_for_is_compiled_also_if_the_thread_ends_first(tmp_path, monkeypatch):
    (tmp_path / "slow_compiler.py").write_text(SLOW.format(seconds=0.5))
    monkeypatch.syspath_prepend(tmp_path)
    made = recorder(tmp_path, "slow_compiler")
    thread = threading.Thread(target=note, args=(made,))
    thread.start()
    thread.join()
    made.finish()
    assert (tmp_path / f"{'a' * 64}.result").exists()
    assert not (tmp_path / f"{'a' * 64}.failure").exists()


def test_a_fork_ends_after_the_program_that_was_killed(tmp_path):
    (tmp_path / "endless_compiler.py").write_text(SLOW.format(seconds=600))
    code = (
        "import sys, time; from pathlib import Path; "
        "from tests.unit.programs.test_record import note, recorder; "
        f"made = recorder(Path({str(tmp_path)!r}), 'endless_compiler'); note(made); "
        "print(*made._running, flush=True); time.sleep(600)"
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as program:
        assert program.stdout is not None
        fork = int(program.stdout.readline())
        program.kill()
    deadline = time.monotonic() + 20
    while _is_alive(fork) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_alive(fork)


def _is_alive(process: int) -> bool:
    """Whether a process runs; one that ended and that nobody has waited for does not."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_what_stands_for_a_compiled_function_has_what_programs_use_of_one():
    """What takes arguments in order. It tells no parameters, as a function of TVM-FFI does not."""
    nothing = Nothing()
    assert nothing(1, "two", stream=None) is None
    assert nothing.__tvm_ffi_object__()(1) is None
    with pytest.raises((TypeError, ValueError)):
        inspect.signature(nothing)


@pytest.mark.parametrize("name", ["export_to_c", "dump_to_object"])
@pytest.mark.parametrize("function", [Nothing(), WithoutTvmFfi(print)])
def test_object_code_of_what_stands_for_a_compiled_function_is_refused(name, function):
    """As if it had no such method: some packages keep a function only if it has one."""
    with pytest.raises(ProgramError, match=rf"{name} of <.*a cache of the program .* turn it off"):
        getattr(function, name)
    assert not hasattr(function, name)

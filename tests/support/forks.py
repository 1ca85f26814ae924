"""A process that has begun, by an import that takes seconds, and forks for each script that goes on from it.

A fork has imported nothing of a script. It has the hash seed and the addresses of its process, though: what
has to be the same in any two processes is asked of two of these.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import traceback
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.paths import REPOSITORY

SECONDS = 120
_SERVE = "from tests.support.forks import serve; serve()"


class Forks:
    """Runs scripts as ``python`` does, each in a fork of one process.

    Args:
        begin: what the process does first; scripts have its names.
        environment: variables of the process, beside those of this one.
    """

    def __init__(self, begin: str, **environment: str) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="forks-")
        self.process = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            env={**os.environ, "PYTHONPATH": os.fspath(REPOSITORY), **environment},
            cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.send({"begin": begin})

    def run(self, script: Path | str, **environment: str) -> str:
        """What a script prints, a file or its text; it has to end well."""
        printed, said = (Path(self.folder.name, name) for name in ("printed", "said"))
        text = script if isinstance(script, str) else ""
        job = {"text": text, "file": "" if text else str(script), "environment": environment}
        self.send({**job, "printed": str(printed), "said": str(said)})
        assert self.process.stdout is not None
        status = self.process.stdout.readline()
        assert status == "0\n", said.read_text(encoding="utf-8") if status else "the process has ended"
        return printed.read_text(encoding="utf-8")

    def send(self, message: Mapping[str, Any]) -> None:
        """Hand a message to the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        """End it."""
        self.process.communicate(timeout=SECONDS)
        self.folder.cleanup()


def serve() -> None:
    """Begin, and answer each job from standard input with the exit status of its fork."""
    begun: dict[str, Any] = {}
    exec(compile(json.loads(sys.stdin.readline())["begin"], "<string>", "exec", dont_inherit=True), begun)
    gc.freeze()  # forks do not collect what they share
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            _run(json.loads(line), begun)
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(job: Mapping[str, Any], begun: Mapping[str, Any]) -> None:
    os.environ.update(job["environment"])
    for descriptor, name in enumerate((os.devnull, job["printed"], job["said"])):
        os.dup2(os.open(name, os.O_RDWR | os.O_CREAT | os.O_TRUNC), descriptor)
    module = types.ModuleType("__main__")
    vars(module).update(begun)
    sys.modules["__main__"] = module
    text, file = job["text"], "<string>"
    if not text:
        text, file = Path(job["file"]).read_text(encoding="utf-8"), job["file"]
        module.__file__ = file
        sys.argv, sys.path[0] = [file], str(Path(file).parent)
    status = 1
    try:
        exec(compile(text, file, "exec", dont_inherit=True), vars(module))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

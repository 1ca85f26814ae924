"""A process in which a cache answers a program.

    python tools/check/cache_conformance/child.py CACHE JOB.json     one job
    python tools/check/cache_conformance/child.py CACHE              jobs from standard input, each in a fork

The second way imports the DSL and the cache's own modules once; a fork has imported nothing of a program.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import sys
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])

from cutlass_aot.builder.compile.fork_server import import_tvm_ffi
from tools.check.cache_conformance.caches import cache_named
from tools.check.cache_conformance.patches import kill_exports, tell_sm_count
from tools.check.cache_conformance.protocol import KILL, Cache

NEVER_KILLED = 90
"""Exit status of a writer that was to be killed and never wrote."""


def main(name: str, file: str = "") -> None:
    """Run a job, or those of standard input one after the other; the answer to each is its exit status."""
    cache = cache_named(name)
    job = json.loads(Path(file).read_text(encoding="utf-8")) if file else None
    os.environ.update({**cache.environment, **(job["environment"] if job else {})})
    for module in ("cutlass.cute", *cache.modules):
        importlib.import_module(module)
    import_tvm_ffi()
    if job is not None:
        run(job, cache)
        return
    # Forks do not collect what they share.
    gc.freeze()
    print("ready", flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.setsid()
            status = 1
            try:
                status = run(job, cache)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        _, ended = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(ended), flush=True)


def run(job: Mapping[str, Any], cache: Cache) -> int:
    """Import the program, make its calls, and write what the cache said of each to the job's answer."""
    os.environ.update(job["environment"])
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.dont_write_bytecode = True
    sys.path[1:1] = job["path"]
    importlib.invalidate_caches()
    tell_sm_count()
    if os.environ.get(KILL):
        kill_exports()
    cache.prepare(Path(job["directory"]), Path(job["path"][0]), entries=job["entries"])
    answers = []
    for name in job["calls"]:
        try:
            program = _script(Path(job["path"][0])) if job["script"] else importlib.import_module("program")
            function, arguments, keywords = getattr(program, name)()
            answers.append([cache.compile(function, arguments, keywords), ""])
        except Exception as error:
            answers.append(["error", f"{type(error).__name__}: {str(error)[:500]}"])
    new = Path(f"{job['answer']}.new")
    new.write_text(json.dumps(answers), encoding="utf-8")
    new.replace(job["answer"])
    return NEVER_KILLED if os.environ.get(KILL) else 0


@functools.lru_cache(maxsize=1)
def _script(folder: Path) -> types.ModuleType:
    """The program as Python runs a script."""
    path = folder / "program.py"
    module = types.ModuleType("__main__")
    module.__file__ = str(path)
    sys.modules["__main__"] = module
    exec(compile(path.read_bytes(), path, "exec"), vars(module))  # noqa: S102
    return module


if __name__ == "__main__":
    main(*sys.argv[1:])

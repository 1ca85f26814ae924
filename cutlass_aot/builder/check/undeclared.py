"""Find what changes the code of a declared kernel without being a parameter of it: trace twice, and compare.

The first trace is made as a build makes it. The second differs in everything that a parameter list does not
say: the environment variables that the first one read and the module-level variables of the kernel's modules
have other values, and the hash seed, the working directory and the order of the compilations are others. If
the objects are equal, none of it matters. If not, each difference is tried alone.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cutlass_aot.builder.check.trace import TraceReply, TraceRequest
from cutlass_aot.builder.compile.cores import available_workers
from cutlass_aot.builder.compile.fork_client import PASSED_ON, SETTINGS
from cutlass_aot.errors import CompileError, GeneratorError
from cutlass_aot.generators.declared import DeclaredGenerator
from cutlass_aot.generators.registry import GeneratorReference, find
from cutlass_aot.manifest.filters import spread
from cutlass_aot.schema.codec import from_plain, to_plain

MAX_COMBINATIONS = 3
"""Combinations of parameters that are traced: the first, one in the middle, the last."""

TRACE_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Finding:
    """Something undeclared that changes the code, or may.

    Attributes:
        what: ``environment``, ``global``, ``module``, ``order``, ``hash seed``, ``directory`` or ``unknown``.
        name: of the variable or the module; ``""`` if there is none.
        message: the finding in words, with what to do.
    """

    what: str
    name: str
    message: str


@dataclass(frozen=True, slots=True)
class _Trace:
    """The conditions of a trace; the defaults are those of a build."""

    combinations: tuple[int, ...]
    environment: Mapping[str, str | None] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    hash_seed: str = "0"
    elsewhere: bool = False


def undeclared(name: str, target: str | None = None) -> list[Finding]:
    """Find what a declared kernel depends on and does not declare; empty if nothing was found.

    The kernel's module must have been imported, or be installed with an entry point. ``target`` is the first
    declared one if left out.
    """
    reference = find(name)
    generator = reference.load()
    if not isinstance(generator, DeclaredGenerator):
        raise GeneratorError(
            f"generator {name!r} is a class: kernels of @cutlass_aot.kernel alone are checked"
        )
    targets = generator.targets(name)
    if target is not None and target not in targets:
        raise GeneratorError(f"kernel {name!r} is declared for {', '.join(targets)}, not for {target}")
    run = functools.partial(_run, reference, target or targets[0])
    count = len(list(generator.declared.combinations()))
    plain = _Trace(tuple(spread(count, MAX_COMBINATIONS)))
    first = run(plain)
    _refuse_errors(name, first)
    findings = [
        Finding(
            "module", module, f"{module} is imported and not among `modules`: an edit of it rebuilds nothing"
        )
        for module in first.modules
    ]
    # With two values: one may be the kernel's default, which gives the same code as an unset variable.
    turns = [_differences(plain, first, value) for value in ("1", "0")]
    if not _differing(run, [functools.reduce(_merged, turn, plain) for turn in turns], first):
        return findings
    first_turn, second_turn = turns
    differences = [*first_turn, *(item for item in second_turn if item not in first_turn)]
    guilty = _differing(run, differences, first)
    blamed = list(dict.fromkeys(_finding(item, first) for item in guilty))
    if not blamed:
        message = "two traces gave different code, and no single difference between them does: " + ", ".join(
            dict.fromkeys(_finding(item, first).what for item in differences)
        )
        blamed = [Finding("unknown", "", message)]
    return [*findings, *blamed]


def _differing(
    run: Callable[[_Trace], TraceReply], traces: Sequence[_Trace], first: TraceReply
) -> list[_Trace]:
    """The traces that give other code than the first; as many run at once as the machine has room for."""
    with ThreadPoolExecutor(available_workers()) as pool:
        replies = list(pool.map(run, traces))
    return [trace for trace, reply in zip(traces, replies, strict=True) if reply.objects != first.objects]


def _differences(plain: _Trace, first: TraceReply, value: str) -> list[_Trace]:
    """Traces that each differ from the first in one thing; ``value`` is given to unset variables."""
    return [
        *(replace(plain, environment={name: _other_text(name, value)}) for name in first.reads),
        *(replace(plain, variables={name: _other(value)}) for name, value in first.globals.items()),
        replace(plain, combinations=tuple(reversed(plain.combinations))),
        replace(plain, hash_seed="1"),
        replace(plain, elsewhere=True),
    ]


def _merged(one: _Trace, other: _Trace) -> _Trace:
    """A trace with the differences of both."""
    return _Trace(
        combinations=max(one.combinations, other.combinations),
        environment={**one.environment, **other.environment},
        variables={**one.variables, **other.variables},
        hash_seed=max(one.hash_seed, other.hash_seed),
        elsewhere=one.elsewhere or other.elsewhere,
    )


def _of_a_worker() -> dict[str, str]:
    """The environment that a build compiles in."""
    return {name: os.environ[name] for name in PASSED_ON if name in os.environ} | SETTINGS


def _other_text(name: str, value: str) -> str | None:
    """Another value of an environment variable than in a build: None, for unset, if it has one there."""
    return None if name in _of_a_worker() else value


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return f"{value}_" if isinstance(value, str) else value + 1


def _finding(difference: _Trace, first: TraceReply) -> Finding:
    for name in difference.environment:
        where = first.reads[name]
        return Finding(
            "environment",
            name,
            f"environment variable {name}, read at {where}, changes the code: declare a parameter instead",
        )
    for place in difference.variables:
        module, _, name = place.partition(":")
        return Finding(
            "global",
            name,
            f"variable {name} of {module} changes the code: declare a parameter instead, or, if no function "
            "assigns it, write it in capitals",
        )
    if difference.hash_seed != "0":
        return Finding("hash seed", "", "the hash seed changes the code: sort what comes out of a set")
    if difference.elsewhere:
        return Finding("directory", "", "the working directory changes the code: a relative path is read")
    return Finding(
        "order", "", "what was compiled before changes the code: a call leaves something to the next one"
    )


def _refuse_errors(name: str, reply: TraceReply) -> None:
    errors = [text for text in reply.objects.values() if ": " in text]
    if errors:
        raise CompileError(f"kernel {name!r} does not compile: {errors[0]}")


def _run(generator: GeneratorReference, target: str, trace: _Trace) -> TraceReply:
    """Make one trace in a fresh process."""
    environment = {**_of_a_worker(), "PYTHONHASHSEED": trace.hash_seed}
    for name, value in trace.environment.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value
    body = TraceRequest(generator, target, trace.combinations, trace.variables)
    path = [os.path.abspath(entry or ".") for entry in sys.path]  # noqa: PTH100 - as the interpreter has it
    program = f"import sys; sys.path[:] = {path!r}; from cutlass_aot.builder.check.trace import main; main()"
    with tempfile.TemporaryDirectory() as folder:
        request, reply = Path(folder) / "request.json", Path(folder) / "reply.json"
        request.write_text(json.dumps(to_plain(body)), encoding="utf-8")
        try:
            done = subprocess.run(
                [sys.executable, "-c", program, str(request), str(reply)],
                env=environment,
                cwd=folder if trace.elsewhere else None,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TRACE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CompileError(f"kernel {generator.name!r} could not be traced: {error}") from None
        if done.returncode != 0 or not reply.is_file():
            words = done.stderr.strip()[-2000:] or "it said nothing"
            raise CompileError(f"kernel {generator.name!r} could not be traced:\n{words}")
        plain = json.loads(reply.read_text(encoding="utf-8"))
        return from_plain(TraceReply, plain, f"the trace of kernel {generator.name!r}")

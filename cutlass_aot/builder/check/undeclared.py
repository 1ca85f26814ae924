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
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cutlass_aot.builder.compile import messages
from cutlass_aot.builder.compile.cores import available_workers
from cutlass_aot.builder.compile.fork_client import PASSED_ON, SETTINGS, ForkServer, read_log
from cutlass_aot.builder.compile.messages import Reply, Trace, Traced, WorkerFailure
from cutlass_aot.errors import CompileError, DeclarationError, GeneratorError
from cutlass_aot.generators.declared import DeclaredGenerator
from cutlass_aot.generators.registry import GeneratorReference, find
from cutlass_aot.manifest.filters import spread
from cutlass_aot.runtime.files.temporary_folder import temporary_folder
from cutlass_aot.schema.targets import target_meant

MAX_COMBINATIONS = 3
"""Combinations of parameters that are traced: the first, one in the middle, the last."""

TRACE_SECONDS = 600

HASH_SEEDS = (SETTINGS["PYTHONHASHSEED"], "1")
"""That of a build, and another one."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something undeclared that changes the code, or may.

    Attributes:
        what: ``environment``, ``global``, ``module``, ``distribution``, ``order``, ``hash seed``,
            ``directory`` or ``unknown``.
        name: of the variable, the module or the distribution; ``""`` if there is none.
        message: the finding in words, with what to do.
    """

    what: str
    name: str
    message: str


@dataclass(frozen=True, slots=True)
class _Conditions:
    """The conditions of a trace; the defaults are those of a build."""

    combinations: tuple[int, ...]
    environment: Mapping[str, str | None] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)
    hash_seed: str = HASH_SEEDS[0]
    elsewhere: bool = False


class _Tracer:
    """Makes each trace in a process of its own, forked from one that has imported the DSL; a context manager.

    There is one that forks for each hash seed, which a process cannot change.
    """

    def __init__(self, generator: GeneratorReference, target: str, folder: Path) -> None:
        self._generator = generator
        self._target = target
        self._folder = folder
        self._lock = threading.Lock()
        self._made = 0
        self._servers: dict[str, ForkServer] = {}
        for hash_seed in HASH_SEEDS:
            own = folder / hash_seed
            own.mkdir()
            self._servers[hash_seed] = ForkServer(("cutlass.cute",), own, hash_seed=hash_seed)

    def __enter__(self) -> _Tracer:
        # Not by the threads that trace: a process ends with the thread that started it.
        for server in self._servers.values():
            server.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def end(self) -> None:
        """End all processes."""
        for server in self._servers.values():
            server.end()

    def run(self, conditions: _Conditions) -> Traced:
        """Make one trace. Threads may call it.

        Raises:
            CompileError: if the trace fails.
            ToolchainError: if no process can be forked.
        """
        with self._lock:
            self._made += 1
            log = self._folder / f"{self._made}.log"
            _, channel = self._servers[conditions.hash_seed].fork(log)
        request = Trace(
            self._generator,
            self._target,
            conditions.combinations,
            {place: json.dumps(value) for place, value in conditions.variables.items()},
            conditions.environment,
            str(self._folder) if conditions.elsewhere else str(Path.cwd()),
        )
        try:
            with channel:
                channel.settimeout(TRACE_SECONDS)
                messages.send(channel, request)
                reply = messages.receive(channel, Reply)
        except OSError as error:
            raise CompileError(f"kernel {self._generator.name!r} could not be traced: {error}") from None
        if reply is not None and isinstance(reply.result, Traced):
            return reply.result
        if reply is not None and isinstance(reply.result, WorkerFailure):
            raise CompileError(f"kernel {self._generator.name!r} could not be traced: {reply.result.message}")
        words = read_log(log).strip()[-2000:] or "it said nothing"
        raise CompileError(f"kernel {self._generator.name!r} could not be traced:\n{words}")

    def run_all(self, conditions: Sequence[_Conditions]) -> list[Traced]:
        """Make traces, as many at once as the machine has room for."""
        with ThreadPoolExecutor(available_workers()) as pool:
            futures = [pool.submit(self.run, item) for item in conditions]
            try:
                return [future.result() for future in futures]
            except BaseException:
                # An interrupt, or a failure: without their processes the other threads end too.
                pool.shutdown(wait=False, cancel_futures=True)
                self.end()
                raise


def undeclared(name: str, target: str | None = None) -> list[Finding]:
    """Find what a declared kernel depends on and does not declare; empty if nothing was found.

    The kernel's module must have been imported, or be installed with an entry point. ``target`` is the first
    declared one if left out.
    """
    reference = find(name)
    generator = reference.load()
    if not isinstance(generator, DeclaredGenerator):
        raise GeneratorError(
            f"generator {name!r} is a class: kernels of @cutlass_aot.kernel alone are checked; "
            "`cutlass-aot try` compiles a kernel of a class"
        )
    targets = generator.targets(name)
    if target is not None and target not in targets:
        raise GeneratorError(
            f"kernel {name!r} is declared for {', '.join(targets)}, not for {target}"
            + target_meant(target, targets)
        )
    with (
        temporary_folder() as folder,
        _Tracer(reference, target or targets[0], folder) as tracer,
    ):
        return _compared(generator, tracer)


def _compared(generator: DeclaredGenerator, tracer: _Tracer) -> list[Finding]:
    count = len(list(generator.declared.combinations()))
    plain = _Conditions(tuple(spread(count, MAX_COMBINATIONS)))
    first = tracer.run(plain)
    _refuse_errors(generator.name, first)
    findings = [
        Finding(
            "module", module, f"{module} is imported and not among `modules`: an edit of it rebuilds nothing"
        )
        for module in first.modules
    ]
    findings += [
        Finding(
            "distribution",
            name,
            f"distribution {name} is imported, uses the DSL and is not among `distributions`: an edit of it "
            "rebuilds nothing",
        )
        for name in first.distributions
    ]
    # With two values: one may be the kernel's default, which gives the same code as an unset variable.
    turns = [_differences(plain, first, value) for value in ("1", "0")]
    if not _differing(tracer, [functools.reduce(_merged, turn, plain) for turn in turns], first):
        return findings
    first_turn, second_turn = turns
    differences = [*first_turn, *(item for item in second_turn if item not in first_turn)]
    guilty = _differing(tracer, differences, first)
    blamed = list(dict.fromkeys(_finding(item, first) for item in guilty))
    if not blamed:
        message = "two traces gave different code, and no single difference between them does: " + ", ".join(
            dict.fromkeys(_finding(item, first).what for item in differences)
        )
        blamed = [Finding("unknown", "", message)]
    return [*findings, *blamed]


def _differing(tracer: _Tracer, conditions: Sequence[_Conditions], first: Traced) -> list[_Conditions]:
    """The conditions under which a trace gives other code than the first."""
    replies = tracer.run_all(conditions)
    return [item for item, reply in zip(conditions, replies, strict=True) if reply.objects != first.objects]


def _differences(plain: _Conditions, first: Traced, value: str) -> list[_Conditions]:
    """Traces that each differ from the first in one thing; ``value`` is given to unset variables."""
    return [
        *(replace(plain, environment={name: _other_text(name, value)}) for name in first.reads),
        *(replace(plain, variables={name: _other(json.loads(text))}) for name, text in first.globals.items()),
        replace(plain, combinations=tuple(reversed(plain.combinations))),
        replace(plain, hash_seed=HASH_SEEDS[1]),
        replace(plain, elsewhere=True),
    ]


def _merged(one: _Conditions, other: _Conditions) -> _Conditions:
    """A trace with the differences of both."""
    return _Conditions(
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


def _finding(difference: _Conditions, first: Traced) -> Finding:
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
    if difference.hash_seed != HASH_SEEDS[0]:
        return Finding("hash seed", "", "the hash seed changes the code: sort what comes out of a set")
    if difference.elsewhere:
        return Finding("directory", "", "the working directory changes the code: a relative path is read")
    return Finding(
        "order", "", "what was compiled before changes the code: a call leaves something to the next one"
    )


def _refuse_errors(name: str, reply: Traced) -> None:
    errors = [text for text in reply.objects.values() if ": " in text]
    if errors and errors[0].startswith("kernel "):
        # A wrong declaration, which names the kernel, its file and its line; others begin with their class.
        raise DeclarationError(errors[0])
    if errors:
        raise CompileError(f"kernel {name!r} does not compile: {errors[0]}")

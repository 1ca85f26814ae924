r"""Programs: describing their requests, what their bundles came to, and serving them beside compiling.

    python -m tools.bench.programs PROGRAM --part describe [--target sm_90a]
    python -m tools.bench.programs --part table --bundle BUNDLE [--bundle BUNDLE ...] [--store build/store]
    python -m tools.bench.programs PROGRAM --bundle BUNDLE [--part first|host ...] [--limit N] [-o FILE]

PROGRAM is one of examples/programs. ``describe`` and ``table`` need no GPU.

describe: time to describe what the program calls ``cute.compile`` with, and to digest it. The program runs
    without a GPU and compiles nothing. Each request is described as often as ``--repeat`` says, after a first
    time, in which the sources that it follows from are read. Needs the DSL and the program's packages.
table: requests, seconds of compiling, and sizes, by bundle and target; times are those of the store.
first: seconds from the first call of each case of the program to its result, compiled by the DSL, and
    answered from the bundle: each in a process of its own, since packages remember what they compiled.
host: time that a call takes on the host, of the function that answers a request and of the one that the DSL
    compiles for it, in turns, with the same arguments.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import runpy
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tools.bench.command import Part, Result, Row, Table, parser, run
from tools.bench.process import Numbers, Worker, in_fresh_process, timed

CALLS = 200
ROUNDS = 15
TARGETS = ("sm_90a", "sm_100a")


# ---- in fresh processes ----------------------------------------------------------------------------------


def worker_describe(program: str, target: str, repeat: str) -> Numbers:
    """Milliseconds of describing each request of a program, the first time and again."""
    from cutlass_aot.errors import RequestError
    from cutlass_aot.generators.device_profiles import profile_for
    from cutlass_aot.programs.describe.profiles import device_numbers
    from cutlass_aot.programs.describe.request import Surroundings, request_of
    from cutlass_aot.programs.record import pretend_gpu
    from cutlass_aot.programs.record.record import Nothing
    from cutlass_aot.programs.start.interception import Interception
    from cutlass_aot.programs.start.packages import cache_environment, known_variables

    profile = profile_for(target)
    os.environ.update({**pretend_gpu.environment(profile, target), **cache_environment()})
    pretend_gpu.install(profile, target, fake_tensors=True)
    surroundings = Surroundings(lambda target: device_numbers(profile), known_variables)
    first: list[float] = []
    again: list[float] = []
    sizes: dict[str, int] = {}
    refused: list[str] = []

    def answer(compiler: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], compile: Any) -> Nothing:
        try:
            for index in range(int(repeat) + 1):
                start = time.perf_counter()
                request = request_of(compiler, arguments, keywords, surroundings)
                digest = request.digest
                (again if index else first).append((time.perf_counter() - start) * 1e3)
            sizes[digest] = len(request.encoded())
        except RequestError as error:
            refused.append(str(error))
        return Nothing()

    Interception(answer).begin()
    sys.argv = [program]
    sys.path[0] = str(Path(program).parent)
    with contextlib.suppress(SystemExit):
        runpy.run_path(program, run_name="__main__")
    return {"first": first, "again": again, "sizes": sizes, "refused": refused}


def worker_first(program: str, bundle: str, limit: str) -> Numbers:
    """Seconds from the first call of each case to its result; compiled if no bundle is named."""
    from cutlass_aot.programs.start.packages import cache_environment

    os.environ.update(cache_environment())
    server = None
    if bundle:
        import cutlass_aot

        server = cutlass_aot.serve(bundle)
    import torch

    imports, module = timed(lambda: load(Path(program)))
    torch.ones(1, device="cuda").add_(1)
    seconds = {}
    for name, case in cases(module, int(limit)):
        torch.cuda.synchronize()
        seconds[name] = timed(case)[0], timed(case)[0]
        print(f"{seconds[name][0]:9.4f} s  {name}", file=sys.stderr, flush=True)
    ledger = server.ledger().to_record()["requests"] if server is not None else {}
    return {"imports": imports, "seconds": seconds, "missed": [not row["bundle"] for row in ledger.values()]}


def worker_host(program: str, bundle: str, limit: str) -> Numbers:
    """Microseconds of a call of both functions of each request, with the arguments of its first call."""
    from cutlass_aot.programs.serve.serve import Server, opened
    from cutlass_aot.programs.start.interception import Compile, Interception
    from cutlass_aot.programs.start.packages import cache_environment

    os.environ.update(cache_environment())
    server = Server()
    server.bundles = (opened(bundle),)
    calls: dict[str, Any] = {}

    def answer(compiler: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], compile: Compile) -> Any:
        request = server.request(compiler, arguments, keywords)
        answered = server.find(request)
        compiled = compile(*arguments, **keywords)
        if answered is None:
            return compiled

        def call(*values: Any, **named: Any) -> Any:
            if request.digest not in calls:
                calls[request.digest] = [request.callable, *compare(answered, compiled, values, named)]
            return answered(*values, **named)

        return call

    Interception(answer).begin()
    for _, case in cases(load(Path(program)), int(limit)):
        case()
    return calls


def load(program: Path) -> Any:
    """The program's module, without running it."""
    spec = importlib.util.spec_from_file_location(program.stem, program)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{program} is not a Python program")
    module = importlib.util.module_from_spec(spec)
    # As Python does for a script that it is given.
    sys.path[0] = str(program.parent.resolve())
    # Tracing looks for the source of functions by their modules.
    sys.modules[program.stem] = module
    spec.loader.exec_module(module)
    return module


def cases(module: Any, limit: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """Names of a program's cases, and functions that run them to their results; all if ``limit`` is 0."""
    import torch

    length = (getattr(module, "LENGTHS", None) or module.ROWS)[0]

    def called(case: Callable[[int], object]) -> None:
        with torch.no_grad():
            case(length)
        torch.cuda.synchronize()

    for name, case in list(module.cases())[: limit or None]:
        yield name, partial(called, case)


def compare(one: Any, other: Any, values: Sequence[Any], named: Mapping[str, Any]) -> tuple[float, float]:
    """Microseconds of a call of two functions: medians of rounds that take turns."""
    import torch

    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(ROUNDS):
        for function, own in zip((one, other), times, strict=True):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(CALLS):
                function(*values, **named)
            own.append((time.perf_counter() - start) / CALLS * 1e6)
            torch.cuda.synchronize()
    return statistics.median(times[0]), statistics.median(times[1])


WORKERS: dict[str, Worker] = {"describe": worker_describe, "first": worker_first, "host": worker_host}


# ---- the parts -------------------------------------------------------------------------------------------


def part_describe(arguments: argparse.Namespace) -> Result:
    """Time to describe the requests of a program."""
    measured = in_fresh_process(
        __file__, "describe", arguments.program.resolve(), arguments.target, arguments.repeat
    )
    first, again, sizes = measured["first"], measured["again"], measured["sizes"]
    cells = [
        f"{len(first)}", f"{len(sizes)}", f"{len(measured['refused'])}", f"{first[0]:.0f} ms",
        f"{statistics.median(again):.2f} ms", f"{max(again):.2f} ms", f"{max(sizes.values())} bytes",
    ]  # fmt: skip
    head = ("requests", "distinct", "refused", "first", "median", "max", "largest")
    title = f"Describing the requests of {arguments.program.stem} for {arguments.target}"
    return Result([], measured, [Table(title, head, [cells])])


def part_table(arguments: argparse.Namespace) -> Result:
    """What the bundles came to."""
    from cutlass_aot.bundle.files import list_files
    from cutlass_aot.programs.serve.ledger import estimated_seconds
    from cutlass_aot.runtime.bundle import open_bundle
    from cutlass_aot.schema.requests.request import GENERATOR

    seconds = compile_seconds(arguments.store)
    rows = []
    for path in map(Path, arguments.bundle):
        bundle = open_bundle(path, check=False)
        size = sum((path / name).stat().st_size for name in list_files(path).regular)
        for target in bundle.targets:
            kernels = [item for item in bundle.kernels(target=target) if item.kernel.generator == GENERATOR]
            groups = [group for group in bundle.groups if group.target == target]
            times = sorted(seconds[kernel.kernel.digest] for kernel in kernels)
            plain = [kernel.entry.code.size for kernel in kernels]
            packed = sum(reference.size for reference in {group.code for group in groups})
            rows.append(
                (
                    bundle.name, target, f"{len(kernels)}", f"{len(groups)}", f"{sum(times):.0f}",
                    f"{sum(map(estimated_seconds, plain)):.0f}", f"{times[len(times) // 2]:.1f}",
                    f"{sum(plain) / 1e3:.0f}", f"{packed / 1e3:.0f}", f"{size / 1e3:.0f}",
                )
            )  # fmt: skip
    head = (
        "bundle", "target", "requests", "callables", "compiling, s", "estimate, s", "median, s",
        "GPU code, KB", "packed, KB", "bundle, KB",
    )  # fmt: skip
    return Result([], {}, [Table("Bundles of programs", head, rows)])


def compile_seconds(path: Path) -> dict[str, float]:
    """Seconds that compiling each kernel of a store took, by the kernel's digest; the latest of several."""
    from cutlass_aot.schema.codec import from_plain
    from cutlass_aot.schema.kernels.kernel import Kernel
    from cutlass_aot.store.store import Store

    store = Store(path, create=False)
    seconds: dict[str, float] = defaultdict(float)
    for kind, key, _ in store.records():
        body = store.get_record(kind, key) if kind == "kernel" else None
        if isinstance(body, dict):
            seconds[from_plain(Kernel, body["kernel"], "a kernel record").digest] = float(body["seconds"])
    store.close()
    return seconds


def part_first(arguments: argparse.Namespace) -> Result:
    """First calls compiled by the DSL, and answered from the bundle."""
    program = arguments.program.resolve()
    jit, served = (
        in_fresh_process(__file__, "first", program, bundle, arguments.limit)
        for bundle in ("", *arguments.bundle[:1])
    )
    times = {name: (jit["seconds"][name][0], own[0]) for name, own in served["seconds"].items()}
    times["all"] = sum(one for one, _ in times.values()), sum(other for _, other in times.values())
    rows = [
        (name, f"{compiled:.2f}", f"{answered * 1e3:.2f}", f"{compiled / answered:.0f}")
        for name, (compiled, answered) in times.items()
    ]
    ratio = statistics.median(one / other for name, (one, other) in times.items() if name != "all")
    missed = sum(served["missed"])
    row = Row(
        f"first call to result, {len(rows) - 1} cases of {program.stem}, compiled against answered",
        f"median {ratio:.0f} times; {len(served['missed']) - missed} requests answered, {missed} missed",
    )
    table = Table("First call to result", ("case", "compiled, s", "answered, ms", "times"), rows)
    return Result([row], {"jit": jit, "bundle": served}, [table])


def part_host(arguments: argparse.Namespace) -> Result:
    """Host time of a call of both functions of each request."""
    program = arguments.program.resolve()
    calls = in_fresh_process(__file__, "host", program, *arguments.bundle[:1], arguments.limit)
    rows = [
        (name, f"{one:.2f}", f"{two:.2f}", f"{one / two:.2f}") for name, one, two in sorted(calls.values())
    ]
    ratios = [one / two for _, one, two in calls.values()]
    if not ratios:
        raise RuntimeError(f"the bundle answers no request of {program.name}")
    row = Row(
        f"host time of a call, {len(rows)} functions of {program.stem}, answered against compiled",
        f"median {statistics.median(ratios):.3f}x, highest {max(ratios):.3f}x",
    )
    head = ("function", "answered, µs", "compiled, µs", "ratio")
    return Result([row], calls, [Table("Host time of a call", head, rows)])


PARTS: dict[str, Part] = {
    "describe": part_describe,
    "table": part_table,
    "first": part_first,
    "host": part_host,
}


def main() -> None:
    """Measure, and print the tables."""
    made = parser(__doc__, PARTS, repeat=5)
    made.add_argument("program", nargs="?", type=Path, help="a program of examples/programs")
    made.add_argument(
        "--bundle", action="append", default=[], help="what answers it; for `table`, repeatable"
    )
    made.add_argument(
        "--store", type=Path, default=Path("build/store"), help="table: where they were compiled"
    )
    made.add_argument("--target", choices=TARGETS, default="sm_90a", help="describe: of the GPU")
    made.add_argument("--limit", type=int, default=0, help="first, host: cases to run; all if 0")
    arguments = made.parse_args()
    parts = arguments.part or ("first", "host")
    if not arguments.worker and not arguments.program and parts != ["table"]:
        made.error("name a program of examples/programs")
    if not arguments.worker and not arguments.bundle and parts != ["describe"]:
        made.error("name a bundle: --bundle DIR")
    run(arguments, PARTS, WORKERS, default=("first", "host"))


if __name__ == "__main__":
    main()

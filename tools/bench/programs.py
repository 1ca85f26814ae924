r"""Programs answered from a bundle against the same programs compiling as they go, on the GPU at hand.

Needs a GPU, and for ``--part first`` with ``--mode jit`` and for ``--part host`` the DSL. Each mode of
``first`` is a process of its own, since packages remember what they compiled::

    python -m tools.bench.programs examples/programs/fa4.py --mode jit -o jit.json
    python -m tools.bench.programs examples/programs/fa4.py --bundle build/bundles/fa4 --mode bundle \
        -o bundle.json
    python -m tools.bench.programs --report jit.json bundle.json
    python -m tools.bench.programs examples/programs/fa4.py --bundle build/bundles/fa4 --part host

``first``: seconds from the first call of each case of the program to its result. ``host``: time that a call
takes on the host, of the function that answers a request and of the one that the DSL compiles for it, in
turn, with the same arguments.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_CALLS = 200
_ROUNDS = 15


def main() -> int:
    """Measure, or print the table of two measurements."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", nargs="?", type=Path, help="a program of examples/programs")
    parser.add_argument("--bundle", help="what answers it")
    parser.add_argument("--part", choices=["first", "host"], default="first")
    parser.add_argument("--mode", choices=["jit", "bundle"], default="bundle")
    parser.add_argument("--limit", type=int, default=0, help="cases to run; all if 0")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--report", nargs=2, type=Path, metavar=("JIT", "BUNDLE"))
    options = parser.parse_args()
    if options.report:
        print(report(*(json.loads(path.read_text()) for path in options.report)))
        return 0
    if options.part == "host":
        found = host_times(options.program, options.bundle, options.limit)
        print(host_report(found))
    else:
        found = first_calls(
            options.program, options.bundle if options.mode == "bundle" else None, options.limit
        )
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n")
    return 0


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


def first_calls(program: Path, bundle: str | None, limit: int) -> dict[str, Any]:
    """Seconds from the first call of each case to its result."""
    import os

    from cutlass_aot.programs.start.packages import cache_environment

    os.environ.update(cache_environment())
    server = None
    if bundle is not None:
        import cutlass_aot

        server = cutlass_aot.serve(bundle)
    import torch

    start = time.perf_counter()
    module = load(program)
    imports = time.perf_counter() - start
    torch.ones(1, device="cuda").add_(1)
    lengths = getattr(module, "LENGTHS", None) or module.ROWS
    seconds = {}
    for name, case in list(module.cases())[: limit or None]:
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.no_grad():
            case(lengths[0])
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        start = time.perf_counter()
        with torch.no_grad():
            case(lengths[0])
        torch.cuda.synchronize()
        seconds[name] = [first, time.perf_counter() - start]
        print(f"{first:9.4f} s  {name}", flush=True)
    ledger = server.ledger().to_record() if server is not None else {}
    return {"gpu": torch.cuda.get_device_name(), "imports": imports, "seconds": seconds, "ledger": ledger}


def report(jit: Mapping[str, Any], bundle: Mapping[str, Any]) -> str:
    """First calls of both, side by side."""
    both = [name for name in jit["seconds"] if name in bundle["seconds"]]
    width = max(map(len, both))
    lines = [f"first call to result on {jit['gpu']}", f"{'':{width}}  compiled, s  answered, ms  times"]
    ratios = []
    for name in both:
        compiled, answered = jit["seconds"][name][0], bundle["seconds"][name][0]
        ratios.append(compiled / answered)
        lines.append(f"{name:{width}}  {compiled:11.2f}  {answered * 1000:12.2f}  {ratios[-1]:5.0f}")
    total = [sum(found["seconds"][name][0] for name in both) for found in (jit, bundle)]
    lines.append(f"{'all':{width}}  {total[0]:11.2f}  {total[1] * 1000:12.2f}  {total[0] / total[1]:5.0f}")
    rows = bundle["ledger"].get("requests", {}).values()
    missed = sum(not row["bundle"] for row in rows)
    lines.append(
        f"{len(both)} cases, median {statistics.median(ratios):.0f} times; "
        f"{len(rows) - missed} requests answered, {missed} missed"
    )
    return "\n".join(lines)


def host_times(program: Path, bundle: str, limit: int) -> dict[str, Any]:
    """Host time of a call, of both functions of each request, with the arguments of its first call."""
    import os

    from cutlass_aot.programs.serve.serve import Server, opened
    from cutlass_aot.programs.start.interception import Compile, Interception
    from cutlass_aot.programs.start.packages import cache_environment

    os.environ.update(cache_environment())
    import torch

    server = Server()
    server.bundles = (opened(bundle),)
    found: dict[str, Any] = {}

    def answer(compiler: Any, arguments: Sequence[Any], keywords: Mapping[str, Any], compile: Compile) -> Any:
        request = server.request(compiler, arguments, keywords)
        answered = server.find(request)
        compiled = compile(*arguments, **keywords)
        if answered is None:
            return compiled

        def call(*values: Any, **named: Any) -> Any:
            if request.digest not in found:
                found[request.digest] = [request.callable, *compare(answered, compiled, values, named)]
            return answered(*values, **named)

        return call

    Interception(answer).begin()
    module = load(program)
    lengths = getattr(module, "LENGTHS", None) or module.ROWS
    for _, case in list(module.cases())[: limit or None]:
        with torch.no_grad():
            case(lengths[0])
        torch.cuda.synchronize()
    return {"gpu": torch.cuda.get_device_name(), "calls": found}


def compare(one: Any, other: Any, values: Sequence[Any], named: Mapping[str, Any]) -> tuple[float, float]:
    """Microseconds of a call of two functions: medians of rounds that take turns."""
    import torch

    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(_ROUNDS):
        for function, own in zip((one, other), times, strict=True):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(_CALLS):
                function(*values, **named)
            own.append((time.perf_counter() - start) / _CALLS * 1e6)
            torch.cuda.synchronize()
    return statistics.median(times[0]), statistics.median(times[1])


def host_report(found: Mapping[str, Any]) -> str:
    """The table of both functions' host times."""
    rows = sorted(found["calls"].values())
    lines = [f"host time of a call on {found['gpu']}, us", "answered  compiled  ratio  function"]
    lines += [f"{one:8.2f}  {two:8.2f}  {one / two:5.2f}  {name}" for name, one, two in rows]
    ratios = [one / two for _, one, two in rows]
    if ratios:
        lines.append(
            f"{len(ratios)} functions: median {statistics.median(ratios):.3f}, highest {max(ratios):.3f}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())

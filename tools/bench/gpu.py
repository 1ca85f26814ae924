"""Benchmarks on a GPU: launching, choosing, opening, starting, and throughput.

    python -m tools.bench.gpu BUNDLE [--part launch|unseen|find|start|throughput ...] [-o FILE]
    python -m tools.bench.gpu --report FILES

Prints one Markdown table, with the machine, the date and the versions. ``--problems FILE`` writes the table
of throughput problem by problem; ``-o`` writes the numbers as JSON, which ``--report`` (with those of
tools/bench/cpu.py) turns into the report. Needs torch and a GPU. Rows against the DSL say so where it is
not installed. BUNDLE is a directory with fp16, bf16 and FP8 GEMMs at the layouts of linear layers (tnt).

launch: host time of one call, 64 x 64 x 64 fp16: medians over batches of calls in turns, the queue drained
    before each batch, ratios of batches that follow each other. A batch is shorter than the driver's queue of
    launches, so that no call waits for the GPU. The bare function is the compiled one,
    which takes operands with the batch alone. The goals are for ``torch.inference_mode``; with gradients
    enabled, each launch asks its operands whether they require one.
unseen: host time of ``bundle.gemm`` on shapes it has not seen, every kernel being loaded already.
find: fresh processes; see tools/bench/cpu.py.
start: fresh processes that have imported torch, made operands and used the GPU: from there to the first
    result, against importing cutlass.operators, compiling its first operator and running it.
throughput: see tools/bench/throughput.py. ``--shapes``, ``--halfway``, ``--sample`` say on which problems.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from tools.bench.cpu import find_first
from tools.bench.machine import about
from tools.bench.process import NO_DSL, Numbers, Worker, has_operators, in_fresh_process, medians, timed, work
from tools.bench.report import Row, problem_table, report, table, write_record

REPOSITORY = Path(__file__).resolve().parents[2]
SHAPES = REPOSITORY / "manifests" / "shapes" / "llm.toml"
UNSEEN = 300


# ---- host time of a launch ------------------------------------------------------------------------------


def linear(torch: Any, m: int, n: int, k: int, dtype: Any, *, batch: bool = False) -> tuple[Any, Any, Any]:
    """Random operands of a linear layer (tnt); with ``batch``, a batch of one first."""
    a = torch.randn(m, k, device="cuda").to(dtype)
    b = torch.randn(n, k, device="cuda").to(dtype).T
    out = torch.empty(m, n, device="cuda", dtype=dtype)
    return (a[None], b[None], out[None]) if batch else (a, b, out)


def host_times(
    calls: Mapping[str, Callable[[], object]], batches: int, count: int, drain: Callable[[], object]
) -> dict[str, list[float]]:
    """Seconds a call: for each name one number a batch; batches of all names take turns."""
    names = list(calls)
    found: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.disable()
    try:
        for turn in range(batches + 1):
            # Each name comes first in turn; the first round warms up.
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                call = calls[name]
                drain()
                start = time.perf_counter()
                for _ in repeat(None, count):
                    call()
                found[name].append((time.perf_counter() - start) / count)
    finally:
        gc.enable()
        drain()
    return {name: times[1:] for name, times in found.items()}


def part_launch(arguments: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    """Host time of ``kernel.launch`` and ``bundle.gemm`` against the bare function and torch."""
    import torch

    import cutlass_aot

    bundle = cutlass_aot.open(arguments.bundle)
    flat = linear(torch, 64, 64, 64, torch.float16)
    a, b, out = flat
    batched = (a[None], b[None], out[None])
    kernel = bundle.choose(*batched).kernel
    bare, launch_2d, launch_3d = "bare function", "kernel.launch, 2-D", "kernel.launch, 3-D"
    gemm_2d, gemm_3d = "bundle.gemm, 2-D", "bundle.gemm, 3-D"
    mm, bmm = "torch.mm(out=)", "torch.bmm(out=)"
    calls = {
        bare: partial(kernel.compiled_function(0), *batched),
        launch_2d: partial(kernel.launch, *flat),
        launch_3d: partial(kernel.launch, *batched),
        gemm_2d: partial(bundle.gemm, *flat),
        gemm_3d: partial(bundle.gemm, *batched),
        mm: partial(torch.mm, a, b, out=out),
        bmm: partial(torch.bmm, batched[0], batched[1], out=batched[2]),
    }
    for call in calls.values():
        call()

    def typical(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
        return {name: statistics.median(values) for name, values in times.items()}

    def row(times: Mapping[str, Sequence[float]], name: str, other: str, most: float, where: str = "") -> Row:
        ratio = statistics.median(x / y for x, y in zip(times[name], times[other], strict=True))
        middle = typical(times)
        measured = f"{middle[name] * 1e6:.2f} µs against {middle[other] * 1e6:.2f} µs: {ratio:.2f}x"
        if where:
            return Row(f"`{name}` against `{other}`, host time, {where}", measured)
        return Row(f"`{name}` against `{other}`, host time", measured, f"≤ {most}x", ratio <= most)

    # As a server runs: torch asks each tensor nothing about gradients.
    with torch.inference_mode():
        times = host_times(calls, arguments.batches, arguments.calls, torch.cuda.synchronize)
    rows = [row(times, name, bare, 1.05) for name in (launch_3d, launch_2d)]
    rows += [row(times, name, bare, 1.5) for name in (gemm_3d, gemm_2d)]
    rows += [row(times, gemm_2d, mm, 1.0), row(times, gemm_3d, bmm, 1.0)]
    recording = host_times(calls, arguments.batches, arguments.calls, torch.cuda.synchronize)
    for name, other in ((launch_3d, bare), (gemm_2d, bare), (gemm_2d, mm)):
        rows.append(row(recording, name, other, 0, "gradients enabled"))
    numbers = {"inference": typical(times), "gradients": typical(recording), "kernel": kernel.name}
    return rows, numbers


def part_unseen(arguments: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    """Host time of ``bundle.gemm`` on problems not seen before."""
    import torch

    import cutlass_aot

    bundle = cutlass_aot.open(arguments.bundle)
    operands = linear(torch, 128, 128, 128, torch.float16)
    for kernel in bundle.find(*operands):
        kernel.launch(*operands)
    bundle.gemm(*operands)
    torch.manual_seed(7)
    shapes = torch.stack([torch.randint(1, 4096, (UNSEEN,)), *torch.randint(1, 256, (2, UNSEEN)) * 16])
    memory = [torch.zeros(4096 * 4096, device="cuda", dtype=torch.float16) for _ in "abc"]
    first, second = [], []
    for m, n, k in dict.fromkeys(map(tuple, shapes.T.tolist())):
        a = memory[0][: m * k].view(m, k)
        b = memory[1][: n * k].view(n, k).T
        out = memory[2][: m * n].view(m, n)
        torch.cuda.synchronize()
        first.append(timed(partial(bundle.gemm, a, b, out))[0])
        torch.cuda.synchronize()
        second.append(timed(partial(bundle.gemm, a, b, out))[0])
    torch.cuda.synchronize()
    middle, high = statistics.median(first), statistics.quantiles(first, n=100)[98]
    again = statistics.median(second)
    return [
        Row(
            "`bundle.gemm` on a problem not seen before, host time",
            f"{middle * 1e6:.1f} µs (99th percentile {high * 1e6:.1f}; the second time {again * 1e6:.1f})",
            "≤ 100 µs",
            middle <= 100e-6,
        )
    ], {"median": middle, "p99": high, "again": again, "shapes": len(first)}


# ---- fresh processes --------------------------------------------------------------------------------------


def _prepared() -> tuple[Any, tuple[Any, Any, Any]]:
    """torch, and operands on a GPU that has worked already."""
    import torch

    operands = linear(torch, 512, 512, 512, torch.float16)
    torch.mm(*operands[:2])
    torch.cuda.synchronize()
    return torch, operands


def _checked(torch: Any, seconds: float, operands: tuple[Any, Any, Any]) -> Numbers:
    a, b, out = operands
    difference = float((out.float() - a.float() @ b.float()).norm() / (a.float() @ b.float()).norm())
    if not difference < 0.01:
        raise RuntimeError(f"wrong result: relative difference {difference:.1e}")
    return {"seconds": seconds}


def worker_start_ours(bundle: str) -> Numbers:
    """From ``import cutlass_aot`` to the first result."""
    torch, operands = _prepared()

    def first() -> None:
        import cutlass_aot

        cutlass_aot.open(bundle).gemm(*operands)
        torch.cuda.synchronize()

    return _checked(torch, timed(first)[0], operands)


def worker_start_theirs() -> Numbers:
    """From ``import cutlass.operators`` to the first result, compiled just in time."""
    torch, operands = _prepared()
    major, minor = torch.cuda.get_device_capability()

    def first() -> None:
        import cutlass.operators

        target = f"{major}{minor}a"
        args = cutlass.operators.GemmArguments(*operands, accumulator_type=torch.float32)
        operator = cutlass.operators.get_operators(args, target_sm=target)[0]
        artifact = operator.compile(args, target_sm=target)
        stream = torch.cuda.current_stream()
        operator.run(args, compiled_artifact=artifact, stream=stream, assume_supported_args=True)
        torch.cuda.synchronize()

    return _checked(torch, timed(first)[0], operands)


WORKERS: dict[str, Worker] = {"start": worker_start_ours, "start-operators": worker_start_theirs}


def part_start(arguments: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    """From a process that has imported torch to the first result, in turns."""
    has_theirs = has_operators()
    ours, theirs = [], []
    for _turn in range(arguments.repeat + 1):
        ours.append(in_fresh_process(__file__, "start", arguments.bundle))
        if has_theirs:
            theirs.append(in_fresh_process(__file__, "start-operators"))
    numbers = {"ours": medians(ours[1:])}
    what, goal = "process with torch imported to its first result, against the DSL just in time", "≥ 30x"
    seconds = numbers["ours"]["seconds"]
    if not has_theirs:
        return [Row(what, f"{seconds * 1e3:.1f} ms; {NO_DSL}", goal)], numbers
    numbers["theirs"] = medians(theirs[1:])
    ratio = numbers["theirs"]["seconds"] / seconds
    measured = f"{seconds * 1e3:.1f} ms against {numbers['theirs']['seconds'] * 1e3:.0f} ms: {ratio:.1f}x"
    return [Row(what, measured, goal, ratio >= 30)], numbers


def part_find(arguments: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    """Open the bundle and find the first kernel."""
    return find_first(arguments.repeat, arguments.bundle)


def part_throughput(arguments: argparse.Namespace) -> tuple[list[Row], dict[str, Any]]:
    """Throughput over a list of problems."""
    from tools.bench.throughput import measure_all, problems_of

    problems = problems_of(arguments.shapes, halfway=arguments.halfway, sample=arguments.sample)
    rows, numbers = measure_all(arguments.bundle, problems, arguments.dtypes, arguments.seconds)
    if arguments.problems:
        arguments.problems.write_text(problem_table(numbers["problems"]) + "\n", encoding="utf-8")
    return rows, numbers


Part = Callable[[argparse.Namespace], tuple[list[Row], dict[str, Any]]]
PARTS: dict[str, Part] = {
    "launch": part_launch,
    "unseen": part_unseen,
    "find": part_find,
    "start": part_start,
    "throughput": part_throughput,
}


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=plain)
    parser.add_argument("bundle", type=Path, nargs="?", default=REPOSITORY / "build" / "bundles" / "sm90")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="this part alone; repeatable")
    parser.add_argument("--batches", type=int, default=120, help="launch: batches of each call")
    parser.add_argument("--calls", type=int, default=500, help="launch: calls of a batch")
    parser.add_argument("--repeat", type=int, default=5, help="find, start: fresh processes")
    parser.add_argument("--shapes", type=Path, default=SHAPES, help="throughput: list of problems")
    parser.add_argument("--halfway", action="store_true", help="throughput: also between listed problems")
    parser.add_argument("--sample", type=int, default=1, help="throughput: every so many-th problem")
    parser.add_argument("--seconds", type=float, default=0.4, help="throughput: for a problem's rounds")
    parser.add_argument("--dtypes", nargs="+", default=["bf16", "f8e4m3"], choices=["bf16", "f8e4m3"])
    parser.add_argument("--problems", type=Path, help="throughput: write the table of all problems")
    parser.add_argument("-o", "--output", type=Path, help="write the numbers as JSON")
    parser.add_argument("--report", type=Path, nargs="+", help="print the report on these JSON files")
    parser.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main() -> None:
    """Measure, and print the table; or print the report."""
    arguments = parsed(sys.argv[1:])
    if arguments.worker:
        return work(WORKERS, arguments.worker)
    if arguments.report:
        return print(report(arguments.report), end="")
    machine = about()
    if not machine.gpu:
        sys.exit("bench_gpu: there is no GPU; make bench has the rows that need none")
    rows: list[Row] = []
    numbers: dict[str, Any] = {}
    failed = False
    for name in arguments.part or PARTS:
        try:
            found, numbers[name] = PARTS[name](arguments)
        except RuntimeError as error:
            found, failed = [Row(f"`--part {name}`", f"not measured: {error}")], True
        rows += found
        if arguments.output:
            # After each part: what a later one breaks is not lost.
            write_record(arguments.output, machine, rows, numbers)
    print(machine.markdown(), table(rows), sep="\n\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

"""Benchmarks on a GPU: launching, choosing, opening, starting, throughput, and single kernels.

    python -m tools.bench.gpu [BUNDLE] [--part NAME ...] [-o FILE]
    python -m tools.bench.gpu --report FILES [--without PATTERN ...]

Prints Markdown tables, with the machine, the date and the versions. ``-o`` writes the numbers as JSON, which
``--report`` (with those of tools/bench/cpu.py) turns into the report. Needs torch and a GPU, but not for
``--report``. Rows against the DSL say so where it is not installed. BUNDLE is a directory with fp16, bf16 and
FP8 GEMMs at the layouts of linear layers (tnt); the parts ``kernels`` and ``designs`` need the bundle of
manifests/kernels.toml, ``convolution`` that of manifests/convolution.toml. Without ``--part``, the parts
``launch``, ``unseen``, ``find``, ``start`` and ``throughput`` run.

launch: host time of one call, 64 x 64 x 64 fp16: medians over batches of calls in turns, the queue drained
    before each batch, ratios of batches that follow each other. A batch is shorter than the driver's queue of
    launches, so that no call waits for the GPU. The bare function is the compiled one,
    which takes operands with the batch alone. The goals are for ``torch.inference_mode``; with gradients
    enabled, each launch asks its operands whether they require one.
unseen: host time of ``bundle.gemm`` on shapes it has not seen, every kernel being loaded already.
catalog: host time of finding a kernel in a catalog of 100,000, ``--synthetic``, which
    tools/bench/synthetic_bundle.py wrote with the launcher of a real bundle; see tools/bench/look_up.py.
find: fresh processes; see tools/bench/cpu.py.
start: fresh processes that have imported torch, made operands and used the GPU: from there to the first
    result, against importing cutlass.operators, compiling its first operator and running it.
throughput: ``bundle.gemm`` against every kernel and cuBLAS; see tools/bench/throughput.py. ``--shapes``,
    ``--halfway``, ``--sample``, ``--drawn``, ``--seed`` say on which problems.
families: the fastest kernel of each family of designs against cuBLAS, on the same problems.
kernels: the kernels that are not GEMMs, against torch and a copy; see tools/bench/single_kernels.py.
designs: the designs of kernels that reduce rows, against each other.
convolution: forward convolutions against cuDNN.
transformer: a block with its linear layers by BUNDLE's kernels; see tools/bench/transformer.py.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

from tools.bench import command
from tools.bench.command import REPOSITORY, Part, Result, Row
from tools.bench.cpu import find_first
from tools.bench.machine import about
from tools.bench.process import NO_DSL, Numbers, Worker, has_operators, in_fresh_process, medians, timed

BUNDLES = REPOSITORY / "build" / "bundles"
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
    times: dict[str, list[float]] = {name: [] for name in names}
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
                times[name].append((time.perf_counter() - start) / count)
    finally:
        gc.enable()
        drain()
    return {name: own[1:] for name, own in times.items()}


def part_launch(arguments: argparse.Namespace) -> Result:
    """Host time of ``kernel.launch``, ``gemm`` and ``linear`` beside the bare function and torch."""
    import torch

    import cutlass_aot

    bundle = cutlass_aot.open(bundle_of(arguments))
    flat = linear(torch, 64, 64, 64, torch.float16)
    a, b, out = flat
    weight = b.T
    batched = (a[None], b[None], out[None])
    kernel = bundle.choose(*batched).kernel
    bare, launch_2d, launch_3d = "bare function", "kernel.launch, 2-D", "kernel.launch, 3-D"
    gemm_2d, gemm_3d = "bundle.gemm, 2-D", "bundle.gemm, 3-D"
    linear_2d, transposing = "bundle.linear", "bundle.gemm with w.T"
    mm, bmm = "torch.mm(out=)", "torch.bmm(out=)"
    calls: dict[str, Callable[[], object]] = {
        bare: partial(kernel.compiled_function(0), *batched),
        launch_2d: partial(kernel.launch, *flat),
        launch_3d: partial(kernel.launch, *batched),
        gemm_2d: partial(bundle.gemm, *flat),
        gemm_3d: partial(bundle.gemm, *batched),
        linear_2d: partial(bundle.linear, a, weight, out),
        transposing: lambda: bundle.gemm(a, weight.T, out),
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
    rows += [row(times, name, bare, 1.1) for name in (gemm_3d, gemm_2d, linear_2d)]
    rows.append(row(times, linear_2d, transposing, 1.0))
    rows += [row(times, gemm_2d, mm, 1.0), row(times, gemm_3d, bmm, 1.0)]
    recording = host_times(calls, arguments.batches, arguments.calls, torch.cuda.synchronize)
    for name, other in ((launch_3d, bare), (gemm_2d, bare), (linear_2d, bare), (gemm_2d, mm)):
        rows.append(row(recording, name, other, 0, "gradients enabled"))
    numbers = {"inference": typical(times), "gradients": typical(recording), "kernel": kernel.name}
    return Result(rows, numbers)


def part_unseen(arguments: argparse.Namespace) -> Result:
    """Host time of ``bundle.gemm`` on problems not seen before."""
    import torch

    import cutlass_aot

    bundle = cutlass_aot.open(bundle_of(arguments))
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
    row = Row(
        "`bundle.gemm` on a problem not seen before, host time",
        f"{middle * 1e6:.1f} µs (99th percentile {high * 1e6:.1f}; the second time {again * 1e6:.1f})",
        "≤ 50 µs",
        middle <= 50e-6,
    )
    return Result([row], {"median": middle, "p99": high, "again": again, "shapes": len(first)})


def part_catalog(arguments: argparse.Namespace) -> Result:
    """Host time of looking a kernel up in a large catalog."""
    from tools.bench.look_up import measured

    return measured(arguments.synthetic, arguments.repeat)


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


def part_start(arguments: argparse.Namespace) -> Result:
    """From a process that has imported torch to the first result, in turns."""
    has_theirs = has_operators()
    ours, theirs = [], []
    for _turn in range(arguments.repeat + 1):
        ours.append(in_fresh_process(__file__, "start", bundle_of(arguments)))
        if has_theirs:
            theirs.append(in_fresh_process(__file__, "start-operators"))
    numbers = {"ours": medians(ours[1:])}
    what, goal = "process with torch imported to its first result, against the DSL just in time", "≥ 30x"
    seconds = numbers["ours"]["seconds"]
    if not has_theirs:
        return Result([Row(what, f"{seconds * 1e3:.1f} ms; {NO_DSL}", goal)], numbers)
    numbers["theirs"] = medians(theirs[1:])
    ratio = numbers["theirs"]["seconds"] / seconds
    measured = f"{seconds * 1e3:.1f} ms against {numbers['theirs']['seconds'] * 1e3:.0f} ms: {ratio:.1f}x"
    return Result([Row(what, measured, goal, ratio >= 30)], numbers)


def part_find(arguments: argparse.Namespace) -> Result:
    """Open the bundle and find the first kernel."""
    return find_first(arguments.repeat, bundle_of(arguments))


# ---- parts in modules of their own ------------------------------------------------------------------------


def bundle_of(arguments: argparse.Namespace, name: str = "sm90") -> Path:
    """The bundle of the command line, or the one of this name that this checkout built."""
    return arguments.bundle or BUNDLES / name


def in_module(module: str, name: str, bundle: str = "sm90") -> Part:
    """A part out of another module, which may import torch: imported when the part runs."""

    def part(arguments: argparse.Namespace) -> Result:
        function = getattr(importlib.import_module(f"tools.bench.{module}"), f"part_{name}")
        result: Result = function(arguments, bundle_of(arguments, bundle))
        return result

    return part


PARTS: dict[str, Part] = {
    "launch": part_launch,
    "unseen": part_unseen,
    "catalog": part_catalog,
    "find": part_find,
    "start": part_start,
    "throughput": in_module("throughput", "throughput"),
    "families": in_module("throughput", "families"),
    "kernels": in_module("single_kernels", "kernels", "kernels"),
    "designs": in_module("single_kernels", "designs", "kernels"),
    "convolution": in_module("single_kernels", "convolution", "convolution"),
    "transformer": in_module("transformer", "transformer"),
}
DEFAULT = ("launch", "unseen", "find", "start", "throughput")
"""The parts that need the sm90 bundle alone."""


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    made = command.parser(__doc__, PARTS, repeat=5)
    made.add_argument("bundle", type=Path, nargs="?", help="a bundle's directory (default: by part)")
    made.add_argument("--batches", type=int, default=120, help="launch: batches of each call")
    made.add_argument("--calls", type=int, default=500, help="launch: calls of a batch")
    made.add_argument("--shapes", type=Path, default=SHAPES, help="throughput, families: list of problems")
    made.add_argument("--halfway", action="store_true", help="throughput, families: also between the listed")
    made.add_argument("--drawn", type=int, default=0, help="throughput, families: so many by chance instead")
    made.add_argument("--seed", type=int, default=0, help="throughput, families: of what is drawn")
    made.add_argument("--sample", type=int, default=1, help="throughput, families: every so many-th problem")
    made.add_argument("--seconds", type=float, default=0.4, help="throughput, families: a problem's rounds")
    made.add_argument("--sms", type=int, help="throughput: on so many SMs, as on another model of GPU")
    made.add_argument("--minutes", type=float, help="throughput: for all element types, equal shares")
    made.add_argument("--dtypes", nargs="+", default=["bf16", "f8e4m3"], choices=["bf16", "f16", "f8e4m3"])
    made.add_argument("--without", action="append", default=[], help="families: pattern of kernels left out")
    made.add_argument(
        "--rows", type=int, nargs="+", default=[1, 64, 1024, 8192], help="kernels, designs: rows T"
    )
    made.add_argument("--images", type=int, default=32, help="convolution: images of a batch")
    made.add_argument("--context", type=int, default=2048, help="transformer: tokens in the cache")
    made.add_argument("--rounds", type=int, default=20, help="transformer: timings of each side")
    made.add_argument("--synthetic", type=Path, default=BUNDLES / "synthetic", help="catalog: the bundle")
    made.add_argument("--report", type=Path, nargs="+", help="print the report on these JSON files")
    return made.parse_args(words)


def main() -> None:
    """Measure, and print the tables; or print the report."""
    arguments = parsed(sys.argv[1:])
    if arguments.report:
        from tools.bench.throughput import family_tables

        renewed = {"families": partial(family_tables, without=arguments.without)}
        return print(command.report(arguments.report, renewed), end="")
    if not arguments.worker and not about().gpu:
        sys.exit("tools.bench.gpu: there is no GPU; make bench has the rows that need none")
    return command.run(arguments, PARTS, WORKERS, DEFAULT)


if __name__ == "__main__":
    main()

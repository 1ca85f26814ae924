"""Benchmarks that need no GPU: importing, a catalog of 100,000 kernels, the first kernel, starting.

    python -m tools.bench.cpu [--part import|catalog|find|start ...] [--bundle DIR ...] [--synthetic DIR]
        [-o FILE]

Prints one Markdown table, with the machine, the date and the versions. Every figure is the median over fresh
processes, one measurement each, with files in the page cache and the modules compiled to bytecode; figures
that are compared are measured in turns. ``-o`` writes the numbers as JSON as well.

``find`` and ``start`` need built bundles (``--bundle``, build/bundles/sm90 and build/bundles/sm100-dense if
left out), ``find`` the package nvidia-cutlass-operators as well; what is missing is said in its row.
``start`` is what a process does before its first launch, but for what needs a GPU: import, open, choose, map
the kernel's library. It needs torch, which is imported before, and apart from it tells what importing tvm_ffi
takes. ``catalog`` writes a synthetic bundle with tools/bench/synthetic_bundle.py, which needs the build extra
installed.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tools.bench.command import REPOSITORY, Part, Result, Row, parser, run
from tools.bench.process import (
    NO_DSL,
    Numbers,
    Worker,
    environment,
    has_operators,
    in_fresh_process,
    medians,
    status_bytes,
    timed,
)

KERNELS = 100_000
BUNDLES = ("sm90", "sm100-dense")


# ---- in fresh processes ----------------------------------------------------------------------------------


def worker_import() -> Numbers:
    """Import what a program with a bundle imports, without opening one."""
    seconds, _ = timed(lambda: __import__("cutlass_aot.runtime.bundle"))
    return {"runtime": seconds}


def _described(a: str, b: str, out: str, m: int, n: int, k: int) -> tuple[Any, ...]:
    """Descriptions of a linear layer's operands (tnt)."""
    import cutlass_aot

    return (
        cutlass_aot.describe((m, k), a),
        cutlass_aot.describe((k, n), b, strides=(1, k)),
        cutlass_aot.describe((m, n), out),
    )


def worker_catalog(path: str) -> Numbers:
    """Open a bundle and look kernels up, each look-up in a group that was not read before, and again."""
    import gc

    import cutlass_aot
    import cutlass_aot.runtime.bundle

    # The first look-up of all pays for what is set up once a process; it is a figure of its own.
    rows = [
        ("bf16", "bf16", "sm_100a"), ("f16", "f16", "sm_100a"), ("f16", "f32", "sm_100a"),
        ("bf16", "f32", "sm_100a"), ("f8e4m3", "bf16", "sm_100a"), ("f8e5m2", "f16", "sm_100a"),
        ("i8", "i32", "sm_100a"), ("bf16", "bf16", "sm_103a"), ("f8e4m3", "f32", "sm_103a"),
    ]  # fmt: skip
    operands = [_described(ab, ab, out, 4096, 1024, 2048) for ab, out, _ in rows]
    others = [_described(ab, ab, out, 256, 8192, 512) for ab, out, _ in rows]
    gc.collect()
    before = status_bytes("VmRSS")
    opening, bundle = timed(lambda: cutlass_aot.open(path))
    opened = status_bytes("VmRSS")

    def look_up(descriptions: Sequence[Any], target: str) -> Any:
        choose = getattr(bundle, "choose", None)
        if choose is not None:
            return choose(*descriptions, target=target).kernel
        return bundle.find(*descriptions, target=target)[0]

    cold, warm = [], []
    for descriptions, other, (_, _, target) in zip(operands, others, rows, strict=True):
        cold.append(timed(partial(look_up, descriptions, target))[0])
        warm.append(timed(partial(look_up, other, target))[0])
    return {
        "open": opening,
        "first": cold[0],
        "cold": statistics.median(cold[1:]),
        "warm": statistics.median(warm[1:]),
        "open_bytes": opened - before,
        "used_bytes": status_bytes("VmRSS") - before,
        "peak_bytes": status_bytes("VmHWM") - before,
        "kernels": sum(group.kernel_count for group in bundle.groups),
        "groups": len(bundle.groups),
    }


def worker_find(path: str) -> Numbers:
    """Open a bundle and find the first kernel; the runtime is imported before."""
    seconds = worker_import()["runtime"]
    import cutlass_aot

    target = _target(path)
    operands = _described("bf16", "bf16", "bf16", 4096, 4096, 4096)

    def find() -> Any:
        return cutlass_aot.open(path).find(*operands, target=target)[0].digest

    return {"import": seconds, "find": timed(find)[0]}


def worker_operators(path: str) -> Numbers:
    """Get the operators for the same operands, of all targets; the packages are imported before."""
    seconds, _ = timed(lambda: __import__("cutlass.operators"))
    import cutlass.operators
    import torch

    m = n = k = 4096
    meta = {"device": "meta", "dtype": torch.bfloat16}
    args = cutlass.operators.GemmArguments(
        torch.empty(m, k, **meta),
        torch.empty(n, k, **meta).T,
        torch.empty(m, n, **meta),
        accumulator_type=torch.float32,
    )
    target = _target(path).removeprefix("sm_")
    seconds_all, listed = timed(lambda: cutlass.operators.get_operators(args))
    # Second, so that what is set up once is in the first.
    seconds_target, for_target = timed(lambda: cutlass.operators.get_operators(args, target_sm=target))
    if not for_target:
        raise RuntimeError("get_operators has none")
    return {
        "import": seconds,
        "find": seconds_all,
        "operators": len(listed),
        "find_target": seconds_target,
        "target_operators": len(for_target),
    }


def worker_start(path: str) -> Numbers:
    """Import, open, choose and map, with torch imported; and what of it is importing tvm_ffi."""
    import torch  # noqa: F401

    target = _target(path)

    def prepare() -> Any:
        import cutlass_aot

        operands = _described("f16", "f16", "f16", 512, 512, 512)
        return cutlass_aot.open(path).choose(*operands, target=target).kernel

    chosen, kernel = timed(prepare)
    imported, _ = timed(lambda: __import__("tvm_ffi"))

    from cutlass_aot.runtime.launching.library import Library

    libraries = kernel.group.libraries[platform.machine()]
    library = Library(Path(path), libraries[kernel.entry.library])
    mapped, _ = timed(lambda: library.address(kernel.kernel.symbol))
    return {"choose": chosen, "tvm_ffi": imported, "map": mapped}


def _target(path: str) -> str:
    """The first target of a bundle, without opening it: its libraries are named by target."""
    return min(file.name.rsplit("-", 1)[0] for file in Path(path, "lib").rglob("sm_*.so.zst"))


WORKERS: dict[str, Worker] = {
    "import": worker_import,
    "catalog": worker_catalog,
    "find": worker_find,
    "operators": worker_operators,
    "start": worker_start,
}


# ---- the parts -------------------------------------------------------------------------------------------


def part_import(arguments: argparse.Namespace) -> Result:
    """``import cutlass_aot`` against ``pass``: whole processes, in turns."""
    statements = {"pass": "pass", "cutlass_aot": "import cutlass_aot"}
    seconds: dict[str, list[float]] = {name: [] for name in statements}
    for _turn in range(arguments.repeat * 5 + 1):
        for name, statement in statements.items():
            command = [sys.executable, "-c", statement]
            run = partial(subprocess.run, command, check=True, env=environment())
            seconds[name].append(timed(run)[0])
    # The first turn fills caches.
    times = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    times["runtime"] = medians([in_fresh_process(__file__, "import") for _turn in range(arguments.repeat)])[
        "runtime"
    ]
    more = times["cutlass_aot"] - times["pass"]
    rows = [
        Row(
            "`import cutlass_aot` against `python -c pass`",
            f"{more * 1e3:.1f} ms more ({times['cutlass_aot'] * 1e3:.1f} against {times['pass'] * 1e3:.1f})",
            "≤ 40 ms more",
            more <= 0.040,
        ),
        Row("the runtime's modules, imported by the first `open`", f"{times['runtime'] * 1e3:.1f} ms"),
    ]
    return Result(rows, times)


def part_catalog(arguments: argparse.Namespace) -> Result:
    """A synthetic catalog: open, look up, memory."""
    with tempfile.TemporaryDirectory(prefix="cutlass-aot-bench-") as folder:
        path = arguments.synthetic or Path(folder) / "synthetic"
        if not (path / "MANIFEST.json").exists():
            from tools.bench.synthetic_bundle import write_synthetic

            write_synthetic(arguments.kernels, path)
        runs = [in_fresh_process(__file__, "catalog", path) for _turn in range(arguments.repeat + 1)][1:]
    numbers = medians(runs)
    what = f"{numbers['kernels']:,.0f} kernels in {numbers['groups']:,.0f} groups"
    megabytes = numbers["used_bytes"] / 1e6
    rows = [
        Row(
            f"open a catalog of {what}", f"{numbers['open'] * 1e3:.2f} ms", "≤ 5 ms", numbers["open"] <= 0.005
        ),
        Row(
            "look one up in it, in a group not read before",
            f"{numbers['cold'] * 1e6:.0f} µs (the first of the process: {numbers['first'] * 1e6:.0f} µs)",
            "≤ 200 µs",
            numbers["cold"] <= 200e-6,
        ),
        Row(
            "look one up in it, another problem of a group read before",
            f"{numbers['warm'] * 1e6:.0f} µs",
            "≤ 200 µs",
            numbers["warm"] <= 200e-6,
        ),
        Row(
            "memory for it: growth of VmRSS after opening and nine look-ups",
            f"{megabytes:.1f} MB (after opening {numbers['open_bytes'] / 1e6:.1f}, "
            f"at most {numbers['peak_bytes'] / 1e6:.1f})",
            "≤ 30 MB",
            numbers["peak_bytes"] <= 30e6,
        ),
    ]
    return Result(rows, numbers)


def part_find(arguments: argparse.Namespace) -> Result:
    """Open a bundle and find the first kernel, against ``get_operators(args)``, in turns."""
    rows: list[Row] = []
    numbers: dict[str, Any] = {}
    for path in arguments.bundle or [REPOSITORY / "build" / "bundles" / name for name in BUNDLES]:
        result = find_first(arguments.repeat, path)
        rows += result.rows
        numbers[path.name] = result.numbers
    return Result(rows, numbers)


def find_first(repeat: int, path: Path) -> Result:
    """Open one bundle and find the first kernel; against ``get_operators(args)`` if that is installed."""
    what = f"open {path.name} and find the first kernel, against `get_operators(args)`"
    if not (path / "MANIFEST.json").exists():
        return Result([Row(what, f"not built: {path.name}")], {})
    has_theirs = has_operators()
    runs = [
        (
            in_fresh_process(__file__, "find", path),
            in_fresh_process(__file__, "operators", path) if has_theirs else None,
        )
        for _turn in range(repeat + 1)
    ][1:]
    ours = medians([run for run, _ in runs])
    if not has_theirs:
        row = Row(what, f"{ours['find'] * 1e3:.2f} ms; {NO_DSL}", "≥ 20x")
        return Result([row], {"ours": ours})
    theirs = medians([run for _, run in runs if run is not None])
    ratio = theirs["find"] / ours["find"]
    rows = [
        Row(
            what,
            f"{ours['find'] * 1e3:.2f} ms against {theirs['find'] * 1e3:.1f} ms: {ratio:.1f}x",
            "≥ 20x",
            ratio >= 20,
        ),
        Row(
            "the same against `get_operators(args, target_sm=...)`, called second",
            f"{theirs['find_target'] * 1e3:.1f} ms for {theirs['target_operators']:.0f} operators "
            f"(all targets: {theirs['operators']:.0f})",
        ),
        Row(
            "the same with the imports that come before",
            f"{(ours['find'] + ours['import']) * 1e3:.1f} ms against "
            f"{(theirs['find'] + theirs['import']) * 1e3:.0f} ms",
        ),
    ]
    return Result(rows, {"ours": ours, "theirs": theirs})


def part_start(arguments: argparse.Namespace) -> Result:
    """What a process does before its first launch, for each bundle."""
    rows: list[Row] = []
    numbers: dict[str, Any] = {}
    for path in arguments.bundle or [REPOSITORY / "build" / "bundles" / name for name in BUNDLES]:
        what = f"import, open {path.name}, choose, map: a first launch, without a GPU, after `import torch`"
        if not (path / "MANIFEST.json").exists():
            rows.append(Row(what, f"not built: {path.name}"))
            continue
        times = medians(
            [in_fresh_process(__file__, "start", path) for _turn in range(arguments.repeat + 1)][1:]
        )
        numbers[path.name] = times
        ours = times["choose"] + times["map"]
        measured = f"{ours * 1e3:.1f} ms, and {times['tvm_ffi'] * 1e3:.1f} ms for `import tvm_ffi`"
        rows.append(Row(what, measured))
    return Result(rows, numbers)


PARTS: dict[str, Part] = {
    "import": part_import,
    "catalog": part_catalog,
    "find": part_find,
    "start": part_start,
}


def main() -> None:
    """Measure, and print the table."""
    made = parser(__doc__, PARTS, repeat=9)
    made.add_argument("--bundle", type=Path, action="append", help="a bundle for `find`; repeatable")
    made.add_argument("--synthetic", type=Path, help="where the synthetic bundle is, or is to be kept")
    made.add_argument("--kernels", type=int, default=KERNELS, help="of the synthetic bundle")
    run(made.parse_args(), PARTS, WORKERS)


if __name__ == "__main__":
    main()

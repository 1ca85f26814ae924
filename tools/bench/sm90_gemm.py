"""Time the GEMMs of a bundle into bf16 against cuBLAS, by family: what docs/internals/sm90-gemm.md reports.

    python -m tools.bench.sm90_gemm BUNDLE --shapes SHAPES.toml --out FILE.json
    python -m tools.bench.sm90_gemm --report FILE.json [--without PATTERN]

It needs a GPU that runs the bundle, and torch. Timing is that of ``cutlass-aot tune``: see
``tools/bench/throughput.py``. ``--report`` needs no GPU: it prints, for each problem, the fastest kernel of
each family and cuBLAS, and their geometric means; ``--without`` leaves kernels out by their names.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import cutlass_aot
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.schema.tuning.shapes import parse_shapes
from cutlass_aot.tuning.gpu import GraphStopwatch
from cutlass_aot.tuning.search import Effort, rank
from tools.bench.throughput import Memory, cublas

CUBLAS = "cuBLAS"
MOST_TILES = 100 * 132
"""Of a problem; kernels with more tiles than that are not timed."""


def measure(
    torch: Any, bundle: Any, dtype: str, problems: Sequence[Extents], seconds: float
) -> list[dict[str, Any]]:
    """Time all kernels of linear layers into bf16, and cuBLAS, on each problem; microseconds by name."""
    where = torch.device("cuda", 0)
    memory = Memory(torch, where)
    effort = Effort(first_looks=2, stop_ratio=1.6, most_rounds=9, seconds=seconds)
    kernels = [
        kernel
        for kernel in bundle.kernels(operation="gemm", dtypes=f"{dtype}.{dtype}.bf16", layouts="tnt")
        if not kernel.kernel.epilogue
    ]
    found = []
    for number, extents in enumerate(problems, 1):
        sets, flush = memory.operands(kernels[0].kernel.operands, extents)
        own = [kernel for kernel in kernels if sensible(dict(kernel.kernel.design), extents)]
        candidates = [*own, cublas(torch, dtype, where)]
        for candidate in candidates:
            candidate.launch(*sets[0])
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        candidates[-1].launch(*sets[0])
        end.record()
        torch.cuda.current_stream().synchronize()
        watch = GraphStopwatch(torch, sets, flush, begin.elapsed_time(end) / 1e3, lambda: None)
        for index, candidate in enumerate(candidates):
            watch.capture(index, candidate)
        outcome = rank(range(len(candidates)), watch, time.perf_counter, effort)
        names = [*(kernel.name for kernel in own), CUBLAS]
        times = {names[index]: span * 1e6 for index, span in (*outcome.ranked, *outcome.stopped)}
        found.append({"m": extents.m, "n": extents.n, "k": extents.k, "times": times})
        print(f"timed {number} of {len(problems)}", file=sys.stderr, flush=True)
    return found


def sensible(design: dict[str, Any], extents: Extents) -> bool:
    """Whether a kernel is worth timing: those for few rows, and of small tiles, take very long on much."""
    tile_m, tile_n = design["tile_shape"][:2]
    tiles = -(-extents.m // tile_m) * -(-extents.n // tile_n)
    return tiles <= MOST_TILES and (not design.get("swap_operands") or extents.m <= 4 * tile_m)


def family(name: str) -> str:
    """The family in a kernel's name, which comes after the group's five words."""
    return name if name == CUBLAS else name.split("-")[5]


def report(found: Sequence[dict[str, Any]], without: Sequence[str]) -> None:
    """Print a line a problem, then a table of geometric means, by rows."""
    ratios: dict[str, list[tuple[int, float]]] = {}
    for item in found:
        best: dict[str, tuple[float, str]] = {}
        for name, span in item["times"].items():
            if any(fnmatchcase(name, pattern) for pattern in without):
                continue
            own = family(name)
            best[own] = min(best.get(own, (span, name)), (span, name))
        theirs = best.pop(CUBLAS)[0]
        for own, (span, _) in best.items():
            ratios.setdefault(own, []).append((item["m"], theirs / span))
        span, name = min(best.values())
        ratios.setdefault("best", []).append((item["m"], theirs / span))
        columns = "  ".join(f"{own} {span:8.1f}" for own, (span, _) in sorted(best.items()))
        design = "-".join(name.split("-")[5:-1])
        place = f"{item['m']} x {item['n']} x {item['k']}"
        print(f"{place:24} {CUBLAS} {theirs:8.1f}  {columns}  {theirs / span:5.2f}  {design}")
    _table(ratios)


def _table(ratios: Mapping[str, Sequence[tuple[int, float]]]) -> None:
    """Print speeds with cuBLAS as 1: geometric means over problems by rows, the lowest in parentheses."""
    rows = sorted({m for values in ratios.values() for m, _ in values})
    choices: dict[str, Callable[[int], bool]] = {str(m): m.__eq__ for m in rows}
    choices |= {"m ≤ 64": lambda m: m <= 64, "m > 64": lambda m: m > 64, "all": lambda m: True}
    print(f"\n| m | {' | '.join(ratios)} |\n|---|{'---|' * len(ratios)}")
    for name, chosen in choices.items():
        cells = []
        for values in ratios.values():
            speeds = [speed for m, speed in values if chosen(m)]
            mean = f"{statistics.geometric_mean(speeds):.3f} ({min(speeds):.2f})" if speeds else ""
            cells.append(mean)
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", nargs="?", type=Path)
    parser.add_argument("--shapes", type=Path)
    parser.add_argument("--out", type=Path, default=Path("sm90-gemm.json"))
    parser.add_argument("--seconds", type=float, default=0.4, help="of rounds for each problem")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f8e4m3"), help="of a and b")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--without", action="append", default=[])
    arguments = parser.parse_args()
    if arguments.report:
        report(json.loads(arguments.report.read_text()), arguments.without)
        return
    import torch

    bundle = cutlass_aot.open(arguments.bundle)
    with torch.cuda.stream(torch.cuda.Stream()):
        problems = parse_shapes(arguments.shapes.read_bytes(), str(arguments.shapes)).extents
        found = measure(torch, bundle, arguments.dtype, problems, arguments.seconds)
    arguments.out.write_text(json.dumps(found))
    report(found, arguments.without)


if __name__ == "__main__":
    main()

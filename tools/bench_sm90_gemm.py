"""Check every GEMM of a bundle and time those into bf16 against cuBLAS, by family: what docs/sm90-gemm.md reports.

    python tools/bench_sm90_gemm.py BUNDLE --shapes SHAPES.toml --out FILE.json
    python tools/bench_sm90_gemm.py --report FILE.json [--without PATTERN]

It needs a GPU that runs the bundle, and torch. Timing is that of ``cutlass-aot tune``: see
``tools/bench_throughput.py``. ``--report`` needs no GPU: it prints, for each problem, the fastest kernel of
each family and cuBLAS, and their geometric means; ``--without`` leaves kernels out by their names.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from bench_throughput import Memory, cublas

import cutlass_aot
from cutlass_aot.schema.dtypes import DTYPES
from cutlass_aot.schema.epilogue import COLUMN
from cutlass_aot.schema.formula import ACCUMULATOR, evaluate, parse_formula
from cutlass_aot.schema.kernel import Kernel, OperandConstraint
from cutlass_aot.schema.ranking import Extents
from cutlass_aot.schema.shapes import parse_shapes
from cutlass_aot.tuning.gpu import GraphStopwatch
from cutlass_aot.tuning.search import Effort, rank

CHECKED = (
    (1, 1, 8, 8), (1, 1, 576, 7168), (1, 3, 24, 40), (3, 65, 200, 72), (2, 7, 576, 1008), (1, 130, 584, 144),
    (1, 257, 2112, 528), (5, 33, 64, 4096), (1, 1000, 328, 2048), (2, 513, 1168, 264), (1, 16, 4096, 4096),
)  # fmt: skip
"""Batch, m, n, k: single rows and elements, tails along each extent, batches, slices of K that are empty."""

BOUNDS = {"bf16": 4e-3, "f16": 5e-4, "f32": 1e-4}
"""Largest relative error (Frobenius norm) by element type of the output; rounding to bf16 alone is 1.7e-3."""

FP8_BOUND = 2e-2
"""The same for FP8 operands, of which tensor cores keep fewer bits while they add up."""

CUBLAS = "cuBLAS"
MOST_TILES = 100 * 132
"""Of a problem; kernels with more tiles than that are not timed."""


def check(torch: Any, kernels: Sequence[Any]) -> list[str]:
    """Hold every kernel against torch in f32 on :data:`CHECKED`, on padded operands; what is wrong."""
    wrong = []
    checks = dict.fromkeys((kernel.name for kernel in kernels), 0)
    for extents in CHECKED:
        for kernel in kernels:
            # A kernel that hangs is the last one named.
            print(f"checking {extents} {kernel.name}", file=sys.stderr, flush=True)
            torch.manual_seed(7)
            case = Case(torch, kernel.kernel, extents)
            if not kernel.supports(*case.operands):
                continue
            checks[kernel.name] += 1
            first, second = case.launched(kernel), case.launched(kernel)
            for name, expected in case.expected().items():
                error = float((first[name] - expected).norm() / expected.norm())
                if not error <= case.bound(name):
                    wrong.append(f"{kernel.name}: {extents}: {name}: relative error {error:.2e}")
                elif not torch.equal(first[name], second[name]):
                    wrong.append(f"{kernel.name}: {extents}: {name}: two launches gave different bits")
    print(f"{sum(checks.values())} checks of {len(checks)} kernels")
    return wrong + [f"{name}: supports none of the problems" for name, count in checks.items() if not count]


class Case:
    """Operands of a kernel on one problem, padded where they may be, and what should come out."""

    def __init__(self, torch: Any, kernel: Kernel, extents: tuple[int, int, int, int]) -> None:
        self._torch = torch
        self._kernel = kernel
        self._sizes = dict(zip("LMNK", extents, strict=True))
        self._by_name = {operand.name: self._operand(operand) for operand in kernel.operands}
        self.operands = list(self._by_name.values())

    def _operand(self, operand: OperandConstraint) -> Any:
        torch = self._torch
        if operand.is_number:
            return 0.75
        shape = [self._sizes.get(str(extent), 1) for extent in operand.extents]
        memory = list(shape)
        if operand.contiguous == -2:
            memory[-1], memory[-2] = memory[-2], memory[-1]
        # Padding along every mode but the first that has room for it.
        padded = [memory[0], *(size + 16 for size in memory[1:])] if len(memory) > 1 else memory
        lying = torch.randn(padded, device="cuda").to(getattr(torch, DTYPES[operand.dtype].torch))
        lying = lying[tuple(slice(size) for size in memory)]
        return lying.transpose(-1, -2) if operand.contiguous == -2 else lying

    def launched(self, kernel: Any) -> dict[str, Any]:
        """The outputs of a launch in f32; what it does not write is NaN."""
        written = [operand.name for operand in self._kernel.operands if operand.written]
        for name in written:
            self._by_name[name].fill_(float("nan"))
        kernel.launch(*self.operands)
        return {name: self._by_name[name].float() for name in written}

    def expected(self) -> dict[str, Any]:
        """The outputs by name, computed by torch in f32."""
        torch, values = self._torch, self._by_name
        total = torch.bmm(values["a"].float(), values["b"].float())
        if not self._kernel.epilogue:
            return {"out": total}
        known = {ACCUMULATOR: total}
        for operand in self._kernel.operands[3:]:
            given = values[operand.name]
            if not operand.written:
                known[operand.name] = given if operand.is_number else given.float()
            if operand.extents == COLUMN:
                known[operand.name] = known[operand.name][:, None]
        outputs = [operand.name for operand in self._kernel.operands[3:] if operand.written]
        found = {
            statement.name: evaluate(statement.expression, known, functions(torch))
            for statement in parse_formula(self._kernel.epilogue, outputs)
        }
        found["out"] = found.pop("D")
        return found

    def bound(self, name: str) -> float:
        """How far an output may be off."""
        dtypes = {operand.name: operand.dtype for operand in self._kernel.operands}
        return FP8_BOUND if dtypes["a"].startswith("f8") else BOUNDS[dtypes[name]]


def functions(torch: Any) -> dict[str, Any]:
    """What an epilogue's functions are, in torch."""
    own = torch.nn.functional
    return {
        "exp": torch.exp,
        "gelu": lambda x: own.gelu(x, approximate="tanh"),
        "hardswish": own.hardswish,
        "maximum": torch.maximum,
        "minimum": torch.minimum,
        "relu": own.relu,
        "sigmoid": torch.sigmoid,
        "silu": own.silu,
        "tanh": torch.tanh,
    }


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
    """Print a line a problem, then the geometric means."""
    families: list[str] = []
    ratios: dict[str, list[float]] = {}
    for item in found:
        best: dict[str, tuple[float, str]] = {}
        for name, span in item["times"].items():
            if any(fnmatchcase(name, pattern) for pattern in without):
                continue
            own = family(name)
            best[own] = min(best.get(own, (span, name)), (span, name))
        theirs = best.pop(CUBLAS)[0]
        families = sorted({*families, *best})
        for own, (span, _) in best.items():
            ratios.setdefault(own, []).append(theirs / span)
        span, name = min(best.values())
        ratios.setdefault("best", []).append(theirs / span)
        columns = "  ".join(f"{own} {span:8.1f}" for own, (span, _) in sorted(best.items()))
        design = "-".join(name.split("-")[5:-1])
        place = f"{item['m']} x {item['n']} x {item['k']}"
        print(f"{place:24} {CUBLAS} {theirs:8.1f}  {columns}  {theirs / span:5.2f}  {design}")
    for own, values in ratios.items():
        print(f"speed, {CUBLAS} as 1: {own}: {statistics.geometric_mean(values):.3f}, lowest {min(values):.2f}")


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", nargs="?", type=Path)
    parser.add_argument("--shapes", type=Path)
    parser.add_argument("--out", type=Path, default=Path("sm90-gemm.json"))
    parser.add_argument("--seconds", type=float, default=0.4, help="of rounds for each problem")
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f8e4m3"), help="of a and b")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--check-only", action="store_true")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--without", action="append", default=[])
    arguments = parser.parse_args()
    if arguments.report:
        report(json.loads(arguments.report.read_text()), arguments.without)
        return
    import torch

    bundle = cutlass_aot.open(arguments.bundle)
    with torch.cuda.stream(torch.cuda.Stream()):
        wrong = [] if arguments.no_check else check(torch, bundle.kernels(operation="gemm"))
        print(f"{len(wrong)} wrong results", *wrong, sep="\n  ")
        if arguments.check_only or wrong:
            sys.exit(bool(wrong))
        problems = parse_shapes(arguments.shapes.read_bytes(), str(arguments.shapes)).extents
        found = measure(torch, bundle, arguments.dtype, problems, arguments.seconds)
    arguments.out.write_text(json.dumps(found))
    report(found, arguments.without)


if __name__ == "__main__":
    main()

"""FP8 with scale factors and grouped GEMMs on sm_90a, against DeepGEMM, cuBLAS and torch.

    python -m tools.bench.experts BUNDLE [--part dense exact contiguous masked bf16 errors]
        [--problems FILTER] [--drawn N --seed S] [--kernels] [--without-others] [--seconds 400] [-o FILE]

Needs a GPU of compute capability 9.0, a torch that can use it, and the bundle of manifests/sm90_scaled.toml.
DeepGEMM takes part where it can be imported (docs/results/experts.md says how it was built).

Problems are those of DeepSeek-V3, with others that no tile divides; ``exact`` has dense ones in FP8 without
scale factors, whose sums keep their bits. Operands are uniform random numbers.
Before each launch the L2 cache is flushed, and a kernel that waits covers what the host needs; what is
reported is the time from the start of a GEMM's first kernel to the end of its last, the median of all
launches, which are made in turns, in another order each. Scale factors are given as each library takes them
without a transform. With ``--kernels`` each kernel of the bundle takes part. With ``--drawn`` problems of
groups are drawn by chance instead: ``tools/check/group_costs.py`` judges the cost formula by what ``-o``
writes, and fits it. The table has microseconds, TFLOP/s of the choice, and how many times as fast it is as
each of the others. Results are checked against a product in f32 first; one that is wrong ends the run.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple

import cutlass_aot
from cutlass_aot.errors import CutlassAotError
from cutlass_aot.runtime.machine.cuda_driver import machine
from cutlass_aot.schema.kernels.cost import ROWS_PER_EXPECTED
from tools.bench.command import markdown

DENSE = ((2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))
"""n and k of the dense layers."""

EXPERTS = ((4096, 7168), (7168, 2048))
"""n and k of the experts' layers."""

EXACT = ((4096, 4096), (7168, 2048), (2112, 7168), (8192, 5120), (14336, 4096))
EXACT_ROWS = (1, 16, 64, 333, 1500, 4096)

DENSE_ROWS = (1, 7, 37, 64, 128, 333, 1500, 4096)
CONTIGUOUS = ((32, 8192), (4, 8192), (8, 4096), (8, 1000), (32, 256), (32, 128), (32, 37))
"""Groups, and rows of each in the mean."""

MASKED = ((1, 1024), (2, 512), (4, 256), (6, 256), (6, 37), (32, 16), (32, 192))
BOUND = 4e-3
"""Largest relative error (Frobenius norm); rounding to bf16 alone is 1.7e-3."""

MOST_DRAWN_ROWS, MOST_DRAWN_OPERATIONS, MOST_DRAWN_BYTES = 1 << 17, 6e12, 12e9
"""Bounds of a problem that is drawn: rows of all groups; multiplications and additions; bytes of operands."""

BLOCK = 128
FLUSHED_BYTES = 256 << 20
WAIT_CYCLES = 100_000


@dataclass
class Case:
    """One problem: how to launch it by each library, and what it computes.

    Attributes:
        name: kind and extents.
        operations: multiplications and additions.
        launches: by the name of what is launched.
        outputs: what those write.
        check: relative error of an output.
        wait: cycles of the GPU that the host needs at most to make a launch.
        extents: those that the cost formula of groups reads.
    """

    name: str
    operations: float
    launches: dict[str, Callable[[], object]]
    outputs: dict[str, Any]
    check: Callable[[Any], float]
    wait: int = WAIT_CYCLES
    extents: dict[str, int] = field(default_factory=dict)


class Measured(NamedTuple):
    """One problem with the median times of its launches, in microseconds."""

    name: str
    operations: float
    extents: dict[str, int]
    microseconds: dict[str, float]


def by_rows(torch: Any, x: Any) -> tuple[Any, Any]:
    """FP8 of a matrix with a factor for each row and 128 columns; the factors of a column lie together."""
    rows, columns = x.shape[-2:]
    pieces = x.float().view(*x.shape[:-1], columns // BLOCK, BLOCK)
    factors = pieces.abs().amax(-1).clamp(1e-4) / 448
    narrow = (pieces / factors[..., None]).to(torch.float8_e4m3fn).view(x.shape)
    # What TMA takes: columns begin at multiples of 16 bytes.
    padded = torch.zeros(*x.shape[:-2], columns // BLOCK, -(-rows // 4) * 4, device=x.device)
    padded[..., :rows] = factors.transpose(-1, -2)
    return narrow, padded[..., :rows].transpose(-1, -2)


def by_blocks(torch: Any, w: Any) -> tuple[Any, Any]:
    """FP8 of a matrix with a factor for each 128 x 128."""
    rows, columns = w.shape[-2:]
    whole = torch.zeros(*w.shape[:-2], -(-rows // BLOCK) * BLOCK, columns, device=w.device)
    whole[..., :rows, :] = w
    pieces = whole.view(*w.shape[:-2], -1, BLOCK, columns // BLOCK, BLOCK)
    factors = pieces.abs().amax((-3, -1)).clamp(1e-4) / 448
    narrow = (pieces / factors[..., :, None, :, None]).to(torch.float8_e4m3fn).view(whole.shape)
    return narrow[..., :rows, :].contiguous(), factors


def wide(torch: Any, narrow: Any, factors: Any) -> Any:
    """The matrix in f32 that FP8 with factors stands for."""
    across = 1 if factors.shape[-2] == narrow.shape[-2] else BLOCK
    each = factors.repeat_interleave(BLOCK, -1).repeat_interleave(across, -2)
    return narrow.float() * each[..., : narrow.shape[-2], : narrow.shape[-1]]


def relative_error(found: Any, expected: Any) -> float:
    """Frobenius norm of the difference, relative."""
    return float((found.float() - expected).norm() / expected.norm())


class Cases:
    """Makes problems, from one seed."""

    def __init__(self, torch: Any, bundle: Any, others: bool) -> None:
        self._torch = torch
        self._bundle = bundle
        self._deep_gemm = imported_deep_gemm() if others else None
        self._others = others
        self.kernels = False
        self.designs: dict[str, dict[str, Any]] = {}

    def random(self, *shape: int) -> Any:
        """Uniform numbers from -1 to 1, in bf16."""
        return self._torch.rand(shape, device="cuda").mul_(2).sub_(1).bfloat16()

    def made(self, kind: str) -> Iterator[tuple[str, Callable[[], Case]]]:
        """Names of problems of a kind, each with what makes it."""
        if kind == "dense":
            for (n, k), m in product(DENSE, DENSE_ROWS):
                yield f"dense {m} x {n} x {k}", partial(self.dense, m, n, k)
            return
        if kind == "exact":
            for (n, k), m in product(EXACT, EXACT_ROWS):
                yield f"exact {m} x {n} x {k}", partial(self.exact, m, n, k)
            return
        for (groups, rows), (n, k) in product(MASKED if kind == "masked" else CONTIGUOUS, EXPERTS):
            yield self.grouped(kind, f"{groups} x {rows}", self.sizes(groups, rows), n, k)

    def drawn(self, kind: str, count: int, seed: int) -> Iterator[tuple[str, Callable[[], Case]]]:
        """Problems that are drawn by chance: extents about log-uniform, groups with unequal rows."""
        by_chance = random.Random(f"{kind} {seed}")  # noqa: S311 (nothing secret)

        def extent(least: float, most: float, multiple: int = 1) -> int:
            return round(math.exp(by_chance.uniform(math.log(least), math.log(most))) / multiple) * multiple

        while count:
            groups, mean = extent(1, 256), extent(4, 8192)
            n, k = extent(512, 8192, 64), extent(512, 8192, 128)
            sizes = [round(mean * by_chance.uniform(0.3, 1.7)) for _ in range(groups)]
            rows = max(sizes) * groups if kind == "masked" else sum(sizes)
            if not 0 < rows <= MOST_DRAWN_ROWS or 2 * rows * n * k > MOST_DRAWN_OPERATIONS:
                continue
            if 10 * groups * n * k + 10 * rows * (n + k) > MOST_DRAWN_BYTES:
                continue
            count -= 1
            yield self.grouped(kind, f"{groups} x {mean}", sizes, n, k)

    def grouped(
        self, kind: str, rows: str, sizes: list[int], n: int, k: int
    ) -> tuple[str, Callable[[], Case]]:
        """The name of a problem of groups, and what makes it."""
        name = f"{kind} {rows} x {n} x {k}"
        if kind == "masked":
            return name, partial(self.masked, name, sizes, n, k)
        return name, partial(self.contiguous, name, sizes, n, k, kind == "contiguous")

    def ours(self, operation: str, operands: list[Any], out: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Launches and outputs of the bundle: its choice, or each of its kernels too."""
        launches = {"chosen": lambda: self._bundle.run(operation, *operands)}
        outputs = {"chosen": out}
        if self.kernels:
            for kernel in self._bundle.kernels(operation=operation):
                if kernel.supports(*operands):
                    name = _short(kernel)
                    launches[name] = partial(kernel.launch, *operands)
                    outputs[name] = out
                    self.designs[name] = dict(kernel.design)
        return launches, outputs

    def dense(self, m: int, n: int, k: int) -> Case:
        """One layer."""
        torch = self._torch
        x, x_factors = by_rows(torch, self.random(m, k))
        w, w_factors = by_blocks(torch, self.random(n, k))
        out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        launches, outputs = self.ours("gemm", [x, w.T, out, x_factors, w_factors], out)
        if self._deep_gemm is not None:
            outputs["DeepGEMM"] = theirs = torch.empty_like(out)
            launches["DeepGEMM"] = lambda: self._deep_gemm.fp8_gemm_nt((x, x_factors), (w, w_factors), theirs)
        if self._others:
            launches |= self.cublas(x, x_factors, w, w_factors)
        expected = wide(torch, x, x_factors) @ wide(torch, w, w_factors).T
        return Case(
            f"dense {m} x {n} x {k}",
            2.0 * m * n * k,
            launches,
            outputs,
            lambda y: relative_error(y, expected),
        )

    def exact(self, m: int, n: int, k: int) -> Case:
        """One layer in FP8 without scale factors; cuBLAS with exact and with fast sums."""
        torch = self._torch
        x, w = (self.random(rows, k).to(torch.float8_e4m3fn) for rows in (m, n))
        out = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        launches, outputs = self.ours("gemm", [x, w.T, out], out)
        one = torch.ones((), device="cuda")
        if self._others:
            for name, fast in (("cuBLAS", False), ("cuBLAS, fast", True)):
                launches[name] = partial(
                    torch._scaled_mm, x, w.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast
                )
        expected = x.float() @ w.float().T
        name = f"exact {m} x {n} x {k}"
        return Case(name, 2.0 * m * n * k, launches, outputs, lambda y: relative_error(y, expected))

    def cublas(self, x: Any, x_factors: Any, w: Any, w_factors: Any) -> dict[str, Callable[[], object]]:
        """cuBLAS with the same factors, where this torch has it."""
        functional = self._torch.nn.functional
        if not hasattr(functional, "scaled_mm"):
            return {}
        recipe = functional.ScalingType
        # It takes them without padding.
        x_factors = x_factors.T.contiguous().T
        arguments = (
            x, w.T, x_factors, recipe.BlockWise1x128, w_factors.T, recipe.BlockWise128x128,
        )  # fmt: skip

        def launch() -> object:
            return functional.scaled_mm(*arguments, output_dtype=self._torch.bfloat16)

        try:
            launch()
        except (RuntimeError, ValueError) as error:
            print(f"cuBLAS: {str(error).strip().splitlines()[0][:150]}", file=sys.stderr)
            return {}
        return {"cuBLAS": launch}

    def sizes(self, groups: int, rows: int) -> list[int]:
        """Rows of each group: uneven, some of no multiple of a tile, the largest 1.3 times the mean."""
        weights = [0.7 + 0.6 * (index * 7 % groups) / max(groups - 1, 1) for index in range(groups)]
        return [max(1, round(rows * weight)) for weight in weights]

    def contiguous(self, name: str, sizes: list[int], n: int, k: int, narrow: bool) -> Case:
        """Groups one after the other. DeepGEMM gets them aligned to what it demands, with rows between."""
        torch = self._torch
        groups, total = len(sizes), sum(sizes)
        ends = torch.tensor(sizes, device="cuda").cumsum(0).int()
        x, w = self.random(total, k), self.random(groups, n, k)
        out = torch.empty(total, n, dtype=torch.bfloat16, device="cuda")
        factors: list[Any] = []
        values = x.float(), w.float()
        if narrow:
            (x, x_factors), (w, w_factors) = by_rows(torch, x), by_blocks(torch, w)
            factors = [x_factors, w_factors]
            values = wide(torch, x, x_factors), wide(torch, w, w_factors)
        operands = [x, w.transpose(1, 2), out, *factors, ends]
        launches, outputs = self.ours("grouped_gemm", operands, out)
        if self._deep_gemm is not None:
            aligned = self._deep_gemm.get_mk_alignment_for_contiguous_layout()
            spread, of_group = [], []
            for group, size in enumerate(sizes):
                spread += [True] * size + [False] * (-size % aligned)
                of_group += [group] * size + [-1] * (-size % aligned)
            there = torch.tensor(spread, device="cuda").nonzero()[:, 0]
            indices = torch.tensor(of_group, device="cuda", dtype=torch.int32)
            padded = torch.zeros(len(spread), k, device="cuda", dtype=torch.bfloat16)
            padded[there] = values[0].bfloat16()
            theirs = torch.empty(len(spread), n, dtype=torch.bfloat16, device="cuda")
            outputs["DeepGEMM"] = theirs
            if narrow:
                a = torch.zeros(len(spread), k, device="cuda", dtype=torch.uint8)
                a[there] = x.view(torch.uint8)
                _, a_factors = by_rows(torch, padded)
                a_factors[there] = x_factors
                a = a.view(torch.float8_e4m3fn)
                launches["DeepGEMM"] = lambda: self._deep_gemm.m_grouped_fp8_gemm_nt_contiguous(
                    (a, a_factors), (w, w_factors), theirs, indices
                )
            else:
                launches["DeepGEMM"] = lambda: self._deep_gemm.m_grouped_bf16_gemm_nt_contiguous(
                    padded, w, theirs, indices
                )
        if self._others and not narrow:
            starts = [0, *ends.tolist()]
            parts = [(x[s:e], w[g].T, out[s:e]) for g, (s, e) in enumerate(pairwise(starts))]
            launches["torch.mm of each"] = lambda: [torch.mm(a, b, out=c) for a, b, c in parts]
            if hasattr(torch, "_grouped_mm"):
                launches["torch._grouped_mm"] = lambda: torch._grouped_mm(x, w.transpose(1, 2), offs=ends)
        expected = torch.cat(
            [a @ b.T for a, b in zip(values[0].split(sizes), values[1], strict=True)]
        )  # fmt: skip

        def error(found: Any) -> float:
            return relative_error(found if len(found) == total else found[there], expected)

        # A loop makes as many launches as there are groups.
        wait = WAIT_CYCLES if narrow else WAIT_CYCLES * max(1, groups // 4)
        extents = {"G": groups, "M": total, "N": n, "K": k}
        return Case(name, 2.0 * total * n * k, launches, outputs, error, wait, extents)

    def masked(self, name: str, sizes: list[int], n: int, k: int) -> Case:
        """Groups in a matrix each, of whose rows the first count."""
        from cutlass_aot import deep_gemm

        torch = self._torch
        groups = len(sizes)
        most = max(256, -(-max(sizes) // 128) * 256)
        x, x_factors = by_rows(torch, self.random(groups, most, k))
        w, w_factors = by_blocks(torch, self.random(groups, n, k))
        counts = torch.tensor(sizes, dtype=torch.int32, device="cuda")
        out = torch.zeros(groups, most, n, dtype=torch.bfloat16, device="cuda")
        operands = [x, w.transpose(1, 2), out, x_factors, w_factors, counts]
        launches, outputs = self.ours("masked_grouped_gemm", operands, out)
        # Both are told how many rows to expect.
        mean = -(-sum(sizes) // groups)
        launches["chosen"] = lambda: deep_gemm.m_grouped_fp8_gemm_nt_masked(
            (x, x_factors), (w, w_factors), out, counts, mean
        )
        if self._deep_gemm is not None:
            outputs["DeepGEMM"] = theirs = torch.empty_like(out)
            launches["DeepGEMM"] = lambda: self._deep_gemm.m_grouped_fp8_gemm_nt_masked(
                (x, x_factors), (w, w_factors), theirs, counts, mean
            )
        pairs = zip(wide(torch, x, x_factors), wide(torch, w, w_factors), sizes, strict=True)
        expected = [a[:size] @ b.T for a, b, size in pairs]

        def error(found: Any) -> float:
            return max(
                relative_error(part[:size], right)
                for part, size, right in zip(found, sizes, expected, strict=True)
            )

        extents = {"G": groups, "M": ROWS_PER_EXPECTED * mean, "N": n, "K": k}
        return Case(name, 2.0 * sum(sizes) * n * k, launches, outputs, error, extents=extents)


def imported_deep_gemm() -> Any:
    """DeepGEMM, or None where it cannot be imported, which is said."""
    try:
        import deep_gemm  # type: ignore[import-not-found]
    except ImportError as error:
        print(f"DeepGEMM does not take part: {error}", file=sys.stderr)
        return None
    return deep_gemm


def _short(kernel: Any) -> str:
    design = dict(kernel.design)
    words = ["x".join(map(str, design["tile_shape"][:2])), "x".join(map(str, design["cluster_shape"]))]
    words += [
        word for word, name in (("swap", "swap_operands"), ("persistent", "persistent")) if design[name]
    ]
    words += ["ping-pong"] if "PingPong" in str(design["family"]) else []
    return " ".join([*words, f"{design['blocks_per_sm']} a multiprocessor"])


def times(torch: Any, case: Case, flushed: Any, count: int) -> dict[str, float]:
    """Median time of each launch, from the start of its first kernel to the end of its last: microseconds."""
    launches = list(case.launches.values())
    # In another order each turn, for the one before leaves the GPU hot or cool.
    by_chance = random.Random(len(launches))  # noqa: S311 (nothing secret)
    orders = [by_chance.sample(range(len(launches)), len(launches)) for _ in range(count)]
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CUDA]) as profiler:
        for number in chain.from_iterable(orders):
            flushed.zero_()
            torch.cuda._sleep(case.wait)
            launches[number]()
        torch.cuda.synchronize()
    found: list[list[Any]] = []
    events = [e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    for event in sorted(events, key=lambda event: event.time_range.start):
        if "spin_kernel" in event.name:
            found.append([])
        elif found and "FillFunctor" not in event.name and not event.name.startswith("Mem"):
            found[-1].append(event.time_range)
    if len(found) != count * len(launches):
        raise SystemExit(
            f"{case.name}: {len(found)} launches in the profile, expected {count * len(launches)}"
        )
    taken: dict[int, list[float]] = {}
    for number, ranges in zip(chain.from_iterable(orders), found, strict=True):
        taken.setdefault(number, []).append(max(r.end for r in ranges) - min(r.start for r in ranges))
    return {name: statistics.median(taken[number]) for number, name in enumerate(case.launches)}


def errors(torch: Any, bundle: Any) -> str:
    """Relative error against f64 by K, of f32 results without scale factors' own rounding."""
    rows = []
    # A bundle may have kernels without factors, too.
    exact = bundle.kernels(accumulation="exact", dtypes="f8e4m3.f8e4m3.f32")
    for k in (512, 2048, 8192, 32768, 65536):
        x, x_factors = by_rows(torch, torch.rand(128, k, device="cuda").mul_(2).sub_(0.5))
        w, w_factors = by_blocks(torch, torch.rand(256, k, device="cuda").mul_(2).sub_(0.5))
        expected = wide(torch, x, x_factors).double() @ wide(torch, w, w_factors).double().T
        ours = torch.empty(128, 256, device="cuda")
        bundle.run("gemm", x, w.T, ours, x_factors, w_factors)
        one = torch.ones((), device="cuda")
        plain = x.double() @ w.double().T
        cells = [k, f"{float((ours.double() - expected).norm() / expected.norm()):.2e}"]
        if exact:
            bundle.gemm(x, w.T, ours)
            cells.append(f"{float((ours.double() - plain).norm() / plain.norm()):.2e}")
        for fast in (False, True):
            theirs = torch._scaled_mm(x, w.T, one, one, out_dtype=torch.float32, use_fast_accum=fast)
            cells.append(f"{float((theirs.double() - plain).norm() / plain.norm()):.2e}")
        rows.append(cells)
    without = ["without, exact"] if exact else []
    head = ("K", "with factors", *without, "cuBLAS, exact", "cuBLAS, fast")
    return markdown(head, [list(map(str, r)) for r in rows])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bundle", type=Path)
    kinds = ("dense", "exact", "contiguous", "masked", "bf16", "errors")
    parser.add_argument("--part", nargs="+", choices=kinds, default=kinds)
    parser.add_argument("--problems", default="*", help="a shell pattern of names")
    parser.add_argument("--drawn", type=int, default=0, help="so many problems of groups by chance instead")
    parser.add_argument("--seed", type=int, default=0, help="of what is drawn")
    parser.add_argument("--kernels", action="store_true", help="time each kernel of the bundle")
    parser.add_argument("--without-others", action="store_true", help="time the bundle alone")
    parser.add_argument("--launches", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=400.0)
    parser.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    import torch

    torch.manual_seed(0)
    bundle = cutlass_aot.open(arguments.bundle)
    cases = Cases(torch, bundle, not arguments.without_others)
    cases.kernels = arguments.kernels
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    start = time.monotonic()
    record: list[Measured] = []
    wrong = 0
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    for kind in (kind for kind in arguments.part if kind != "errors"):
        found = []
        by_chance = arguments.drawn and kind in ("contiguous", "masked", "bf16")
        drawn = partial(cases.drawn, kind, arguments.drawn, arguments.seed)
        for name, make in drawn() if by_chance else cases.made(kind):
            if not fnmatchcase(name, arguments.problems):
                continue
            if time.monotonic() - start > arguments.seconds:
                print(f"{name}: no time left", file=sys.stderr)
                continue
            try:
                case = make()
                for of, out in case.outputs.items():
                    out.fill_(math.nan)
                    case.launches[of]()
                    error = case.check(out)
                    if not error <= BOUND:
                        print(f"WRONG: {name}: {of}: relative error {error:.2e}")
                        wrong += 1
            except CutlassAotError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            microseconds = times(torch, case, flushed, arguments.launches)
            found.append(Measured(case.name, case.operations, case.extents, microseconds))
            del case
            torch.cuda.empty_cache()
        record += found
        print(_table(kind, found, arguments.kernels), flush=True)
    if "errors" in arguments.part:
        print(errors(torch, bundle))
    if arguments.output:
        numbers = {
            "machine": machine(0)._asdict(),
            "designs": cases.designs,
            "problems": [measured._asdict() for measured in record],
        }
        arguments.output.write_text(json.dumps(numbers, indent=1) + "\n")
    return 1 if wrong else 0


def _table(kind: str, cases: list[Measured], kernels: bool) -> str:
    others = list(dict.fromkeys(n for c in cases for n in c.microseconds if n in _OTHERS))
    head = [kind, "us", "TFLOP/s", *others, *(["fastest", "over the fastest"] if kernels else [])]
    rows, regrets = [], []
    for case in cases:
        own = case.microseconds["chosen"]
        cells = [case.name.partition(" ")[2], f"{own:.1f}", f"{case.operations / own / 1e6:.0f}"]
        cells += [f"{case.microseconds[n] / own:.2f}" if n in case.microseconds else "" for n in others]
        if kernels:
            each = {n: t for n, t in case.microseconds.items() if n not in _OTHERS and n != "chosen"}
            best = min(each, key=each.__getitem__)
            cells += [best, f"{own / each[best]:.2f}"]
            regrets.append(own / each[best])
        rows.append(cells)
    for name in others:
        ratios = [c.microseconds[name] / c.microseconds["chosen"] for c in cases if name in c.microseconds]
        mean = statistics.geometric_mean(ratios)
        rows.append([f"{name}: {mean:.2f} in the geometric mean, {min(ratios):.2f} at least"])
    if regrets:
        mean = statistics.geometric_mean(regrets)
        rows.append(
            [f"the choice over the fastest: {mean:.3f} in the geometric mean, {max(regrets):.2f} at most"]
        )
    return markdown(tuple(head), [row + [""] * (len(head) - len(row)) for row in rows])


_OTHERS = ("DeepGEMM", "cuBLAS", "cuBLAS, fast", "torch.mm of each", "torch._grouped_mm")

if __name__ == "__main__":
    sys.exit(main())

"""Throughput of GEMMs on a list of problems: the parts ``throughput`` and ``families`` of tools/bench/gpu.py.

Everything is timed by the harness of ``cutlass-aot tune`` (:mod:`cutlass_aot.tuning`): operands that rotate
through more memory than the L2 cache holds, CUDA graphs of launches, rounds over all candidates in turns,
medians. Candidates of one problem are all kernels that support it, ``bundle.gemm`` itself and cuBLAS through
torch: ``torch.mm(out=)``, and for FP8 ``torch._scaled_mm`` with scales of 1 and fast accumulation, which is
the faster of its two ways. A result of ``bundle.gemm`` that differs from cuBLAS's ends the run. Kernels whose
second launch takes more than :data:`FAR_SLOWER` times as long as the fastest one's are not timed further.

``families`` compares the fastest kernel of each family of designs with cuBLAS instead. Kernels that would be
slow beyond doubt are not timed: see :func:`sensible`. ``--without`` leaves kernels out by their names.

``--sms`` gives the process so many of the GPU's SMs, and another name for the GPU: a bundle takes that for a
model that it was not tuned for. Clocks and memory stay as they are.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

import cutlass_aot
from cutlass_aot.errors import CutlassAotError, KernelNotFound
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.schema.kernels.accumulation import FAST
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.schema.tuning.shapes import parse_shapes
from cutlass_aot.tuning.design import design
from cutlass_aot.tuning.gpu import GraphStopwatch
from cutlass_aot.tuning.rotation import plan_rotation
from cutlass_aot.tuning.search import Effort, rank
from tools.bench.command import Result, Row, Table

DTYPE_ROWS = {
    "bf16": ("bf16", "bf16", "bf16"),
    "f16": ("f16", "f16", "f16"),
    "f8e4m3": ("f8e4m3", "f8e4m3", "bf16"),
}
LAYOUTS = "tnt"
LISTED, ROWS_HALFWAY, ALL_HALFWAY, DRAWN = "listed", "m half-way", "m, n, k half-way", "drawn"
LARGEST_DIFFERENCE = 0.02
"""Frobenius norm of the difference of two bf16 results, relative to one: each is within 2^-8."""

FAR_SLOWER = 2.5
"""Single launches differ by far less from what graphs of launches take."""

CUBLAS = "cuBLAS"
MOST_TILES = 100 * 132
"""Of a problem; ``families`` does not time kernels with more tiles than that."""

GRAIN = 16
"""Elements; extents half-way along n and k are multiples of it, as FP8 operands need."""


@dataclass(frozen=True)
class Problem:
    """One problem, and where it comes from: the list, half-way between its problems, or drawn by chance."""

    extents: Extents
    kind: str


@dataclass(frozen=True)
class Measured:
    """The times of one problem, in seconds.

    Attributes:
        dtype: row of :data:`DTYPE_ROWS`.
        kind: see :class:`Problem`.
        batch, m, n, k: extents.
        tier: what chose the kernel.
        gemm: time of ``bundle.gemm``.
        chosen: time of the kernel that it chose, launched itself.
        best: time of the fastest kernel.
        cublas: time of cuBLAS.
        untuned: time of the kernel that is chosen without rankings.
        names: of the kernels: chosen, best, untuned.
        kernels: number of kernels that serve the problem.
    """

    dtype: str
    kind: str
    batch: int
    m: int
    n: int
    k: int
    tier: str
    gemm: float
    chosen: float
    best: float
    cublas: float
    untuned: float
    names: tuple[str, str, str]
    kernels: int


def problems_of(path: Path, *, halfway: bool, sample: int, drawn: int = 0, seed: int = 0) -> list[Problem]:
    """The problems of a shapes file, with those half-way between them; every ``sample``-th of all.

    Or else so many that are drawn by a seed, as ``tune --design`` draws half of its own by another: none was
    measured.

    Raises:
        ManifestError: if the file is none.
    """
    if drawn:
        found = design(_COARSE, drawn, seed, few_tiles=0, about_a_wave=0, few_columns=0, large_outputs=0)
        return [Problem(extents, DRAWN) for extents in found]
    listed = parse_shapes(path.read_bytes(), str(path)).extents
    problems = [Problem(extents, LISTED) for extents in listed]
    if halfway:
        problems += between(listed)
    return problems[::sample]


def between(listed: Sequence[Extents]) -> list[Problem]:
    """Problems half-way: between neighbouring m for each listed (n, k), and between neighbouring (n, k)."""
    problems = []
    for batch in sorted({extents.batch for extents in listed}):
        own = [extents for extents in listed if extents.batch == batch]
        rows = [
            (low + high) // 2
            for low, high in itertools.pairwise(sorted({e.m for e in own}))
            if high - low > 1
        ]
        pairs = sorted({(e.n, e.k) for e in own})
        middles = [
            tuple((x + y) // 2 // GRAIN * GRAIN for x, y in zip(low, high, strict=True))
            for low, high in itertools.pairwise(pairs)
        ]
        for kind, between_pairs in ((ROWS_HALFWAY, pairs), (ALL_HALFWAY, middles)):
            problems += [Problem(Extents(batch, m, n, k), kind) for n, k in between_pairs for m in rows]
    return problems


_COARSE = tuple(
    OperandConstraint(name, "f8e4m3", extents, contiguous, divisibility=GRAIN, alignment=GRAIN)
    for name, extents, contiguous in (
        ("a", ("L", "M", "K"), -1), ("b", ("L", "K", "N"), -2), ("out", ("L", "M", "N"), -1),
    )
)  # fmt: skip
"""Operands of linear layers; what is drawn for them fits every row of element types."""


class Call:
    """A candidate that is not a kernel: a function of (a, b, out)."""

    def __init__(self, launch: Callable[[Any, Any, Any], object]) -> None:
        self.launch = launch


def cublas(torch: Any, dtype: str, where: Any) -> Call:
    """cuBLAS through torch, on operands with the batch first."""
    if dtype != "f8e4m3":

        def multiply(a: Any, b: Any, out: Any) -> None:
            if len(a) == 1:
                torch.mm(a[0], b[0], out=out[0])
            else:
                torch.bmm(a, b, out=out)

        return Call(multiply)
    one = torch.ones((), dtype=torch.float32, device=where)

    def scaled(a: Any, b: Any, out: Any) -> None:
        for left, right, result in zip(a, b, out, strict=True):
            torch._scaled_mm(
                left,
                right,
                scale_a=one,
                scale_b=one,
                out_dtype=torch.bfloat16,
                use_fast_accum=True,
                out=result,
            )

    return Call(scaled)


class Memory:
    """Memory of the GPU for sets of operands, and to flush its cache with; kept from problem to problem."""

    def __init__(self, torch: Any, where: Any) -> None:
        self._torch = torch
        self._where = where
        self._l2_bytes = cuda_driver.l2_bytes(where.index)
        self._memory: Any = None
        self._flush: Any = None

    def operands(self, constraints: Sequence[OperandConstraint], extents: Extents) -> tuple[list[Any], Any]:
        """Sets of operands, all with the same random values, and the memory to flush with or None."""
        torch = self._torch
        rotation = plan_rotation(constraints, extents, self._l2_bytes)
        if self._memory is None or self._memory.numel() < rotation.total_bytes:
            self._memory = None
            self._memory = torch.empty(rotation.total_bytes, dtype=torch.uint8, device=self._where)
        sets = []
        for number in range(rotation.sets):
            tensors = []
            for place in rotation.places:
                begin = number * rotation.set_bytes + place.offset
                dtype = getattr(torch, DTYPES[place.dtype].torch)
                lying = self._memory[begin : begin + place.bytes].view(dtype).view(place.memory)
                tensors.append(lying.transpose(1, 2) if place.transposed else lying)
            sets.append(tuple(tensors))
        torch.manual_seed(1)
        for operand in sets[0][:-1]:
            values = torch.empty(operand.shape, dtype=torch.bfloat16, device=self._where)
            operand.copy_(values.normal_())
        for others in sets[1:]:
            for operand, first in zip(others[:-1], sets[0][:-1], strict=True):
                operand.copy_(first)
        if rotation.flush_bytes and self._flush is None:
            self._flush = torch.empty(rotation.flush_bytes, dtype=torch.uint8, device=self._where)
        return sets, self._flush if rotation.flush_bytes else None

    def forget(self) -> None:
        """Give the memory back, after there was not enough."""
        self._memory = None
        self._torch.cuda.empty_cache()


def second_launches(torch: Any, candidates: Iterable[Any], operands: Sequence[Any]) -> list[float]:
    """Launch each candidate twice, which loads it; seconds of each second launch."""
    spans = []
    for candidate in candidates:
        candidate.launch(*operands)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        candidate.launch(*operands)
        end.record()
        spans.append((begin, end))
    torch.cuda.current_stream().synchronize()
    return [begin.elapsed_time(end) / 1e3 for begin, end in spans]


def in_turns(
    torch: Any, candidates: Mapping[int, Any], sets: Sequence[Any], flush: Any, fastest: float, effort: Effort
) -> dict[int, float]:
    """Median seconds of each candidate by its number, measured in rounds over all of them."""
    watch = GraphStopwatch(torch, sets, flush, fastest, lambda: None)
    for number, candidate in candidates.items():
        watch.capture(number, candidate)
    outcome = rank(list(candidates), watch, time.perf_counter, effort)
    return dict((*outcome.ranked, *outcome.stopped))


class Throughput:
    """Measures problems with one bundle on GPU 0.

    Args:
        torch: the module.
        bundle: as a user opens it.
        untuned: the same bundle without its rankings.
        effort: how long to measure each problem.
    """

    def __init__(
        self, torch: Any, bundle: cutlass_aot.Bundle, untuned: cutlass_aot.Bundle, effort: Effort
    ) -> None:
        self._torch = torch
        self._bundle = bundle
        self._untuned = untuned
        self._effort = effort
        self._where = torch.device("cuda", 0)
        self._memory = Memory(torch, self._where)

    def measure(self, dtype: str, problem: Problem) -> Measured | None:
        """Measure one problem; None if the GPU has not enough memory for it.

        Raises:
            KernelNotFound: if the bundle has no kernel for it.
            RuntimeError: if a result is wrong.
        """
        try:
            return self._measured(dtype, problem)
        except self._torch.cuda.OutOfMemoryError:
            self._memory.forget()
            return None

    def _measured(self, dtype: str, problem: Problem) -> Measured:
        bundle, extents = self._bundle, problem.extents
        sets, flush = self._memory.operands(self._constraints(dtype), extents)
        operands = sets[0]
        # As cuBLAS beside them, which permits fast sums of FP8.
        options: dict[str, Any] = {"accumulation": FAST} if dtype == "f8e4m3" else {}
        kernels = bundle.find(*operands, **options)
        choice = bundle.choose(*operands, **options)
        untuned = self._untuned.choose(*operands, **options).kernel
        call = partial(bundle.gemm, **options) if options else bundle.gemm
        gemm = len(kernels)
        candidates: list[Any] = [*kernels, Call(call), cublas(self._torch, dtype, self._where)]
        launches = second_launches(self._torch, candidates, operands)
        self._compare(candidates[gemm:], operands, extents)
        by_digest = {kernel.digest: number for number, kernel in enumerate(kernels)}
        always = {by_digest[choice.kernel.digest], by_digest[untuned.digest], gemm, gemm + 1}
        fastest = min(launches)
        kept = {
            number: candidate
            for number, candidate in enumerate(candidates)
            if launches[number] <= FAR_SLOWER * fastest or number in always
        }
        times = in_turns(self._torch, kept, sets, flush, fastest, self._effort)
        best = min((number for number in kept if number < gemm), key=times.__getitem__)
        return Measured(
            dtype,
            problem.kind,
            extents.batch,
            extents.m,
            extents.n,
            extents.k,
            choice.tier,
            gemm=times[gemm],
            chosen=times[by_digest[choice.kernel.digest]],
            best=times[best],
            cublas=times[gemm + 1],
            untuned=times[by_digest[untuned.digest]],
            names=(choice.kernel.name, kernels[best].name, untuned.name),
            kernels=gemm,
        )

    def _constraints(self, dtype: str) -> tuple[OperandConstraint, ...]:
        """Constraints of a group of the bundle with these element types, at the layouts of a linear layer."""
        for group in self._bundle.groups:
            names = tuple(operand.dtype for operand in group.operands)
            if (names, group.layouts, group.operation) == (DTYPE_ROWS[dtype], LAYOUTS, "gemm"):
                return group.operands
        raise KernelNotFound(f"bundle {self._bundle.name} has no {LAYOUTS} GEMM of {DTYPE_ROWS[dtype]}")

    def _compare(self, candidates: Sequence[Any], operands: Sequence[Any], extents: Extents) -> None:
        """Compare the results of two candidates."""
        results = []
        for candidate in candidates:
            operands[-1].fill_(float("nan"))
            candidate.launch(*operands)
            results.append(operands[-1].float())
        ours, theirs = results
        difference = float((ours - theirs).norm() / theirs.norm())
        if not difference <= LARGEST_DIFFERENCE:
            raise RuntimeError(f"bundle.gemm and cuBLAS differ by {difference:.2e} on {extents}")


def _problems(arguments: argparse.Namespace) -> list[Problem]:
    return problems_of(
        arguments.shapes,
        halfway=arguments.halfway,
        sample=arguments.sample,
        drawn=arguments.drawn,
        seed=arguments.seed,
    )


def part_throughput(arguments: argparse.Namespace, path: Path) -> Result:
    """Measure ``bundle.gemm`` on every problem for every row of element types."""
    import torch

    problems = _problems(arguments)
    if arguments.sms:
        restrict_sms(arguments.sms)
    bundle, untuned = cutlass_aot.open(path), cutlass_aot.open(path, rankings=False)
    bench = Throughput(torch, bundle, untuned, Effort(seconds=arguments.seconds))
    measured: list[Measured] = []
    notes: list[Row] = []
    # A stream of our own: the legacy default stream cannot be captured.
    begun, limit = time.monotonic(), math.inf if arguments.minutes is None else 60 * arguments.minutes
    with torch.cuda.stream(torch.cuda.Stream()):
        _warm_up(torch)
        for position, dtype in enumerate(arguments.dtypes, 1):
            left_out = 0
            for number, problem in enumerate(problems, 1):
                # Each row of element types has an equal share of the time.
                if time.monotonic() - begun > limit * position / len(arguments.dtypes):
                    late = (
                        f"{len(problems) - number + 1} problems were not begun in {arguments.minutes} minutes"
                    )
                    notes.append(Row(f"throughput, {dtype}", late))
                    break
                try:
                    one = bench.measure(dtype, problem)
                except CutlassAotError as error:
                    notes.append(
                        Row(f"throughput, {dtype}", f"not measured from {problem.extents} on: {error}")
                    )
                    break
                left_out += one is None
                measured += [one] if one else []
                _show(f"{dtype}: {number} of {len(problems)}")
            _show("")
            if left_out:
                notes.append(Row(f"throughput, {dtype}", f"{left_out} problems do not fit the GPU's memory"))
    rows = [
        row
        for dtype in arguments.dtypes
        for row in summary([item for item in measured if item.dtype == dtype])
    ]
    tables = [subset_table(measured), problem_table(measured)]
    return Result(rows + notes, {"problems": [asdict(item) for item in measured]}, tables)


_contexts: list[Any] = []
"""Of :func:`restrict_sms`; what was allocated in a context goes with it."""


def restrict_sms(count: int) -> None:
    """Give this thread so many SMs of the GPU, and have its driver describe it as another model."""
    import torch
    from torch.cuda.green_contexts import GreenContext

    name, machine = cuda_driver.device_name(0), cuda_driver.machine(0)
    torch.cuda.init()
    context = GreenContext.create(num_sms=count, device_id=0)
    context.set_context()
    _contexts.append(context)
    cuda_driver.device_name = lambda ordinal: f"{name}, {count} SMs"
    cuda_driver.machine = lambda ordinal: machine._replace(sm_count=count)


SUBSETS: Mapping[str, Callable[[Measured], bool]] = {
    "": lambda item: True,
    ", n from 1,024": lambda item: item.n >= 1024,
    ", m to 64": lambda item: item.m <= 64,
    ", m 65 to 512": lambda item: 64 < item.m <= 512,
    ", m above 512": lambda item: item.m > 512,
}
LOW_SPEED = 0.85


def subset_table(items: Sequence[Measured]) -> Table:
    """Speeds with cuBLAS as 1, and regrets, for each row of element types and for some of its problems."""
    head = ("element types", "problems", "speed", "of the best kernel", "regret", "95%", f"below {LOW_SPEED}")
    rows = []
    for (name, chosen), dtype in itertools.product(SUBSETS.items(), dict.fromkeys(i.dtype for i in items)):
        own = [item for item in items if item.dtype == dtype and chosen(item)]
        if not own:
            continue
        speeds, most = [item.cublas / item.gemm for item in own], [item.cublas / item.best for item in own]
        regrets = sorted(item.gemm / item.best for item in own)
        rows.append(
            (
                dtype + name,
                str(len(own)),
                *(f"{statistics.geometric_mean(found):.2f} ({min(found):.2f})" for found in (speeds, most)),
                f"{statistics.geometric_mean(regrets):.3f}",
                f"{regrets[math.ceil(0.95 * len(regrets)) - 1]:.2f}",
                str(sum(speed < LOW_SPEED for speed in speeds)),
            )
        )
    return Table("Speed with cuBLAS as 1, the lowest in parentheses, and regret", head, rows)


def problem_table(items: Sequence[Measured]) -> Table:
    """Every problem: times, and speeds of ``bundle.gemm`` with the best kernel and with cuBLAS as 1."""
    head = (
        "dtype",
        "problems",
        "m x n x k",
        "tier",
        "gemm",
        "best",
        CUBLAS,
        "untuned",
        "of best",
        "of cuBLAS",
    )
    rows = []
    for item in items:
        times = [f"{span * 1e6:.1f}" for span in (item.gemm, item.best, item.cublas, item.untuned)]
        speeds = [f"{other / item.gemm:.2f}" for other in (item.best, item.cublas)]
        rows.append((item.dtype, item.kind, f"{item.m} x {item.n} x {item.k}", item.tier, *times, *speeds))
    return Table("Every problem, µs", head, rows)


def part_families(arguments: argparse.Namespace, path: Path) -> Result:
    """Time all kernels of linear layers into bf16, and cuBLAS, on each problem."""
    import torch

    bundle = cutlass_aot.open(path)
    problems = _problems(arguments)
    effort = Effort(first_looks=2, stop_ratio=1.6, most_rounds=9, seconds=arguments.seconds)
    where = torch.device("cuda", 0)
    memory = Memory(torch, where)
    timed: list[dict[str, Any]] = []
    with torch.cuda.stream(torch.cuda.Stream()):
        for dtype, problem in itertools.product(arguments.dtypes, problems):
            extents = problem.extents
            names = ".".join(DTYPE_ROWS[dtype])
            kernels = bundle.kernels(operation="gemm", dtypes=names, layouts=LAYOUTS)
            plain = [kernel for kernel in kernels if not kernel.kernel.epilogue]
            if not plain:
                raise RuntimeError(f"bundle {bundle.name} has no {LAYOUTS} GEMM of {names}")
            own = [kernel for kernel in plain if sensible(dict(kernel.kernel.design), extents)]
            sets, flush = memory.operands(plain[0].kernel.operands, extents)
            candidates = [*own, cublas(torch, dtype, where)]
            fastest = min(second_launches(torch, candidates, sets[0]))
            times = in_turns(torch, dict(enumerate(candidates)), sets, flush, fastest, effort)
            labels = [*(kernel.name for kernel in own), CUBLAS]
            by_name = {labels[number]: span * 1e6 for number, span in times.items()}
            timed.append({"dtype": dtype, "m": extents.m, "n": extents.n, "k": extents.k, "times": by_name})
            _show(f"{dtype}: {len(timed)} problems")
    _show("")
    return Result([], {"timed": timed}, family_tables({"timed": timed}, arguments.without))


def sensible(design: Mapping[str, Any], extents: Extents) -> bool:
    """Whether a kernel is worth timing: those for few rows, and of small tiles, take very long on much."""
    tile_m, tile_n = design["tile_shape"][:2]
    tiles = -(-extents.m // tile_m) * -(-extents.n // tile_n)
    return tiles <= MOST_TILES and (not design.get("swap_operands") or extents.m <= 4 * tile_m)


def family_tables(numbers: Mapping[str, Any], without: Sequence[str] = ()) -> list[Table]:
    """The fastest kernel of each family on each problem, and geometric means of their speeds by rows.

    Args:
        numbers: of the part ``families``.
        without: patterns of names of kernels to be left out.
    """
    best = [_best_of_families(item["times"], without) for item in numbers["timed"]]
    families = sorted({family for own in best for family in own} - {CUBLAS})
    rows = []
    ratios: dict[str, list[tuple[int, float]]] = {family: [] for family in (*families, "best")}
    for item, own in zip(numbers["timed"], best, strict=True):
        cublas_time = own.pop(CUBLAS)[0]
        own["best"] = min(own.values())
        for family, (span, _) in own.items():
            ratios[family].append((item["m"], cublas_time / span))
        spans = [f"{own[family][0]:.1f}" if family in own else "" for family in families]
        span, name = own["best"]
        design = "-".join(name.split("-")[5:-1])
        place = f"{item['m']} x {item['n']} x {item['k']}"
        rows.append((item["dtype"], place, f"{cublas_time:.1f}", *spans, f"{cublas_time / span:.2f}", design))
    return [
        Table("Families, µs", ("dtype", "m x n x k", CUBLAS, *families, "cuBLAS / best", "best"), rows),
        Table("Speed of families, cuBLAS as 1: mean (lowest)", ("m", *ratios), _means_by_rows(ratios)),
    ]


def _best_of_families(times: Mapping[str, float], without: Sequence[str]) -> dict[str, tuple[float, str]]:
    """The least time and its kernel, by family: in a kernel's name it comes after the group's five words."""
    best: dict[str, tuple[float, str]] = {}
    for name, span in times.items():
        if not any(fnmatchcase(name, pattern) for pattern in without):
            family = name if name == CUBLAS else name.split("-")[5]
            best[family] = min(best.get(family, (span, name)), (span, name))
    return best


def _means_by_rows(ratios: Mapping[str, Sequence[tuple[int, float]]]) -> list[list[str]]:
    choices: dict[str, Callable[[int], bool]] = {
        str(m): m.__eq__ for m in sorted({m for values in ratios.values() for m, _ in values})
    }
    choices |= {"m ≤ 64": lambda m: m <= 64, "m > 64": lambda m: m > 64, "all": lambda m: True}
    rows = []
    for name, chosen in choices.items():
        speeds = [[speed for m, speed in values if chosen(m)] for values in ratios.values()]
        cells = [f"{statistics.geometric_mean(own):.3f} ({min(own):.2f})" if own else "" for own in speeds]
        rows.append([name, *cells])
    return rows


def _show(progress: str) -> None:
    """Show how far it is in place of what was shown before, where somebody watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{progress}", end="", file=sys.stderr, flush=True)


def _warm_up(torch: Any) -> None:
    """Bring the clocks up from idling."""
    matrix = torch.ones((4096, 4096), dtype=torch.float16, device="cuda")
    begin = time.perf_counter()
    while time.perf_counter() - begin < 1:
        for _ in range(20):
            torch.mm(matrix, matrix)
        torch.cuda.current_stream().synchronize()


def summary(items: Sequence[Measured]) -> list[Row]:
    """Geometric means over the problems of one row of element types, by where they come from and by tier."""
    rows = []
    for kind in (LISTED, ROWS_HALFWAY, ALL_HALFWAY, DRAWN):
        for tier in sorted({item.tier for item in items if item.kind == kind}):
            rows += _means([item for item in items if (item.kind, item.tier) == (kind, tier)])
    return rows


def _means(items: Sequence[Measured]) -> list[Row]:
    first = items[0]
    where = f"{first.dtype}, {len(items)} problems ({first.kind}), {first.tier}"

    def mean(what: str, ratios: Sequence[float], goal: float | None = None) -> Row:
        value = statistics.geometric_mean(ratios)
        measured = f"{value:.3f} (lowest {min(ratios):.2f})"
        if goal is None:
            return Row(f"{what}: {where}", measured)
        return Row(f"{what}: {where}", measured, f"≥ {goal}", value >= goal)

    goal = {"tuned": 0.98, "fitted": 0.97}.get(first.tier)
    goal_cublas = 0.92 if first.kind == LISTED else None
    regret = [item.untuned / item.best for item in items]
    lost = sorted(item.chosen / item.best for item in items)
    lost_by_most = lost[math.ceil(0.95 * len(lost)) - 1]
    mean_regret = statistics.geometric_mean(regret)
    return [
        mean("speed of `bundle.gemm`, best kernel as 1", [item.best / item.gemm for item in items], goal),
        mean("speed of the kernel that it chose", [item.best / item.chosen for item in items]),
        Row(
            f"time of the kernel that it chose, best kernel as 1, for 95% of the problems: {where}",
            f"at most {lost_by_most:.3f}",
            "≤ 1.12",
            lost_by_most <= 1.12,
        ),
        mean("speed of `bundle.gemm`, cuBLAS as 1", [item.cublas / item.gemm for item in items], goal_cublas),
        mean("speed of the best kernel, cuBLAS as 1", [item.cublas / item.best for item in items]),
        Row(
            f"time of the untuned choice, best kernel as 1: {where}",
            f"{mean_regret:.3f} (highest {max(regret):.2f})",
            "≤ 1.15",
            mean_regret <= 1.15,
        ),
    ]

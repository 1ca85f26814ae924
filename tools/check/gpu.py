"""Run every kernel of a bundle that the present GPU can run, and compare the results with float64.

    python -m tools.check.gpu BUNDLE [--sizes 512x512x512,...] [--json FILE] [--markdown FILE]

Needs torch, a GPU and cutlass-aot's runtime; no DSL, no compiler. BUNDLE is a bundle's directory, or the name
of an installed one. Exits with 1 if anything failed.

Every kernel runs on random operands at each size, once. Before each launch the output is poisoned (NaN, or
a value that no result has), and afterwards it is compared with a float64 product of the same operands:
exactly for integers, and for floating types by the largest error of any element, relative to the element's
magnitude plus the root mean square of the product, within what :mod:`cutlass_aot.tuning.reference` allows.
Twice that bounds the relative Frobenius norm of the error too. Integer operands are even, and so small or
sparse that no output overflows.

The best kernel of each group is also launched on a side stream (as torch's current one, and as ``stream=``),
in a CUDA graph, on padded, broadcast and 2-D operands, and on wrong operands, which it has to refuse. Scale
factors are random; grouped kernels are checked by tests/gpu/test_sm90_scaled.py and test_fuzz.py.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import cutlass_aot
from cutlass_aot.errors import CutlassAotError
from cutlass_aot.runtime.machine import cuda_driver
from cutlass_aot.runtime.machine.compatibility import runnable_targets
from cutlass_aot.schema.bundles.catalog import GroupEntry
from cutlass_aot.schema.kernels.accumulation import EXACT
from cutlass_aot.schema.kernels.constraints import OperandConstraint
from cutlass_aot.schema.kernels.dtypes import DTYPES
from cutlass_aot.schema.tuning.ranking import Extents
from cutlass_aot.tuning.reference import is_integer, scaled, tolerance
from cutlass_aot.tuning.rotation import is_gemm, memory_shape
from tools.bench.command import markdown
from tools.bench.machine import about

SIZES = "512x512x512,200x264x136,3x256x384x192"
"""MxNxK or LxMxNxK: whole tiles; no whole tile; a batch. Extents are rounded up to what operands need."""

INTEGER_POISON = -113
"""No multiple of 2, which every result is: integer operands are even."""

Size = tuple[int, int, int, int]


def parse_sizes(text: str) -> list[Size]:
    """Read ``MxNxK`` and ``LxMxNxK`` sizes, separated by commas; without a batch it is 1."""
    sizes = []
    for item in text.split(","):
        extents = [int(part) for part in item.strip().split("x")]
        if len(extents) not in (3, 4) or min(extents) < 1:
            raise ValueError(f"{item!r} is not a size such as 512x512x512 or 3x256x384x192")
        sizes.append((1, *extents) if len(extents) == 3 else tuple(extents))
    return sizes  # type: ignore[return-value]


def fit(size: Size, operands: Sequence[OperandConstraint]) -> Size:
    """Round extents up to multiples of the divisibility that the operands' contiguous modes need."""
    multiples: dict[str | int, int] = {"L": 1, "M": 1, "N": 1, "K": 1}
    for operand in operands:
        name = operand.extents[operand.contiguous]
        multiples[name] = math.lcm(multiples[name], operand.divisibility)
    extents = (-(-e // multiples[n]) * multiples[n] for n, e in zip("LMNK", size, strict=True))
    return tuple(extents)  # type: ignore[return-value]


def torch_dtype(name: str) -> torch.dtype:
    """The torch element type of this name."""
    dtype: torch.dtype = getattr(torch, DTYPES[name].torch)
    return dtype


def random_matrix(
    shape: tuple[int, ...], dtype: str, out: str, k: int, generator: torch.Generator
) -> torch.Tensor:
    """Random values as float64 that ``dtype`` holds exactly.

    The last mode is K. Values for integers are even and so small, or so sparse along K, that a sum of ``k``
    products stays within ``out``.
    """
    where = generator.device
    if not is_integer(dtype):
        wide = torch.float64 if dtype == "f64" else torch.float32
        values = torch.randn(shape, generator=generator, device=where, dtype=wide)
        return values.to(torch_dtype(dtype)).double()
    largest = torch.iinfo(torch_dtype(out) if is_integer(out) else torch.int32).max
    # Up to the ends of the type where the output has room for it: what takes u8 for i8 shows there alone.
    ends = torch.iinfo(torch_dtype(dtype)) if largest == torch.iinfo(torch.int32).max else None
    least, most = (ends.min // 2, ends.max // 2) if ends else (-1, 1)
    values = 2 * torch.randint(least, most + 1, shape, generator=generator, device=where)
    if "u8" in (dtype, out):
        values = values.abs()
    # Where k products could overflow the output, all but every so many are zero.
    product = 255**2 if ends else 4
    every = -(-2 * product * k // largest)
    return (values * (torch.arange(shape[-1], device=where) % every == 0)).double()


def lay_out(values: torch.Tensor, constraint: OperandConstraint, padding: int = 0) -> torch.Tensor:
    """A tensor of the constraint's type and layout with these values, its rows ``padding`` elements apart.

    Args:
        values: (L, rows, columns), float64.
        constraint: of the operand.
        padding: in multiples of the constraint's divisibility.
    """
    dtype = torch_dtype(constraint.dtype)
    batch, rows, columns = values.shape
    column_major = constraint.contiguous == -2
    major, minor = (columns, rows) if column_major else (rows, columns)
    step = minor + padding * constraint.divisibility
    # Memory beyond the extents is poisoned like an output: a kernel that reads it gives itself away.
    memory = torch.empty((batch, major, step), dtype=dtype, device=values.device)
    poison(memory)
    view = memory[:, :, :minor]
    if column_major:
        view = view.transpose(1, 2)
    view.copy_(values.to(dtype))
    return view


def poison(tensor: torch.Tensor) -> None:
    """Fill with what no result is: NaN, or a number that is odd."""
    if not tensor.is_floating_point():
        tensor.fill_(INTEGER_POISON % 256 if tensor.dtype == torch.uint8 else INTEGER_POISON)
    elif tensor.dtype.itemsize == 1:
        # 0x7f is NaN in both FP8 formats.
        tensor.view(torch.uint8).fill_(0x7F)
    else:
        tensor.fill_(math.nan)


@dataclass
class Problem:
    """Operands of one size for one group, and the product in float64."""

    size: Size
    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    factors: dict[str, torch.Tensor]
    reference: torch.Tensor
    bound: float

    @property
    def operands(self) -> tuple[torch.Tensor, ...]:
        """In the order of the call."""
        return self.a, self.b, self.out, *self.factors.values()

    def error(self) -> torch.Tensor:
        """Error of the output as it stands, on the device: see the module's description."""
        difference = (self.out.double() - self.reference).abs()
        if self.bound == 0.0:
            return difference.max()
        size = self.reference.abs()
        return (difference / (size + size.square().mean().sqrt())).max()


class References:
    """Random values and their products, shared by every group with the same types, layouts or not."""

    def __init__(self, where: torch.device) -> None:
        self._where = where
        self._values: dict[Any, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def get(self, group: GroupEntry, size: Size) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """a, b and their product, float64."""
        a, b, out = group.operands[:3]
        integer_out = out.dtype if is_integer(a.dtype) or is_integer(b.dtype) else ""
        key = (a.dtype, b.dtype, integer_out, size)
        if key not in self._values:
            generator = torch.Generator(self._where)
            generator.manual_seed(20_000 + sum(size))
            batch, m, n, k = size
            left = random_matrix((batch, m, k), a.dtype, out.dtype, k, generator)
            right = random_matrix((batch, n, k), b.dtype, out.dtype, k, generator).transpose(1, 2)
            self._values[key] = (left, right, left @ right)
        return self._values[key]

    def problem(self, group: GroupEntry, size: Size, *, padding: int = 0, broadcast: bool = False) -> Problem:
        """Operands laid out for a group. With ``broadcast``, a and b are one matrix for the whole batch."""
        a, b, out, *of_blocks = group.operands
        size = fit(size, group.operands[:3])
        left, right, product = self.get(group, size)
        factors = {each.name: self.factors(each, size) for each in of_blocks}
        if broadcast:
            left, right = left[:1], right[:1]
            factors = {name: values[:1] for name, values in factors.items()}
        if broadcast or factors:
            values = left, right, product, *factors.values()
            left_scaled, right_scaled = scaled(torch, values, group.operands, "f64")
            product = (left_scaled @ right_scaled).expand_as(product)
        laid_a, laid_b = lay_out(left, a, padding), lay_out(right, b, padding)
        laid = {each.name: lay_out(factors[each.name], each, padding) for each in of_blocks}
        if broadcast:
            laid_a, laid_b = laid_a.expand(size[0], -1, -1), laid_b.expand(size[0], -1, -1)
            laid = {name: values.expand(size[0], -1, -1) for name, values in laid.items()}
        laid_out = lay_out(torch.zeros_like(product), out, padding)
        poison(laid_out)
        promoted = bool(factors) or group.accumulation == EXACT
        bound = tolerance(group.operands, group.accumulator, Extents(*size), promoted=promoted)
        return Problem(size, laid_a, laid_b, laid_out, laid, product, bound)

    def factors(self, constraint: OperandConstraint, size: Size) -> torch.Tensor:
        """Random scale factors, float64, which f32 holds exactly."""
        batch, *lying = memory_shape(constraint, Extents(*size))
        rows, columns = reversed(lying) if constraint.contiguous == -2 else lying
        generator = torch.Generator(self._where)
        generator.manual_seed(30_000 + sum(size))
        shape = batch, rows, columns
        return torch.rand(shape, generator=generator, device=self._where).add_(0.5).double()


@dataclass
class Row:
    """The results of one group."""

    group: str
    target: str
    kernels: int = 0
    checks: int = 0
    worst: float = 0.0
    bound: float = 0.0
    failures: list[str] = field(default_factory=list)

    def to_record(self) -> dict[str, Any]:
        """Plain data; JSON has no NaN."""
        return {**vars(self), "worst": self.worst if math.isfinite(self.worst) else None}

    def note(self, what: str, error: float, bound: float) -> None:
        """Count a comparison. NaN is a failure: poison that was not written, or read."""
        self.checks += 1
        self.bound = max(self.bound, bound)
        if not error <= bound:
            self.failures.append(f"{what}: error {error:.2e}, bound {bound:.2e}")
        if math.isnan(error) or error > self.worst:
            self.worst = error

    def attempt(self, what: str, action: Callable[[], None]) -> None:
        """Run a check; what it raises is a failure of this group alone."""
        try:
            action()
        except (CutlassAotError, RuntimeError, ValueError, TypeError, AssertionError) as error:
            self.checks += 1
            self.failures.append(f"{what}: {type(error).__name__}: {error}")


def check_group(
    bundle: cutlass_aot.Bundle, group: GroupEntry, references: References, sizes: Sequence[Size]
) -> Row:
    """Run every kernel of a group at every size, and its best kernel in the other ways."""
    row = Row(group.name, group.target, group.kernel_count)
    for size in sizes:
        row.attempt(str(size), partial(each_kernel, row, bundle, group, references, size))
    row.attempt("other ways", partial(each_way, row, bundle, group, references, sizes))
    return row


def each_kernel(
    row: Row, bundle: cutlass_aot.Bundle, group: GroupEntry, references: References, size: Size
) -> None:
    """Run every kernel of a group at one size."""
    problem = references.problem(group, size)
    pending: list[tuple[str, torch.Tensor]] = []

    def run(kernel: cutlass_aot.KernelHandle, what: str) -> None:
        poison(problem.out)
        kernel.launch(*problem.operands)
        pending.append((what, problem.error()))

    for kernel in bundle.kernels(group=group.name):
        what = f"{kernel.name} at {'x'.join(map(str, problem.size))}"
        row.attempt(what, partial(run, kernel, what))
    # One wait a size: all of it is ordered on one stream.
    errors = torch.stack([error for _, error in pending]).tolist() if pending else []
    for (what, _), error in zip(pending, errors, strict=True):
        row.note(what, error, problem.bound)


def each_way(
    row: Row, bundle: cutlass_aot.Bundle, group: GroupEntry, references: References, sizes: Sequence[Size]
) -> None:
    """Launch the best kernel of a group in the other ways."""
    for what, check in _ways(bundle, group, references, sizes):
        row.attempt(what, partial(check, row, what))


def written_outside(out: torch.Tensor, before: torch.Tensor) -> int:
    """Elements of the memory behind a padded output that changed beside the output itself.

    Args:
        out: a view of the memory.
        before: a copy of the whole memory.
    """
    memory = out._base
    assert memory is not None
    inside = torch.zeros(memory.shape, dtype=torch.bool, device=out.device)
    inside.as_strided(out.shape, out.stride()).fill_(True)
    width = memory.dtype.itemsize
    # As bytes: NaN differs from itself.
    same = memory.view(torch.uint8) == before.view(torch.uint8)
    return int((~same.unflatten(-1, (-1, width)).all(-1) & ~inside).sum())


def _ways(
    bundle: cutlass_aot.Bundle, group: GroupEntry, references: References, sizes: Sequence[Size]
) -> Iterator[tuple[str, Callable[[Row, str], None]]]:
    """Other ways to launch the best kernel of a group, each a check."""
    by_work = sorted(sizes, key=lambda size: size[1] * size[2] * size[3])
    plain, batched = (1, *by_work[-1][1:]), (3, *by_work[0][1:])
    problem = references.problem(group, plain)
    accumulation = group.accumulation or EXACT
    kernels = bundle.find(
        *problem.operands, accumulator=group.accumulator, accumulation=accumulation, target=group.target
    )
    kernel = next(handle for handle in kernels if handle.group == group)

    def compare(row: Row, what: str, of: Problem = problem) -> None:
        torch.cuda.synchronize()
        row.note(f"{kernel.name} {what}", float(of.error()), of.bound)

    def current_stream(row: Row, what: str) -> None:
        poison(problem.out)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            _delay()
            poison(problem.out)
            kernel.launch(*problem.operands)
        # The side stream alone is waited for: a launch on another one came before the poison.
        side.synchronize()
        compare(row, what)

    def explicit_stream(row: Row, what: str) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            _delay()
            poison(problem.out)
        kernel.launch(*problem.operands, stream=side)
        side.synchronize()
        compare(row, what)

    def graph(row: Row, what: str) -> None:
        # The first launch loads the kernel, which a capture does not allow.
        kernel.launch(*problem.operands)
        torch.cuda.synchronize()
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            kernel.launch(*problem.operands)
        poison(problem.out)
        torch.cuda.synchronize()
        captured.replay()
        compare(row, what)

    def padded(row: Row, what: str) -> None:
        other = references.problem(group, batched, padding=1)
        before = other.out._base.clone()
        kernel.launch(*other.operands)
        compare(row, what, other)
        row.note(f"{kernel.name} {what}, elements written outside", written_outside(other.out, before), 0.0)

    def broadcast(row: Row, what: str) -> None:
        other = references.problem(group, batched, broadcast=True)
        kernel.launch(*other.operands)
        compare(row, what, other)

    def plain_2d(row: Row, what: str) -> None:
        poison(problem.out)
        kernel.launch(*(operand[0] for operand in problem.operands))
        compare(row, what)

    def by_gemm(row: Row, what: str) -> None:
        for _ in range(2):
            poison(problem.out)
            bundle.gemm(
                *problem.operands[:3],
                accumulator=group.accumulator,
                accumulation=accumulation,
                **problem.factors,
            )
            compare(row, what)

    def wrong(row: Row, what: str) -> None:
        a, b, out, *factors = problem.operands
        shorter = b[:, : b.shape[1] // 2]
        cases = {
            "another dtype": (a.float() if a.dtype != torch.float32 else a.double(), b, out, *factors),
            "another K": (a, shorter, out, *factors),
            "another rank": (a[0], b, out, *factors),
            "the host": tuple(operand.cpu() for operand in problem.operands),
            "two operands": (a, b),
        }
        for name, operands in cases.items():
            verdict = kernel.supports(*operands)
            if verdict or not verdict.reason:
                raise AssertionError(f"supports() accepted {name}")
            try:
                kernel.launch(*operands)
            except CutlassAotError:
                row.checks += 1
            else:
                raise AssertionError(f"launch() accepted {name}")

    yield "on a side stream", current_stream
    yield "on an explicit stream", explicit_stream
    yield "in a CUDA graph", graph
    yield "on padded operands", padded
    yield "on a broadcast batch", broadcast
    yield "on 2-D operands", plain_2d
    yield "by Bundle.gemm", by_gemm
    yield "on wrong operands", wrong


def _delay() -> None:
    """Keep the current stream busy for about a millisecond, so that work that does not wait for it shows."""
    torch.cuda._sleep(2_000_000)


def table(rows: Sequence[Row], title: str) -> str:
    """The results in Markdown: one line a group."""
    lines: list[tuple[object, ...]] = [
        (row.group, row.kernels, row.checks, len(row.failures), f"{row.worst:.1e}", f"{row.bound:.1e}")
        for row in rows
    ]
    totals = (sum(row.kernels for row in rows), sum(row.checks for row in rows))
    lines.append(("all", *totals, sum(len(row.failures) for row in rows), "", ""))
    head = ("group", "kernels", "checks", "failures", "worst error", "bound")
    return f"{title}\n\n{markdown(head, lines, right=5)}"


def open_named(name: str) -> cutlass_aot.Bundle:
    """A bundle's directory, or an installed bundle."""
    return cutlass_aot.open(name) if Path(name).exists() else cutlass_aot.open_installed(name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a bundle; returns the exit code."""
    parser = argparse.ArgumentParser(
        description="Run every kernel of a bundle that this GPU can run, and compare with float64."
    )
    parser.add_argument("bundle", help="directory of a bundle, or name of an installed one")
    parser.add_argument("--sizes", default=SIZES, help=f"MxNxK or LxMxNxK, by commas (default {SIZES})")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results as JSON")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="also write the table")
    options = parser.parse_args(arguments)
    try:
        sizes = parse_sizes(options.sizes)
    except ValueError as error:
        parser.error(str(error))
    try:
        bundle = open_named(options.bundle)
        capability = cuda_driver.compute_capability(0)
    except CutlassAotError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    targets = runnable_targets(bundle.targets, capability)
    groups = [
        group
        for group in bundle.groups
        # An epilogue's formula is the generator's own: there is no reference for it here.
        if group.target in targets
        and group.operation == "gemm"
        and not group.epilogue
        and is_gemm(group.operands)
    ]
    if not groups:
        print(
            f"error: {bundle.name} has no GEMM for compute capability {capability[0]}.{capability[1]}, "
            f"only for {', '.join(bundle.targets)}",
            file=sys.stderr,
        )
        return 1
    torch.backends.cuda.matmul.allow_tf32 = False
    references = References(torch.device("cuda", 0))
    rows = []
    for group in groups:
        rows.append(check_group(bundle, group, references, sizes))
        print(f"{group.name}: {rows[-1].checks} checks, {len(rows[-1].failures)} failures", file=sys.stderr)
    title = f"{bundle.name} {bundle.version}; {about().markdown()}"
    text = table(rows, title)
    print(text)
    for row in rows:
        for failure in row.failures:
            print(f"FAILED {row.group}: {failure}")
    if options.markdown:
        options.markdown.write_text(text + "\n")
    if options.json:
        body = {"about": title, "sizes": options.sizes, "groups": [row.to_record() for row in rows]}
        options.json.write_text(json.dumps(body, indent=1, sort_keys=True) + "\n")
    return 1 if any(row.failures for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

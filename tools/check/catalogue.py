"""Compile kernels drawn at random from everything that ``cutlass.operators`` offers, and say what came of it.

    python -m tools.check.catalogue [--count 1000 | --each] [--target TARGET] [--seed 0] [--store DIR]
        [-j JOBS] [-o FILE]

Needs the build extra, no GPU. Every combination of element types, accumulator and layouts is a query of
our generator, in our workers, on sm_100a and sm_103a or the targets given: queried with operands, the
package offers kernels that its list without operands lacks. Kernels that are known to be bad
are counted and not drawn. The draw depends on the seed and on what there is, and on nothing else: a larger
count draws the same kernels and more. ``--each`` draws one kernel of every family, element types, accumulator
and target instead, which shows what a family offers and cannot do.

What compiles is kept in the store, and so is what failed: interrupted and started again, it goes on.
Prints Markdown: how many of each family and target compiled, with times, sizes, registers and spills, then
every reason for a failure; the largest resident memory of any worker; the size of the store against that of
the objects. ``-o`` writes the same as JSON, with every kernel.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from pathlib import Path
from typing import Any

import click

import cutlass_aot
from cutlass_aot.builder import events
from cutlass_aot.builder.compile import compile as compiling
from cutlass_aot.builder.compile.cores import available_workers
from cutlass_aot.builder.compile.pool import Pool
from cutlass_aot.builder.plan import plan as planning
from cutlass_aot.builder.plan.known_bad import known_bad
from cutlass_aot.builder.records import Enumeration, Failure, Selection, Sources
from cutlass_aot.builder.toolchain import CompilerToolchain, detect_compiler
from cutlass_aot.generators.device_profiles import profile_for
from cutlass_aot.generators.gemm import with_sums
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.schema.codec import to_plain
from cutlass_aot.schema.kernels.accumulation import FAST
from cutlass_aot.schema.kernels.artifact import Artifact
from cutlass_aot.schema.kernels.dtypes import BY_TORCH, DTYPES
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.targets import KNOWN_TARGETS
from cutlass_aot.store.store import Store
from tools.bench.command import markdown
from tools.bench.machine import about
from tools.bench.process import MemoryWatch

GENERATOR = "cutlass.operators"
TARGETS = ("sm_100a", "sm_103a")
_QUERIES_AT_ONCE = 64
"""Queries whose answers are in memory at once: up to a thousand records each."""


# ---- what there is ---------------------------------------------------------------------------------------


ELEMENT_TYPES = tuple(
    name
    for name in BY_TORCH.values()
    if DTYPES[name].torch_packs == 1 and name not in ("f8e8m0", "i64", "bool")
)
"""Of dense operands: one element each, no scale factors and no masks."""


def all_problems() -> list[Problem]:
    """Every combination of element types, accumulator and layouts of a GEMM, whether or not it exists."""
    return [
        Problem("gemm", (a, b, out), "".join(layouts), accumulator)
        for a, b, out, accumulator in itertools.product(ELEMENT_TYPES, repeat=4)
        for layouts in itertools.product("tn", repeat=3)
    ]


@dataclass
class Draw:
    """Kernels that were drawn, and what there was to draw from.

    Attributes:
        kernels: what was drawn, by name.
        problems: combinations that there are kernels for, by target.
        instances: how many kernels there are, by family and target.
        known_bad: how many of them are known to be bad, by family and target.
    """

    kernels: list[Kernel] = field(default_factory=list)
    problems: Counter[str] = field(default_factory=Counter)
    instances: Counter[tuple[str, str]] = field(default_factory=Counter)
    known_bad: Counter[tuple[str, str]] = field(default_factory=Counter)


def family_of(kernel: Kernel) -> tuple[str, str]:
    """Family and target of a kernel: a row of the table."""
    return str(dict(kernel.design)["family"]), kernel.target


def combination_of(kernel: Kernel) -> str:
    """Element types and accumulator of a kernel."""
    return f"{'.'.join(operand.dtype for operand in kernel.operands)} {kernel.accumulator}"


def draw(
    pool: Pool,
    sources: Sources,
    dsl_version: str,
    count: int | None,
    seed: int,
    targets: Sequence[str] = TARGETS,
) -> Draw:
    """Enumerate everything and draw ``count`` kernels; None for one of each family, combination and target.

    Each kernel gets a number from the seed and its digest, and the least numbers are drawn: each set of
    ``count`` is as likely as any other, and no more than that many records are kept at a time.
    """
    result = Draw()
    profiles = {target: profile_for(target) for target in targets}
    reference = sources.references[GENERATOR]
    queries = [
        # The package's sums of FP8 on sm_90a are fast.
        Enumeration(0, reference, with_sums(problem, FAST, target), target)
        for target in targets
        for problem in all_problems()
    ]
    say(f"enumerating: {len(queries)} combinations")

    def numbered() -> Iterator[tuple[str, Kernel]]:
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            some = queries[start : start + _QUERIES_AT_ONCE]
            for query, kernels in compiling.enumerate_kernels(pool, some, profiles):
                result.problems[query.target] += bool(kernels)
                for kernel in kernels:
                    row = family_of(kernel)
                    result.instances[row] += 1
                    if known_bad(kernel, dsl_version):
                        result.known_bad[row] += 1
                    else:
                        yield hashlib.sha256(f"{seed} {kernel.digest}".encode()).hexdigest(), kernel

    if count is None:
        least: dict[tuple[str, str, str], tuple[str, Kernel]] = {}
        for number, kernel in numbered():
            kind = (*family_of(kernel), combination_of(kernel))
            if kind not in least or number < least[kind][0]:
                least[kind] = number, kernel
        drawn = list(least.values())
    else:
        drawn = heapq.nsmallest(count, numbered(), key=lambda item: item[0])
    result.kernels = sorted((kernel for _, kernel in drawn), key=lambda kernel: kernel.name)
    return result


# ---- what came of it -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What came of a family on a target; medians and largest values are of what compiled."""

    family: str
    target: str
    instances: int
    known_bad: int
    drawn: int
    compiled: int
    failed: int
    median_seconds: float
    max_seconds: float
    median_object_bytes: float
    median_registers: float
    max_registers: int
    spilling: int
    max_spill_bytes: int


@dataclass(frozen=True)
class Reason:
    """One reason for failures.

    Attributes:
        reason: in words, without what differs between kernels.
        count: how many kernels failed for it.
        families: families and targets of those kernels.
        combinations: their element types, each with the accumulator.
        example: the name of one.
        log: the end of its log.
    """

    reason: str
    count: int
    families: tuple[str, ...]
    combinations: tuple[str, ...]
    example: str
    log: str


def rows(drawn: Draw, artifacts: Mapping[str, Artifact], failures: Sequence[Failure]) -> list[Row]:
    """The table, by family and target.

    Args:
        drawn: the kernels.
        artifacts: of those that compiled, by the kernel's digest.
        failures: of the others.
    """
    members = Counter(family_of(kernel) for kernel in drawn.kernels)
    failed = Counter(family_of(failure.kernel) for failure in failures)
    result = []
    for row in sorted(drawn.instances):
        made = [
            artifacts[kernel.digest]
            for kernel in drawn.kernels
            if family_of(kernel) == row and kernel.digest in artifacts
        ]
        spills = [item.facts.spill_bytes for item in made]
        result.append(
            Row(
                family=row[0],
                target=row[1],
                instances=drawn.instances[row],
                known_bad=drawn.known_bad[row],
                drawn=members[row],
                compiled=len(made),
                failed=failed[row],
                median_seconds=_median([item.seconds for item in made]),
                max_seconds=max((item.seconds for item in made), default=0.0),
                median_object_bytes=_median([item.object_bytes for item in made]),
                median_registers=_median([item.facts.registers for item in made]),
                max_registers=max((item.facts.registers for item in made), default=0),
                spilling=sum(spill > 0 for spill in spills),
                max_spill_bytes=max(spills, default=0),
            )
        )
    return result


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


def reasons(failures: Sequence[Failure]) -> list[Reason]:
    """Distinct reasons, the most frequent first."""
    by_reason: dict[str, list[Failure]] = {}
    for failure in failures:
        by_reason.setdefault(plain_reason(failure), []).append(failure)
    return [
        Reason(
            reason=reason,
            count=len(members),
            families=tuple(sorted({" ".join(family_of(item.kernel)) for item in members})),
            combinations=tuple(sorted({combination_of(item.kernel) for item in members})),
            example=members[0].kernel.name,
            log=_log(members[0])[-4000:],
        )
        for reason, members in sorted(by_reason.items(), key=lambda item: (-len(item[1]), item[0]))
    ]


def plain_reason(failure: Failure) -> str:
    """A failure's reason in one line, without the kernel's name, addresses and numbers longer than three."""
    reason = failure.headline
    for own in (failure.kernel.name, failure.kernel.symbol):
        reason = reason.replace(own, "KERNEL")
    reason = re.sub(r"0x[0-9a-fA-F]+", "ADDRESS", reason)
    return " ".join(re.sub(r"\d{4,}", "NUMBER", reason).split())


def _log(failure: Failure) -> str:
    try:
        return failure.log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:  # A collection of the store may take it.
        return ""


def tables(rows: Sequence[Row], why: Sequence[Reason]) -> str:
    """Both tables as Markdown."""
    head = (
        "family", "target", "instances", "known bad", "drawn", "compiled", "failed", "s, median",
        "s, largest", "object, KB, median", "registers, median", "largest", "with spills", "largest, B",
    )  # fmt: skip
    lines: list[tuple[object, ...]] = []
    for row in rows:
        figures = (
            f"{row.median_seconds:.2f}", f"{row.max_seconds:.2f}", f"{row.median_object_bytes / 1e3:.1f}",
            f"{row.median_registers:.0f}", row.max_registers, row.spilling, row.max_spill_bytes,
        )  # fmt: skip
        counts = (f"{row.instances:,}", f"{row.known_bad:,}", row.drawn, row.compiled, row.failed)
        lines.append((row.family, row.target, *counts, *(figures if row.compiled else [""] * len(figures))))
    columns = list(zip(*map(astuple, rows), strict=True)) or [()] * len(fields(Row))
    named = dict(zip((item.name for item in fields(Row)), columns, strict=True))
    totals = [f"{sum(named[name]):,}" for name in ("instances", "known_bad", "drawn", "compiled", "failed")]
    largest = [max(named[name], default=0) for name in ("max_seconds", "max_registers", "max_spill_bytes")]
    lines.append(
        ("all", "", *totals, "", f"{largest[0]:.2f}", "", "", largest[1], sum(named["spilling"]), largest[2])
    )
    text = markdown(head, lines, right=12)
    if why:
        causes = [
            (
                item.reason.replace("|", "\\|"), item.count, ", ".join(item.families),
                ", ".join(item.combinations), f"`{item.example}`",
            )
            for item in why
        ]  # fmt: skip
        columns_of_reasons = ("reason", "kernels", "of", "element types, accumulator", "example")
        text += f"\n\n{markdown(columns_of_reasons, causes)}"
    return text


def stored_bytes(store: Path) -> int:
    """Bytes of a store's blobs and of the records of kernels."""
    folders = (store / "blobs", store / "records" / "kernel")
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


# ---- the run ---------------------------------------------------------------------------------------------


def say(text: str) -> None:
    click.echo(text, err=True)


@dataclass
class Progress:
    """Says how far the compiling is, to standard error.

    Attributes:
        total: kernels to compile; 0 if that is not known.
        compiled: kernels that were compiled now.
        done: kernels that were compiled, by whomever, or failed.
        failed: kernels that failed.
    """

    total: int = 0
    compiled: int = 0
    done: int = 0
    failed: int = 0
    start: float = field(default_factory=time.monotonic)

    def __call__(self, event: events.Event) -> None:
        """Count an event."""
        if isinstance(event, events.Failed):
            self.failed += 1
            say(f"failed: {event.failure.kernel.name}: {event.failure.reason}")
        if isinstance(event, (events.Compiled, events.Shared, events.Failed)):
            self.compiled += isinstance(event, events.Compiled)
            self.done += 1
            if self.done % 20 == 0 or self.done == self.total:
                of = f" of {self.total}" if self.total else ""
                say(f"{self.done}{of} kernels in {time.monotonic() - self.start:.0f} s, {self.failed} failed")


def _pool(jobs: int, sources: Sources, compiler: CompilerToolchain, timeout: float) -> Pool:
    return Pool(jobs, sources.instances[GENERATOR].modules, timeout, compiler.roots)


@click.command()
@click.option("--count", type=click.IntRange(1), default=1000, show_default=True, help="Kernels to draw.")
@click.option(
    "--each", is_flag=True, help="Instead, one of each family, element types, accumulator and target."
)
@click.option(
    "--target",
    "targets",
    multiple=True,
    type=click.Choice(KNOWN_TARGETS),
    default=TARGETS,
    show_default=True,
    help="Of which; may be repeated.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Decides which.")
@click.option(
    "--store",
    "store_path",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/catalogue-store"),
    show_default=True,
    help="Directory of compiled kernels; one of its own, since its size is told.",
)
@click.option("-j", "--jobs", type=click.IntRange(1), default=available_workers, help="Workers.")
@click.option("--timeout", type=click.FloatRange(1), default=600.0, help="Seconds one kernel may take.")
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write JSON as well.")
def main(
    count: int,
    each: bool,
    targets: tuple[str, ...],
    seed: int,
    store_path: Path,
    jobs: int,
    timeout: float,
    output: Path | None,
) -> None:
    """Compile kernels drawn at random from the catalogue of cutlass.operators, and say what came of it."""
    compiler = detect_compiler()
    compiler.require(targets)
    sources = planning.find_sources({GENERATOR})
    store = Store(store_path)
    start = time.monotonic()
    with _pool(jobs, sources, compiler, timeout) as pool:
        version = compiler.versions["nvidia-cutlass-dsl"]
        drawn = draw(pool, sources, version, None if each else count, seed, targets)
    enumerated = time.monotonic() - start
    selection = Selection(tuple(drawn.kernels), ())
    keys = planning.kernel_keys(selection, sources.versions, compiler.fingerprint)
    planned = planning.against_store(selection, keys, store)
    missing = [item for item in planned if item.artifact is None and not item.failed]
    failures = [
        Failure(item.kernel, item.failed, store.log_path(item.key)) for item in planned if item.failed
    ]
    say(f"drawn: {len(planned)} kernels of {sum(drawn.instances.values())}, {len(missing)} to compile")

    start = time.monotonic()
    watch = MemoryWatch()
    with (
        store.workspace() as workspace,
        _pool(jobs, sources, compiler, timeout) as pool,
        watch,
    ):
        tell = Progress(total=len(missing))
        versions = {**compiler.versions, "cutlass-aot": cutlass_aot.__version__}
        done = compiling.compile_missing(pool, missing, sources, store, workspace, tell, versions)
    seconds = time.monotonic() - start

    by_key = {item.key: item.artifact for item in planned if item.artifact is not None} | done.artifacts
    artifacts = {item.kernel.digest: by_key[item.key] for item in planned if item.key in by_key}
    failures += done.failures
    table_rows, why = rows(drawn, artifacts, failures), reasons(failures)
    object_bytes = sum({item.object_sha256: item.object_bytes for item in artifacts.values()}.values())
    kept = stored_bytes(store_path)
    numbers = {
        "count": None if each else count,
        "seed": seed,
        "jobs": jobs,
        "problems": drawn.problems,
        "enumerating_seconds": enumerated,
        "compiled_now": done.compiled,
        "compiling_seconds": seconds,
        "largest_worker_bytes": watch.largest_bytes,
        "object_bytes": object_bytes,
        "store_bytes": kept,
    }
    machine = about()
    problems = ", ".join(f"{number} on {target}" for target, number in sorted(drawn.problems.items()))
    click.echo(f"{machine.markdown()}\n")
    click.echo(
        f"{len(drawn.kernels)} kernels drawn with seed {seed} from {sum(drawn.instances.values()):,}, which "
        f"were enumerated in {enumerated:.0f} s; combinations of element types, accumulator and layouts that "
        f"there are kernels for: {problems}.\n"
    )
    click.echo(tables(table_rows, why))
    click.echo(f"\nCompiled in this run: {done.compiled} in {seconds:.0f} s with {jobs} workers.")
    if watch.largest_bytes:
        click.echo(f"Largest resident memory of any worker: {watch.largest_bytes / 1e9:.2f} GB.")
    if object_bytes:
        click.echo(
            f"Store: {kept / 1e6:.1f} MB for {object_bytes / 1e6:.1f} MB of objects, "
            f"{kept / object_bytes:.2f}x."
        )
    if output:
        record = {
            "kind": "cutlass-aot catalogue",
            "machine": asdict(machine),
            "numbers": numbers,
            "rows": [asdict(row) for row in table_rows],
            "failures": [asdict(item) for item in why],
            "kernels": [_kernel_record(kernel, artifacts.get(kernel.digest)) for kernel in drawn.kernels],
        }
        output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def _kernel_record(kernel: Kernel, artifact: Artifact | None) -> dict[str, Any]:
    record: dict[str, Any] = {"name": kernel.name, "target": kernel.target, "compiled": artifact is not None}
    if artifact is not None:
        record |= {"seconds": artifact.seconds, "object_bytes": artifact.object_bytes}
        record |= to_plain(artifact.facts)
    return record


if __name__ == "__main__":
    main()

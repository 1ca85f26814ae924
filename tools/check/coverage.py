"""Build a manifest, and show that it covers what there is: compiled, on the right tensor cores, found again.

    python -m tools.check.coverage MANIFEST [--store DIR] [--out DIR] [-j JOBS] [--least 3]

Needs the build extra, no GPU. What the store has is not compiled again. Of every kernel that the build gives:

- its object is disassembled: its tensor-core instructions are those that its record calls for, of the
  record's element types, with scale factors where it has some (``tools/check/instructions.py``);
- it is found: operands are described for several problems that satisfy its constraints, with and without a
  batch, and ``find`` has to give it, further operands by name, the epilogue as a formula. Operands of a
  problem that breaks a divisibility have to be refused with that reason.

Then it is counted. For each target of the manifest, every combination of element types, accumulator, kind of
sums and scale factors that a generator of the manifest offers (queried as by ``support_tables.py``, without
what is known to be bad), and every class of epilogue that one offers for bf16, needs three kernels, or all
that there are. Prints Markdown, then what is wrong; exits with 1 if anything is.
"""

from __future__ import annotations

import math
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import click

import cutlass_aot
from cutlass_aot.builder.build import build
from cutlass_aot.builder.compile.cores import available_workers
from cutlass_aot.builder.settings import Settings
from cutlass_aot.errors import ArtifactError, CutlassAotError, KernelNotFound
from cutlass_aot.generators.cutlass_operators.epilogue_records import epilogue_of as epilogue_of_package
from cutlass_aot.generators.gemm import MASKED_GROUPED_GEMM, scales_of
from cutlass_aot.generators.protocol import Problem
from cutlass_aot.generators.sm90_gemm.generator import Sm90Gemm
from cutlass_aot.generators.sm90_gemm.generator import epilogue_of as epilogue_of_sm90_gemm
from cutlass_aot.manifest.model import Manifest, load_manifest
from cutlass_aot.runtime.bundle import Bundle
from cutlass_aot.runtime.opened.kernel_handle import KernelHandle
from cutlass_aot.schema.bundles.catalog import GroupEntry
from cutlass_aot.schema.kernels.accumulation import EXACT
from cutlass_aot.schema.kernels.constraints import BATCH, OperandConstraint, extent_of
from cutlass_aot.schema.kernels.epilogue import Epilogue
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.kernels.operands import OperandDescription, packed
from cutlass_aot.store.store import Store
from tools.bench.command import markdown
from tools.bench.machine import about
from tools.check.catalogue import Progress, say
from tools.check.instructions import audit_instructions, disassemble, required
from tools.check.support_tables import (
    Generators,
    block_scaled,
    classes_of,
    declared,
    dense,
    epilogues,
    examples,
    grouped,
    mixed_input,
    scale_text,
    table,
)

GEMM_OPERANDS = 3
"""Operands of a GEMM that are given in order, a, b and out; the others go by name."""

STEPS: tuple[Mapping[str, int], ...] = (
    {},
    {"M": 5, "N": 3, "K": 2, "G": 3, "T": 7, "R": 9},
    {"L": 2, "M": 9, "N": 17, "K": 40},
)
"""How many times the least extent each extent is, by name; 1 where nothing is said. ``L`` is left out where
it is not named: then operands have no batch."""


# ---- what a kernel is counted as -------------------------------------------------------------------------


class Combination(NamedTuple):
    """What kernels are counted by: an operation on operands of these types.

    Attributes:
        operation: as in the record.
        generator: of the kernels.
        dtypes: of a, b and out, or of all operands of another operation.
        accumulator: in words, with the kind of sums where there are exact and fast ones; ``""`` where the
            operation fixes it.
        scales: in words.
    """

    operation: str
    generator: str
    dtypes: tuple[str, ...]
    accumulator: str
    scales: str

    def __str__(self) -> str:
        words = (self.operation, ".".join(self.dtypes), self.accumulator, self.scales)
        return " ".join(word for word in words if word)


def combination_of(kernel: Kernel) -> Combination:
    """The combination that a kernel without an epilogue counts for."""
    scales = scales_of(kernel)
    count = GEMM_OPERANDS if is_gemm(kernel.operation) else len(kernel.operands)
    dtypes = tuple(operand.dtype for operand in kernel.operands[:count])
    problem = Problem(kernel.operation, dtypes, "", kernel.accumulator, (scales.get("a"), scales.get("b")))
    sums = f", {kernel.accumulation} sums" if kernel.accumulation else ""
    accumulator = kernel.accumulator + sums
    return Combination(kernel.operation, kernel.generator, dtypes, accumulator, scale_text(problem))


def is_gemm(operation: str) -> bool:
    """Whether it is one of the GEMM operations, whose first operands are a, b and out."""
    return operation.endswith("gemm")


# ---- (a) instructions ------------------------------------------------------------------------------------


def check_instructions(
    handles: Sequence[KernelHandle], store: Store, jobs: int
) -> tuple[Counter[str], list[str]]:
    """Disassemble every kernel and compare its instructions with its record.

    Returns:
        How many kernels were to have which instruction, and what is wrong.
    """

    def wrong_with(handle: KernelHandle) -> str:
        data = store.get_blob(handle.entry.object_sha256)
        if data is None:
            return f"{handle.name}: its object is not in the store"
        try:
            audit_instructions(handle.kernel, disassemble(data))
        except ArtifactError as error:
            return str(error)
        return ""

    counts = Counter(str(required(handle.kernel) or "none called for") for handle in handles)
    with ThreadPoolExecutor(jobs) as pool:
        return counts, [problem for problem in pool.map(wrong_with, handles) if problem]


# ---- (b) found again -------------------------------------------------------------------------------------


def least_extents(operands: Sequence[OperandConstraint]) -> dict[str, int]:
    """The least value of each named extent that satisfies the constraints; its multiples do too."""
    extents = {operand.name: operand.extents for operand in operands}
    found: dict[str, int] = {}

    def add(extent: str | int, multiple: int) -> None:
        relation = extent_of(extent) if isinstance(extent, str) else None
        if relation is None or (relation.is_quotient and multiple == 1):
            # A quotient is rounded up, so that any value of its extent suits.
            return
        own = multiple // math.gcd(multiple, relation.factor) * relation.divisor
        found[relation.name] = math.lcm(found.get(relation.name, 1), own)

    for operand in operands:
        if operand.scale is not None:
            for name, multiple in operand.scale.multiples(extents[operand.scale.of], operand.dtype).items():
                add(name, multiple)
            continue
        for extent, multiple in zip(
            operand.extents, operand.multiples or (1,) * len(operand.extents), strict=True
        ):
            add(extent, multiple)
        if not operand.is_number:
            add(operand.extents[operand.contiguous], operand.divisibility)
    return found


def problems_for(operands: Sequence[OperandConstraint]) -> Iterator[dict[str | int, int]]:
    """Extents of several problems that satisfy constraints."""
    least = least_extents(operands)
    for step in STEPS:
        extents: dict[str | int, int] = {name: value * step.get(name, 1) for name, value in least.items()}
        if BATCH not in step:
            extents.pop(BATCH, None)
        yield extents


def find(bundle: Bundle, group: GroupEntry, operands: Sequence[OperandDescription]) -> set[str]:
    """Names of the kernels that a caller with these operands finds; empty if there are none.

    Raises:
        KernelNotFound: with the reason.
    """
    count = GEMM_OPERANDS if is_gemm(group.operation) else len(operands)
    named: dict[str, Any] = {
        constraint.name: operand
        for constraint, operand in zip(group.operands[count:], operands[count:], strict=True)
    }
    handles = bundle.find(
        *operands[:count],
        operation=group.operation,
        accumulator=group.accumulator or None,
        accumulation=group.accumulation or EXACT,
        epilogue=group.epilogue,
        parameters=dict(group.parameters),
        target=group.target,
        **named,
    )
    return {handle.name for handle in handles}


def check_found(bundle: Bundle, group: GroupEntry, names: set[str]) -> Iterator[str]:
    """What is wrong with finding a group's kernels.

    Args:
        bundle: which has them.
        group: whose operands are described.
        names: of its kernels.
    """
    for extents in problems_for(group.operands):
        try:
            lacking = names - find(bundle, group, packed(group.operands, extents))
        except CutlassAotError as error:
            yield f"{group.name}: not found for {extents}: {error}"
            continue
        if lacking:
            yield f"{group.name}: for {extents}, find does not give {', '.join(sorted(lacking))}"
    least = least_extents(group.operands)
    broken = next((name for name, multiple in least.items() if multiple > 1), None)
    if broken is None:
        return
    broken_extents: dict[str | int, int] = {name: value for name, value in least.items() if name != BATCH}
    broken_extents[broken] += 1
    try:
        given = names & find(bundle, group, packed(group.operands, broken_extents))
    except KernelNotFound as error:
        if "divisible by" not in str(error):
            yield f"{group.name}: refused for {broken_extents} without its divisibility: {error}"
    else:
        if given:
            yield f"{group.name}: given for {broken_extents}, which it cannot take"


# ---- (c) three of everything -----------------------------------------------------------------------------


@dataclass
class Count:
    """How many kernels there are of what, by target.

    Attributes:
        combinations: kernels without an epilogue.
        classes: kernels with one, by the element types of a and b and by class.
        epilogues: kernels with one, in all.
    """

    combinations: dict[Combination, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    classes: dict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    epilogues: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, kernels: Iterable[Kernel]) -> Count:
        """Count kernels."""
        made = cls()
        made.add(kernels)
        return made

    def add(self, kernels: Iterable[Kernel]) -> None:
        """Count more kernels."""
        for kernel in kernels:
            if not kernel.epilogue:
                self.combinations[combination_of(kernel)][kernel.target] += 1
                continue
            self.epilogues[kernel.target] += 1
            pair = " x ".join(operand.dtype for operand in kernel.operands[:2])
            for name in classes_of(epilogue_of(kernel)):
                self.classes[pair, name][kernel.target] += 1


def epilogue_of(kernel: Kernel) -> Epilogue:
    """The epilogue of a kernel that has one."""
    of_sm90_gemm = epilogue_of_sm90_gemm(kernel) if kernel.generator == Sm90Gemm.name else None
    return of_sm90_gemm or epilogue_of_package(kernel)


def offered(manifest: Manifest, jobs: int) -> Count:
    """What the manifest's generators have: of each combination, and of each class of epilogue for bf16."""
    names = {table.generator for table in manifest.tables}
    operations = {table.operation for table in manifest.tables}
    masked = [replace(problem, operation=MASKED_GROUPED_GEMM) for problem in grouped()]
    problems = [*dense(), *block_scaled(), *mixed_input(), *grouped(), *masked, *declared(), *epilogues()]
    queried = [problem for problem in problems if problem.operation in operations]
    there_is = Count()
    generators = Generators.start(jobs)
    with generators.pool:
        for answer in generators.answers(queried, manifest.targets, sorted(names)):
            there_is.add(answer.kernels)
    return there_is


def missing(count: Count, there_is: Count, least: int) -> Iterator[str]:
    """What there are too few kernels of, and kernels that no query names."""
    for combination, available in there_is.combinations.items():
        for target, number in available.items():
            expected, has = min(least, number), count.combinations.get(combination, Counter())[target]
            if has < expected:
                yield f"{combination} on {target}: {has} kernels, expected {expected}"
    for combination, have in count.combinations.items():
        for target, has in have.items():
            if target not in there_is.combinations.get(combination, {}):
                yield f"{combination} on {target}: {has} kernels of what no query of a generator names"
    for (pair, name), available in there_is.classes.items():
        for target, number in available.items():
            expected, has = min(least, number), count.classes.get((pair, name), Counter())[target]
            if has < expected:
                yield f"epilogue {name} on {target}: {has} kernels of {pair}, expected {expected}"


# ---- the table -------------------------------------------------------------------------------------------


def combinations_table(count: Count) -> str:
    """A row for each operation, generator, a, b, scale factors and accumulator.

    It has the least number of kernels for any output, and all of them by target.
    """
    rows: dict[tuple[str, str, str, str, str], dict[str, Counter[str]]] = defaultdict(dict)
    for combination, by_target in sorted(count.combinations.items(), key=lambda item: item[0][:2]):
        gemm = is_gemm(combination.operation)
        pair = " x ".join(combination.dtypes[:2]) if gemm else ".".join(combination.dtypes)
        words = combination.operation, combination.generator, pair, combination.scales
        row = (*words, combination.accumulator)
        rows[row][combination.dtypes[-1] if gemm else ""] = by_target
    lines = []
    for row, outs in rows.items():
        totals: Counter[str] = Counter()
        for by_target in outs.values():
            totals.update(by_target)
        fewest = min(min(counts.values()) for counts in outs.values())
        names = [f"`{name}`" for name in row[:2]]
        lines.append(([*names, *row[2:], ", ".join(filter(None, outs)), str(fewest)], dict(totals)))
    head = ["operation", "generator", "a x b", "scale factors", "accumulator", "out", "fewest of one"]
    return table(head, lines)


def classes_table(count: Count) -> str:
    """A row for each class of epilogue: kernels by the element types of a and b, for all targets together."""
    pairs = sorted({pair for pair, _ in count.classes}, key=lambda pair: (pair != "bf16 x bf16", pair))
    targets = sorted({target for counts in count.classes.values() for target in counts})
    columns = [f"{pair}, {' + '.join(targets)}" for pair in pairs]
    lines = []
    for name in examples():
        counts = [count.classes.get((pair, name), Counter()) for pair in pairs]
        numbers = [" + ".join(str(of[target]) for target in targets) if of.total() else "" for of in counts]
        lines.append((f"`{name}`", *numbers))
    return markdown(("class", *columns), lines, right=len(pairs))


# ---- the run ---------------------------------------------------------------------------------------------


@click.command()
@click.argument("manifest_path", metavar="MANIFEST", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--store", type=click.Path(path_type=Path), default=Path("build/store"), help="Compiled kernels."
)
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("build/bundles"), help="Takes the bundle."
)
@click.option("-j", "--jobs", type=click.IntRange(1), default=available_workers, help="Workers.")
@click.option("--least", type=click.IntRange(1), default=3, show_default=True, help="Kernels of each kind.")
def main(manifest_path: Path, store: Path, out: Path, jobs: int, least: int) -> None:
    """Build a manifest, audit and find every kernel, and count kinds."""
    manifest = load_manifest(manifest_path)
    progress = Progress()
    result = build(manifest_path, out, Settings(store, jobs, 600.0, progress))
    seconds = time.monotonic() - progress.start
    if result.failures:
        sys.exit(f"error: {len(result.failures)} of {result.kernels} kernels do not compile")
    bundle = cutlass_aot.open(result.bundle)
    handles = bundle.kernels()

    start = time.monotonic()
    say(f"disassembling {len(handles)} kernels")
    with Settings(store, jobs, 600.0, progress).open_store() as opened:
        instructions, wrong = check_instructions(handles, opened, jobs)
    auditing = time.monotonic() - start
    say(f"describing operands for {len(bundle.groups)} groups")
    names: dict[str, set[str]] = defaultdict(set)
    for handle in handles:
        names[handle.group.name].add(handle.name)
    for group in bundle.groups:
        wrong += check_found(bundle, group, names[group.name])
    say("querying the generators")
    count = Count.of(handle.kernel for handle in handles)
    wrong += missing(count, offered(manifest, jobs), least)

    spilling = sum(handle.facts.spill_bytes > 0 for handle in handles)
    click.echo(f"{about().markdown()}\n")
    click.echo(
        f"{len(handles)} kernels in {len(bundle.groups)} groups, of which {progress.compiled} were compiled "
        f"now; the build took {seconds:.0f} s with {jobs} workers, the disassembly {auditing:.0f} s. "
        f"{spilling} kernels spill registers. Each group was queried with {len(STEPS)} problems that its "
        "kernels can take, and with one that they cannot.\n"
    )
    click.echo(markdown(("tensor-core instruction", "kernels"), sorted(instructions.items()), right=1))
    click.echo(f"\n{combinations_table(count)}\n")
    total = ", ".join(f"{number} on {target}" for target, number in sorted(count.epilogues.items()))
    click.echo(f"Kernels with an epilogue: {total}. By class:\n\n{classes_table(count)}")
    for problem in wrong:
        say(f"wrong: {problem}")
    say(f"{len(wrong)} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    try:
        main()
    except CutlassAotError as error:
        sys.exit(f"error: {error}")

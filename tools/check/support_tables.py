"""Which operands each operation has kernels for, on which target: what the generators answer, for a page.

    python -m tools.check.support_tables [--section NAME]... [-j JOBS] [--check] [PAGE]

Needs the build extra, no GPU, and about a minute for all of it; nothing is compiled. Every combination of
element types, accumulator and scale factors that might exist is a query of every generator of the package
that has the operation, answered in the builder's workers, for every target of the generator. What is known to
be bad with the installed DSL counts as not there, since no build takes it. The tables go between the markers
``<!-- support: NAME -->`` and ``<!-- end -->`` of PAGE (docs/reference/support.md); ``--check`` writes
nothing and exits with 1 if a table is not what the page has.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import click

from cutlass_aot.builder.compile import compile as compiling
from cutlass_aot.builder.compile.cores import available_workers
from cutlass_aot.builder.compile.pool import Pool
from cutlass_aot.builder.plan.known_bad import known_bad
from cutlass_aot.builder.records import Enumeration
from cutlass_aot.builder.toolchain import detect_compiler
from cutlass_aot.errors import CutlassAotError
from cutlass_aot.generators.device_profiles import profile_for
from cutlass_aot.generators.gemm import FAST_SUMS_TARGET, has_fast_sums, with_sums
from cutlass_aot.generators.protocol import Problem, ScaleRequest
from cutlass_aot.generators.registry import GeneratorReference
from cutlass_aot.manifest.kernels import DEFAULT_ACCUMULATORS
from cutlass_aot.manifest.toml import load_toml
from cutlass_aot.schema.entry_points import GENERATORS
from cutlass_aot.schema.kernels.accumulation import FAST
from cutlass_aot.schema.kernels.epilogue import BLOCKS as BLOCKS_OF_COLUMNS
from cutlass_aot.schema.kernels.epilogue import (
    COLUMN,
    ELEMENT,
    MATRIX,
    NUMBER,
    ROW,
    STRIDED_COLUMN,
    STRIDED_ROW,
    TRANSPORTS,
    Epilogue,
    parse_epilogue,
)
from cutlass_aot.schema.kernels.formula import (
    ACCUMULATOR,
    COMPARISONS,
    FUNCTIONS,
    PAIRWISE,
    POWER,
    REDUCTIONS,
    Apply,
    Constant,
    Expression,
)
from cutlass_aot.schema.kernels.kernel import Kernel
from cutlass_aot.schema.targets import targets_with
from tools.bench.command import markdown

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "reference" / "support.md"

HALVES = ("f16", "bf16")
EIGHT_BITS = ("f8e4m3", "f8e5m2")
INTEGERS = ("i8", "u8")
OUTPUTS = ("f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i32", "i8", "u8")
NARROW = (*EIGHT_BITS, "f6e2m3", "f6e3m2", "f4e2m1")
LAYOUT = "tnt"
MX = ScaleRequest("f8e8m0", 32)
SCALES = (MX, ScaleRequest("f8e8m0", 16), ScaleRequest("f8e4m3", 16))
BY_ROWS_AND_BLOCKS = (ScaleRequest("f32", 128), ScaleRequest("f32", 128, across=128))
BLOCKS = (32, 64, 128, 256, 512)
NEW_TARGETS = (*targets_with("wgmma"), *targets_with("tcgen05"))
"""Where the families that need tensor memory or tensor maps could run."""
_QUERIES_AT_ONCE = 64
"""Queries whose answers are in memory at once: up to a thousand records each."""


# ---- classes of epilogues --------------------------------------------------------------------------------

# Each function, operator, kind of operand, reduction and transport that there is. The list is made of the
# formula's language and of the operands' kinds, so that tools/check/coverage.py misses what is added there
# until a manifest has it.

OPERATORS = {
    "+": "accum + 1", "-": "accum - 1", "*": "accum * 2", "/": "accum / 3", "neg": "-accum",
    **{name: f"accum {name} 0.5" for name in (POWER, *COMPARISONS)},
}  # fmt: skip
READ = {
    MATRIX: "matrix", ROW: "row vector", COLUMN: "column vector", STRIDED_ROW: "strided row vector",
    STRIDED_COLUMN: "strided column vector", ELEMENT: "one element", NUMBER: "number",
}  # fmt: skip
REDUCED = {ROW: "each column", COLUMN: "each row", ELEMENT: "all"}
_WRITTEN = {ROW: "N", COLUMN: "M", ELEMENT: "1"}
_MANIFEST = {
    MATRIX: "MN", ROW: "N", COLUMN: "M", STRIDED_ROW: "N1", STRIDED_COLUMN: "M1", ELEMENT: "1", NUMBER: "",
}  # fmt: skip
MASK = "mask of bool"
AUXILIARY = "auxiliary store"
CONSTANT = "constant"


def examples() -> dict[str, Epilogue]:
    """An epilogue for each class, by the class's name; in the order of a table."""
    result: dict[str, tuple[str, Mapping[str, Mapping[str, object]]]] = {}
    for name, count in FUNCTIONS.items():
        result[name] = f"D = {name}({', '.join([ACCUMULATOR, '0.5', '2'][:count])})", {}
    for name in PAIRWISE:
        result[name] = f"D = {name}({ACCUMULATOR})", {}
    for name, text in OPERATORS.items():
        result[name] = f"D = {text}", {}
    result[CONSTANT] = f"D = {ACCUMULATOR} * 2", {}
    for extents, name in READ.items():
        operands = {"x": {"extents": _MANIFEST[extents]}} if extents else {}
        result[name] = f"D = {ACCUMULATOR} + x", operands
    result[MASK] = f"D = where(x, {ACCUMULATOR}, 0)", {"x": {"dtype": "bool", "extents": "MN"}}
    result[AUXILIARY] = f"D = {ACCUMULATOR}; F = {ACCUMULATOR}", {"F": {"extents": "MN"}}
    for reduction in REDUCTIONS:
        for extents, kept in REDUCED.items():
            text = f"D = {ACCUMULATOR}; r = {reduction}({ACCUMULATOR})"
            result[f"{reduction} of {kept}"] = text, {"r": {"extents": _WRITTEN[extents]}}
    for columns in BLOCKS_OF_COLUMNS.values():
        text = f"s = max({ACCUMULATOR}); D = {ACCUMULATOR} / s"
        result[_of_block(columns)] = text, {"s": {"extents": f"MN/{columns}"}}
    for transport in TRANSPORTS:
        operand = {"extents": "MN", "transport": transport}
        written = transport.endswith("store")
        text = f"D = {ACCUMULATOR}; x = {ACCUMULATOR}" if written else f"D = {ACCUMULATOR} + x"
        result[transport] = text, {"x": operand}
    return {name: parse_epilogue(text, operands) for name, (text, operands) in result.items()}


def _of_block(columns: int) -> str:
    return f"scale of {columns} columns"


def classes_of(epilogue: Epilogue) -> set[str]:
    """The classes that an epilogue is of."""
    operands = {operand.name: operand for operand in epilogue.operands}
    result = set()
    for statement in epilogue.statements:
        result |= set(_in_expression(statement.expression))
        if statement.name in operands and operands[statement.name].block > 1:
            result.add(_of_block(operands[statement.name].block))
        elif statement.name in operands:
            extents = operands[statement.name].extents
            result.add(f"{statement.reduction} of {REDUCED[extents]}" if statement.reduction else AUXILIARY)
    for operand in operands.values():
        if not operand.written:
            result.add(READ[operand.extents])
            if operand.dtype == "bool":
                result.add(MASK)
        # One element and the destination of a reduction are reached by plain loads and atomic operations.
        if operand.extents == MATRIX or (operand.extents in (ROW, COLUMN) and not operand.written):
            result.add(operand.transport or "tma")
    return result


def _in_expression(expression: Expression) -> Iterator[str]:
    if isinstance(expression, Constant):
        yield CONSTANT
    if isinstance(expression, Apply):
        # What is reduced follows from the output's extents, which have a class of their own.
        if expression.operation not in REDUCTIONS:
            yield expression.operation
        for argument in expression.arguments:
            yield from _in_expression(argument)


# ---- problems to query -----------------------------------------------------------------------------------


def dense() -> Iterator[Problem]:
    """Plain GEMMs, of two equal element types and of two that might go together."""
    for out in ("f64", "f32"):
        yield Problem("gemm", ("f64", "f64", out), LAYOUT, "f64")
    yield Problem("gemm", ("f32", "f32", "f32"), LAYOUT, "f32")
    for ab, out in itertools.product(("tf32", *HALVES, *EIGHT_BITS, *INTEGERS), OUTPUTS):
        yield from _each_accumulation(Problem("gemm", (ab, ab, out), LAYOUT, _accumulator(ab)))
    for ab, out in itertools.product(("f16", *EIGHT_BITS), OUTPUTS):
        yield Problem("gemm", (ab, ab, out), LAYOUT, "f16")
    for a, b in (*itertools.permutations(EIGHT_BITS, 2), *itertools.permutations(INTEGERS, 2)):
        yield from _each_accumulation(Problem("gemm", (a, b, "f32"), LAYOUT, _accumulator(a)))


def block_scaled() -> Iterator[Problem]:
    """GEMMs with scale factors for both operands."""
    for a, b, out in itertools.product(NARROW, NARROW, OUTPUTS[:6]):
        yield Problem("gemm", (a, b, out), LAYOUT, "f32", (MX, MX))
    for ab, scale in itertools.product(NARROW, SCALES[1:]):
        for out in OUTPUTS[:6] if ab == "f4e2m1" else ("f32",):
            yield Problem("gemm", (ab, ab, out), LAYOUT, "f32", (scale, scale))
    for ab, out in itertools.product(EIGHT_BITS, OUTPUTS[:6]):
        yield Problem("gemm", (ab, ab, out), LAYOUT, "f32", BY_ROWS_AND_BLOCKS)


def mixed_input() -> Iterator[Problem]:
    """GEMMs of integers with floats."""
    for a, b, out, accumulator in itertools.product(
        (*INTEGERS, "i4"), (*HALVES, "f8e4m3"), OUTPUTS[:4], ("f32", "f16")
    ):
        for block in BLOCKS if a == "i4" else (0,):
            scale = ScaleRequest(b, block) if block else None
            yield Problem("gemm", (a, b, out), LAYOUT, accumulator, (scale, None))


def grouped() -> Iterator[Problem]:
    """Grouped GEMMs."""
    for ab, out in itertools.product(("f32", *HALVES, *EIGHT_BITS, *INTEGERS), OUTPUTS):
        yield from _each_accumulation(Problem("grouped_gemm", (ab, ab, out), LAYOUT, _accumulator(ab)))
    for ab, out in itertools.product(EIGHT_BITS, OUTPUTS):
        yield Problem("grouped_gemm", (ab, ab, out), LAYOUT, "f32", BY_ROWS_AND_BLOCKS)


def epilogues() -> Iterator[Problem]:
    """GEMMs of bf16 with an epilogue of each class."""
    for epilogue in examples().values():
        yield Problem("gemm", ("bf16", "bf16", "bf16"), LAYOUT, "f32", epilogue=epilogue)


def fused_operands() -> Iterator[Problem]:
    """GEMMs of equal element types with one epilogue."""
    epilogue = examples()["number"]
    for ab, out in itertools.product(("tf32", *HALVES, *EIGHT_BITS, *INTEGERS), OUTPUTS):
        yield from _each_accumulation(
            Problem("gemm", (ab, ab, out), LAYOUT, _accumulator(ab), epilogue=epilogue)
        )


def layouts(problems: Sequence[Problem]) -> Iterator[Problem]:
    """The same in every layout of a, b and out."""
    for problem, letters in itertools.product(problems, itertools.product("tn", repeat=3)):
        yield replace(problem, layouts="".join(letters))


def _each_accumulation(problem: Problem) -> Iterator[Problem]:
    """A problem with exact sums, and with fast ones where a target has both."""
    yield problem
    fast = with_sums(problem, FAST, FAST_SUMS_TARGET)
    if fast != problem:
        yield fast


def _plain(ab: str, out: str) -> Problem:
    return Problem("gemm", (ab, ab, out), LAYOUT, _accumulator(ab))


def _accumulator(ab: str) -> str:
    return DEFAULT_ACCUMULATORS.get(ab, "f32")


def own_generators() -> dict[str, GeneratorReference]:
    """The generators of this package, as its sources register them: by no means all that are installed."""
    project = load_toml(REPOSITORY / "pyproject.toml")["project"]
    entries: dict[str, str] = project["entry-points"][GENERATORS]
    return {name: GeneratorReference(name, location) for name, location in sorted(entries.items())}


# ---- queries of generators -------------------------------------------------------------------------------


class Answer(NamedTuple):
    """What a generator has for a problem on a target.

    Attributes:
        generator: its name.
        problem: what was queried.
        target: GPU code target.
        kernels: the records, without those that are known to be bad.
    """

    generator: str
    problem: Problem
    target: str
    kernels: tuple[Kernel, ...]


@dataclass(frozen=True)
class Generators:
    """The generators of the package, and workers that answer for them.

    Attributes:
        pool: the workers.
        references: to the generators, by name.
        dsl_version: what is installed.
    """

    pool: Pool
    references: Mapping[str, GeneratorReference]
    dsl_version: str

    @classmethod
    def start(cls, jobs: int) -> Generators:
        """With workers of this machine. Use :attr:`pool` as a context manager.

        Args:
            jobs: most workers at once.
        """
        own, compiler = own_generators(), detect_compiler()
        modules = {module for reference in own.values() for module in reference.load().modules}
        pool = Pool(jobs, tuple(sorted(modules)), 600.0, compiler.roots)
        return cls(pool, own, compiler.versions["nvidia-cutlass-dsl"])

    def answers(
        self,
        problems: Sequence[Problem],
        targets: Sequence[str] | None = None,
        generators: Sequence[str] | None = None,
    ) -> Iterator[Answer]:
        """What there is for problems; those that there is nothing for are left out.

        Args:
            problems: to query.
            targets: on which targets; None for all that a generator has.
            generators: of which; None for all that have the operation.
        """
        instances = {name: reference.load() for name, reference in self.references.items()}
        queries = [
            Enumeration(0, reference, problem, target)
            for name, reference in self.references.items()
            if generators is None or name in generators
            for problem in problems
            if problem.operation in instances[name].operations
            for target in instances[name].targets(problem.operation)
            if targets is None or target in targets
            # Elsewhere all sums are exact.
            if problem.accumulation != FAST or has_fast_sums(problem, target)
        ]
        profiles = {q.target: profile_for(q.target) for q in queries}
        for start in range(0, len(queries), _QUERIES_AT_ONCE):
            some = queries[start : start + _QUERIES_AT_ONCE]
            for query, kernels in compiling.enumerate_kernels(self.pool, some, profiles):
                good = tuple(kernel for kernel in kernels if not known_bad(kernel, self.dsl_version))
                if good:
                    yield Answer(query.generator.name, query.problem, query.target, good)


# ---- tables ----------------------------------------------------------------------------------------------

Counts = dict[str, int]
"""Number of kernels by target."""


def table(head: Sequence[str], rows: Sequence[tuple[Sequence[str], Counts]]) -> str:
    """A Markdown table of rows in words with counts by target; a target without any is left out."""
    targets = sorted({target for _, counts in rows for target in counts}, key=_target_order)
    lines = [(*words, *(counts.get(target, "") for target in targets)) for words, counts in rows]
    return markdown([*head, *targets], lines, right=len(targets))


def _target_order(target: str) -> tuple[int, str]:
    return int(re.sub(r"\D", "", target)), target


def by_operands(answers: Iterator[Answer]) -> str:
    """A row for each generator, a, b, scale factors and accumulator; outputs of equal counts together."""
    result: dict[tuple[str, str, str, str, str], dict[str, Counts]] = defaultdict(lambda: defaultdict(dict))
    for answer in answers:
        a, b, out = answer.problem.dtypes
        fast = ", fast sums" if answer.problem.accumulation == FAST else ""
        row = (answer.generator, a, b, scale_text(answer.problem), answer.problem.accumulator + fast)
        result[row][out][answer.target] = len(answer.kernels)
    scaled = any(row[3] for row in result)
    rows = []
    for row, outputs in result.items():
        together: dict[tuple[tuple[str, int], ...], list[str]] = defaultdict(list)
        for out, counts in outputs.items():
            together[tuple(sorted(counts.items()))].append(out)
        generator, a, b, scale, accumulator = row
        for same, outs in together.items():
            words = [f"`{generator}`", a, b, *([scale] if scaled else []), accumulator, ", ".join(outs)]
            rows.append((words, dict(same)))
    head = ["generator", "a", "b", *(["scale factors"] if scaled else []), "accumulator", "out"]
    return table(head, rows)


def scale_text(problem: Problem) -> str:
    """Scale factors of a problem in words; ``""`` for none."""
    texts = [str(scale) if scale else "" for scale in problem.scales]
    if texts[0] == texts[1]:
        return texts[0]
    return ", ".join(f"{name}: {text}" for name, text in zip("ab", texts, strict=True) if text)


def by_layout(answers: Iterator[Answer]) -> str:
    """A row for each generator, operands and set of targets: the layouts that there are."""
    result: dict[tuple[str, str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for answer in answers:
        fast = ", fast sums" if answer.problem.accumulation == FAST else ""
        row = answer.generator, ".".join(answer.problem.dtypes) + fast, scale_text(answer.problem)
        result[row][answer.target].append(answer.problem.layouts)
    scaled = any(row[2] for row in result)
    head = ["generator", "a.b.out", *(["scale factors"] if scaled else []), "targets", "layouts"]
    lines = []
    for (generator, dtypes, scale), targets in result.items():
        together: dict[tuple[str, ...], list[str]] = defaultdict(list)
        for target, words in targets.items():
            together[tuple(sorted(words))].append(target)
        for letters, names in together.items():
            which = "all" if len(letters) == 8 else ", ".join(letters)
            words = [f"`{generator}`", dtypes, *([scale] if scaled else []), ", ".join(names), which]
            lines.append(words)
    return markdown(head, lines)


def by_class(answers: Iterator[Answer]) -> str:
    """A row for each generator; classes of epilogues that have equal counts together."""
    classes = examples()
    result: dict[tuple[str, str], Counts] = defaultdict(dict)
    for answer in answers:
        # One example may stand for more than one class.
        for name in (name for name, epilogue in classes.items() if epilogue == answer.problem.epilogue):
            result[answer.generator, name][answer.target] = len(answer.kernels)
    together: dict[tuple[str, tuple[tuple[str, int], ...]], list[str]] = defaultdict(list)
    for (generator, name), counts in result.items():
        together[generator, tuple(sorted(counts.items()))].append(name)
    rows = []
    for (generator, same), names in together.items():
        words = ", ".join(f"`{name}`" for name in classes if name in names)
        rows.append(((f"`{generator}`", words), dict(same)))
    return table(["generator", "classes"], rows)


def by_parameters(answers: Iterator[Answer]) -> str:
    """A row for each declared kernel and the element types of its operands."""
    result: dict[tuple[str, str], Counts] = defaultdict(lambda: defaultdict(int))
    for answer in answers:
        for kernel in answer.kernels:
            dtypes = ".".join(operand.dtype for operand in kernel.operands)
            result[answer.problem.operation, dtypes][answer.target] += 1
    return table(
        ["operation", "operands"],
        [((f"`{operation}`", dtypes), counts) for (operation, dtypes), counts in result.items()],
    )


# ---- sections of the page --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Section:
    """One table.

    Attributes:
        problems: what is queried for it.
        render: makes the table of the answers.
        targets: on which targets; None for all that a generator has.
    """

    problems: Callable[[], Iterator[Problem]]
    render: Callable[[Iterator[Answer]], str]
    targets: tuple[str, ...] | None = None


_FEW_TARGETS = ("sm_80", "sm_90a", "sm_100a", "sm_103a")


def _dense_layouts() -> Iterator[Problem]:
    pairs = [("f64", "f64"), ("tf32", "f32"), ("bf16", "bf16"), ("f8e4m3", "bf16"), ("i8", "i32")]
    return layouts([problem for pair in pairs for problem in _each_accumulation(_plain(*pair))])


def _block_scaled_layouts() -> Iterator[Problem]:
    pairs = [("f8e4m3", "f8e4m3"), ("f8e4m3", "f6e3m2"), ("f6e3m2", "f6e3m2"), ("f8e4m3", "f4e2m1")]
    problems = [Problem("gemm", (*pair, "bf16"), LAYOUT, "f32", (MX, MX)) for pair in pairs]
    nvfp4 = Problem("gemm", ("f4e2m1", "f4e2m1", "bf16"), LAYOUT, "f32", (SCALES[2], SCALES[2]))
    return layouts([*problems, nvfp4])


def _mixed_input_layouts() -> Iterator[Problem]:
    scale = ScaleRequest("bf16", 128)
    return layouts(
        [
            Problem("gemm", ("i8", "bf16", "bf16"), LAYOUT, "f32"),
            Problem("gemm", ("i4", "bf16", "bf16"), LAYOUT, "f32", (scale, None)),
        ]
    )


def _grouped_layouts() -> Iterator[Problem]:
    return layouts([Problem("grouped_gemm", ("bf16", "bf16", "bf16"), LAYOUT, "f32")])


def declared() -> Iterator[Problem]:
    for name, reference in own_generators().items():
        if reference.location.startswith("cutlass_aot.kernels."):
            yield Problem(name, (), "", "")


SECTIONS: Mapping[str, Section] = {
    "dense": Section(dense, by_operands),
    "dense layouts": Section(_dense_layouts, by_layout, _FEW_TARGETS),
    "epilogues": Section(epilogues, by_class, NEW_TARGETS),
    "epilogue operands": Section(fused_operands, by_operands, ("sm_90a", "sm_100a", "sm_103a")),
    "block-scaled": Section(block_scaled, by_operands, NEW_TARGETS),
    "block-scaled layouts": Section(_block_scaled_layouts, by_layout, ("sm_100a",)),
    "mixed-input": Section(mixed_input, by_operands, NEW_TARGETS),
    "mixed-input layouts": Section(_mixed_input_layouts, by_layout, ("sm_100a",)),
    "grouped": Section(grouped, by_operands),
    "grouped layouts": Section(_grouped_layouts, by_layout, ("sm_100a",)),
    "declared": Section(declared, by_parameters),
}
"""Tables by the name of their marker."""


def rendered(generators: Generators, name: str) -> str:
    """One table, queried anew."""
    section = SECTIONS[name]
    return section.render(generators.answers(list(section.problems()), section.targets))


def _between(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- support: {re.escape(name)} -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def shown(page: str, name: str) -> str:
    """The table that a page has.

    Raises:
        ValueError: if the page has no markers for it.
    """
    match = _between(name).search(page)
    if match is None:
        raise ValueError(f"the page has no table between <!-- support: {name} --> and <!-- end -->")
    return match.group(2).strip()


def written(page: str, name: str, made: str) -> str:
    """The page with another table."""
    # A function: backslashes of a table are not references to groups.
    return _between(name).sub(lambda match: f"{match[1]}{made}\n{match[3]}", page)


@click.command()
@click.argument("page", type=click.Path(exists=True, dir_okay=False, path_type=Path), default=PAGE)
@click.option("--section", "names", multiple=True, type=click.Choice(list(SECTIONS)), help="Not all of them.")
@click.option("-j", "--jobs", type=click.IntRange(1), default=available_workers, help="Workers.")
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if the page is out of date.")
def main(page: Path, names: tuple[str, ...], jobs: int, check: bool) -> None:
    """Query the generators, and write the tables of the page."""
    text = page.read_text(encoding="utf-8")
    stale = []
    generators = Generators.start(jobs)
    with generators.pool:
        for name in names or SECTIONS:
            made = rendered(generators, name)
            if shown(text, name) != made:
                stale.append(name)
                text = written(text, name, made)
    if not check:
        page.write_text(text, encoding="utf-8")
    done = "is out of date" if check else "written"
    click.echo(f"{page}: {', '.join(stale) or 'nothing'} {done}", err=True)
    sys.exit(1 if check and stale else 0)


if __name__ == "__main__":
    try:
        main()
    except (CutlassAotError, ValueError) as error:
        sys.exit(f"error: {error}")

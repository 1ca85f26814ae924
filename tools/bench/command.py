"""What the benchmarks share: the command line, tables, the record of a run, and the report on records."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from tools.bench.machine import Machine, about
from tools.bench.process import Worker, work

KIND = "cutlass-aot benchmarks"
SCHEMA = 2
REPOSITORY = Path(__file__).resolve().parents[2]
_WORDS = {True: "yes", False: "**no**", None: ""}

_HEAD = """# Benchmarks

Made by `python -m tools.bench.gpu --report FILES`. `make bench` prints the rows that need no GPU and
`make bench-gpu` the others; `tools/bench/cpu.py`, `tools/bench/build.py` and `tools/bench/gpu.py` say how
they measure. Figures that are compared were measured in turns, in one run.
"""


class Row(NamedTuple):
    """One row of the summary. ``met`` is None where the row is not a goal, or could not be measured."""

    what: str
    measured: str
    goal: str = ""
    met: bool | None = None


class Table(NamedTuple):
    """A table of details."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """The title as a section, and the table."""
        return f"### {self.title}\n\n{markdown(self.head, self.rows)}"


class Result(NamedTuple):
    """What one part of a benchmark gives; the numbers can be written as JSON."""

    rows: Sequence[Row]
    numbers: Mapping[str, Any]
    tables: Sequence[Table] = ()


Part = Callable[[argparse.Namespace], Result]


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]], right: int = 0) -> str:
    """A table in Markdown, whose last ``right`` columns are those of numbers."""
    lines = [f"| {' | '.join(map(str, line))} |" for line in (head, *rows)]
    lines.insert(1, "|" + "---|" * (len(head) - right) + "--:|" * right)
    return "\n".join(lines)


def summary(rows: Iterable[Row]) -> str:
    """The rows of a summary as Markdown."""
    return markdown(("what", "measured", "goal", "met"), [(*row[:3], _WORDS[row.met]) for row in rows])


def parser(description: str | None, parts: Iterable[str], repeat: int) -> argparse.ArgumentParser:
    """A parser of what every benchmark takes.

    Args:
        description: documentation of the benchmark's module.
        parts: names of its parts.
        repeat: how often each figure is measured.
    """
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--part", action="append", choices=list(parts), help="this part alone; repeatable")
    made.add_argument("--repeat", type=int, default=repeat, help="fresh processes for each figure")
    made.add_argument("-o", "--output", type=Path, help="write the numbers as JSON")
    made.add_argument("--worker", nargs="+", help=argparse.SUPPRESS)
    return made


def run(
    arguments: argparse.Namespace,
    parts: Mapping[str, Part],
    workers: Mapping[str, Worker],
    default: Sequence[str] = (),
) -> None:
    """Run the parts of a command line, or the worker that it names; print the tables, and exit.

    The exit status is 1 if a part could not be measured, which its row says.

    Args:
        arguments: as :func:`parser` reads them.
        parts: by name.
        workers: of fresh processes, by name.
        default: parts to run if none is named; all if left out.
    """
    if arguments.worker:
        work(workers, arguments.worker)
    machine = about()
    results: dict[str, Result] = {}
    failed = False
    for name in arguments.part or default or parts:
        print(f"{name} ...", file=sys.stderr, flush=True)
        try:
            results[name] = parts[name](arguments)
        except RuntimeError as error:
            results[name] = Result([Row(f"`--part {name}`", f"not measured: {error}")], {})
            failed = True
        if arguments.output:
            # After each part: what a later one breaks is not lost.
            _write_record(arguments.output, machine, results)
    print(_printed(machine, results.values()))
    sys.exit(failed)


def _printed(machine: Machine, results: Iterable[Result]) -> str:
    results = list(results)
    tables = [table.markdown() for result in results for table in result.tables]
    rows = [row for result in results for row in result.rows]
    return "\n\n".join([machine.markdown(), *([summary(rows)] if rows else []), *tables])


def _write_record(path: Path, machine: Machine, results: Mapping[str, Result]) -> None:
    parts = {name: result._asdict() for name, result in results.items()}
    record = {"kind": KIND, "schema": SCHEMA, "machine": asdict(machine), "parts": parts}
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def report(
    paths: Sequence[Path], tables: Mapping[str, Callable[[Mapping[str, Any]], Sequence[Table]]]
) -> str:
    """The report on records, each with its machine, in the order given.

    Args:
        paths: what benchmarks wrote.
        tables: makes the tables of a part anew out of its numbers, by the part's name.

    Raises:
        ValueError: for a file of another kind or schema.
    """
    sections = [_HEAD]
    for path in paths:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or (record.get("kind"), record.get("schema")) != (KIND, SCHEMA):
            raise ValueError(f"{path}: expected what the -o of a benchmark wrote, of schema {SCHEMA}")
        machine = Machine(**record["machine"])
        results = []
        for name, part in record["parts"].items():
            made = (
                tables[name](part["numbers"]) if name in tables else [Table(*item) for item in part["tables"]]
            )
            results.append(Result([Row(*row) for row in part["rows"]], part["numbers"], made))
        sections.append(f"## {machine.date}, {machine.gpu.partition(',')[0] or 'no GPU'}\n")
        sections.append(_printed(machine, results) + "\n")
    return "\n".join(sections)

"""Rows of benchmark tables, and the report of runs, whose tables are in docs/results/benchmarks.md."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.bench.machine import Machine

KIND = "cutlass-aot benchmarks"
_WORDS = {True: "yes", False: "**no**", None: ""}

_HEAD = """# Benchmarks

Made by `python -m tools.bench.gpu --report FILES`. `make bench` prints the rows that need no GPU and
`make bench-gpu` the others; `tools/bench/cpu.py`, `tools/bench/build.py` and `tools/bench/gpu.py` say how
they measure. Figures that are compared were measured in turns, in one run.
"""


@dataclass(frozen=True)
class Row:
    """One row of a table. ``met`` is None where the row is not a goal, or could not be measured."""

    what: str
    measured: str
    goal: str = ""
    met: bool | None = None


def table(rows: Sequence[Row]) -> str:
    """Rows as Markdown."""
    lines = ["| what | measured | goal | met |", "|---|---|---|---|"]
    lines += [f"| {row.what} | {row.measured} | {row.goal} | {_WORDS[row.met]} |" for row in rows]
    return "\n".join(lines)


def write_record(path: Path, machine: Machine, rows: Sequence[Row], numbers: Mapping[str, Any]) -> None:
    """Write what was measured as JSON."""
    record = {
        "kind": KIND,
        "machine": asdict(machine),
        "rows": [asdict(row) for row in rows],
        "numbers": numbers,
    }
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def report(paths: Sequence[Path]) -> str:
    """The report on runs that were written as JSON, each with its machine, in the order given.

    Raises:
        ValueError: for a file of another kind.
    """
    parts = [_HEAD]
    for path in paths:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(record, dict) or record.get("kind") != KIND:
            raise ValueError(f"{path}: expected what the -o of a benchmark wrote")
        machine = Machine(**record["machine"])
        parts.append(f"## {machine.date}, {machine.gpu.partition(',')[0] or 'no GPU'}\n")
        parts.append(machine.markdown() + "\n")
        parts.append(table([Row(**row) for row in record["rows"]]) + "\n")
        problems = record["numbers"].get("throughput", {}).get("problems", [])
        if problems:
            parts.append("### Every problem\n")
            parts.append(problem_table(problems) + "\n")
    return "\n".join(parts)


def problem_table(problems: Sequence[Mapping[str, Any]]) -> str:
    """Throughput problem by problem; times in seconds in, microseconds out."""
    lines = [
        "Times in µs. The last two columns are speeds of `bundle.gemm`, with that of the best kernel and of "
        "cuBLAS as 1.\n",
        "| dtype | problems | m x n x k | tier | gemm | best | cuBLAS | untuned | of best | of cuBLAS |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for item in problems:
        lines.append(
            f"| {item['dtype']} | {item['kind']} | {item['m']} x {item['n']} x {item['k']} | {item['tier']} "
            f"| {_time(item['gemm'])} | {_time(item['best'])} | {_time(item['cublas'])} "
            f"| {_time(item['untuned'])} | {_ratio(item['best'], item['gemm'])} "
            f"| {_ratio(item['cublas'], item['gemm'])} |"
        )
    return "\n".join(lines)


def _time(seconds: float) -> str:
    return f"{seconds * 1e6:.1f}"


def _ratio(other: float, ours: float) -> str:
    return f"{other / ours:.2f}"

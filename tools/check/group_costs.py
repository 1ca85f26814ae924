"""How well the cost formula chooses kernels of groups, by measured times, and constants that fit them better.

    python -m tools.check.group_costs FILE ... [--fit FILE ...] [--steps 12]

FILEs are what ``python -m tools.bench.experts BUNDLE --part contiguous masked bf16 --drawn N --seed S
--kernels -o FILE`` wrote on a GPU; none is needed here. The formula and its constants are those of
``cutlass_aot/generators/sm90_gemm/costs.py``. Prints for each file and kind of groups the regret: the
time of the kernel that the formula puts first over that of the fastest one.

With ``--fit``, constants are fitted to other files, one set for each kind, and printed with their regret on
those that are judged: on logarithmic scales, by the Levenberg-Marquardt method, to the logarithms of times.
Times far above the fastest one's count less, since such kernels are not chosen anyway.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from cutlass_aot.generators.gemm import GROUPED_GEMM, MASKED_GROUPED_GEMM
from cutlass_aot.generators.sm90_gemm.costs import GroupTimes, cost_of_groups, group_times
from cutlass_aot.schema.kernels.cost import costs_of, numbers_of
from tools.bench.command import markdown

KINDS = {"contiguous": (GROUPED_GEMM, 8), "masked": (MASKED_GROUPED_GEMM, 8), "bf16": (GROUPED_GEMM, 16)}
"""What the benchmark calls them: the operation, and the bits of an element."""

COUNTS_LESS = 1.3
"""A time that is so many times the fastest one's counts half, and one that is twice as far above a fifth."""

DRAWN_TO_TODAYS = 0.3
"""What a constant's logarithm that differs from today's by 1 counts, beside those of times. Some constants
can take each other's place, and so stay where they are."""

STEP = 1e-3
"""Of a constant's logarithm, for derivatives."""


class Problem(NamedTuple):
    """Numbers that the formula reads of a problem, for each kernel, and the kernels' times: microseconds."""

    values: list[dict[str, float]]
    times: list[float]


def problems_of(path: Path, kind: str) -> list[Problem]:
    """The problems of a kind in a file."""
    found = json.loads(path.read_text())
    designs = {name: numbers_of(_tuples(design)) for name, design in found["designs"].items()}
    problems = []
    for problem in found["problems"]:
        times = {n: t for n, t in problem["microseconds"].items() if n in designs}
        if problem["name"].startswith(f"{kind} ") and len(times) > 1:
            known = found["machine"] | problem["extents"]
            problems.append(Problem([known | designs[name] for name in times], list(times.values())))
    return problems


def _tuples(design: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in design.items()}


def regrets(text: str, problems: Iterable[Problem]) -> list[float]:
    """The time of the kernel that a formula puts first, over the fastest one's."""
    found = []
    for values, times in problems:
        costs = costs_of(text, values)
        found.append(times[costs.index(min(costs))] / min(times))
    return found


def fit(operation: str, bits: int, times: GroupTimes, problems: Sequence[Problem], steps: int) -> GroupTimes:
    """Constants for which the formula comes closer to the times of problems."""
    values = [value for problem in problems for value in problem.values]
    measured = np.log([time for problem in problems for time in problem.times])
    above = np.array([time / min(p.times) - 1 for p in problems for time in p.times])
    weights = 1 / (1 + (above / (COUNTS_LESS - 1)) ** 2)

    def residuals(logarithms: Any) -> Any:
        text = cost_of_groups(operation, bits, GroupTimes(*map(float, np.exp(logarithms))))
        missed = weights * (np.log(costs_of(text, values)) - measured)
        return np.concatenate([missed, DRAWN_TO_TODAYS * (logarithms - todays)])

    found = todays = np.log(np.array(times))
    damping, at = 1e-2, residuals(found)
    for _ in range(steps):
        slopes = np.stack([(residuals(found + STEP * unit) - at) / STEP for unit in np.eye(len(found))], 1)
        square = slopes.T @ slopes
        while damping < 1e6:
            damped = square + damping * np.diag(np.diag(square) + 1e-9)
            tried = found - np.linalg.solve(damped, slopes.T @ at).clip(-1, 1)
            if (further := residuals(tried)) @ further < at @ at:
                found, at, damping = tried, further, damping / 5
                break
            damping *= 4
    return GroupTimes(*(float(f"{value:.3g}") for value in np.exp(found)))


def line(what: str, text: str, problems: Sequence[Problem]) -> tuple[str, ...]:
    """A row of the table."""
    found = sorted(regrets(text, problems))
    high = found[math.ceil(0.95 * len(found)) - 1]
    mean = statistics.geometric_mean(found)
    return what, str(len(found)), f"{mean:.3f}", f"{high:.2f}", f"{found[-1]:.2f}"


@click.command(help=__doc__)
@click.argument("paths", metavar="FILE ...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--fit", "to", multiple=True, type=click.Path(path_type=Path), help="fit constants to this")
@click.option("--steps", default=12, show_default=True, help="of the fit")
def main(paths: tuple[Path, ...], to: tuple[Path, ...], steps: int) -> None:
    """Print the table, and constants."""
    rows, constants = [], []
    for kind, (operation, bits) in KINDS.items():
        files = {path: problems_of(path, kind) for path in paths}
        times = group_times(operation, bits)
        formulas = [("", cost_of_groups(operation, bits, times))]
        if known := [problem for path in to for problem in problems_of(path, kind)]:
            fitted = fit(operation, bits, times, known, steps)
            formulas.append((", fitted", cost_of_groups(operation, bits, fitted)))
            constants.append(f"{kind}: {fitted}")
        rows += [
            line(f"{kind}, {path.name}{which}", text, problems)
            for path, problems in files.items()
            for which, text in formulas
            if problems
        ]
    click.echo(markdown(("kind, file", "problems", "regret", "95%", "worst"), rows))
    for text in constants:
        click.echo(text)


if __name__ == "__main__":
    main()

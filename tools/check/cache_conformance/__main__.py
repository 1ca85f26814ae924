"""Test a cache of ``cute.compile`` for what its keys leave out, and what killed writers leave behind.

    python tools/check/cache_conformance                                    ours
    python tools/check/cache_conformance --cache quack --cache flash-attn-4
    python tools/check/cache_conformance --cache my_package.testing:MyCache --json

Prints a table in Markdown. Exits with 1 if a hazard is not handled. Needs the DSL, and the packages whose
caches are tested; no GPU. ``--compile`` compiles the programs of every hazard first, and checks that their
code is different, or equal, as the hazard says.

How a cache of one's own is reached: ``protocol.py``. What the hazards are: ``--explain``, or ``hazards.py``.
"""

from __future__ import annotations

import functools
import json
import sys
from importlib import metadata
from pathlib import Path

import click

sys.path[0] = str(Path(__file__).resolve().parents[3])

from tools.bench.command import markdown  # noqa: E402
from tools.check.cache_conformance.caches import CACHES, cache_named  # noqa: E402
from tools.check.cache_conformance.hazards import HAZARDS  # noqa: E402
from tools.check.cache_conformance.suite import Result, Suite  # noqa: E402


@click.command(help=__doc__)
@click.option(
    "--cache",
    "caches",
    multiple=True,
    default=["cutlass-aot"],
    help=f"{', '.join(CACHES)}, or module:attribute.",
)
@click.option("--hazard", "names", multiple=True, help="Only these hazards.")
@click.option("--compile", "compiled", is_flag=True, help="Check the hazards themselves, too.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--explain", is_flag=True, help="Print what the hazards are, and run nothing.")
@click.option("--jobs", default=2, show_default=True, help="Hazards at once.")
def main(
    caches: tuple[str, ...], names: tuple[str, ...], compiled: bool, as_json: bool, explain: bool, jobs: int
) -> None:
    hazards = [hazard for hazard in HAZARDS if not names or hazard.name in names]
    if explain:
        for hazard in hazards:
            print(f"{hazard.name} ({hazard.expected.value}; {hazard.steps.value})")
            print(f"    {hazard.text}\n    {hazard.met}")
        return
    tested = [*(["compiled"] if compiled else []), *caches]
    results: dict[str, list[Result]] = {}
    for name in tested:
        results[name] = Suite(name, jobs).run(hazards, functools.partial(_tell, name))
    if as_json:
        print(
            json.dumps(
                {name: [result._asdict() for result in found] for name, found in results.items()}, indent=1
            )
        )
    else:
        _print_table(results)
    sys.exit(0 if all(result.passed for found in results.values() for result in found) else 1)


def _tell(cache: str, result: Result) -> None:
    if not result.passed:
        print(f"{cache}: {result.hazard}: {result.verdict}: {result.detail}", file=sys.stderr, flush=True)


def _print_table(results: dict[str, list[Result]]) -> None:
    lines = [
        (rows[0].hazard, rows[0].expected, *(row.verdict for row in rows))
        for rows in zip(*results.values(), strict=True)
    ]
    print(markdown(("hazard", "expected", *map(_title, results)), lines))


def _title(name: str) -> str:
    versions = [f"{item} {metadata.version(item)}" for item in cache_named(name).distributions]
    return f"{name} ({', '.join(versions)})" if versions else name


if __name__ == "__main__":
    main()

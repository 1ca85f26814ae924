"""``cutlass-aot verify``: every byte of a bundle, a wheel or a store."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cutlass_aot.cli.render import json_option, print_json
from cutlass_aot.words import plural

if TYPE_CHECKING:
    from cutlass_aot.bundle.verify import Problem


@click.command("verify")
@click.argument("path", type=click.Path(path_type=Path))
@json_option
def command(path: Path, as_json: bool) -> int:
    """Check every byte of PATH, a bundle, a wheel or a store, against its digest, and list what is wrong."""
    from cutlass_aot.bundle.verify import CHECKERS, Checker, verify_path

    store = Checker(
        kind="store",
        looks_like="a directory with a FORMAT file",
        recognises=lambda candidate: (candidate / "FORMAT").is_file(),
        verify=_store,
    )
    problems = verify_path(path, (*CHECKERS, store))
    if as_json:
        print_json({"path": str(path), "problems": [asdict(problem) for problem in problems]})
    else:
        for problem in problems:
            # Some problems are a thing that was found, some a sentence about the file; this reads for both.
            found = problem.found.removeprefix(f"{problem.path} is ").removeprefix(f"{problem.path}: ")
            click.echo(f"{problem.path}: {found}; expected {problem.expected}", err=True)
        click.echo(f"{path}: {plural(len(problems), 'problem') if problems else 'good'}")
    return 1 if problems else 0


def _store(path: Path) -> list[Problem]:
    from cutlass_aot.bundle.verify import Problem
    from cutlass_aot.store.check import check
    from cutlass_aot.store.store import Store

    return [
        Problem(damage.path, damage.problem, "what its name says; a build that needs it makes it again")
        for damage in check(Store(path, create=False))
    ]

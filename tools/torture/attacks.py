"""The command line of scripts that meet the command line with one attack after the other."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import click

from tools.bench.command import markdown


def attack_command(
    what: str,
    attacks: Iterable[str],
    meet: Callable[[str, Path], tuple[float, str, list[str]]],
    right: str,
    more: Sequence[str] = (),
) -> click.Command:
    """A command that prints a table of the attacks in Markdown, and exits with 1 if one found a fault.

    Args:
        what: its help.
        attacks: names.
        meet: takes a name and a private folder; gives seconds, what is wrong or ``""``, and further columns.
        right: a word for an attack that finds nothing wrong.
        more: titles of the further columns.
    """
    names = list(attacks)

    @click.command(help=what)
    @click.option("--attack", "chosen", multiple=True, type=click.Choice(names), help="This one; repeatable.")
    def main(chosen: tuple[str, ...]) -> None:
        rows = []
        for name in chosen or names:
            with tempfile.TemporaryDirectory(prefix="torture-") as folder:
                seconds, wrong, others = meet(name, Path(folder))
            rows.append((name, f"{seconds:.1f}", wrong or right, *others))
        click.echo(markdown(("attack", "seconds", "", *more), rows))
        if any(row[2] != right for row in rows):
            sys.exit(1)

    return main

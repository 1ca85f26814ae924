"""Shared output: tables, JSON, messages about interrupts and unchecked signatures."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from cutlass_aot.cli.output.terminal import lines_of, say
from cutlass_aot.errors import printable

if TYPE_CHECKING:
    from cutlass_aot.schema.kernels.kernel import Kernel

Function = TypeVar("Function", bound=Callable[..., Any])


def resumable(function: Function) -> Function:
    """Decorator of a command that compiles: an interrupt says what happens to the kernels compiled so far."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except KeyboardInterrupt:
            # Ends the line on which the terminal has shown ^C.
            with contextlib.suppress(OSError):
                say(err=True)
            raise click.Abort(
                "what was compiled is in the store, and the next build goes on from there"
            ) from None

    return cast("Function", call)


def tell_unchecked(bundle: Path) -> None:
    """Say that a bundle's signatures were not checked, if it has any and they cannot be checked here."""
    from cutlass_aot.runtime.files.signatures import is_signed, why_unchecked

    if is_signed(bundle) and (unchecked := why_unchecked()):
        say(f"{bundle}: {unchecked}", err=True)


def print_json(value: Any) -> None:
    """Print a value as indented JSON with sorted keys."""
    say(*lines_of(json.dumps(value, indent=2, sort_keys=True)))


def _broken(cell: str, width: int) -> list[str]:
    return textwrap.wrap(cell, width) if len(cell) > width else [cell]


WIDTH = 100
"""Most characters of a line, where they can be chosen."""

_LEAST = 24
"""Characters that a column keeps in which long cells are broken."""

# A number, with or without a unit; - stands for one that is not known.
_NUMBER = re.compile(r"-|[-+]?[0-9][0-9.,]*( [A-Za-z%]+)?")


def prose(text: str, indent: int = 2) -> list[str]:
    """A line of output as lines of at most :data:`WIDTH` characters; no word, path or name is broken.

    All but the first begin with ``indent`` spaces.
    """
    return textwrap.wrap(
        printable(text),
        WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def own_name(kernel: Kernel) -> str:
    """What a kernel's name has beyond its group's, which is printed once above the kernels of the group."""
    return kernel.name.removeprefix(f"{kernel.group_name}-")


def table(
    rows: Sequence[Sequence[object]],
    header: Sequence[str],
    groups: Sequence[tuple[str, ...]] | None = None,
) -> list[str]:
    """Columns padded to their widest cell; numbers, with or without a unit, are aligned to the right.

    A line has at most :data:`WIDTH` characters: the widest cells are broken over several, after a hyphen or a
    space if they have one. Only a word in the last column, such as a kernel's name, stays whole, however long
    it is, so that it can be copied. ``groups`` has lines on the group of each row, printed once above its
    rows.
    """
    cells = [[printable(str(cell)) for cell in row] for row in (header, *rows)]
    columns = list(zip(*cells, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [bool(rows) and all(map(_NUMBER.fullmatch, column[1:])) for column in columns]
    over = sum(widths) + 2 * (len(widths) - 1) - WIDTH
    for index in sorted(range(len(widths)), key=lambda index: -widths[index]):
        if over > 0 and not right[index] and widths[index] > _LEAST:
            narrowed = max(widths[index] - over, _LEAST)
            over -= widths[index] - narrowed
            widths[index] = narrowed
    lines: list[str] = []
    above: tuple[str, ...] = ()
    for number, row in enumerate(cells):
        if groups and number and groups[number - 1] != above:
            above = groups[number - 1]
            lines += above
        *first, last = zip(row, widths, strict=True)
        broken = [_broken(cell, width) for cell, width in first]
        broken.append(_broken(*last) if " " in last[0] else [last[0]])
        for parts in itertools.zip_longest(*broken, fillvalue=""):
            padded = [
                part.rjust(width) if is_right else part.ljust(width)
                for part, width, is_right in zip(parts, widths, right, strict=True)
            ]
            lines.append("  ".join(padded).rstrip())
    return lines

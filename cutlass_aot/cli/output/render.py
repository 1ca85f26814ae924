"""Shared output: tables, JSON, messages about interrupts and unchecked signatures."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from cutlass_aot.cli.output.terminal import say

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
    say(json.dumps(value, indent=2, sort_keys=True))


def table(rows: Sequence[Sequence[object]], header: Sequence[str]) -> str:
    """Columns padded to their widest cell; numbers are aligned to the right."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    right = [bool(rows) and all(isinstance(row[i], (int, float)) for row in rows) for i in range(len(header))]
    lines = []
    for row in cells:
        padded = [
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)

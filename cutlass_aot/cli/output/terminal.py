"""Print to the terminal: all output of the command line goes through here, but for moving lines of progress.

Names and texts of bundles, wheels and registries may come from strangers. A terminal acts on control
characters (it moves the cursor, sets the title, answers questions), so none is printed as it is. A line break
in a name would begin a line that seems to be ours, so each line is printed by itself.
"""

from __future__ import annotations

import click

from cutlass_aot.errors import printable


def say(*lines: object, err: bool = False) -> None:
    """Print lines to standard output, or to standard error; without arguments, an empty one.

    A line break within one of them is escaped.
    """
    for line in lines or ("",):
        click.echo(printable(str(line)), err=err)


def lines_of(text: str) -> list[str]:
    """The lines of a text that has several, such as an error with the author's source."""
    return text.expandtabs(4).split("\n")

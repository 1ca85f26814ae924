"""Print to the terminal: all output of the command line goes through here, but for moving lines of progress.

Names and texts of bundles, wheels and registries may come from strangers. A terminal acts on control
characters (it moves the cursor, sets the title, answers questions), so none is printed as it is.
"""

from __future__ import annotations

import click

from cutlass_aot.errors import printable


def say(text: object = "", *, err: bool = False) -> None:
    """Print a line to standard output, or to standard error."""
    click.echo(printable(str(text)), err=err)

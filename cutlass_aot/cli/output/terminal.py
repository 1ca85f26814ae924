"""Print to the terminal: all output of the command line goes through here, but for moving lines of progress.

Names and texts of bundles, wheels and registries may come from strangers. A terminal acts on control
characters (it moves the cursor, sets the title, answers questions), so none is printed as it is.
"""

from __future__ import annotations

import click


def printable(text: str) -> str:
    """Text with every character that a terminal may act on as an escape, such as ``\\x1b``.

    Line breaks and tabs stay. Characters that change the direction of writing, and halves of surrogate pairs,
    are escaped too.
    """
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character in "\n\t"
        else character.encode("unicode_escape").decode()
        for character in text
    )


def say(text: object = "", *, err: bool = False) -> None:
    """Print a line to standard output, or to standard error."""
    click.echo(printable(str(text)), err=err)

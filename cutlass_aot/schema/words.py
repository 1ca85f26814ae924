"""Numbers and lists as readable text, words that may be meant, and removal of control sequences."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LONGEST_WORD = 200
"""Longer text is not compared, which would take long: nobody misspells it."""

_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b.")


def size(count: int) -> str:
    """Bytes in a readable unit, such as ``57.2 KB`` (1 KB is 1,000 bytes)."""
    value = float(count)
    for unit in ("B", "KB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def by_numbers(text: object) -> list[tuple[int, int, str]]:
    """Sort key of text with numbers, by their values: sm_80 before sm_100a, 64x64 before 128x64."""
    parts = re.split(r"([0-9]+)", str(text))
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def plural(count: int, noun: str) -> str:
    """``1 kernel``, ``2 kernels``, ``2 libraries``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun[:-1]}ies" if noun.endswith("y") else f"{count} {noun}s"


def few(values: Iterable[object], most: int = 3, *, separator: str = ", ") -> str:
    """The first values and how many more there are, such as ``a, b, c and 2 more``; ``none`` without any."""
    texts = [str(value) for value in values]
    shown = separator.join(texts[:most]) or "none"
    return f"{shown}{separator.rstrip(', ')} and {len(texts) - most} more" if len(texts) > most else shown


def did_you_mean(found: object, known: Iterable[str]) -> str:
    """The end of a message about a word that is not known: ``; did you mean 'tile_shape'?``.

    ``""`` if none of the known words is close to it. Case does not matter.
    """
    meant = closest(found, known)
    return f"; did you mean {meant!r}?" if meant is not None else ""


def closest(found: object, known: Iterable[str]) -> str | None:
    """The known word that is most like another one; None if none is close to it. Case does not matter."""
    if not isinstance(found, str) or len(found) > _LONGEST_WORD:
        return None
    from difflib import get_close_matches

    words = {word.lower(): word for word in known if len(word) <= _LONGEST_WORD}
    close = get_close_matches(found.lower(), words, 1)
    return words[close[0]] if close else None


def duration(seconds: float) -> str:
    """Seconds in readable units: ``12 s``, ``3 min 20 s``, ``2 h 5 min``."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def without_colors(text: str) -> str:
    """Text without the colours and cursor movements of a terminal (ECMA-48 control sequences)."""
    return _TERMINAL.sub("", text)
